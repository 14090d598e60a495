"""E2B: a microVM per sandbox, from a template or a snapshot, by E2B's own SDK (extra `e2b`, SDK 2.60 or later).

Every command goes through the journal of rollouts/retry.py: it runs at most once, and a broken connection costs time
only as long as the sandbox lives. Creating carries an idempotency key, always; other control requests are sent again
only if they are idempotent or provably never started. The SDK's own retries are off: there is one rule.
Needs `E2B_API_KEY`; `E2B_API_URL` and `E2B_SANDBOX_URL` point it at another installation.
"""

from __future__ import annotations

import asyncio
import time
import uuid
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, TypeVar

from rufus_plugins.errors import ConfigError, InfrastructureError
from rufus_plugins.rollouts import retry
from rufus_plugins.types import ExecResult, Termination

T = TypeVar("T")
_GRACE_S = 30.0
"""Beyond a command's own deadline, for its output to arrive. Ours."""
_ALL = "0.0.0.0/0"


@dataclass
class E2B:
    """A microVM at E2B, by its own SDK: snapshots, forks, pause and resume, network policy."""

    template: str = "base"
    """Name or id of a template, or the id of a snapshot."""
    lifetime_s: int = 3600
    """E2B ends the sandbox this long after it was last used; it is prolonged while it is. Ours."""
    network: Literal["none", "public", "allowlist"] = "none"
    allowed_hosts: Sequence[str] = ()
    """Hosts, addresses or CIDR blocks for `allowlist`."""
    env: Mapping[str, str] = field(default_factory=dict)
    workdir: str = ""
    """Where commands start; "": the user's home."""
    user: str = "root"
    metadata: Mapping[str, str] = field(default_factory=dict)
    output_kb: int = 512
    """Kept of each stream of a command, half from its start and half from its end. Ours."""
    request_timeout_s: float = 60.0
    tries: int = retry.TRIES

    def __post_init__(self) -> None:
        if self.network == "allowlist" and not self.allowed_hosts:
            raise ConfigError("sandbox e2b: network=allowlist needs allowed_hosts; without any it is network=none")
        if self.network not in ("none", "public", "allowlist"):
            raise ConfigError(f"sandbox e2b: network={self.network!r}; it is none, public or allowlist")
        self.counts: Counter[str] = Counter()
        """Retries by what the failure proved."""
        self._sandbox: Any = None
        self._starting = asyncio.Lock()
        self._ends = 0.0
        self._closed = False
        self._create_key = uuid.uuid4().hex

    def preflight(self) -> None:
        """Raises `ConfigError` without E2B's SDK."""
        _sdk()

    # -- the protocol -----------------------------------------------------------------------------------------------

    async def exec(
        self,
        command: str,
        timeout_s: float,
        *,
        env: Mapping[str, str] | None = None,
        cwd: str | None = None,
        user: str | None = None,
        id: str | None = None,
    ) -> ExecResult:
        """Runs `bash -c command`, at most once per `id` (a new one by default).

        At the deadline it is killed with its children: exit code None. `started` is False only with proof. A connection
        that stays broken gives exit code None and says so in `stderr`: the outcome is unknown, the caller decides.
        Raises InfrastructureError(SANDBOX_LOST) when the sandbox is gone.
        """
        if "\0" in command:
            return ExecResult(None, "", "a command cannot hold a NUL character", False, 0.0)
        await self.start()
        await self._prolong(timeout_s + _GRACE_S)
        id = id or uuid.uuid4().hex
        if len(command.encode("utf-8", "surrogatepass")) > 60_000:  # one argument holds 128 KiB, quoted twice
            path = f"/var/tmp/.rufus-command-{id}"
            await self.write_file(path, command.encode("utf-8", "surrogatepass"))
            command = f'{{ rm -f {path}; eval "$(cat)"; }} < {path}'
        begun = time.monotonic()
        where = {"envs": dict(env or {}), "cwd": cwd or self.workdir or None, "user": user or self.user}

        async def send() -> tuple[str, str]:
            left = begun + timeout_s - time.monotonic()
            script = retry.journalled(command, id, wait_s=max(left, 0.0), keep_bytes=self.output_kb << 10)
            return await self._send(script, max(left, 0.5), where)

        try:
            stdout, stderr = await self._exchange(send, "the command", repeatable=True, deadline_s=timeout_s + 120)
        except _DeadlineOfCommand:
            return await self._killed(id, where, begun)
        except retry.NeverStarted as error:
            return ExecResult(None, "", str(error), False, time.monotonic() - begun)
        except retry.OutcomeUnknown as error:
            return ExecResult(None, "", str(error), True, time.monotonic() - begun)
        except asyncio.CancelledError:
            await asyncio.shield(self._kill_command(id, where))
            raise
        output, code = retry.read_answer(stdout, id)
        spent = time.monotonic() - begun
        if code == "running":
            return await self._killed(id, where, begun)
        if code == "never":
            return ExecResult(None, "", "the sandbox's /var/tmp cannot be written: nothing was run", False, spent)
        if code == "lost":
            return ExecResult(None, output, f"{stderr}\n[the command's outcome is not known]", True, spent)
        return ExecResult(int(code), output, stderr, True, spent)

    async def read_file(self, path: str) -> bytes:
        """Raises FileNotFoundError."""
        await self.start()

        async def send() -> bytes:
            return bytes(await self._sandbox.files.read(path, format="bytes", user=self.user))

        try:
            return await self._exchange(send, f"reading {path}", repeatable=True)
        except (retry.NeverStarted, retry.OutcomeUnknown) as error:
            if type(error.__cause__).__name__ in ("FileNotFoundException", "NotFoundException"):
                raise FileNotFoundError(2, "no such file in the sandbox", path) from None
            raise _fault(error) from error

    async def write_file(self, path: str, content: bytes) -> None:
        await self.start()
        await self._control(lambda: self._sandbox.files.write(path, content, user=self.user), f"writing {path}", True)

    async def close(self) -> None:
        """Kills the sandbox. May be called again."""
        self._closed = True
        async with self._starting:
            sandbox, self._sandbox = self._sandbox, None
        if sandbox is not None:
            try:
                await self._exchange(lambda: sandbox.kill(), "ending the sandbox", repeatable=True)
            except InfrastructureError:
                return  # gone already
            except (retry.NeverStarted, retry.OutcomeUnknown) as error:
                raise _fault(error) from error

    # -- copies and pauses ------------------------------------------------------------------------------------------

    async def snapshot(self) -> str:
        """Id of a snapshot of files and memory; `E2B(template=id)` starts from it."""
        await self.start()
        taken = await self._control(lambda: self._sandbox.create_snapshot(), "the snapshot", False)
        return taken.snapshot_id

    async def fork(self, count: int = 1) -> Sequence[E2B]:
        """`count` running copies, memory and processes included. All or none."""
        await self.start()
        given = await self._control(lambda: self._sandbox.fork(timeout=self.lifetime_s, count=count), "the fork", False)
        failed = [entry for entry in given if isinstance(entry, Exception)]
        copies = []
        for entry in given:
            if not isinstance(entry, Exception):
                copy = replace(self)
                copy._sandbox, copy._ends = entry, time.monotonic() + self.lifetime_s
                copies.append(copy)
        if failed:
            await asyncio.gather(*(copy.close() for copy in copies), return_exceptions=True)
            raise InfrastructureError(
                f"{len(failed)} of {count} forks did not start: {failed[0]}", Termination.SANDBOX_LOST
            ) from failed[0]
        return copies

    async def pause(self) -> str:
        """Puts it aside, memory included; costs nothing until `resume`. Returns its id, for `connect`."""
        await self.start()
        await self._control(lambda: self._sandbox.pause(), "the pause", True)
        return self._sandbox.sandbox_id

    async def resume(self) -> None:
        await self._control(lambda: self._sandbox.connect(timeout=self.lifetime_s), "resuming", True)
        self._ends = time.monotonic() + self.lifetime_s

    async def connect(self, sandbox_id: str) -> E2B:
        """Takes over a sandbox that another process started or paused."""
        sdk = _sdk()
        self._sandbox = await self._control(
            lambda: sdk.AsyncSandbox.connect(sandbox_id, timeout=self.lifetime_s, **self._options()), "connecting", True
        )
        self._ends = time.monotonic() + self.lifetime_s
        return self

    # -- exchanges --------------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Creates the sandbox; every other method does so by itself."""
        async with self._starting:
            if self._closed:
                raise InfrastructureError("the E2B sandbox was closed", Termination.SANDBOX_LOST)
            if self._sandbox is not None:
                return
            sdk = _sdk()
            network: dict[str, Any] = {"allow_internet_access": self.network != "none"}
            if self.network == "allowlist":
                network["network"] = {"allow_out": list(self.allowed_hosts), "deny_out": [_ALL]}

            def create() -> Awaitable[Any]:
                return sdk.AsyncSandbox.create(
                    self.template,
                    timeout=self.lifetime_s,
                    metadata=dict(self.metadata),
                    envs=dict(self.env),
                    lifecycle={"on_timeout": "kill"},
                    idempotency_key=self._create_key,
                    **network,
                    **self._options(),
                )

            try:
                self._sandbox = await self._exchange(create, "creating the sandbox", repeatable=True)
            except retry.NeverStarted as error:
                if type(error.__cause__).__name__ == "AuthenticationException":
                    raise ConfigError(f"E2B does not accept the key in E2B_API_KEY: {error.__cause__}") from error
                raise _fault(error) from error
            except retry.OutcomeUnknown as error:
                raise _fault(error) from error
            self._ends = time.monotonic() + self.lifetime_s

    def _options(self) -> dict[str, Any]:
        return {"retries": 0, "request_timeout": self.request_timeout_s}

    async def _exchange(
        self, send: Callable[[], Awaitable[T]], what: str, *, repeatable: bool, deadline_s: float = 180.0
    ) -> T:
        def counted(name: str) -> None:
            self.counts[name] += 1

        return await retry.exchange(
            send, what, repeatable=repeatable, tries=self.tries, deadline_s=deadline_s, counted=counted
        )

    async def _control(self, send: Callable[[], Awaitable[T]], what: str, repeatable: bool) -> T:
        try:
            return await self._exchange(send, what, repeatable=repeatable)
        except (retry.NeverStarted, retry.OutcomeUnknown) as error:
            raise _fault(error) from error

    async def _send(self, script: str, left_s: float, where: Mapping[str, Any]) -> tuple[str, str]:
        """One send of a script: its output. What breaks after the start event proves nothing."""
        handle = await self._sandbox.commands.run(
            script, background=True, timeout=left_s + _GRACE_S, request_timeout=self.request_timeout_s, **where
        )
        try:
            async with asyncio.timeout(left_s) as clock:
                result = await handle.wait()
        except TimeoutError as error:
            if not clock.expired():
                raise retry.OutcomeUnknown(f"{type(error).__name__}: {error}") from error
            raise _DeadlineOfCommand() from None
        except asyncio.CancelledError:
            raise
        except Exception as error:
            if type(error).__name__ == "CommandExitException":  # the script itself broke: no shell, no folder
                return error.stdout or "", error.stderr or ""
            if retry.started(error) is retry.Started.LOST:
                raise
            raise retry.OutcomeUnknown(f"{type(error).__name__}: {error}") from error
        finally:
            await _quietly(handle.disconnect())
        return result.stdout or "", result.stderr or ""

    async def _killed(self, id: str, where: Mapping[str, Any], begun: float) -> ExecResult:
        """Ends a command at its deadline and gives what it had written."""
        output, stderr = "", ""
        try:
            await self._kill_command(id, where)
            script = retry.journalled("exit 125", id, wait_s=1.0, keep_bytes=self.output_kb << 10)
            sent = await self._exchange(lambda: self._send(script, _GRACE_S, where), "its output", repeatable=True)
            output, stderr = retry.read_answer(sent[0], id)[0], sent[1]
        except (_DeadlineOfCommand, retry.NeverStarted, retry.OutcomeUnknown) as error:
            stderr = f"[its output could not be read: {error}]"
        return ExecResult(None, output, stderr, True, time.monotonic() - begun)

    async def _kill_command(self, id: str, where: Mapping[str, Any]) -> None:
        script = retry.kill_journalled(id)
        try:
            await self._exchange(
                lambda: self._send(script, _GRACE_S, {**where, "cwd": "/"}), "ending a command", repeatable=True
            )
        except (_DeadlineOfCommand, retry.NeverStarted, retry.OutcomeUnknown, InfrastructureError):
            self.counts["not_killed"] += 1

    async def _prolong(self, needed_s: float) -> None:
        if self._ends - time.monotonic() < max(needed_s, self.lifetime_s / 2):
            lifetime = max(self.lifetime_s, int(needed_s) + 60)
            await self._control(lambda: self._sandbox.set_timeout(lifetime), "prolonging the sandbox's life", True)
            self._ends = time.monotonic() + lifetime


class _DeadlineOfCommand(InfrastructureError):
    """Inside this module: the command's own time is up. No failure of an exchange, hence not retried."""

    def __init__(self) -> None:
        super().__init__("the command's time is up")


async def _quietly(work: Awaitable[Any]) -> None:
    """Leaves a stream whose result is known or lost already: nothing it says now matters."""
    try:
        await asyncio.wait_for(work, 5.0)
    except Exception:
        return


def _fault(error: Exception) -> InfrastructureError:
    return InfrastructureError(f"E2B: {error}", Termination.ENVIRONMENT_LOST)


def _sdk() -> Any:
    try:
        import e2b
    except ImportError as error:
        raise ConfigError("The sandbox e2b needs E2B's SDK: pip install 'rufus-plugins[e2b]'") from error
    return e2b
