"""The only retry rule: an exchange is sent again only if it provably never started, or cannot happen twice.

`started(error)` reads the proof off an exception of the E2B SDK, Ray or the standard library, by the names of its
classes (nothing is imported). Proofs that nothing started: a connection that was never made, a rate limit, arguments
that were refused. Everything else that breaks before an answer is *unknown*: a connection dropped before its reply, a
502-504, a deadline of the transport. Once the other side has said that the command runs, nothing proves the contrary.

What cannot happen twice (`repeatable=True`): an idempotent request, one with an idempotency key, and a command under
`journalled`, whose first act is an atomic `mkdir` of its id: one send wins, all others wait for the winner's result.
A lost sandbox is never retried: `InfrastructureError(SANDBOX_LOST)`.
"""

from __future__ import annotations

import asyncio
import random
import shlex
import time
from collections.abc import Awaitable, Callable, Iterator
from enum import StrEnum
from typing import TypeVar

from rufus_plugins.errors import ConfigError, DataError, InfrastructureError, RufusError
from rufus_plugins.types import Termination

T = TypeVar("T")

TRIES = 6
"""Sends of one exchange, the first included. Ours."""
_BACKOFF_S, _LONGEST_S = 0.1, 5.0
JOURNAL = "/var/tmp/.rufus-journal"
"""Folder in the sandbox, one folder per command id. Any user may write there."""


class Started(StrEnum):
    NEVER = "never"
    UNKNOWN = "unknown"
    LOST = "lost"
    """The sandbox (or the actor that holds it) is gone for good."""
    REFUSED = "refused"
    """Never started, and would be refused again."""


class NeverStarted(RufusError):
    """The exchange provably had no effect, and the tries are spent (or it is refused for good)."""


class OutcomeUnknown(RufusError):
    """It may or may not have happened: the agent is told so and decides."""


_LOST = frozenset({"SandboxNotRunningException", "SandboxNotFoundException", "ActorDiedError"})
_NEVER = frozenset({"RateLimitException", "ConnectError", "ConnectTimeout"})
"""The last two are httpx's and httpcore's for a connection that was not made."""
_REFUSED = frozenset(
    {"InvalidArgumentException", "AuthenticationException", "NotFoundException", "NotEnoughSpaceException"}
)


def started(error: BaseException) -> Started:
    """What the failure of an exchange proves, if the other side had not yet said that it began.

    `ConnectionError` itself is what the E2B SDK's transport raises for a connection that was never made; its other
    children (reset, broken pipe, aborted) happen to connections that exist.
    """
    names = {kind.__name__ for kind in type(error).__mro__}
    if names & _LOST:
        return Started.LOST
    if names & _REFUSED:
        return Started.REFUSED
    if names & _NEVER:
        return Started.NEVER
    last = list(_causes(error))[-1]  # what the request itself died of
    if type(last) is ConnectionError or isinstance(last, ConnectionRefusedError):
        return Started.NEVER
    return Started.UNKNOWN


def _causes(error: BaseException) -> Iterator[BaseException]:
    seen: set[int] = set()
    found: BaseException | None = error
    while found is not None and id(found) not in seen:
        seen.add(id(found))
        yield found
        found = found.__cause__


async def exchange(
    send: Callable[[], Awaitable[T]],
    what: str,
    *,
    repeatable: bool,
    tries: int = TRIES,
    deadline_s: float = 120.0,
    counted: Callable[[str], None] = lambda name: None,
) -> T:
    """`send()` under the rule. Raises NeverStarted, OutcomeUnknown, InfrastructureError(SANDBOX_LOST).

    `send` may raise NeverStarted or OutcomeUnknown itself where it knows better than its exceptions say.
    `counted(name)` hears of each retry and of the reason.
    """
    until = time.monotonic() + deadline_s
    maybe = False
    for attempt in range(tries):
        try:
            return await send()
        except (InfrastructureError, ConfigError, DataError, asyncio.CancelledError):
            raise
        except Exception as error:
            proof = _proof(error)
            if proof is Started.LOST:
                message = f"{what}: the sandbox is gone ({_said(error)})"
                raise InfrastructureError(message, Termination.SANDBOX_LOST) from error
            maybe = maybe or proof is Started.UNKNOWN
            wait = min(_LONGEST_S, _BACKOFF_S * 2**attempt) * random.uniform(0.5, 1.0)
            more = attempt + 1 < tries and time.monotonic() + wait < until and proof is not Started.REFUSED
            if more and (repeatable or not maybe):
                counted(f"retried_{proof.value}")
                await asyncio.sleep(wait)
                continue
            if maybe:
                raise OutcomeUnknown(f"{what}: the connection broke and it may have run ({_said(error)})") from error
            raise NeverStarted(f"{what}: it never started ({_said(error)})") from error
    raise AssertionError("unreachable")


def _proof(error: Exception) -> Started:
    if isinstance(error, NeverStarted):
        return Started.NEVER
    if isinstance(error, OutcomeUnknown):
        return Started.UNKNOWN
    return started(error)


def _said(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}"[:300]


def journalled(command: str, id: str, *, wait_s: float, keep_bytes: int) -> str:
    """`command` as a shell script that runs it at most once per `id` and answers the same however often it is sent.

    The send whose `mkdir` wins starts the command in a session of its own, with its output in files; every send waits
    for the end, prints the ends of both streams and, last on standard output, the line that `read_answer` reads.
    `id`: letters, digits and hyphens. Needs `bash`, `setsid` and coreutils in the sandbox.
    """
    head, tail = keep_bytes - keep_bytes // 2, keep_bytes // 2
    runner = 'echo $$ >"$0/pid"; bash -c "$1" >"$0/out" 2>"$0/err"; echo $? >"$0/part"; mv "$0/part" "$0/code"'
    return f"""J={shlex.quote(f"{JOURNAL}/{id}")}
mkdir -p -m 1777 {JOURNAL} 2>/dev/null
if mkdir "$J" 2>/dev/null; then
  setsid sh -c {shlex.quote(runner)} "$J" {shlex.quote(command)} </dev/null >/dev/null 2>&1 &
  wait $!; s=$?
  [ -e "$J/code" ] || echo $s >"$J/code"
elif [ ! -d "$J" ]; then
  printf '\n{id} never 0 0\n'; exit 0
fi
n=0; code=
while :; do
  [ -e "$J/code" ] && read -r code <"$J/code" && break
  n=$((n+1))
  [ $n -gt {max(1, int(wait_s * 10))} ] && code=running && break
  if [ $n -gt 30 ] && ! kill -0 "$(cat "$J/pid" 2>/dev/null)" 2>/dev/null && [ ! -e "$J/code" ]; then
    code=lost; break
  fi
  sleep 0.1
done
show() {{
  size=$(wc -c <"$1" 2>/dev/null || echo 0)
  if [ "$size" -le {keep_bytes} ]; then cat "$1" 2>/dev/null
  else head -c {head} "$1"; printf '\n[... %d bytes left out ...]\n' $((size-{keep_bytes})); tail -c {tail} "$1"; fi
}}
show "$J/err" >&2; e=$size
show "$J/out"
printf '\n{id} %s %d %d\n' "$code" "$size" "$e"
"""


def kill_journalled(id: str) -> str:
    """Kills what `journalled` runs, with its children (not what moved to a session of its own)."""
    return f"""p=$(cat {JOURNAL}/{id}/pid 2>/dev/null) && kill -9 -- "-$p" 2>/dev/null; :"""


def read_answer(stdout: str, id: str) -> tuple[str, str]:
    """(output, code) of a `journalled` send: a number, running, lost or never; `lost` where the last line is missing.

    The line is searched from the end: what the command printed stands before it.
    """
    output, found, rest = stdout.rpartition(f"\n{id} ")
    words = rest.split()
    if not found or len(words) != 3:
        return stdout, "lost"
    return output, words[0]
