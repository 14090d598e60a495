"""Contract checks for plugin authors, to be imported into their own tests.

Each check raises `ContractError` (an AssertionError, so that pytest shows it as a failed test) that says which rule of
rufus_plugins/protocols.py is broken, and returns what the part gave, so that a test can go on and look at the values.
"""

from __future__ import annotations

import asyncio
import importlib.metadata
import inspect
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import ModuleType
from typing import Any

from .errors import DataError, InfrastructureError
from .hookspecs import KINDS
from .plugins import Part, Registry, load
from .shapes import shape_problem
from .types import Message, Score, StepResult, Task, Termination, Trajectory

ODD_RESPONSES = (
    "",
    " \n\t",
    "no answer here",
    "\x00\ufffd\u202e\U0001f300",
    "```python\nraise SystemExit(3)\n```",
    "\\boxed{\\boxed{",
    "<tool_call>{'",
    "a" * 20_000,
)
"""What models do write. Any reward must score these; none may raise."""


class ContractError(AssertionError):
    """A part does not keep the contract of its kind."""


def sample_task(ground_truth: Any = None, prompt: str = "Question?", **fields: Any) -> Task:
    """A task with one user message. `fields` are those of `Task` (id, data_source, extra)."""
    return Task(
        id=fields.pop("id", "sample"),
        data_source=fields.pop("data_source", "sample"),
        prompt=fields.pop("messages", [{"role": "user", "content": prompt}]),
        ground_truth=ground_truth,
        **fields,
    )


def sample_trajectory(
    response: str = "", ground_truth: Any = None, *, task: Task | None = None, **fields: Any
) -> Trajectory:
    """A finished rollout with one assistant message. `fields` are those of `Trajectory` (tool_calls, artifacts ...)."""
    messages: Sequence[Message] = fields.pop("messages", [{"role": "assistant", "content": response}])
    return Trajectory(task=task or sample_task(ground_truth), messages=messages, **fields)


def check_name(kind: str, name: str) -> str:
    """The name can be a config name of this kind."""
    if kind not in KINDS:
        raise ContractError(f"there is no kind {kind!r}; the kinds are {', '.join(KINDS)}")
    problem = shape_problem(kind, name, lambda: None)
    if problem:
        raise ContractError("; ".join(problem))
    return name


def check_plugin(plugin: ModuleType | str, name: str = "plugin_under_test") -> Registry:
    """The module's hooks have the right names and shapes, and it registers something. It need not be installed."""
    module = plugin if isinstance(plugin, str) else plugin.__name__
    found = load([importlib.metadata.EntryPoint(name, module, "rufus")])
    if found.failures:
        raise ContractError("\n".join(map(str, found.failures)))
    return found


def check_reward(
    factory: Callable[..., Any],
    trajectories: Iterable[Trajectory],
    config: Mapping[str, Any] | None = None,
    *,
    deterministic: bool = True,
) -> list[Score]:
    """Scores each trajectory, and each of `ODD_RESPONSES` to the first one's task.

    The value is a finite number, the metrics are plain and have the same keys for every answer (verl makes columns of
    them), and scoring twice gives the same (unless `deterministic=False`, for judges). Returns the scores of
    `trajectories`, in order.
    """
    trajectories = list(trajectories)
    if not trajectories:
        raise ContractError("give at least one trajectory whose answer the reward can score")
    reward = _built("reward", factory, config)
    odd = [sample_trajectory(text, task=trajectories[0].task) for text in ODD_RESPONSES]
    scores = [_score(reward, t, deterministic) for t in (*trajectories, *odd)]
    keys = set(scores[0].metrics)
    for trajectory, score in zip((*trajectories, *odd), scores, strict=True):
        if set(score.metrics) != keys:
            raise ContractError(
                f"the metrics of {trajectory.response[:60]!r} are {sorted(score.metrics)}, those of the first answer "
                f"{sorted(keys)}: give the same keys for every answer"
            )
    return scores[: len(trajectories)]


def check_data_filter(factory: Callable[..., Any], tasks: Iterable[Task], config: Any = None) -> list[tuple[bool, str]]:
    """Each task gets `(keep, reason)`, with a reason whenever it is dropped."""
    data_filter = _built("data_filter", factory, config)
    verdicts = []
    for task in tasks:
        verdict = data_filter(task)
        if not (isinstance(verdict, tuple) and len(verdict) == 2 and isinstance(verdict[0], bool)):
            raise ContractError(f"task {task.id!r}: returned {verdict!r}, not (keep: bool, reason: str)")
        if not isinstance(verdict[1], str) or not (verdict[0] or verdict[1]):
            raise ContractError(f"task {task.id!r}: the reason is {verdict[1]!r}; a dropped task needs one")
        verdicts.append(verdict)
    return verdicts


def check_judge(
    factory: Callable[..., Any], question: str, candidate: str, reference: str | None, config=None
) -> Score:
    """The judge gives a finite score with plain metrics."""
    judge = _built("judge", factory, config)
    return _checked_score(asyncio.run(judge(question, candidate, reference)), candidate)


def check_environment(
    factory: Callable[..., Any], task: Task, actions: Sequence[Message | str], config: Any = None
) -> list[StepResult]:
    """Plays one episode: `start`, a `step` per action until it is done, `finish`, `close`; tools are well-formed."""

    async def play() -> list[StepResult]:
        environment = _built("environment", factory, config)
        results: list[StepResult] = []
        try:
            opening = await environment.start(task)
            if not opening or any("role" not in m for m in opening):
                raise ContractError(f"start() returned {opening!r}; it returns the messages that open the episode")
            _check_tools(environment)
            for action in actions:
                message = {"role": "assistant", "content": action} if isinstance(action, str) else action
                results.append(_checked_step(await environment.step(message)))
                if results[-1].done:
                    break
            artifacts = await environment.finish()
            if not isinstance(artifacts, Mapping):
                raise ContractError(f"finish() returned {type(artifacts).__name__}, not a mapping of artifacts")
        finally:
            await environment.close()
        return results

    return asyncio.run(play())


def check_advantage_estimator(estimator: Callable[..., Any]) -> Any:
    """Two groups of two rollouts, one token of which is masked: shapes `[batch, length]`, finite, 0 where masked."""
    import numpy as np
    import torch

    rewards = torch.zeros(4, 3)
    rewards[:, 2] = torch.tensor([1.0, 0.0, 1.0, 1.0])
    mask = torch.ones(4, 3)
    mask[:, 1] = 0
    given = {
        "token_level_rewards": rewards,
        "response_mask": mask,
        "index": np.array(["a", "a", "b", "b"], dtype=object),
        "rollout_id": np.arange(4),
        "fault": np.array([""] * 4, dtype=object),
        "config": None,
    }
    advantages, returns = estimator(**_accepted(estimator, given))
    for name, tensor in (("advantages", advantages), ("returns", returns)):
        if tuple(tensor.shape) != (4, 3) or not torch.isfinite(tensor).all():
            raise ContractError(f"{name} has shape {tuple(tensor.shape)} or is not finite; (4, 3) was given")
    if (advantages * (1 - mask)).abs().max() > 0:
        raise ContractError("a token with mask 0 got an advantage")
    return advantages, returns


def _built(kind: str, factory: Callable[..., Any], config: Mapping[str, Any] | None) -> Any:
    problem = shape_problem(kind, "under_test", factory)
    if problem:
        raise ContractError("; ".join(problem))
    found = Registry()
    found.parts[kind]["under_test"] = Part(kind, "under_test", "test", factory)
    return found.build(kind, "under_test", config)


def _score(reward: Any, trajectory: Trajectory, deterministic: bool) -> Score:
    text = trajectory.response[:60]
    try:
        first = _checked_score(asyncio.run(reward(trajectory)), text)
        second = _checked_score(asyncio.run(reward(trajectory)), text) if deterministic else first
    except (ContractError, DataError, InfrastructureError):
        raise
    except Exception as error:
        raise ContractError(
            f"scoring {text!r} raised {type(error).__name__}: {error}. A bad answer is scored, not raised; "
            "a record that cannot be scored raises DataError"
        ) from error
    if deterministic and first.value != second.value:
        raise ContractError(f"{text!r} scored {first.value}, then {second.value}; pass deterministic=False for judges")
    return first


def _checked_score(score: Any, text: str) -> Score:
    if not isinstance(score, Score):
        raise ContractError(f"{text!r}: returned {type(score).__name__}, not a rufus_plugins.Score")
    if isinstance(score.value, bool) or not isinstance(score.value, (int, float)) or not math.isfinite(score.value):
        raise ContractError(f"{text!r}: the value is {score.value!r}, not a finite number")
    for key, value in score.metrics.items():
        if not isinstance(key, str) or not isinstance(value, (bool, int, float, str)):
            raise ContractError(f"{text!r}: metric {key!r} is {value!r}; metrics are numbers, texts or booleans")
    return score


def _checked_step(result: Any) -> StepResult:
    if not isinstance(result, StepResult):
        raise ContractError(f"step() returned {type(result).__name__}, not a rufus_plugins.StepResult")
    if result.termination is not None and not isinstance(result.termination, Termination):
        raise ContractError(f"step() ended with {result.termination!r}, not a rufus_plugins.Termination")
    return result


def _check_tools(environment: Any) -> None:
    for tool in environment.tools:
        function = tool.get("function", {}) if isinstance(tool, Mapping) else {}
        if not function.get("name") or not isinstance(function.get("parameters"), Mapping):
            raise ContractError(f"tool {tool!r} is no OpenAI function schema: function.name and function.parameters")


def _accepted(function: Callable[..., Any], given: Mapping[str, Any]) -> dict[str, Any]:
    parameters = inspect.signature(function).parameters.values()
    if any(p.kind is p.VAR_KEYWORD for p in parameters):
        return dict(given)
    return {p.name: given[p.name] for p in parameters if p.name in given}
