"""`rufus data dialogues`: multi-turn conversations in which a user adds, changes and distracts (Rufus-Air).

A teacher plays the user; several models take turns as the assistant. What the user does in a turn is drawn here, so
that it is known which constraints hold at the end:

- `add`: one more constraint that goes together with those that hold;
- `change`: one that holds is replaced by another of the same kind;
- `distract`: an aside that changes nothing.

An assistant that followed everything so far is met with a change or an addition, one that did not with a distraction as
well: the hard part is what was asked turns ago. The last turn asks for the whole text again. The record's prompt ends
there; its rubrics are the constraints that hold then, each with its checker, and a witness proves that they can hold.

The teacher words each move. A wording that loses a constraint, or adds a number, is asked for again, then replaced by
the plain one.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from rufus_plugins.errors import ConfigError
from rufus_plugins.recipes.audit import AuditLog
from rufus_plugins.recipes.data.model_tool import ModelTool
from rufus_plugins.recipes.data.records import Raw, Refused
from rufus_plugins.recipes.instruction_rl import faithful
from rufus_plugins.recipes.instruction_rl.catalog import KINDS, Atomic
from rufus_plugins.recipes.instruction_rl.conflicts import conflict
from rufus_plugins.recipes.instruction_rl.witness import witness
from rufus_plugins.recipes.teacher import chat_model
from rufus_plugins.rewards import constraints

_LEFT_OUT = {"combination:repeat_prompt"}
"""In a conversation there is no one request to repeat."""
_ASIDES = (
    "By the way, I slept badly last night. Any thoughts?",
    "Unrelated: what should I cook tonight?",
    "A colleague says that texts like this are a waste of time. What do you say to that?",
    "Before we go on: how do you like working on this?",
    "Quick question in between: what is a good name for a cat?",
    "Somebody just told me a joke about a duck. Do you know one?",
)
_PLAY = (
    "You play a user who talks to an assistant about a text that it writes for you. Write the user's next message, in "
    "the user's voice, one to four sentences. It must say exactly this, with every number, word and name in it "
    "unchanged, and no further requirement:\n\n{plain}\n\nReply with the message only."
)
_AGAIN = "Now give me the whole text again, with everything that I asked for and did not take back."


@dataclass
class Dialogues(ModelTool):
    """Adversarial conversations: a teacher as user, rotating assistants, rubrics for the last turn.

    Input: records with a `request` (or `prompt`, `instruction`, `question`). Output: `{id, prompt, rubrics, turns,
    moves, assistants, followed}`, which `rufus prepare instruction_rl` reads.
    """

    teacher_url: str
    """Server of the model that words the user's turns."""
    teacher_model: str
    """Its name at that server."""
    assistants: list[str]
    """One or more NAME@URL, for example `qwen@http://127.0.0.1:8001/v1`; they answer in turn."""
    api_key_env: str = ""
    """Environment variable that holds the servers' key."""
    fewest_turns: int = 4
    """Of the user. Ours."""
    most_turns: int = 8
    """Of the user. The recipe's conversations have 6.1 turns on average; the spread is ours."""
    most_constraints: int = 6
    """Constraints that hold at the same time, at most."""
    tries: int = 2
    """Wordings asked of the teacher before the plain one is taken. Ours."""
    judge_rubric: bool = False
    """Add a rubric for a judge: the last answer does what the user asked for."""
    seed: int = 0
    """Of the draws: the same seed gives the same output. Ours."""
    max_tokens: int = 4096
    """Longest answer, in tokens."""

    name = "dialogues"

    def __post_init__(self) -> None:
        if not 2 <= self.fewest_turns <= self.most_turns or self.most_constraints < 2 or self.tries < 1:
            raise ConfigError("dialogues: 2 <= fewest-turns <= most-turns, most-constraints >= 2 and tries >= 1")
        if not self.assistants:
            raise ConfigError("dialogues: --assistants needs at least one NAME@URL")
        for one in self.assistants:
            if not all(one.partition("@")[::2]):
                raise ConfigError(f"dialogues: --assistants has {one!r}; each is NAME@URL")

    def models(self) -> Mapping[str, Any]:
        more = {"api_key_env": self.api_key_env, "cache_dir": self.cache_dir_used, "max_tokens": self.max_tokens}
        pairs = [one.partition("@")[::2] for one in self.assistants]
        return {
            "teacher": chat_model(self.teacher_url, self.teacher_model, **more),
            "assistants": [chat_model(url, name, **more) for name, url in pairs],
        }

    async def one(self, raw: Raw, models: Mapping[str, Any], audit: AuditLog) -> dict[str, Any]:
        keys = ("request", "prompt", "instruction", "question")
        given = [raw.record.get(key) for key in keys]
        request = next((text.strip() for text in given if isinstance(text, str) and text.strip()), "")
        if not request or len(request) > 4_000:
            raise Refused("no_request", f"the record has no text of at most 4,000 characters under {', '.join(keys)}")
        rng = random.Random(f"{self.seed} {request}")
        turns = rng.randint(self.fewest_turns, self.most_turns)
        first = rng.randrange(len(models["assistants"]))
        held: list[Atomic] = []
        messages: list[dict[str, str]] = []
        moves: list[str] = []
        followed: list[float] = []
        names: list[str] = []
        worded: Counter[str] = Counter()
        for turn in range(turns):
            kind = self._kind(rng, turn, turns, moves, followed, held)
            move, plain, new = self._move(rng, kind, request, held)
            if turn == 0:
                plain = f"{request} {plain}"
            if turn == turns - 1:
                plain = f"{plain} {_AGAIN}"
            text, how = await self._said(models["teacher"], plain, new, turn, audit, raw.where)
            worded[how] += 1
            moves.append(move)
            messages.append({"role": "user", "content": text})
            if turn == turns - 1:
                break
            assistant = models["assistants"][(first + turn) % len(models["assistants"])]
            reply = await assistant.ask(messages)
            if not reply:
                raise Refused("empty_reply", f"assistant {assistant.model} said nothing in turn {turn + 1}")
            broken = [c.id for c in held if not constraints.follows(c.id, c.kwargs, reply)]
            audit.write(
                "reply", where=raw.where, turn=turn, model=assistant.model, move=move, broken=broken, said=reply
            )
            followed.append(1.0 - len(broken) / len(held) if held else 1.0)
            names.append(assistant.model)
            messages.append({"role": "assistant", "content": reply})
        if witness(held) is None:
            raise Refused("no_witness", "the constraints at the end could not be followed together")
        rubrics: list[dict[str, Any]] = [c.as_rubric() for c in held]
        if self.judge_rubric:
            wanted = f"The answer is the text that the user asked for in the conversation: {request[:500]}"
            rubrics.append({"id": "judge", "kwargs": {"criterion": wanted}, "name": "request"})
        self.notes["worded by the teacher"] += worded["teacher"]
        self.notes["worded plainly"] += worded["plain"]
        return {
            "id": str(raw.record.get("id") or raw.where),
            "prompt": messages,
            "rubrics": rubrics,
            "turns": turns,
            "moves": moves,
            "assistants": names,
            "followed": [round(share, 4) for share in followed],
        }

    def _kind(
        self, rng: random.Random, turn: int, turns: int, moves: list[str], followed: list[float], held: list[Atomic]
    ) -> str:
        if turn == 0:
            return "add"
        if turn == turns - 1:
            return "change" if "change" not in moves or rng.random() < 0.5 else "add"
        if turn == turns - 2 and "distract" not in moves:
            return "distract"
        full = len(held) >= self.most_constraints
        weights = (0, 2, 0) if full else (2, 2, 0)
        if followed[-1] < 1.0:
            weights = (weights[0], weights[1], 2)
        return rng.choices(("add", "change", "distract"), weights)[0]

    def _move(self, rng: random.Random, kind: str, request: str, held: list[Atomic]) -> tuple[str, str, list[Atomic]]:
        """(what was done, the plain message, constraints that it states); `held` is brought up to date."""
        if kind == "distract":
            return kind, rng.choice(_ASIDES), []
        if kind == "change" and held:
            at = rng.randrange(len(held))
            old, others = held[at], held[:at] + held[at + 1 :]
            for _ in range(20):
                new = KINDS[old.id].make(rng, request)
                if new.kwargs != old.kwargs and self._fits([*others, new], request):
                    held[at] = new
                    return kind, f'I changed my mind. Forget "{old.text}" Instead: {new.text}', [new]
            fresh = self._fresh(rng, others, request)
            if fresh:
                held[at] = fresh
                return kind, f'I changed my mind. Forget "{old.text}" Instead: {fresh.text}', [fresh]
        fresh = self._fresh(rng, held, request)
        if fresh is None or len(held) >= self.most_constraints:
            return "distract", rng.choice(_ASIDES), []
        held.append(fresh)
        return "add", f"One thing about the text: {fresh.text}", [fresh]

    def _fresh(self, rng: random.Random, held: list[Atomic], request: str) -> Atomic | None:
        for kind in rng.sample(list(KINDS.values()), len(KINDS)):
            if kind.id in _LEFT_OUT:
                continue
            new = kind.make(rng, request)
            if self._fits([*held, new], request):
                return new
        return None

    def _fits(self, wanted: list[Atomic], request: str) -> bool:
        return conflict(wanted, request) is None and witness(wanted) is not None

    async def _said(
        self, teacher: Any, plain: str, new: list[Atomic], turn: int, audit: AuditLog, where: str
    ) -> tuple[str, str]:
        for at in range(self.tries):
            said = await teacher.ask([{"role": "user", "content": _PLAY.format(plain=plain)}], sample=at)
            why = "empty or too long" if not said or len(said) > 3 * len(plain) + 600 else None
            why = why or next((w for w in (faithful.lost(said, c) for c in new) if w), None)
            number = faithful.invented(said, [plain])
            why = why or (f"the number {number} was added" if number else None)
            audit.write("user", where=where, turn=turn, plain=plain, said=said, refused=why)
            if why is None:
                return said, "teacher"
        return plain, "plain"
