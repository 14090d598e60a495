"""A tiny model that knows episodes by heart, for runs whose outcome must not be a matter of luck.

An episode is played by a script in the model's place, through the driver and the environment of a real run, so the
model learns exactly the tokens of a rollout: prompt, turns, what tools answered, compacted contexts. Then it is taught
these segments until no sampled token of them is left to chance.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from rufus_plugins.errors import RufusError

if TYPE_CHECKING:
    from rufus_plugins.rollouts.episode import Limits, Rollout
    from rufus_plugins.rollouts.rules import EpisodeRules
    from rufus_plugins.rollouts.turns import Chat, Sampled
    from rufus_plugins.types import Task

Lesson = tuple[list[int], list[int]]
"""Ids of a segment, and a mask: 1 where the script sampled."""


class Script:
    """The driver's policy: `say(text)` answers to the text of a prompt; its special tokens become ids."""

    def __init__(self, tokenizer: Any, say: Callable[[str], str]):
        self.tokenizer, self.say = tokenizer, say

    async def generate(self, prompt_ids: list[int], max_tokens: int) -> Sampled:
        from rufus_plugins.rollouts.turns import Sampled

        text = self.say(self.tokenizer.decode(prompt_ids))
        return Sampled(self.tokenizer.encode(text, add_special_tokens=False), "stop")


def chat_of(model: Any, tokenizer: Any) -> Chat:
    """The model's chat format as a run has it: all of the model's end tokens end a turn."""
    from rufus_plugins.hosts.verl.chat_tokens import ChatTokens

    return ChatTokens(tokenizer, model.config.model_type, end_ids=model.config.eos_token_id)


async def play(
    task: Task, environment: Any, chat: Chat, script: Script, rules: EpisodeRules, limits: Limits
) -> tuple[list[Lesson], Rollout]:
    """One episode: its segments as lessons, and the rollout."""
    from rufus_plugins.rollouts.episode import Episode

    rollout = await Episode(task, environment, script, chat, rules, limits).run()
    lessons = []
    for segment in rollout.trajectory.segments:
        mask = [0] * len(segment.prompt_ids) + list(segment.response_mask)
        lessons.append(([*segment.prompt_ids, *segment.response_ids], mask))
    return lessons, rollout


def small_model(seed: int = 0) -> tuple[Any, Any]:
    """(model, tokenizer): the tiny Glm4Moe with one dense and two MoE layers of half the width, 0.35M parameters."""
    import torch
    from transformers import Glm4MoeConfig, Glm4MoeForCausalLM

    from rufus_plugins.recipes.tiny import tokenizer
    from rufus_plugins.recipes.tiny.model import config

    words = tokenizer.build()
    fields = config(words).to_dict()
    for derived in ("mlp_layer_types", "layer_types"):
        fields.pop(derived, None)
    fields |= {"hidden_size": 64, "head_dim": 16, "num_hidden_layers": 3}
    fields |= {"intermediate_size": 128, "moe_intermediate_size": 64}
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return Glm4MoeForCausalLM(Glm4MoeConfig(**fields)).float(), words


def teach(model: Any, lessons: Sequence[Lesson], *, surprise: float = 0.02, steps: int = 400, lr: float = 1e-2) -> int:
    """Trains on all lessons at once until the loss of no sampled token exceeds `surprise`; returns the steps taken.

    Tokens at which two lessons part are learnt and left to chance. Rates are ours. Raises `RufusError` after `steps`.
    """
    import torch

    # ids appear in order of length: padding costs as much as text
    lessons = sorted(lessons, key=lambda lesson: len(lesson[0]))
    half = (len(lessons) + 1) // 2
    batches = [_tensors(part, _partings(lessons)) for part in (lessons[:half], lessons[half:]) if part]
    total = sum(int(mask.sum()) for _, _, mask, _ in batches)
    optimizer = torch.optim.AdamW(model.parameters(), lr=lr, betas=(0.9, 0.95), weight_decay=0.0)
    model.train()
    worst = float("inf")
    for step in range(steps):
        optimizer.zero_grad()
        optimizer.param_groups[0]["lr"] = lr * min((step + 1) / 5, 1.0)
        worst = 0.0
        for ids, attention, mask, sure in batches:
            logits = model(input_ids=ids, attention_mask=attention, use_cache=False).logits[:, :-1]
            losses = torch.nn.functional.cross_entropy(logits.transpose(1, 2), ids[:, 1:], reduction="none") * mask
            worst = max(worst, float((losses.detach() * sure).max()))
            (losses.sum() / total).backward()
        if worst < surprise:
            model.eval()
            return step
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
    raise RufusError(f"after {steps} steps the model does not know its {len(lessons)} lessons: worst token {worst:.3f}")


def _partings(lessons: Sequence[Lesson]) -> set[tuple[int, ...]]:
    """Beginnings after which lessons go on differently."""
    following: dict[tuple[int, ...], set[int]] = {}
    for ids, mask in lessons:
        for at in range(1, len(ids)):
            if mask[at]:
                following.setdefault(tuple(ids[:at]), set()).add(ids[at])
    return {begin for begin, found in following.items() if len(found) > 1}


def _tensors(lessons: Sequence[Lesson], partings: set[tuple[int, ...]]) -> tuple[Any, Any, Any, Any]:
    """ids and attention `[lessons, tokens]`; mask and sure `[lessons, tokens - 1]`, of the token that comes next."""
    import torch

    width = max(len(ids) for ids, _ in lessons)
    pads = [width - len(ids) for ids, _ in lessons]
    ids = torch.tensor([ids + [0] * pad for (ids, _), pad in zip(lessons, pads, strict=True)])
    attention = torch.tensor([[1] * (width - pad) + [0] * pad for pad in pads])
    mask = torch.tensor([mask + [0] * pad for (_, mask), pad in zip(lessons, pads, strict=True)])[:, 1:]
    sure = torch.ones_like(mask)
    for row, (own, _) in enumerate(lessons):
        for at in range(1, len(own)):
            if tuple(own[:at]) in partings:
                sure[row, at - 1] = 0
    return ids, attention, mask, sure
