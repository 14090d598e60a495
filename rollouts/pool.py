"""Environments away from the trainer: a few host actors on Ray with many episodes each; in-process, the same interface.

    rufus.environment_pool={hosts: 4, episodes: 256}

A rollout's environment then lives in a host (rollouts/environment_host.py), and `HostedEnvironment` stands for it where
the model is sampled. Hosts are never asked twice for the same thing (`max_task_retries=0`): a host that dies costs its
episodes, `environment_lost`, and Ray starts it anew. `admitted()` waits for room before any deadline of the episode
runs.
"""

from __future__ import annotations

import asyncio
import itertools
import uuid
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any
from weakref import WeakKeyDictionary

from rufus_plugins.errors import ConfigError, InfrastructureError
from rufus_plugins.fields import Unfit, fitted
from rufus_plugins.rollouts.environment_host import EnvironmentHost, Exchange, Request, failure
from rufus_plugins.types import Message, StepResult, Task, Termination

PREFIX = "rufus_environments"


@dataclass(frozen=True)
class PoolRules:
    """Fields of `rufus.environment_pool`."""

    hosts: int = 2
    """Actors; each is one process. Ours."""
    episodes: int = 256
    """At a time in each; who comes later waits. Ours."""
    cpus: float = 1.0
    """That Ray counts for each."""
    resources: dict[str, float] = field(default_factory=dict)
    """Ray's custom resources: `{environments: 1}` keeps the hosts on machines started with that resource, away from the
    trainer's."""
    memory_mb: int | None = None
    """Resident memory of a host above which it takes no further episode until one ended."""
    admission_timeout_s: float = 6 * 3600.0
    """Longest wait for room. Ours."""

    def __post_init__(self) -> None:
        for name in ("hosts", "episodes", "admission_timeout_s"):
            if getattr(self, name) <= 0:
                raise ConfigError(f"rufus.environment_pool.{name}={getattr(self, name)}: a positive number")
        if self.cpus < 0 or (self.memory_mb is not None and self.memory_mb <= 0):
            raise ConfigError("rufus.environment_pool: cpus is not negative, memory_mb positive or null")
        for name, amount in self.resources.items():
            if name in ("CPU", "GPU", "memory", "object_store_memory") or amount <= 0:
                raise ConfigError(
                    f"rufus.environment_pool.resources={dict(self.resources)}: positive amounts of your own resources "
                    "(ray start --resources=...); CPUs are `cpus`"
                )


def pool_rules(given: Mapping[str, Any] | None) -> PoolRules | None:
    """None where no pool is asked for. Raises `ConfigError`."""
    if given is None:
        return None
    known = [one.name for one in fields(PoolRules)]
    if not isinstance(given, Mapping):
        raise ConfigError(f"rufus.environment_pool={given!r}: a mapping with fields of {', '.join(known)}, or null")
    unknown = sorted(set(given) - set(known))
    if unknown:
        raise ConfigError(f"rufus.environment_pool has no {', '.join(unknown)}: its fields are {', '.join(known)}")
    try:
        return PoolRules(**fitted(PoolRules, given))
    except Unfit as error:
        raise ConfigError(f"rufus.environment_pool.{error} (rollouts/pool.py)") from None


class Link:
    """One client's line to one host. What episodes ask within one pass of the event loop travels together."""

    def __init__(self, exchange: Callable[[str, Sequence[Request]], Awaitable[Exchange]], name: str):
        self._exchange, self.name = exchange, name
        self._client = uuid.uuid4().hex
        self._numbers = itertools.count()
        self._outbox: list[Request] = []
        self._waiting: dict[int, asyncio.Future] = {}
        self._calls: set[asyncio.Task] = set()
        self._sending = False
        self._incarnation = ""
        self.load = 0
        """Episodes at the host, as it last said, and those that this client sent since."""
        self.hops = 0
        self.asked = 0

    async def ask(self, op: str, episode: str, payload: Any = None) -> Any:
        """The host's answer. Raises what the environment raised, by type; `environment_lost` if the host died."""
        loop = asyncio.get_running_loop()
        number, future = next(self._numbers), loop.create_future()
        self._waiting[number] = future
        self._post(Request(number, op, episode, payload))
        self.asked += 1
        try:
            return await future
        except asyncio.CancelledError:
            if self._waiting.pop(number, None) is not None and op != "close":
                self._post(Request(next(self._numbers), "cancel", episode, number))
            raise

    def _post(self, request: Request) -> None:
        self._outbox.append(request)
        if not self._sending:
            self._sending = True
            asyncio.get_running_loop().call_soon(self._send)

    def _send(self) -> None:
        self._sending = False
        requests, self._outbox = self._outbox, []
        task = asyncio.ensure_future(self._call(requests))
        self._calls.add(task)
        task.add_done_callback(self._calls.discard)

    async def _call(self, requests: Sequence[Request]) -> None:
        self.hops += 1
        try:
            told = await self._exchange(self._client, requests)
        except asyncio.CancelledError:
            raise
        except Exception as error:
            self._lost(f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}")
            return
        if self._incarnation and told.incarnation != self._incarnation:
            sent = {request.number for request in requests}
            self._lost("it died and was started anew", but=sent)
        self._incarnation = told.incarnation
        self.load = told.load
        for answer in told.answers:
            future = self._waiting.pop(answer.number, None)
            if future is not None and not future.done():
                if answer.failure is None:
                    future.set_result(answer.value)
                else:
                    future.set_exception(failure(answer.failure))
        if self._waiting and not self._sending and len(self._calls) < 2:
            self._sending = True
            asyncio.get_running_loop().call_soon(self._send)

    def _lost(self, why: str, but: set[int] = frozenset()) -> None:
        for number in [n for n in self._waiting if n not in but]:
            future = self._waiting.pop(number)
            if not future.done():
                future.set_exception(
                    InfrastructureError(
                        f"the environment host {self.name} is lost: {why}", Termination.ENVIRONMENT_LOST
                    )
                )


class EnvironmentPool:
    """Hands out environments that live in hosts. One per event loop and process; cheap."""

    def __init__(self, links: Sequence[Link], rules: PoolRules):
        self.links, self.rules = list(links), rules
        self._turn = itertools.count()

    def environment(self) -> HostedEnvironment:
        return HostedEnvironment(self)

    def least(self) -> Link:
        """The host with the fewest episodes, as far as this client knows; it counts as one more from now on."""
        start = next(self._turn)
        links = [self.links[(start + i) % len(self.links)] for i in range(len(self.links))]
        chosen = min(links, key=lambda link: link.load)
        chosen.load += 1
        return chosen


class HostedEnvironment:
    """An `Environment` whose work is done in a host."""

    def __init__(self, pool: EnvironmentPool):
        self._pool = pool
        self._episode = uuid.uuid4().hex
        self._link: Link | None = None
        self.tools: Sequence[Mapping[str, Any]] = ()

    async def admitted(self) -> None:
        """Waits for room in a host. Raises `InfrastructureError(TIMEOUT_INFRA)` after `admission_timeout_s`."""
        self._link = self._pool.least()
        limit = self._pool.rules.admission_timeout_s
        try:
            async with asyncio.timeout(limit) as clock:
                await self._link.ask("admit", self._episode)
        except TimeoutError:
            if not clock.expired():
                raise
            raise InfrastructureError(
                f"no environment host had room within {limit:g} s: raise rufus.environment_pool.hosts or episodes",
                Termination.TIMEOUT_INFRA,
            ) from None

    async def start(self, task: Task) -> Sequence[Message]:
        if self._link is None:
            await self.admitted()
        opening, self.tools = await self._link.ask("start", self._episode, task)
        return opening

    async def step(self, message: Message) -> StepResult:
        return await self._link.ask("step", self._episode, dict(message))

    async def finish(self) -> Mapping[str, Any]:
        return await self._link.ask("finish", self._episode)

    async def close(self) -> None:
        """A host that is gone has nothing left to close."""
        link, self._link = self._link, None
        if link is None:
            return
        try:
            await link.ask("close", self._episode)
        except InfrastructureError:
            return


def in_process(name: str, config: Mapping[str, Any], rules: PoolRules) -> EnvironmentPool:
    """The same without Ray: hosts are objects of this process."""
    hosts = [EnvironmentHost(name, config, rules.episodes, rules.memory_mb) for _ in range(rules.hosts)]
    return EnvironmentPool([Link(host.exchange, f"{number}") for number, host in enumerate(hosts)], rules)


def launch(name: str, config: Mapping[str, Any], rules: PoolRules, run: str) -> list[Any]:
    """Starts the host actors of a run and returns their handles; they end with the process that holds these.

    Raises `ConfigError` where Ray has no room for them, and what the environment's own `preflight()` raises in a host.
    """
    import ray

    total = ray.cluster_resources()
    if rules.hosts * rules.cpus > total.get("CPU", 0.0):
        raise ConfigError(
            f"rufus.environment_pool: {rules.hosts} hosts of {rules.cpus:g} CPUs, Ray has {total.get('CPU', 0.0):g}"
        )
    for resource, amount in rules.resources.items():
        if total.get(resource, 0.0) < amount * rules.hosts:
            raise ConfigError(
                f"rufus.environment_pool.resources={dict(rules.resources)}: {rules.hosts} hosts need "
                f"{amount * rules.hosts:g} of {resource!r}, Ray has {total.get(resource, 0.0):g}. Start the machines "
                f"for environments by `ray start --resources='{{\"{resource}\": 1}}'`"
            )
    actor = ray.remote(EnvironmentHost)
    handles = [
        actor.options(
            name=actor_name(run, number),
            max_restarts=-1,
            max_task_retries=0,
            max_concurrency=10_000,
            num_cpus=rules.cpus,
            resources=dict(rules.resources) or None,
            scheduling_strategy="SPREAD",
        ).remote(name, dict(config), rules.episodes, rules.memory_mb)
        for number in range(rules.hosts)
    ]
    ready, _ = ray.wait([handle.check.remote() for handle in handles], num_returns=len(handles), timeout=300.0)
    if len(ready) < len(handles):
        raise InfrastructureError(
            f"{len(handles) - len(ready)} of {len(handles)} environment hosts did not start within 300 s: is Ray's CPU "
            f"count used up? rufus.environment_pool.cpus={rules.cpus:g}"
        )
    if wrong := [told for told in ray.get(ready) if told is not None]:
        raise failure(wrong[0])
    return handles


def actor_name(run: str, number: int) -> str:
    return f"{PREFIX}_{run}_{number}"


_joined: WeakKeyDictionary[Any, dict[str, EnvironmentPool]] = WeakKeyDictionary()


def join(run: str, rules: PoolRules) -> EnvironmentPool:
    """This process's pool over the run's host actors, one per event loop."""
    import ray

    pools = _joined.setdefault(asyncio.get_running_loop(), {})
    if run not in pools:
        links = []
        for number in range(rules.hosts):
            name = actor_name(run, number)
            try:
                handle = ray.get_actor(name)
            except ValueError:
                raise InfrastructureError(
                    f"there is no environment host {name}: the trainer that holds it is gone",
                    Termination.ENVIRONMENT_LOST,
                ) from None
            links.append(Link(_caller(handle), name))
        pools[run] = EnvironmentPool(links, rules)
    return pools[run]


def _caller(handle: Any) -> Callable[[str, Sequence[Request]], Awaitable[Exchange]]:
    async def exchange(client: str, requests: Sequence[Request]) -> Exchange:
        return await handle.exchange.remote(client, requests)

    return exchange
