"""`rufus data harden`: problems that the base model does not solve, with answers that three solves agree on.

For each seed problem (Axion 1.0, stage I):

1. the writer composes it once into a harder problem;
2. the referee solves that `solves` times independently; only if all agree is the answer the reference. A problem that a
   solve calls broken, or on which two disagree, is discarded;
3. the base model tries it. If it fails, the problem is kept;
4. if it solves it, its own solution goes to the writer, who hardens the problem along it by one of four operations
   drawn at random (deterministically, from the seed and the problem), and 2 and 3 follow again, at most `rounds` times.

A problem that the base model still solves after the last round is set aside. The paper does not say how often it goes
round, nor how often the base model tries; both are ours.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from rufus_plugins.errors import ConfigError, DataError, InfrastructureError
from rufus_plugins.recipes.audit import AuditLog
from rufus_plugins.recipes.data.model_tool import ModelTool
from rufus_plugins.recipes.data.records import Raw, Refused
from rufus_plugins.recipes.data.stage_rows import statement_digest
from rufus_plugins.recipes.difficulty import wording
from rufus_plugins.recipes.teacher import ChatModel, NoAnswer, chat_model
from rufus_plugins.rewards.final_answer import final_answer
from rufus_plugins.types import Task, Trajectory


@dataclass
class Harden(ModelTool):
    """Composes, and hardens what the base model solves, until it does not; answers need agreement.

    Input: records with `question` (or `problem`, `prompt`). Output: `{id, problem, answer, operations, seed_question}`,
    which `rufus prepare reasoning_rl` reads.
    """

    base_url: str
    """Server of the base model, the one that will be trained."""
    base_model: str
    """Its name at that server."""
    referee_url: str
    """Server of the model that establishes the reference; the writer too, unless `writer-url` names another."""
    referee_model: str
    """Its name at that server."""
    writer_url: str = ""
    """Server of the model that rewrites problems; empty: the referee's."""
    writer_model: str = ""
    """Its name at that server."""
    api_key_env: str = ""
    """Environment variable that holds the servers' key."""
    reward: str = "math_answer"
    """Decides whether two answers are the same: math_answer or science_answer."""
    solves: int = 3
    """Independent solves that must agree (Axion 1.0)."""
    rounds: int = 3
    """Hardenings at most. Ours."""
    base_tries: int = 1
    """Attempts of the base model; one success counts as solved. Ours."""
    rewrites: int = 3
    """Replies of the writer that are read before the problem is given up. Ours."""
    seed: int = 0
    """Of the draws: the same seed gives the same output. Ours."""
    max_tokens: int = 8192
    """Longest answer, in tokens."""

    name = "harden"

    def __post_init__(self) -> None:
        if self.solves < 2 or self.rounds < 0 or self.base_tries < 1 or self.rewrites < 1:
            raise ConfigError("harden: solves must be at least 2, base-tries and rewrites 1, rounds 0")
        if self.reward not in ("math_answer", "science_answer"):
            raise ConfigError(f"harden: reward is {self.reward!r}; it can be math_answer or science_answer")
        if bool(self.writer_url) != bool(self.writer_model):
            raise ConfigError("harden: writer-url and writer-model go together")

    def models(self) -> Mapping[str, ChatModel]:
        def at(url: str, name: str) -> ChatModel:
            return chat_model(
                url, name, api_key_env=self.api_key_env, cache_dir=self.cache_dir_used, max_tokens=self.max_tokens
            )

        return {
            "base": at(self.base_url, self.base_model),
            "referee": at(self.referee_url, self.referee_model),
            "writer": at(self.writer_url or self.referee_url, self.writer_model or self.referee_model),
        }

    async def one(self, raw: Raw, models: Mapping[str, ChatModel], audit: AuditLog) -> dict[str, Any]:
        start = next((raw.record.get(k) for k in ("question", "problem", "prompt") if raw.record.get(k)), None)
        if not isinstance(start, str) or not start.strip():
            raise Refused("no_question", "the record has no text under question, problem or prompt")
        rng = random.Random(f"{self.seed} {start}")
        log = _Log(audit, raw.where)
        seen = {statement_digest(start)}
        operations: list[str] = ["composition"]
        question = await self._rewritten(models["writer"], wording.compose(start), seen, log, "compose")
        for round_ in range(self.rounds + 1):
            answer = await self._reference(models["referee"], question, log)
            solution = await self._solved(models["base"], question, answer, log)
            if solution is None:
                return {
                    "id": str(raw.record.get("id") or raw.where),
                    "problem": question,
                    "answer": answer,
                    "operations": operations,
                    "seed_question": start,
                }
            if round_ < self.rounds:
                operation = rng.choice(list(wording.OPERATIONS))
                operations.append(operation)
                asked = wording.harden(question, solution, operation)
                question = await self._rewritten(models["writer"], asked, seen, log, operation)
        raise Refused("still_solved", f"the base model solves it after {self.rounds} hardenings")

    async def _rewritten(
        self, writer: ChatModel, asked: list[dict[str, str]], seen: set[bytes], log: _Log, step: str
    ) -> str:
        why = Refused("bad_rewrite", "")
        for at in range(self.rewrites):
            said = await writer.ask(asked, sample=at)
            try:
                question = wording.read_question(said)
                if statement_digest(question) in seen:
                    raise Refused("unchanged", "the new problem is an old one")
            except Refused as error:
                why = error
                log(step, said=said, refused=error.reason)
                continue
            seen.add(statement_digest(question))
            log(step, said=said, question=question)
            return question
        raise why

    async def _reference(self, referee: ChatModel, question: str, log: _Log) -> str:
        """The answer that all solves agree on. Raises `Refused`."""
        asked = wording.referee(question)
        said = await asyncio.gather(*(referee.ask(asked, sample=i) for i in range(self.solves)))
        answers = [final_answer(text, last_line=False) for text in said]
        if any(text.lstrip("*# ").upper().startswith(wording.BROKEN) for text in said):
            log("reference", said=said, refused="broken")
            raise Refused("broken", "a solve calls the problem broken")
        if any(answer is None for answer in answers):
            log("reference", said=said, refused="no_answer")
            raise Refused("no_agreement", f"{answers.count(None)} of {self.solves} solves end without an answer")
        first = answers[0]
        same = [await self._same(first, other) and await self._same(other, first) for other in answers[1:]]
        log("reference", said=said, answers=answers, agreed=all(same))
        if not all(same):
            raise Refused("no_agreement", f"the solves give {', '.join(map(repr, answers))[:300]}")
        return first

    async def _solved(self, base: ChatModel, question: str, answer: str, log: _Log) -> str | None:
        """A right solution of the base model, or None."""
        asked = wording.solve(question)
        said = await asyncio.gather(*(_or_nothing(base, asked, i) for i in range(self.base_tries)))
        right = [await self._right(text, answer) for text in said]
        log("base", said=said, answer=answer, right=right)
        return next((text for text, ok in zip(said, right, strict=True) if ok), None)

    async def _same(self, gold: str, answer: str) -> bool:
        return await self._right(f"\\boxed{{{answer}}}", gold)

    async def _right(self, response: str, gold: str) -> bool:
        messages = [{"role": "assistant", "content": response}]
        try:
            score = await self._judge()(Trajectory(Task("", "", (), gold), messages=messages))
        except DataError as error:
            raise Refused("bad_reference", str(error)) from error
        except InfrastructureError as error:
            raise Refused("not_comparable", str(error)) from error
        return score.value >= 1.0

    def _judge(self) -> Any:
        if not hasattr(self, "_made"):
            from rufus_plugins.plugins import registry

            self._made = registry().build("reward", self.reward)
        return self._made


async def _or_nothing(base: ChatModel, asked: list[dict[str, str]], sample: int) -> str:
    """ "" where the base model was cut off or said nothing: it did not solve the problem."""
    try:
        return await base.ask(asked, sample=sample)
    except NoAnswer:
        return ""


class _Log:
    def __init__(self, audit: AuditLog, where: str):
        self.audit, self.where = audit, where

    def __call__(self, step: str, **what: Any) -> None:
        self.audit.write(step, where=self.where, **what)
