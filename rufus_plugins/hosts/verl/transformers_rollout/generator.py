"""Continuous batching over a transformers model: requests join and leave the running batch between steps.

Right padding never enters attention: rows have their own lengths and positions (`rows.RowCache`), and every
forward pass gets an explicit additive mask. Knows nothing of verl or Ray; not thread-safe (the server locks).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from rufus_plugins.errors import ConfigError

from .routes import RouteRecorder
from .rows import RowCache
from .sampling import Sampling, draw


@dataclass(eq=False)
class Request:
    """One sequence to be generated, and what has been generated."""

    prompt: list[int]
    sampling: Sampling
    done: Callable[[Request], None]
    """Called once, when `finish` is set."""
    failed: Callable[[Exception], None] | None = None
    """Called instead when generation itself failed."""
    tokens: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    routes: np.ndarray | None = None
    """`[len(prompt) + max_tokens, layers, top_k]`; the first `routed` rows are filled."""
    routed: int = 0
    finish: str | None = None
    """stop | length | abort"""
    first_version: int | None = None
    last_version: int | None = None
    """Weights that gave the first and the last token."""
    uniform: np.random.Generator | None = None

    @property
    def ids(self) -> list[int]:
        return self.prompt + self.tokens


class Generator:
    """Generates for all submitted requests, one token per running row and `step`."""

    def __init__(
        self,
        model: torch.nn.Module,
        tokenizer: Any,
        *,
        max_rows: int,
        max_length: int,
        max_prefill_tokens: int = 8192,
        record_routes: bool = False,
    ):
        _refuse_other_attention(model)
        self.model = model.eval()
        self.tokenizer = tokenizer
        self.max_rows, self.max_length, self.max_prefill_tokens = max_rows, max_length, max_prefill_tokens
        self.recorder = RouteRecorder(model) if record_routes else None
        self.vocabulary = len(tokenizer)
        self.version = 0
        self.waiting: deque[Request] = deque()
        self.running: list[Request] = []
        self.cache = RowCache()
        self.generated = 0
        """Tokens drawn so far."""

    @property
    def busy(self) -> bool:
        return bool(self.waiting or self.running)

    def submit(self, request: Request) -> None:
        room = self.max_length - len(request.prompt)
        if room < 1:
            raise ConfigError(
                f"a prompt of {len(request.prompt)} tokens leaves no room in the context of {self.max_length}: raise "
                "rollout.max_model_len or lower data.max_prompt_length"
            )
        request.uniform = np.random.default_rng(request.sampling.seed)
        self.waiting.append(request)

    @torch.inference_mode()
    def step(self) -> None:
        """Lets waiting requests in, then draws one token for every running one."""
        self._admit()
        if self.running:
            self._decode()

    def preempt(self) -> None:
        """Takes all rows out of the batch; they go on later from the tokens they have, with a fresh KV cache."""
        self.waiting.extendleft(reversed(self.running))
        self.running = []
        self.cache.clear()

    def abort(self) -> int:
        """Ends all requests with what they have. Returns how many."""
        self.preempt()
        count = len(self.waiting)
        while self.waiting:
            self._end(self.waiting.popleft(), "abort")
        return count

    def _admit(self) -> None:
        groups: dict[tuple[int, ...], list[Request]] = {}
        longest = 0
        while self.waiting and len(self.running) + sum(map(len, groups.values())) < self.max_rows:
            ids = tuple(self.waiting[0].ids)
            if ids not in groups and groups and max(longest, len(ids)) * (len(groups) + 1) > self.max_prefill_tokens:
                break
            longest = max(longest, len(ids))
            groups.setdefault(ids, []).append(self.waiting.popleft())
        if groups:
            self._prefill(list(groups), list(groups.values()))

    def _prefill(self, sequences: list[tuple[int, ...]], members: list[list[Request]]) -> None:
        """One forward pass over distinct sequences, left-padded; equal ones share it."""
        lengths = [len(ids) for ids in sequences]
        width = max(lengths)
        pads = torch.tensor([width - length for length in lengths])
        tokens = torch.tensor([[0] * (width - len(ids)) + list(ids) for ids in sequences])
        positions = (torch.arange(width) - pads.unsqueeze(1)).clamp(min=0)
        real = torch.arange(width) >= pads.unsqueeze(1)
        causal = torch.ones(width, width, dtype=torch.bool).tril()
        logits = self._forward(
            lambda: self.cache.start_prefill(lengths, [len(m) for m in members]),
            tokens,
            positions,
            (causal & real.unsqueeze(1)).unsqueeze(1),
        )
        routes = self.recorder.take().reshape(len(sequences), width, self.recorder.depth, -1) if self.recorder else None
        started: list[Request] = []
        for sequence, requests in enumerate(members):
            for request in requests:
                if routes is not None:
                    self._keep_routes(request, routes[sequence, width - lengths[sequence] :])
                started.append(request)
        copies = torch.tensor([len(m) for m in members])
        self.running += started
        self._draw(logits.repeat_interleave(copies, dim=0), started)

    def _decode(self) -> None:
        tokens = torch.tensor([request.tokens[-1] for request in self.running]).unsqueeze(1)
        positions = torch.tensor(self.cache.lengths).unsqueeze(1)
        seen = torch.arange(self.cache.longest + 1) <= positions
        logits = self._forward(self.cache.start_decode, tokens, positions, seen[:, None, None])
        if self.recorder:
            routes = self.recorder.take()
            for row, request in enumerate(self.running):
                request.routes[request.routed] = routes[row]
                request.routed += 1
        self._draw(logits, list(self.running))

    def _forward(self, open_rows, tokens, positions, allowed) -> torch.Tensor:
        """Logits of each row's last position, `[rows, vocabulary]`."""
        open_rows()
        dtype = self.model.dtype
        mask = torch.zeros(allowed.shape, dtype=dtype).masked_fill_(~allowed, torch.finfo(dtype).min)

        def forward():
            return self.model(
                input_ids=tokens,
                attention_mask=mask,
                position_ids=positions,
                past_key_values=self.cache,
                use_cache=True,
                logits_to_keep=1,
            ).logits[:, -1]

        if self.recorder:
            with self.recorder.recording():
                logits = forward()
        else:
            logits = forward()
        if logits.shape[-1] > self.vocabulary:  # as verl does for vLLM (vllm_rollout/utils.py:124)
            logits[:, self.vocabulary :] = float("-inf")
        return logits

    def _keep_routes(self, request: Request, rows: np.ndarray) -> None:
        """Rows of tokens that were routed before keep what they had then (partial rollouts)."""
        if request.routes is None:
            shape = (len(request.prompt) + request.sampling.max_tokens, *rows.shape[1:])
            request.routes = np.zeros(shape, dtype=rows.dtype)
        request.routes[request.routed : len(rows)] = rows[request.routed :]
        request.routed = max(request.routed, len(rows))

    def _draw(self, logits: torch.Tensor, requests: list[Request]) -> None:
        rules = [request.sampling for request in requests]
        tokens, logprobs = draw(logits, rules, [request.uniform.random() for request in requests])
        ended = []
        for request, token, logprob in zip(requests, tokens.tolist(), logprobs.tolist(), strict=True):
            request.tokens.append(token)
            request.logprobs.append(logprob)
            request.last_version = self.version
            if request.first_version is None:
                request.first_version = self.version
            reason = self._reason(request)
            if reason:
                ended.append((request, reason))
        self.generated += len(requests)
        for request, reason in ended:
            row = self.running.index(request)
            last = self.cache.drop(row)
            moved = self.running.pop()
            if row != last:
                self.running[row] = moved
            self._end(request, reason)

    def _reason(self, request: Request) -> str | None:
        rule = request.sampling
        if request.tokens[-1] in rule.stop_token_ids:
            return "stop"
        if rule.stop_strings:
            # a token is at least one byte: this tail surely holds a stop string that the last token completed
            tail = max(len(text.encode()) for text in rule.stop_strings) + 8
            text = self.tokenizer.decode(request.tokens[-tail:], skip_special_tokens=False)
            if any(stop in text for stop in rule.stop_strings):
                return "stop"
        if len(request.tokens) >= rule.max_tokens or len(request.prompt) + len(request.tokens) >= self.max_length:
            return "length"
        return None

    @staticmethod
    def _end(request: Request, reason: str) -> None:
        request.finish = reason
        request.done(request)


def _refuse_other_attention(model: torch.nn.Module) -> None:
    """Rows hold full attention only: a window or a recurrent state would need its own kind of row."""
    config = model.config.get_text_config()
    kinds = set(getattr(config, "layer_types", None) or ["full_attention"])
    if kinds != {"full_attention"} or getattr(config, "sliding_window", None):
        raise ConfigError(
            f"rollout.name=transformers knows full attention only; {type(model).__name__} has "
            f"{', '.join(sorted(kinds))} (sliding_window={getattr(config, 'sliding_window', None)}): use "
            "rollout.name=vllm or sglang"
        )
