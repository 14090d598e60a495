"""The token-faithful buffer of one context: ids, mask, log-probabilities and routes, append-only.

What the model sampled is kept bit for bit. What stands between (tool results, user messages, boundary tokens) comes in
as ids, tokenised once by the host. Nothing in the buffer is ever rendered, decoded or tokenised again, and nothing is
removed. `TokenAudit` keeps its own record of what went to the engine and what came back, so that a change of the
buffer, wherever it comes from, ends the rollout as a typed fault instead of training on tokens nobody sampled.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from rufus_plugins.errors import InfrastructureError
from rufus_plugins.types import ContextSegment, Termination


class TokensDiverged(InfrastructureError):
    """The audit found tokens that are not those which the engine saw."""

    def __init__(self, message: str):
        super().__init__(message, Termination.TOKENS_DIVERGED)


class SegmentBuffer:
    """Grows while the rollout runs; `close` makes the `ContextSegment`."""

    def __init__(self, prompt_ids: Sequence[int]):
        self._ids: list[int] = list(prompt_ids)
        self.prompt_length = len(self._ids)
        self._mask: list[int] = []
        self._logprobs: list[float] = []
        self._has_logprobs: bool | None = None
        self._routes: Any = None
        self.versions: tuple[int, int] | None = None
        """Weights that gave the first and the last sampled token, where the engine says so."""

    def __len__(self) -> int:
        return len(self._ids)

    @property
    def response_length(self) -> int:
        return len(self._ids) - self.prompt_length

    @property
    def sampled(self) -> int:
        return sum(self._mask)

    def ids(self) -> list[int]:
        """All ids, as a prompt for the engine. A copy."""
        return self._ids.copy()

    def tail(self, count: int) -> list[int]:
        """The last `count` ids: all that a message boundary depends on."""
        return self._ids[-count:]

    def add_context(self, ids: Sequence[int]) -> None:
        """Tokens that the model reads but did not sample: mask 0, log-probability 0."""
        self._ids.extend(ids)
        self._mask.extend([0] * len(ids))
        self._logprobs.extend([0.0] * len(ids))

    def add_sampled(
        self,
        ids: Sequence[int],
        logprobs: Sequence[float] | None = None,
        routes: np.ndarray | None = None,
        versions: tuple[int, int] | None = None,
    ) -> None:
        """What the model sampled after everything that is here.

        `routes`: `[len(self) + len(ids) - 1, layers, top_k]`, the rows of the whole context as engines answer them;
        rows that are here already stay (they are what the earlier tokens were sampled under), new ones are appended.
        """
        if self._has_logprobs is None:
            self._has_logprobs = logprobs is not None
        if self._has_logprobs != (logprobs is not None):
            raise TokensDiverged("the engine gave log-probabilities for some turns of a segment and not for others")
        self._ids.extend(ids)
        self._mask.extend([1] * len(ids))
        self._logprobs.extend(logprobs if logprobs is not None else [0.0] * len(ids))
        if routes is not None:
            self._add_routes(np.asarray(routes))
        if versions is not None:
            self.versions = (self.versions[0] if self.versions else versions[0], versions[1])

    def _add_routes(self, routes: np.ndarray) -> None:
        from rufus_plugins.algos.routing_replay.storage import RouteBuffer

        if self._routes is None:
            # only the id type is decided by the number of experts, and an engine that answers uint8 has at most 256
            experts = 256 if routes.dtype == np.uint8 else 32767
            self._routes = RouteBuffer(routes.shape[1], routes.shape[2], experts)
        self._routes.add(routes)

    def close(self) -> ContextSegment:
        """The segment. Routes have exactly `n - 1` rows; rows that no generation reported go native in training."""
        return ContextSegment(
            prompt_ids=self._ids[: self.prompt_length],
            response_ids=self._ids[self.prompt_length :],
            response_mask=self._mask.copy(),
            response_logprobs=self._logprobs.copy() if self._has_logprobs else None,
            routed_experts=None if self._routes is None else self._routes.join(len(self._ids)),
        )


class TokenAudit:
    """Checks one segment on every generate call. Costs one comparison of the prompt, which is sent anyway."""

    def __init__(self, opening: Sequence[int]):
        self._known = list(opening)
        """What the engine has seen or given so far."""
        self._sampled: list[tuple[int, list[int], list[float] | None]] = []
        """Position, ids and log-probabilities of each answer."""
        self._routes = False

    def asks(self, prompt_ids: Sequence[int]) -> None:
        """A prompt goes to the engine. Raises `TokensDiverged` unless it extends all that went before it."""
        known = self._known
        if len(prompt_ids) < len(known) or prompt_ids[: len(known)] != known:
            raise TokensDiverged(
                f"a prompt of {len(prompt_ids)} tokens does not extend the {len(known)} tokens of its segment: they "
                f"differ from token {_first_difference(prompt_ids, known)} on"
            )
        self._known = list(prompt_ids)

    def answers(self, ids: Sequence[int], logprobs: Sequence[float] | None, routes: np.ndarray | None) -> None:
        """The engine answered. Raises `TokensDiverged` where lengths disagree."""
        if logprobs is not None and len(logprobs) != len(ids):
            raise TokensDiverged(f"the engine gave {len(logprobs)} log-probabilities for {len(ids)} tokens")
        if self._sampled and self._routes != (routes is not None):
            raise TokensDiverged("the engine gave routes for some turns of a segment and not for others")
        self._routes = routes is not None
        rows = len(self._known) + len(ids) - 1
        if routes is not None and len(routes) != rows:
            raise TokensDiverged(f"the engine gave {len(routes)} rows of routes for {rows + 1} tokens; {rows} are due")
        self._sampled.append((len(self._known), list(ids), None if logprobs is None else list(map(float, logprobs))))
        self._known.extend(ids)

    def closes(self, segment: ContextSegment) -> None:
        """The segment goes to training. Raises `TokensDiverged` unless it is what was asked and answered."""
        ids = [*segment.prompt_ids, *segment.response_ids]
        start, count = len(segment.prompt_ids), len(segment.response_ids)
        if ids[: len(self._known)] != self._known:
            raise TokensDiverged(
                f"a segment is not what the engine saw: they differ from token {_first_difference(ids, self._known)} on"
            )
        if len(segment.response_mask) != count:
            raise TokensDiverged(f"the mask has {len(segment.response_mask)} entries for {count} tokens")
        logprobs = segment.response_logprobs
        if logprobs is not None and len(logprobs) != count:
            raise TokensDiverged(f"{len(logprobs)} log-probabilities for {count} tokens")
        if segment.routed_experts is not None and len(segment.routed_experts) != len(ids) - 1:
            raise TokensDiverged(f"{len(segment.routed_experts)} rows of routes for {len(ids)} tokens")
        trained = sum(len(given) for _, given, _ in self._sampled)
        if sum(segment.response_mask) != trained:
            raise TokensDiverged(f"the mask trains {sum(segment.response_mask)} tokens, {trained} were sampled")
        for at, given, told in self._sampled:
            where = slice(at - start, at - start + len(given))
            if segment.response_mask[where] != [1] * len(given):
                raise TokensDiverged(f"tokens {at} to {at + len(given)} were sampled, but the mask does not say so")
            if logprobs is not None and told is not None and list(logprobs[where]) != told:
                raise TokensDiverged(f"the log-probabilities of tokens {at} to {at + len(given)} changed")


def _first_difference(a: Sequence[int], b: Sequence[int]) -> int:
    return next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))
