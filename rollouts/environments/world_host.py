"""Hosts many episodes of many worlds: one jailed process per world, one fork of it per episode.

`start`, `call`, `finish` and `close` take an episode's id and may be awaited from any loop and any thread of the
process. A world is loaded when its first episode starts and stays until `max_worlds` others are in use. When its
process dies, its episodes end `environment_lost`; the next one loads it anew. An episode whose process dies (its code
left, or was killed at a limit) costs that episode alone.
"""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import itertools
import json
import os
import secrets
import socket
import threading
from collections.abc import Awaitable, Sequence
from pathlib import Path
from typing import Any, TypeVar

from rufus_plugins.errors import DataError, InfrastructureError
from rufus_plugins.rollouts.environments.world_data import World
from rufus_plugins.rollouts.environments.world_jail import Episode, Jail, Reply, WorldLimits, boot
from rufus_plugins.rollouts.environments.world_tools import Endpoint, endpoints
from rufus_plugins.rollouts.sandboxes import zygote
from rufus_plugins.types import Termination

T = TypeVar("T")

_LOAD_S = 90.0
_GRACE_S = 10.0
"""How long after a call's own deadline an episode may stay silent. Ours."""


_AWAKE, _REST_AFTER_S = 64, 2.0
"""Episodes of a host up to which all keep their processes; seconds without a call after which others' end. Ours."""
_LIMITS = WorldLimits()


class WorldHost:
    """Episodes by id. Cheap to create; `shared_host` gives the process's own."""

    def __init__(self, *, limits: WorldLimits = _LIMITS, max_worlds: int = 32, backend: str = "auto"):
        self.limits, self.max_worlds, self.backend = limits, max_worlds, backend
        self._jails: dict[str, Jail] = {}
        self._loading: dict[str, asyncio.Future[Jail]] = {}
        self._episodes: dict[str, Episode] = {}
        self._clock = itertools.count()
        self._index = itertools.count(7)
        self.started = 0
        """Processes of worlds that were started."""
        self.lost = 0
        """Episodes that were lost."""
        self.rested = 0
        """How often the process of an episode ended until the next call."""
        self.awake, self.rest_after_s = _AWAKE, _REST_AFTER_S
        self._sweeping: asyncio.Future | None = None

    # -- for callers on any loop --------------------------------------------------------------------

    async def start(self, id: str, world: World, database: bytes | Path) -> Sequence[Endpoint]:
        """A new episode on a copy of `database`; the world's operations.

        Raises `DataError` for a world that does not load, `InfrastructureError(ENVIRONMENT_LOST)`.
        """
        return await _hop(self._start(id, world, database))

    async def call(
        self, id: str, requests: Sequence[dict[str, Any]], timeout_s: float = 30.0, keep: int = 20_000
    ) -> list[Reply]:
        """Answers of the requests, in order; each has `timeout_s`. After one without an answer in time the rest are not
        sent: the list is shorter then. `keep`: characters of a body that will be shown, at least."""
        return await _hop(self._call(id, requests, timeout_s, keep))

    async def call_many(
        self, calls: Sequence[tuple[str, Sequence[dict[str, Any]]]], timeout_s: float = 30.0, keep: int = 20_000
    ) -> list[list[Reply] | InfrastructureError]:
        """`call` for several episodes at once, with one hop."""
        return await _hop(self._call_many(calls, timeout_s, keep))

    async def finish(self, id: str) -> bytes:
        """The episode's database, shut-down handlers of the world done."""
        return await _hop(self._finish(id))

    async def close(self, id: str) -> None:
        """Ends the episode. May be called again, and for one that never started."""
        await _hop(self._close(id))

    async def shutdown(self) -> None:
        """Ends everything; the host can be used again."""
        await _hop(self._shutdown())

    @property
    def pids(self) -> dict[str, int]:
        """World -> process id of its jail as the host sees it."""
        return {jail.world.scenario: jail.process.process.pid for jail in self._jails.values() if not jail.dead}

    @property
    def episodes(self) -> int:
        return len(self._episodes)

    # -- on the jail thread's loop -------------------------------------------------------------------

    async def _start(self, id: str, world: World, database: bytes | Path) -> Sequence[Endpoint]:
        if id in self._episodes:
            raise ValueError(f"an episode {id!r} exists already")
        jail = await self._jail(world, database)
        jail.used = next(self._clock)
        name = secrets.token_hex(12)  # not to be guessed by other episodes
        jail.episodes.add(name)
        try:
            header = {"op": "open", "id": name, "wants_document": jail.tools is None, "resumes": False}
            episode = Episode(name, jail, *await self._line(jail, header))
        except BaseException:
            jail.episodes.discard(name)
            raise
        try:
            async with asyncio.timeout(_LOAD_S):
                answer = await episode.frame()
                if "error" in answer:
                    raise DataError(f"the world {world.scenario!r} does not start: {_last(answer['error'])}")
                document = await episode.blob(answer.get("size", 0))
            if jail.tools is None:
                jail.tools = endpoints(json.loads(document))
        except TimeoutError:
            await self._end(episode)
            raise DataError(f"the world {world.scenario!r} does not start within {_LOAD_S:g} s") from None
        except (asyncio.IncompleteReadError, ConnectionError, ValueError, RecursionError) as error:
            await self._end(episode)
            raise self._lost(f"an episode of the world {world.scenario!r} ended as it started: {error}") from None
        except BaseException:
            await self._end(episode)
            raise
        self._episodes[id] = episode
        episode.used = asyncio.get_running_loop().time()
        if self._sweeping is None:
            self._sweeping = asyncio.ensure_future(self._sweep())
        return jail.tools

    async def _line(self, jail: Jail, header: dict[str, Any]) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """Asks for an episode's process; the socket to it."""
        ours, theirs = socket.socketpair()
        try:
            await jail.send(header, fd=theirs.fileno())
        except (OSError, ConnectionError) as error:
            self._died(jail, f"{error}")
            ours.close()
            raise self._lost(f"the process of the world {jail.world.scenario!r} is gone: {error}") from None
        except BaseException:
            ours.close()
            raise
        finally:
            theirs.close()
        return await asyncio.open_unix_connection(sock=ours, limit=1 << 20)

    # -- rest -----------------------------------------------------------------------------------------

    async def _sweep(self) -> None:
        """Where many episodes are open, the processes of those that nobody calls end until the next call."""
        loop = asyncio.get_running_loop()
        try:
            while self._episodes:
                await asyncio.sleep(self.rest_after_s / 2)
                for id, episode in list(self._episodes.items() if len(self._episodes) > self.awake else ()):
                    idle = loop.time() - episode.used > self.rest_after_s and not episode.lock.locked()
                    if idle and episode.jail.rests and not (episode.resting or episode.lost):
                        async with episode.lock:
                            if self._episodes.get(id) is episode and not episode.lost:
                                with contextlib.suppress(InfrastructureError):
                                    await self._rest(id, episode)
        finally:
            self._sweeping = None

    async def _rest(self, id: str, episode: Episode) -> None:
        try:
            async with asyncio.timeout(_GRACE_S):
                episode.ask({"op": "rest"})
                rests = (await episode.frame())["rests"] is True
        except Exception as error:
            raise await self._lose(id, f"as it was to rest: {type(error).__name__}: {error}") from None
        if not rests:
            episode.used = float("inf")  # what it remembers now, it will remember
            return
        episode.writer.transport.abort()
        episode.resting = True
        self.rested += 1

    async def _wake(self, id: str, episode: Episode) -> None:
        header = {"op": "open", "id": episode.id, "wants_document": False, "resumes": True}
        episode.reader, episode.writer = await self._line(episode.jail, header)
        episode.resting = False
        try:
            async with asyncio.timeout(_LOAD_S):
                answer = await episode.frame()
                if "error" in answer:
                    raise ValueError(_last(answer["error"]))
        except Exception as error:
            raise await self._lose(id, f"as it was woken: {type(error).__name__}: {error}") from None

    async def _call(self, id: str, requests: Sequence[dict[str, Any]], timeout_s: float, keep: int) -> list[Reply]:
        episode = self._of(id)
        replies: list[Reply] = []
        async with episode.lock:
            if episode.resting:
                await self._wake(id, episode)
            asked = {"op": "call", "timeout_s": timeout_s, "keep": keep}
            try:
                for request in requests:
                    episode.ask({**asked, "calls": [request]})
                    async with asyncio.timeout(timeout_s + _GRACE_S):
                        await episode.writer.drain()
                        answer = await episode.frame()
                    reply = Reply(int(answer["status"]), str(answer["body"]))
                    replies.append(reply)
                    if reply.status == 0:
                        break
            except TimeoutError:
                raise await self._lose(id, f"it did not answer within {timeout_s + _GRACE_S:g} s") from None
            except asyncio.CancelledError:
                await self._lose(id, "a call was cancelled")
                raise
            except Exception as error:  # its end, or something that is no answer
                raise await self._lose(id, f"{type(error).__name__}: {error}") from None
            episode.used = max(episode.used, asyncio.get_running_loop().time())
        return replies

    async def _call_many(
        self, calls: Sequence[tuple[str, Sequence[dict[str, Any]]]], timeout_s: float, keep: int
    ) -> list[list[Reply] | InfrastructureError]:
        async def one(id: str, requests: Sequence[dict[str, Any]]) -> list[Reply] | InfrastructureError:
            try:
                return await self._call(id, requests, timeout_s, keep)
            except InfrastructureError as error:
                return error

        return await asyncio.gather(*(one(id, requests) for id, requests in calls))

    async def _finish(self, id: str) -> bytes:
        episode = self._of(id)
        async with episode.lock:
            if episode.resting:
                await self._wake(id, episode)
            try:
                async with asyncio.timeout(_LOAD_S):
                    episode.ask({"op": "finish"})
                    answer = await episode.frame()
                    return await episode.blob(answer.get("size"))
            except TimeoutError:
                raise await self._lose(id, f"its database did not come within {_LOAD_S:g} s") from None
            except asyncio.CancelledError:
                await self._lose(id, "its end was cancelled")
                raise
            except Exception as error:
                raise await self._lose(id, f"{type(error).__name__}: {error}") from None

    async def _close(self, id: str) -> None:
        episode = self._episodes.pop(id, None)
        if episode is not None:
            await self._end(episode)

    async def _shutdown(self) -> None:
        for id in list(self._episodes):
            await self._close(id)
        for key, jail in list(self._jails.items()):
            jail.kill("it was shut down")
            del self._jails[key]

    # -- endings --------------------------------------------------------------------------------------

    def _of(self, id: str) -> Episode:
        episode = self._episodes.get(id)
        if episode is None:
            raise self._lost(f"there is no episode {id!r}")
        if episode.lost:
            raise InfrastructureError(f"the episode is lost: {episode.lost}", Termination.ENVIRONMENT_LOST)
        return episode

    def _lost(self, message: str) -> InfrastructureError:
        self.lost += 1
        return InfrastructureError(message, Termination.ENVIRONMENT_LOST)

    async def _lose(self, id: str, why: str) -> InfrastructureError:
        episode = self._episodes.get(id)
        if episode is None:
            return InfrastructureError(f"the episode was closed meanwhile ({why})", Termination.ENVIRONMENT_LOST)
        if episode.jail.dead:
            why = f"the process of its world is gone ({episode.jail.dead})"
        episode.lost = f"the world {episode.jail.world.scenario!r}: {why}"
        await self._end(episode)
        return self._lost(episode.lost)

    async def _end(self, episode: Episode) -> None:
        """Closes the socket, which a waiting process takes as its end, and has a running one killed."""
        episode.writer.transport.abort()
        episode.jail.episodes.discard(episode.id)
        if not episode.jail.dead:
            try:
                await episode.jail.send({"op": "close", "id": episode.id})
            except (OSError, ConnectionError) as error:
                self._died(episode.jail, str(error))

    def _died(self, jail: Jail, why: str) -> None:
        jail.kill(why)
        if self._jails.get(jail.world.key) is jail:
            del self._jails[jail.world.key]

    # -- worlds ---------------------------------------------------------------------------------------

    async def _jail(self, world: World, database: bytes | Path) -> Jail:
        jail = self._jails.get(world.key)
        if jail is not None and jail.process.process.poll() is not None:
            self._died(jail, f"exit status {jail.process.process.poll()}")
            jail = None
        if jail is not None:
            return jail
        if world.key not in self._loading:
            loading = asyncio.ensure_future(self._load(world, database))
            self._loading[world.key] = loading
            loading.add_done_callback(lambda done: (self._loading.pop(world.key, None), done.exception()))
        return await asyncio.shield(self._loading[world.key])

    async def _load(self, world: World, database: bytes | Path) -> Jail:
        await self._make_room()
        backend = self.backend if self.backend != "auto" else await zygote.default_backend()
        data = database if isinstance(database, bytes) else database.read_bytes()
        late, rehearses = backend != "bubblewrap", True
        for _ in range(3):
            jail = await boot(world, backend, next(self._index))
            self.started += 1
            try:
                async with asyncio.timeout(_LOAD_S):
                    source = world.code.encode("utf-8", "surrogatepass")
                    header = {"op": "load", "late": late, "rehearses": rehearses, "source": len(source)}
                    header["limits"] = self.limits.header()
                    await jail.send(header, [source, data])
                    answer, document = await jail.receive()
                if "error" in answer:
                    raise DataError(f"the code of the world {world.scenario!r} does not load: {_last(answer['error'])}")
                if not late:
                    jail.tools = endpoints(json.loads(document))
                    if answer["open"]:
                        jail.kill("it is loaded anew for every episode")
                        late = True
                        continue
                    if answer.get("rehearsed", 0) is None:
                        jail.kill("it is loaded anew: it remembers its rehearsal")
                        rehearses = False
                        continue
                jail.late, jail.used = late, next(self._clock)
                jail.rests = not late and answer["rests"] is True
                self._jails[world.key] = jail
                loop = asyncio.get_running_loop()
                jail.watching = loop.create_task(self._watch(jail))
                jail.monitor = os.pidfd_open(jail.process.process.pid)
                loop.add_reader(jail.monitor, self._died, jail, "its process was killed")
                return jail
            except TimeoutError:
                jail.kill("it did not load in time")
                raise DataError(
                    f"the code of the world {world.scenario!r} does not load within {_LOAD_S:g} s"
                ) from None
            except (OSError, ConnectionError, ValueError, KeyError, TypeError, RecursionError) as error:
                jail.kill("it did not load")
                raise DataError(
                    f"the code of the world {world.scenario!r} ended its process as it was loaded: {error}"
                ) from None
            except BaseException:
                jail.kill("it did not load")
                raise
        raise AssertionError("unreachable")

    async def _watch(self, jail: Jail) -> None:
        """Nothing comes from a loaded world: what comes is its end."""
        try:
            await asyncio.get_running_loop().sock_recv(jail.process.socket, 1)
        except (OSError, ValueError):
            pass
        jail.watching = None
        self._died(jail, "its process ended")

    async def _make_room(self) -> None:
        idle = sorted((jail for jail in self._jails.values() if not jail.episodes), key=lambda jail: jail.used)
        while idle and len(self._jails) + len(self._loading) > self.max_worlds:
            self._died(idle.pop(0), "another world took its place")


async def _hop(work: Awaitable[T]) -> T:
    """Runs `work` where the jails live."""
    if asyncio.get_running_loop() is zygote.jail_loop():
        return await work
    return await asyncio.wrap_future(zygote.on_jail_thread(work))


_lock = threading.Lock()
_hosts: dict[tuple[Any, ...], WorldHost] = {}


def shared_host(limits: WorldLimits = _LIMITS, max_worlds: int = 32) -> WorldHost:
    """The process's host: environments with the same limits share the worlds."""
    key = (os.getpid(), limits, max_worlds)
    with _lock:
        if key not in _hosts:
            _hosts[key] = WorldHost(limits=limits, max_worlds=max_worlds)
            atexit.register(_at_exit, key)
        return _hosts[key]


def _at_exit(key: tuple[Any, ...]) -> None:
    if key[0] == os.getpid():
        zygote.on_jail_thread(_hosts[key]._shutdown()).result(timeout=30)


def _last(text: Any) -> str:
    """The end of a traceback: what failed, and where in the world's code."""
    lines = [line for line in str(text).strip().splitlines() if "rufus_plugins" not in line]
    return "\n".join(lines[-8:])[-1500:]
