"""One tool, `bash`, in a sandbox that lives as long as the episode; Harbor and terminal-bench tasks (Rufus-Air).

    environment=shell reward=task_tests

Folder, variables, functions, background processes and files persist from call to call (rollouts/shell_session.py).
A record made by `rufus prepare coding_agent` names its task directory and the snapshot that its sandbox starts from;
after the agent the task's tests run in the same sandbox, in a clean shell, and their files are kept for the reward. A
task with steps goes on with the next instruction when the model answers without a call. Other records get an empty
sandbox.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from weakref import WeakKeyDictionary

from rufus_plugins.errors import ConfigError, DataError
from rufus_plugins.rollouts.harbor import HarborTask, Step, load
from rufus_plugins.rollouts.harbor_run import begin_step, environment_of, sandbox_fields, verify
from rufus_plugins.rollouts.sandboxes.pool import SandboxPool
from rufus_plugins.rollouts.shell_session import ShellSession
from rufus_plugins.rollouts.terminal_text import plain
from rufus_plugins.rollouts.tools import FunctionTool, Toolbox, ToolResult
from rufus_plugins.types import CallStatus, Message, StepResult, Task, Termination

_pools: WeakKeyDictionary[Any, dict[str, Any]] = WeakKeyDictionary()


@dataclass
class Shell:
    """A persistent shell in a sandbox; loads Harbor and terminal-bench tasks."""

    sandbox: str = "local"
    """Backend; `rufus list sandbox` shows them. It must be the one that the records were prepared for."""
    sandbox_config: dict[str, Any] = field(default_factory=dict)
    """Fields of the backend; they come before the task's own."""
    command_timeout_s: float = 120.0
    """Deadline of a command that asks for none. Ours."""
    longest_command_s: float = 1200.0
    """Most that a command may ask for. Ours."""
    episode_timeout_s: float | None = None
    """Wall clock of the agent; null: the task's own `timeout_sec`, per step."""
    max_output_chars: int = 20_000
    """Of one command; the middle is left out. Ours."""
    warm: int = 0
    """Sandboxes per task that are started ahead in each worker."""
    max_sandboxes: int = 64
    """At a time, per worker. Ours."""

    def __post_init__(self) -> None:
        for name in ("command_timeout_s", "longest_command_s", "max_output_chars", "max_sandboxes"):
            if getattr(self, name) <= 0:
                raise ConfigError(f"rufus.environment.{name}={getattr(self, name)}: a positive number")
        self.tools: Sequence[Mapping[str, Any]] = ()
        self._box = Toolbox(
            [FunctionTool(self.bash)], timeout_s=self.longest_command_s + 300.0, max_chars=self.max_output_chars + 400
        )
        self._pool: SandboxPool | None = None
        self._machine: Any = None
        self._session: ShellSession | None = None
        self._harbor: HarborTask | None = None
        self._at = 0
        self._verified: list[dict[str, Any]] = []
        self._ends = float("inf")
        self._commands = 0

    def preflight(self) -> None:
        """Raises `ConfigError` for a sandbox or a field of it that does not exist, or that this machine cannot have."""
        from rufus_plugins.plugins import registry

        machine = registry().build("sandbox", self.sandbox, self.sandbox_config)
        if hasattr(machine, "preflight"):
            machine.preflight()

    async def start(self, task: Task) -> Sequence[Message]:
        """Raises `DataError` for a record that was not prepared for this backend."""
        fields: dict[str, Any] = {}
        if task.extra.get("task_dir"):
            self._harbor = load(str(task.extra["task_dir"]))
            environment = environment_of(task.extra)
            if environment["backend"] != self.sandbox:
                raise DataError(
                    f"{task.id}: its environment was baked for the sandbox {environment['backend']!r}, the run uses "
                    f"{self.sandbox!r}: prepare it again, or set rufus.environment.sandbox={environment['backend']}"
                )
            fields = sandbox_fields(self._harbor, self.sandbox, environment)
        self._pool = _pool(self.sandbox, {**fields, **self.sandbox_config}, self)
        await _make_room(self._pool)
        self._machine = await self._pool.take()
        await self._open_session()
        if self._harbor is not None:
            await begin_step(self._machine, self._harbor, self._step, self._session.workdir, first=True)
        self.tools = self._box.schemas
        self._start_clock()
        return task.prompt

    async def step(self, message: Message) -> StepResult:
        if message.get("tool_calls"):
            before = self._commands
            answers = await self._box.answer(message)
            over = Termination.EPISODE_TIMEOUT if time.monotonic() >= self._ends else None
            return StepResult(
                answers, done=over is not None, termination=over, metrics={"commands": self._commands - before}
            )
        if self._harbor is None or self._at + 1 >= len(self._harbor.steps):
            return StepResult(done=True)
        await self._check_step()
        if not _reached(self._verified[-1]):
            return StepResult(done=True, metrics={"stopped_at_step": 1})
        self._at += 1
        await begin_step(self._machine, self._harbor, self._step, self._session.workdir, first=False)
        await self._open_session()
        self._start_clock()
        return StepResult([{"role": "user", "content": self._step.instruction}])

    async def finish(self) -> Mapping[str, Any]:
        """`verifier`, or `verifier_steps` for a task with steps: the raw files of the tests, for `task_tests`."""
        if self._harbor is None or self._machine is None:
            return {}
        if len(self._verified) <= self._at:
            await self._check_step()
        if self._harbor.multi_step:
            return {"verifier_steps": self._verified}
        return {"verifier": self._verified[0]["verifier"]}

    async def close(self) -> None:
        machine, self._machine = self._machine, None
        if machine is not None:
            await self._pool.give_back(machine)

    async def bash(self, command: str, timeout_s: float | None = None) -> ToolResult:
        """Runs a command in your persistent bash shell and returns its output and exit code.

        command: The command line, or several lines. Folder, variables and background processes persist.
        timeout_s: Seconds after which the command is killed (default 120).
        """
        left = self._ends - time.monotonic()
        if left <= 0:
            return ToolResult("the time for this task is over", CallStatus.ERROR, False)
        limit = self.command_timeout_s if timeout_s is None else timeout_s
        if not 0 < limit <= self.longest_command_s:
            text = f"timeout_s is {timeout_s:g}; it can be up to {self.longest_command_s:g}"
            return ToolResult(text, CallStatus.ERROR, False)
        limit = min(limit, left)
        result = await self._session.run(command, limit)
        self._commands += result.started
        text, notes = plain(result.stdout).strip("\n"), plain(result.stderr).strip()
        if not result.started:
            return ToolResult(f"the command did not start: {notes}", CallStatus.ERROR, False)
        if result.exit_code is None and result.duration_s >= limit * 0.99:
            notes = (
                f"{notes}\n[killed after {limit:g} s; folder and variables are as before this command. Run what takes "
                "longer in the background, with its output in a file]"
            ).strip()
        elif result.exit_code is None:
            notes = f"[it may or may not have run, look before you run it again: {notes}]"
        elif result.exit_code:
            notes = f"{notes}\n[exit code {result.exit_code}]".strip()
        return ToolResult("\n".join(part for part in (text, notes) if part) or "[no output]")

    @property
    def _step(self) -> Step:
        return self._harbor.steps[self._at]

    def _start_clock(self) -> None:
        budget = self.episode_timeout_s or (self._step.agent_timeout_s if self._harbor else float("inf"))
        self._ends = time.monotonic() + budget

    async def _open_session(self) -> None:
        workdir = self._session.workdir if self._session else ""
        self._session = ShellSession(self._machine, workdir=workdir, user=self._step.agent_user if self._harbor else "")
        await self._session.open()

    async def _check_step(self) -> None:
        step = self._step
        found = await verify(self._machine, self._harbor, step, self._session.workdir)
        record: dict[str, Any] = {"name": step.name, "verifier": found}
        if step.min_reward is not None:
            record["min_reward"] = step.min_reward
        self._verified.append(record)


def _reached(record: Mapping[str, Any]) -> bool:
    """Whether a step allows the next one, by the reward's own rule. A verifier without a reward is a fault."""
    from rufus_plugins.rewards.harbor_verifier import read_reward
    from rufus_plugins.rewards.task_tests import reached

    return reached(read_reward(record["verifier"]), record.get("min_reward"))


async def _make_room(pool: SandboxPool) -> None:
    """Where the limit is reached, what waits in the pools of other tasks goes first."""
    if pool.limit.locked() and not pool.ready:
        for other in list(_pools[asyncio.get_running_loop()].values()):
            if isinstance(other, SandboxPool) and other is not pool:
                await other.shrink()


def _pool(backend: str, fields: Mapping[str, Any], shell: Shell) -> SandboxPool:
    """The pool of this event loop for sandboxes of this kind; all its pools share one limit."""
    from rufus_plugins.plugins import registry

    here = _pools.setdefault(asyncio.get_running_loop(), {})
    limit = here.setdefault("limit", asyncio.Semaphore(shell.max_sandboxes))
    config = {"output_kb": max(1, shell.max_output_chars // 1024), **fields}
    key = json.dumps([backend, config, shell.warm], sort_keys=True, default=str)
    if key not in here:
        if len(here) > 256:  # pools of tasks that nobody uses any more
            for old in [k for k, pool in here.items() if isinstance(pool, SandboxPool) and pool.unused]:
                del here[old]
        known = registry().get("sandbox", backend).config_fields
        config = {name: value for name, value in config.items() if name in known or name not in ("output_kb",)}
        registry().build("sandbox", backend, config)  # a wrong field is a wrong set-up, told now
        here[key] = SandboxPool(lambda: registry().build("sandbox", backend, config), warm=shell.warm, limit=limit)
    return here[key]
