"""Many episodes' environments in one process: the worker behind rollouts/pool.py.

Knows no Ray: an actor is made of it there, and the in-process pool uses it as it is. Clients talk by `exchange`: they
hand over all that they want and get all that is ready, so that one hop carries the calls of many episodes.
"""

from __future__ import annotations

import asyncio
import os
import sys
import time
import traceback
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from rufus_plugins.errors import ConfigError, DataError, InfrastructureError, PluginError
from rufus_plugins.types import Termination

LONGEST_WAIT_S = 20.0
"""A client that waits is answered at least so often, with nothing if need be: that is how it is known to live. Ours."""
SILENT_S = 120.0
"""A client that asks for nothing so long is dead; its episodes are closed. Ours."""
CLOSE_S = 60.0
"""For closing an episode whose client is gone. Ours."""
LINGER_S = 0.001
"""How long an answer waits for others to travel with. Ours."""


@dataclass(frozen=True)
class Request:
    number: int
    """The client's own, for its answer."""
    op: str
    """admit | start | step | finish | close | cancel"""
    episode: str
    payload: Any = None


@dataclass(frozen=True)
class Answer:
    number: int
    value: Any = None
    failure: tuple[str, str, str] | None = None
    """(kind, message, termination): an exception that keeps its type over the wire."""


@dataclass(frozen=True)
class Exchange:
    answers: Sequence[Answer]
    incarnation: str
    """Of the host's process. A new one has none of the old one's episodes."""
    load: int
    """Episodes admitted or waiting."""


@dataclass(eq=False)
class _Client:
    ready: deque[Answer] = field(default_factory=deque)
    changed: asyncio.Event = field(default_factory=asyncio.Event)
    turn: int = 0
    heard: float = field(default_factory=time.monotonic)
    tasks: dict[int, asyncio.Task] = field(default_factory=dict)
    waiting: int = 0


@dataclass(eq=False)
class _Episode:
    client: str
    environment: Any = None


class EnvironmentHost:
    """Environments of one kind, many episodes."""

    def __init__(self, name: str, fields: Mapping[str, Any], episodes: int, memory_mb: int | None = None):
        self.name, self.fields, self.most, self.memory_mb = name, dict(fields), episodes, memory_mb
        self.incarnation = f"{os.getpid()}-{time.time_ns()}"
        self.peak = 0
        """Most episodes at a time."""
        self.closed = 0
        self.abandoned = 0
        """Episodes whose client was gone."""
        self._clients: dict[str, _Client] = {}
        self._episodes: dict[str, _Episode] = {}
        self._queue: deque[tuple[str, asyncio.Future]] = deque()
        self._admitted = 0
        self._watching: asyncio.Task | None = None

    async def exchange(self, client: str, requests: Sequence[Request]) -> Exchange:
        """Starts the requests; returns what is ready for this client, as soon as there is anything.

        Returns empty when the client calls again meanwhile, or after `LONGEST_WAIT_S`.
        """
        if self._watching is None:
            self._watching = asyncio.ensure_future(self._watch())
        known = self._clients.setdefault(client, _Client())
        known.heard = time.monotonic()
        for request in requests:
            if request.op == "cancel":
                if (task := known.tasks.get(request.payload)) is not None:
                    task.cancel()
                continue
            task = asyncio.ensure_future(self._serve(client, known, request))
            known.tasks[request.number] = task
        return await self._collect(known)

    def check(self) -> tuple[str, str, str] | None:
        """What is wrong with the configuration on this machine, as `failure` reads it; None if nothing is."""
        from rufus_plugins.plugins import registry

        try:
            environment = registry().build("environment", self.name, self.fields)
            if hasattr(environment, "preflight"):
                environment.preflight()
        except Exception as error:
            return _failure(error)
        return None

    def state(self) -> dict[str, Any]:
        """For tests, benchmarks and metrics."""
        return {
            "pid": os.getpid(),
            "episodes": len(self._episodes),
            "admitted": self._admitted,
            "waiting": len(self._queue),
            "peak": self.peak,
            "closed": self.closed,
            "abandoned": self.abandoned,
            "rss_mb": _rss_mb(),
        }

    # -- answers --------------------------------------------------------------------------------------

    async def _collect(self, client: _Client) -> Exchange:
        client.turn += 1
        turn = client.turn
        client.changed.set()  # an earlier call returns
        client.waiting += 1
        try:
            async with asyncio.timeout(LONGEST_WAIT_S):
                while client.turn == turn and not client.ready:
                    client.changed.clear()
                    await client.changed.wait()
            if client.turn == turn and len(client.tasks) > 1:
                await asyncio.sleep(LINGER_S)
        except TimeoutError:
            pass
        finally:
            client.waiting -= 1
            client.heard = time.monotonic()
        answers = []
        if client.turn == turn:
            answers = list(client.ready)
            client.ready.clear()
        return Exchange(answers, self.incarnation, self._admitted + len(self._queue))

    async def _serve(self, name: str, client: _Client, request: Request) -> None:
        try:
            answer = Answer(
                request.number, await getattr(self, f"_{request.op}")(name, request.episode, request.payload)
            )
        except asyncio.CancelledError:
            answer = None  # nobody waits for it
        except Exception as error:
            answer = Answer(request.number, failure=_failure(error))
        finally:
            client.tasks.pop(request.number, None)
        if answer is not None:
            client.ready.append(answer)
            client.changed.set()

    # -- operations -----------------------------------------------------------------------------------

    async def _admit(self, client: str, episode: str, _: Any) -> None:
        """Waits, first come first served, until there is room."""
        if episode in self._episodes:
            raise InfrastructureError(f"an episode {episode!r} exists already", Termination.ENVIRONMENT_LOST)
        waiting = asyncio.get_running_loop().create_future()
        self._queue.append((episode, waiting))
        self._let_in()
        try:
            await waiting
        except asyncio.CancelledError:
            if waiting.done() and not waiting.cancelled():
                self._admitted -= 1
            self._let_in()
            raise
        self._episodes[episode] = _Episode(client)

    def _let_in(self) -> None:
        while self._queue and self._admitted < self.most and self._memory_allows():
            _, waiting = self._queue.popleft()
            if not waiting.done():
                self._admitted += 1
                self.peak = max(self.peak, self._admitted)
                waiting.set_result(None)

    def _memory_allows(self) -> bool:
        return not (self.memory_mb and self._admitted and _rss_mb() > self.memory_mb)

    async def _start(self, _: str, episode: str, task: Any) -> tuple[Any, Any]:
        from rufus_plugins.plugins import registry

        own = self._of(episode)
        own.environment = registry().build("environment", self.name, self.fields)
        opening = await own.environment.start(task)
        return list(opening), list(own.environment.tools)

    async def _step(self, _: str, episode: str, message: Any) -> Any:
        return await self._of(episode, started=True).environment.step(message)

    async def _finish(self, _: str, episode: str, __: Any) -> Any:
        return dict(await self._of(episode, started=True).environment.finish())

    async def _close(self, _: str, episode: str, __: Any) -> None:
        """Also for an episode that never started, or is gone."""
        own = self._episodes.pop(episode, None)
        if own is None:
            return
        self.closed += 1
        try:
            if own.environment is not None:
                await own.environment.close()
        finally:
            self._admitted -= 1
            self._let_in()

    def _of(self, episode: str, started: bool = False) -> _Episode:
        own = self._episodes.get(episode)
        if own is None or (started and own.environment is None):
            raise InfrastructureError(
                f"the environment host (process {os.getpid()}) has no such episode: it was restarted, or closed the "
                "episode because nobody asked for it any more",
                Termination.ENVIRONMENT_LOST,
            )
        return own

    # -- clients that are gone ------------------------------------------------------------------------

    async def _watch(self) -> None:
        while True:
            await asyncio.sleep(SILENT_S / 8)
            self._let_in()  # memory may have become free
            now = time.monotonic()
            gone = [n for n, c in self._clients.items() if not c.waiting and now - c.heard > SILENT_S]
            for name in gone:
                await self._abandon(name)

    async def _abandon(self, name: str) -> None:
        client = self._clients.pop(name)
        for task in list(client.tasks.values()):
            task.cancel()
        for episode in [e for e, own in self._episodes.items() if own.client == name]:
            self.abandoned += 1
            try:
                async with asyncio.timeout(CLOSE_S):
                    await self._close(name, episode, None)
            except Exception as error:
                print(f"rufus: an abandoned episode did not close: {error!r}", file=sys.stderr, flush=True)


def _failure(error: Exception) -> tuple[str, str, str]:
    if isinstance(error, InfrastructureError):
        return "infrastructure", str(error), error.termination.value
    for kind in (ConfigError, PluginError, DataError):
        if isinstance(error, kind):
            return kind.__name__, str(error), ""
    return "other", f"{type(error).__name__}: {error}\n{traceback.format_exc()}", ""


def failure(given: tuple[str, str, str]) -> Exception:
    """The exception that `_failure` took apart."""
    kind, message, termination = given
    if kind == "infrastructure":
        return InfrastructureError(message, Termination(termination))
    known = {"ConfigError": ConfigError, "PluginError": PluginError, "DataError": DataError}
    return known[kind](message) if kind in known else RuntimeError(message)


def _rss_mb() -> float:
    with open("/proc/self/statm", encoding="ascii") as stream:
        return int(stream.read().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 1e6
