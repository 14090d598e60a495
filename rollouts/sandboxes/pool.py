"""Sandboxes made ahead of their use: started, or forked from one that was initialised once.

One pool makes sandboxes of one kind. `take` gives a ready one if there is one and otherwise waits for a start; more are
made in the background until `warm` of them wait. At most `limit` exist at a time: who comes later waits. A sandbox is
used once: `give_back` ends it. What waited longer than `idle_s` is ended too.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Any

from rufus_plugins.errors import InfrastructureError
from rufus_plugins.types import Termination


class SandboxPool:
    """`make()` gives a sandbox with `start()` and `close()`.

    With `initialise`, the first one is prepared by it and stays aside; all others are its forks.
    """

    def __init__(
        self,
        make: Callable[[], Any],
        *,
        warm: int = 0,
        limit: asyncio.Semaphore | None = None,
        initialise: Callable[[Any], Awaitable[None]] | None = None,
        idle_s: float = 300.0,
    ):
        self.make, self.warm, self.initialise, self.idle_s = make, warm, initialise, idle_s
        self.limit = limit
        self.started = 0
        self.warm_hits = 0
        self._ready: deque[tuple[float, Any]] = deque()
        self._parent: Any = None
        self._one_parent = asyncio.Lock()
        self._filling: asyncio.Task | None = None
        self._out: set[Any] = set()
        self._closed = False

    async def take(self) -> Any:
        """A running sandbox of your own. Raises what its start raises."""
        if self._closed:
            raise InfrastructureError("the sandbox pool is closed", Termination.SANDBOX_LOST)
        await self._end_idle()
        while self._ready:
            _, sandbox = self._ready.popleft()
            if getattr(sandbox, "lost", ""):
                await self._end(sandbox)
                continue
            self.warm_hits += 1
            break
        else:
            if self.limit is not None:
                await self.limit.acquire()
            try:
                sandbox = await self._new()
            except BaseException:
                self._free()
                raise
        self._out.add(id(sandbox))
        self._fill()
        return sandbox

    async def give_back(self, sandbox: Any) -> None:
        """Ends a sandbox that was taken. Twice is once."""
        if id(sandbox) in self._out:
            self._out.discard(id(sandbox))
            await self._end(sandbox)

    async def shrink(self) -> None:
        """Ends what waits, to make room for other pools under the same limit."""
        while self._ready:
            await self._end(self._ready.popleft()[1])

    async def close(self) -> None:
        """Ends what waits; what is taken belongs to its taker until it is given back."""
        self._closed = True
        filling, self._filling = self._filling, None
        if filling is not None:
            filling.cancel()
            await asyncio.gather(filling, return_exceptions=True)
        await self.shrink()
        parent, self._parent = self._parent, None
        if parent is not None:
            await parent.close()

    @property
    def ready(self) -> int:
        return len(self._ready)

    @property
    def unused(self) -> bool:
        """Nothing waits in it, nothing is taken from it."""
        return not (self._out or self._ready or self._parent or (self._filling and not self._filling.done()))

    async def _new(self) -> Any:
        self.started += 1
        if self.initialise is None:
            sandbox = self.make()
            try:
                await sandbox.start()
            except BaseException:
                await sandbox.close()
                raise
            return sandbox
        async with self._one_parent:
            if self._parent is None or getattr(self._parent, "lost", ""):
                parent = self.make()
                try:
                    await parent.start()
                    await self.initialise(parent)
                except BaseException:
                    await parent.close()
                    raise
                self._parent = parent
            return (await self._parent.fork(1))[0]

    def _fill(self) -> None:
        if not self._closed and len(self._ready) < self.warm and (self._filling is None or self._filling.done()):
            self._filling = asyncio.create_task(self._make_ready())

    async def _make_ready(self) -> None:
        while len(self._ready) < self.warm and not self._closed:
            if self.limit is not None:
                if self.limit.locked():
                    return  # those who wait for a sandbox come first
                await self.limit.acquire()
            try:
                sandbox = await self._new()
            except asyncio.CancelledError:
                self._free()
                raise
            except Exception:  # whoever takes the next one meets the same failure and reports it
                self._free()
                return
            self._ready.append((time.monotonic(), sandbox))

    async def _end_idle(self) -> None:
        while self._ready and time.monotonic() - self._ready[0][0] > self.idle_s:
            await self._end(self._ready.popleft()[1])

    async def _end(self, sandbox: Any) -> None:
        try:
            await sandbox.close()
        finally:
            self._free()

    def _free(self) -> None:
        if self.limit is not None:
            self.limit.release()
