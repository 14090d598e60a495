"""A learned preference score, as of Skywork-Reward-V2 (arXiv 2507.01352): sequence classification, in this process.

The conversation (the task's prompt and the rollout's messages) is written with the reward model's own chat template,
exactly as its model card does: a leading BOS that the template wrote is removed, because the tokenizer adds its own,
and the model's single logit is the score, raw. The length penalty is algos/length_penalty.py's.

Conversations that arrive together are scored together, shortest with shortest. Batching does not change a score:
padding is an id that occurs in none of the batch's conversations, since transformers finds the last token of a
conversation by the padding id, and a padding id that is also the end-of-turn token would hide it.
"""

from __future__ import annotations

import asyncio
import functools
import itertools
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from rufus_plugins.errors import ConfigError, DataError, InfrastructureError
from rufus_plugins.rewards.final_answer import without_thinking
from rufus_plugins.rewards.judge import text_of
from rufus_plugins.types import Fault, Score, Termination, Trajectory


@dataclass
class Preference:
    """The raw score of a sequence-classification reward model, through transformers in this process."""

    model: str
    """Folder of the model, or its hub name if it is in the local cache already."""
    device: str = "auto"
    """auto: the first GPU if there is one, else the CPU."""
    dtype: str = "auto"
    """auto: bfloat16 on a GPU, float32 on the CPU."""
    strip_thinking: bool = True
    """Score the answer without its thinking. Ours."""
    max_tokens: int = 16384
    """What a conversation has beyond it is not seen by the model (metric `truncated`)."""
    batch_size: int = 16
    """Ours."""

    def __post_init__(self) -> None:
        if self.max_tokens < 1 or self.batch_size < 1:
            raise ConfigError("preference: max_tokens and batch_size must be at least 1")
        self._waiting: dict[Any, list[tuple[list[int], asyncio.Future[float]]]] = {}

    async def __call__(self, trajectory: Trajectory) -> Score:
        if trajectory.termination.fault is Fault.INFRASTRUCTURE:
            raise InfrastructureError(
                f"the rollout ended with {trajectory.termination.value}: nothing to score", trajectory.termination
            )
        ids = await asyncio.wrap_future(_thread().submit(self._encode, trajectory))
        value = await self._scored(ids[: self.max_tokens])
        metrics = {"tokens": len(ids), "truncated": len(ids) > self.max_tokens}
        return Score(value, metrics, f"raw score of {self.model}: {value:.4g}")

    def conversation(self, trajectory: Trajectory) -> list[dict[str, str]]:
        """What the model reads: roles and texts."""
        messages = []
        for message in (*trajectory.task.prompt, *trajectory.messages):
            text = text_of(message)
            if self.strip_thinking and message.get("role") == "assistant":
                text = (without_thinking(text) or "").strip()
            text = text.encode("utf-8", "replace").decode("utf-8")  # tokenizers refuse half a surrogate pair
            messages.append({"role": str(message.get("role")), "content": text})
        if not messages or messages[-1]["role"] != "assistant":
            raise DataError("preference scores an answer, and the conversation does not end with an assistant message")
        return messages

    def _encode(self, trajectory: Trajectory) -> list[int]:
        tokenizer, _ = _loaded(self.model, self.device, self.dtype)
        return encode(tokenizer, self.conversation(trajectory))

    async def _scored(self, ids: list[int]) -> float:
        loop = asyncio.get_running_loop()
        for other in [known for known in self._waiting if known.is_closed()]:
            del self._waiting[other]
        waiting = self._waiting.setdefault(loop, [])
        future: asyncio.Future[float] = loop.create_future()
        waiting.append((ids, future))
        if len(waiting) == 1:
            loop.call_later(0.005, self._depart, loop)  # 5 ms for the others of the batch; ours
        return await future

    def _depart(self, loop: asyncio.AbstractEventLoop) -> None:
        waiting = sorted(self._waiting.pop(loop, []), key=lambda pair: len(pair[0]))
        for start in range(0, len(waiting), self.batch_size):
            batch = waiting[start : start + self.batch_size]
            done = _thread().submit(self._forward, [ids for ids, _ in batch])
            asyncio.wrap_future(done, loop=loop).add_done_callback(functools.partial(_deliver, [f for _, f in batch]))

    def _forward(self, batch: Sequence[list[int]]) -> list[float]:
        _, model = _loaded(self.model, self.device, self.dtype)
        try:
            return scores(model, batch)
        except (RuntimeError, MemoryError) as error:  # CUDA's errors are RuntimeErrors
            raise InfrastructureError(
                f"the reward model failed on a batch of {len(batch)}, longest {max(map(len, batch))} tokens: {error}",
                Termination.REWARD_FAILED,
            ) from error


def _deliver(futures: Sequence[asyncio.Future[float]], done: asyncio.Future[list[float]]) -> None:
    error = None if done.cancelled() else done.exception()
    for i, future in enumerate(futures):
        if future.done():
            continue
        if done.cancelled():
            future.cancel()
        elif error:
            future.set_exception(error)
        else:
            future.set_result(done.result()[i])


def encode(tokenizer: Any, messages: Sequence[Mapping[str, str]]) -> list[int]:
    """Token ids of a conversation, with exactly one BOS where the tokenizer has one to add."""
    from jinja2 import TemplateError

    if not tokenizer.chat_template:
        raise ConfigError(f"the reward model's tokenizer {tokenizer.name_or_path} has no chat template")
    try:
        text = tokenizer.apply_chat_template(list(messages), tokenize=False, add_generation_prompt=False)
    except TemplateError as error:
        roles = [m["role"] for m in messages]
        raise DataError(
            f"the reward model's chat template refuses a conversation of the roles {roles}: {error}"
        ) from error
    bos, adds = tokenizer.bos_token, adds_bos(tokenizer)
    if bos and adds:
        text = text.removeprefix(bos)
    return tokenizer(text, add_special_tokens=bool(adds))["input_ids"]


def adds_bos(tokenizer: Any) -> bool:
    """Whether the tokenizer puts a BOS before a text by itself."""
    ids = tokenizer("a")["input_ids"]
    return tokenizer.bos_token_id is not None and ids[:1] == [tokenizer.bos_token_id]


def scores(model: Any, batch: Sequence[list[int]]) -> list[float]:
    """The model's logit per conversation, for a batch of token ids of any lengths."""
    import torch

    used = set(itertools.chain.from_iterable(batch))
    padding = next(i for i in range(len(used) + 1) if i not in used)
    if padding >= model.config.get_text_config().vocab_size:
        if len({len(ids) for ids in batch}) > 1:  # every token of the vocabulary occurs
            return [score for ids in batch for score in scores(model, [ids])]
        padding = 0
    longest = max(map(len, batch))
    device = next(model.parameters()).device
    ids = torch.tensor([[*row, *[padding] * (longest - len(row))] for row in batch], device=device)
    mask = torch.tensor([[1] * len(row) + [0] * (longest - len(row)) for row in batch], device=device)
    same_length = len({len(row) for row in batch}) == 1
    for config in {id(c): c for c in (model.config, model.config.get_text_config())}.values():
        config.pad_token_id = -1 if same_length else padding
    with torch.inference_mode():
        return model(input_ids=ids, attention_mask=mask).logits[:, 0].float().tolist()


@functools.cache
def _thread() -> ThreadPoolExecutor:
    """One thread runs the model: batches follow each other."""
    return ThreadPoolExecutor(1, thread_name_prefix="rufus-preference")


@functools.lru_cache(maxsize=2)
def _loaded(path: str, device: str, dtype: str) -> tuple[Any, Any]:
    """(tokenizer, model), loaded once per process."""
    import torch
    from transformers import AutoModelForSequenceClassification, AutoTokenizer

    if device == "auto":
        device = "cuda" if torch.cuda.is_available() else "cpu"
    kind = ("bfloat16" if device.startswith("cuda") else "float32") if dtype == "auto" else dtype
    if not isinstance(getattr(torch, kind, None), torch.dtype):
        raise ConfigError(f"preference: dtype {dtype!r} is none of torch's; bfloat16 and float32 are usual")
    try:
        tokenizer = AutoTokenizer.from_pretrained(path, local_files_only=True)
        model = AutoModelForSequenceClassification.from_pretrained(
            path, local_files_only=True, dtype=getattr(torch, kind)
        )
        model = model.to(device).eval()
    except (OSError, ValueError, KeyError, RuntimeError) as error:
        raise ConfigError(
            f"the reward model {path!r} does not load on {device}: {error}\nNothing is downloaded in a run: give a "
            "folder, or download it first with `hf download`."
        ) from error
    if model.config.num_labels != 1:
        raise ConfigError(
            f"the model {path!r} has {model.config.num_labels} labels; a sequence-classification reward model has one"
        )
    return tokenizer, model
