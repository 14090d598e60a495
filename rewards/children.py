"""Rewards made of rewards: how the parts are named in a config, built and run.

A part is a reward's name, or a mapping `{reward: NAME, <field>: value, ...}`, for example
`{reward: science_answer, threshold: 0.95}`; `weight` and other keys of the composition are taken out first.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Iterable, Mapping, Sequence
from typing import Any

from rufus_plugins.errors import ConfigError
from rufus_plugins.protocols import Reward
from rufus_plugins.types import Score, Trajectory


def build_child(kind: str, part: Any) -> Reward:
    """The reward that a part of composition `kind` names. An object that is already a reward is taken as it is."""
    from rufus_plugins.plugins import registry

    if isinstance(part, str):
        return registry().build("reward", part)
    if isinstance(part, Mapping):
        config = {str(k): v for k, v in part.items()}
        name = config.pop("reward", None)
        if not isinstance(name, str):
            raise ConfigError(
                f"{kind}: the part {dict(part)} names no reward; write {{reward: NAME, field: value}} or just NAME"
            )
        return registry().build("reward", name, config)
    if callable(part):
        return part
    raise ConfigError(f"{kind}: a part is a reward's name or a mapping with the key `reward`, not {part!r}")


async def score_all(rewards: Sequence[Reward], trajectory: Trajectory) -> list[Score]:
    """All scores, at the same time. The first error ends the others and is raised: half a score is no score."""
    return await all_or_none([reward(trajectory) for reward in rewards])


async def all_or_none(work: Iterable[Awaitable[Any]]) -> list[Any]:
    """All results, at the same time and in order. The first error, or a cancellation, ends the others."""
    tasks = [asyncio.ensure_future(one) for one in work]
    try:
        return list(await asyncio.gather(*tasks))
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def child_metrics(names: Sequence[str], scores: Sequence[Score]) -> dict[str, Any]:
    """Each part's value as `<name>`, its metrics as `<name>/<metric>`."""
    found: dict[str, Any] = {}
    for name, score in zip(names, scores, strict=True):
        found[name] = score.value
        found |= {f"{name}/{key}": value for key, value in score.metrics.items()}
    return found


def child_explanation(names: Sequence[str], scores: Sequence[Score]) -> str:
    return "\n".join(
        f"{name} = {score.value:g}: {score.explanation}" for name, score in zip(names, scores, strict=True)
    )


def child_names(parts: Sequence[Any]) -> list[str]:
    """One distinct name per part: the reward's, numbered where it occurs twice."""
    plain = []
    for part in parts:
        if isinstance(part, str):
            plain.append(part)
        elif isinstance(part, Mapping):
            plain.append(str(part.get("reward", "part")))
        else:
            plain.append(type(part).__name__)
    return [name if plain.count(name) == 1 else f"{name}_{plain[: i + 1].count(name)}" for i, name in enumerate(plain)]
