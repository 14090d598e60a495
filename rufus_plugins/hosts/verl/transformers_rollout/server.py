"""The rollout server: a Ray actor that owns one model and generates for all requests in one running batch.

Its methods are those that verl 0.9.1 calls on a server (workers/rollout/replica.py, llm_server.py) and those that
our `ServerAdapter` calls. One thread owns model and generator; between two tokens it does what others ask of it.
"""

from __future__ import annotations

import asyncio
import hashlib
import threading
import time
import traceback
from collections import Counter, deque
from collections.abc import Callable
from typing import Any

import torch
from verl.utils.config import omega_conf_to_dataclass
from verl.workers.config import HFModelConfig, RolloutConfig
from verl.workers.rollout.replica import TokenOutput

from rufus_plugins.errors import ConfigError, InfrastructureError
from rufus_plugins.types import Termination

from .. import cpu_attention
from .generator import Generator, Request
from .sampling import Sampling
from .weights import WeightLoader

GATHER_S = 0.003
"""After idling, requests are gathered this long so that equal prompts share a prefill. Ours."""


class TransformersServer:
    def __init__(self, config: RolloutConfig, model_config: Any, replica_rank: int):
        self.config: RolloutConfig = omega_conf_to_dataclass(config)
        self.model_config: HFModelConfig = omega_conf_to_dataclass(model_config, dataclass_type=HFModelConfig)
        self.replica_rank = replica_rank
        self.generator = _generator(self.config, self.model_config)
        self.end_ids = end_ids(self.model_config)
        self._work = threading.Condition()
        self._commands: deque[Callable[[], None]] = deque()
        self._asleep = False
        self._loader: WeightLoader | None = None
        self._asked: Counter[tuple] = Counter()
        self._open: asyncio.Event | None = None
        self._rejecting = False
        threading.Thread(target=self._run, name="rufus-generate", daemon=True).start()

    # ---- requests

    async def generate(
        self,
        prompt_ids: list[int],
        sampling_params: dict[str, Any],
        request_id: str,
        image_data: list[Any] | None = None,
        video_data: list[Any] | None = None,
        audio_data: list[Any] | None = None,
        **other: Any,
    ) -> TokenOutput:
        """Token in, token out. An aborted request returns what it has, with `stop_reason="aborted"`."""
        if image_data or video_data or audio_data:
            raise ConfigError("rollout.name=transformers generates from text only: use rollout.name=vllm or sglang")
        while not self._gate.is_set():
            if self._rejecting:
                return TokenOutput(
                    token_ids=[], stop_reason="aborted", extra_fields={"global_steps": self.generator.version}
                )
            await self._gate.wait()
        prompt = list(map(int, prompt_ids))
        wants_logprobs = bool(sampling_params.get("logprobs"))
        sampling = self._sampling(prompt, dict(sampling_params))
        loop = asyncio.get_running_loop()
        future = loop.create_future()

        def done(request: Request) -> None:
            loop.call_soon_threadsafe(_settle, future, request)

        def failed(error: Exception) -> None:
            loop.call_soon_threadsafe(_settle, future, error)

        self._ask(lambda: self._submit(Request(prompt, sampling, done=done, failed=failed)))
        request: Request = await future
        return TokenOutput(
            token_ids=request.tokens,
            log_probs=request.logprobs if wants_logprobs else None,
            routed_experts=None if request.routes is None else request.routes[: request.routed],
            stop_reason="aborted" if request.finish == "abort" else "completed",
            num_preempted=0,
            extra_fields=self._versions(request) | {"finish_reason": request.finish},
        )

    def _versions(self, request: Request) -> dict[str, int]:
        """Weights that the tokens are from; one that was aborted before its first token saw none."""
        if request.first_version is None:
            return {"global_steps": self.generator.version}
        first, last = request.first_version, request.last_version
        return {"global_steps": last, "min_global_steps": first, "max_global_steps": last}

    def _sampling(self, prompt: list[int], params: dict[str, Any]) -> Sampling:
        room = self.generator.max_length - len(prompt)
        asked = params.pop("max_tokens", None) or params.pop("max_new_tokens", None)
        if asked is None:  # verl's own default (vllm_async_server.py:606)
            asked = min(
                self.config.response_length, self.config.prompt_length + self.config.response_length - len(prompt)
            )
        params.pop("max_new_tokens", None)
        return Sampling.of(
            params,
            max_tokens=max(1, min(int(asked), room)),
            end_ids=frozenset() if self.config.ignore_eos else self.end_ids,
            seed=self._seed(prompt),
        )

    def _seed(self, prompt: list[int]) -> int:
        """The k-th request for the same prompt and weights gets the same seed in every run, whenever it arrives."""
        key = (self.generator.version, tuple(prompt))
        ordinal = self._asked[key]
        self._asked[key] += 1
        text = repr((self.config.seed, self.replica_rank, self.generator.version, ordinal, prompt))
        return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big")

    def _submit(self, request: Request) -> None:
        try:
            self.generator.submit(request)
        except ConfigError as error:
            request.failed(error)

    # ---- the thread that owns the generator

    def _ask(self, command: Callable[[], None]) -> None:
        with self._work:
            self._commands.append(command)
            self._work.notify()

    async def _do(self, function: Callable[[], Any]) -> Any:
        """Runs `function` in the generator's thread, between two tokens."""
        loop = asyncio.get_running_loop()
        future = loop.create_future()

        def command() -> None:
            try:
                result = function()
            except Exception as error:
                result = error
            loop.call_soon_threadsafe(_settle, future, result)

        self._ask(command)
        return await future

    @property
    def _may_step(self) -> bool:
        return self.generator.busy and not self._asleep and self._loader is None

    def _run(self) -> None:
        while True:
            with self._work:
                idle = not self._may_step
                while not self._commands and not self._may_step:
                    self._work.wait()
            if idle:
                time.sleep(GATHER_S)
            while self._commands:
                self._commands.popleft()()
            if self._may_step:
                try:
                    self.generator.step()
                except Exception as error:
                    self._fail(error)

    def _fail(self, error: Exception) -> None:
        """A failed step fails every request: nobody waits for ever."""
        traceback.print_exc()
        requests = [*self.generator.running, *self.generator.waiting]
        self.generator.preempt()
        self.generator.waiting.clear()
        for request in requests:
            request.failed(
                InfrastructureError(f"generation failed: {type(error).__name__}: {error}", Termination.ENGINE_FAILED)
            )

    # ---- partial rollouts

    @property
    def _gate(self) -> asyncio.Event:
        if self._open is None:
            self._open = asyncio.Event()
            self._open.set()
        return self._open

    async def abort_all_requests(self, reset_prefix_cache: bool = True, reject_request: bool = False) -> dict[str, Any]:
        """Ends all requests with what they have; new ones wait (or are rejected) until `resume_generation`."""
        self._gate.clear()
        self._rejecting = reject_request
        return {"aborted_count": await self._do(self.generator.abort)}

    async def resume_generation(self) -> None:
        self._rejecting = False
        self._gate.set()

    async def wait_for_requests_to_drain(self) -> None:
        while self.generator.busy:
            await asyncio.sleep(0.01)

    # ---- memory

    async def sleep(self) -> None:
        """Frees the KV cache. Running requests stop and go on after `wake_up`, from the tokens they have."""
        if self.config.free_cache_engine:
            await self._do(self._fall_asleep)

    def _fall_asleep(self) -> None:
        self._asleep = True
        self.generator.preempt()

    async def wake_up(self, tags: list[str] | None = None) -> None:
        if tags is None or "kv_cache" in tags:
            await self._do(self._awake)

    def _awake(self) -> None:
        self._asleep = False

    async def clear_kv_cache(self) -> None:
        await self._do(self.generator.preempt)

    async def release_kv_cache(self) -> None:
        await self.sleep()

    async def resume_kv_cache(self) -> None:
        await self.wake_up()

    # ---- weights

    async def start_weight_update(self) -> None:
        def start() -> None:
            self._loader = WeightLoader(self.generator.model)
            self.generator.preempt()

        await self._do(start)

    async def load_weights(self, weights: list[tuple[str, torch.Tensor]]) -> None:
        await self._do(lambda: self._loader.load(weights))

    async def finish_weight_update(self, global_steps: int | None) -> None:
        def finish() -> None:
            self._loader.finish()
            self._loader = None
            self._asked.clear()
            if global_steps is not None:
                self.generator.version = global_steps

        await self._do(finish)

    # ---- what verl calls and we have no use for

    async def set_global_steps(self, global_steps: int) -> None:
        self.generator.version = global_steps

    async def start_profile(self, **kwargs: Any) -> None: ...
    async def stop_profile(self) -> None: ...


def _settle(future: asyncio.Future, result: Any) -> None:
    """In the future's own loop; it may be cancelled by then."""
    if future.done():
        return
    if isinstance(result, Exception):
        future.set_exception(result)
    else:
        future.set_result(result)


def _generator(config: RolloutConfig, model_config: HFModelConfig) -> Generator:
    from transformers import AutoModelForCausalLM

    torch.set_num_threads(1)  # one torch thread per process beats two where processes share cores
    dtype = _dtype(config.dtype)
    hf_config = model_config.hf_config
    # rows need an explicit mask, which flash attention does not take
    attention = getattr(hf_config, "_attn_implementation", None)
    if attention not in ("eager", "sdpa", cpu_attention.NAME):
        attention = "sdpa"
    if config.load_format == "dummy":  # the trainer sends the weights before the first request
        model = AutoModelForCausalLM.from_config(hf_config, dtype=dtype, attn_implementation=attention)
    else:
        model = AutoModelForCausalLM.from_pretrained(
            model_config.local_path, config=hf_config, dtype=dtype, attn_implementation=attention
        )
    longest = config.max_model_len or config.prompt_length + config.response_length
    return Generator(
        model,
        model_config.tokenizer,
        max_rows=config.max_num_seqs,
        max_length=min(longest, getattr(hf_config.get_text_config(), "max_position_embeddings", longest)),
        max_prefill_tokens=config.max_num_batched_tokens,
        record_routes=config.enable_rollout_routing_replay,
    )


def _dtype(name: str) -> torch.dtype:
    names = {"float32": torch.float32, "fp32": torch.float32, "bfloat16": torch.bfloat16, "bf16": torch.bfloat16}
    if name not in names:
        raise ConfigError(f"rollout.dtype={name!r}: rollout.name=transformers has float32 and bfloat16")
    return names[name]


def end_ids(model_config: HFModelConfig) -> frozenset[int]:
    """All tokens that end a turn: of the generation config, the model config and the tokenizer."""
    found: set[int] = set()
    for source in (model_config.generation_config, model_config.hf_config, model_config.tokenizer):
        value = getattr(source, "eos_token_id", None)
        found |= set(value) if isinstance(value, list | tuple) else {value}
    return frozenset(found - {None})
