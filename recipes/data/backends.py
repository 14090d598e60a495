"""Where answers come from: any OpenAI-compatible server, or a transformers model in this process.

Both give a `Reply` to a conversation and tools. What of it decides an answer is `identity`: it goes into the key under
which an attempt is kept, the server's address does not.
"""

from __future__ import annotations

import asyncio
import json
import re
import threading
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from rufus_plugins.errors import ConfigError, DataError, InfrastructureError
from rufus_plugins.rollouts.tool_calls import FORMATS, ParsedCall, ParsedTurn, parse, split_thinking
from rufus_plugins.types import CallStatus, Message, Termination


@dataclass(frozen=True)
class Reply:
    turn: ParsedTurn
    cut_off: bool
    """It reached `max_tokens`, or the context was full."""
    tokens: int


class Backend(Protocol):
    identity: Mapping[str, Any]

    async def reply(
        self, messages: Sequence[Message], tools: Sequence[Mapping[str, Any]], seed: int, max_tokens: int
    ) -> Reply:
        """Raises `InfrastructureError(ENGINE_FAILED)` for no answer, `DataError` for a request that is refused as such,
        `ConfigError` for what would hit every request."""
        ...

    async def aclose(self) -> None: ...


@dataclass
class Sampling:
    """How to reach and sample a model; the fields of the tools that ask one."""

    model: str
    """Name of the model at --base-url; without --base-url the folder of a transformers model, run in this process."""
    base_url: str = ""
    """OpenAI-compatible server, up to and with /v1; empty: --model runs in this process."""
    api_key_env: str = ""
    """Name of the environment variable that holds the key; empty sends none."""
    temperature: float = 1.0
    """Ours, as all below."""
    top_p: float = 1.0
    """Share of the probability that tokens are drawn from."""
    max_tokens: int = 32768
    """Of one answer; one that reaches it counts as truncated."""
    seed: int = 0
    """Each attempt is asked for with a seed of its own, made of this one, the prompt and its number."""
    concurrency: int = 64
    """Attempts at a time."""
    timeout_s: float = 1800.0
    """For one answer with all its tries."""
    tool_format: str = ""
    """How the model writes calls (rollouts/tool_calls.py), where the server leaves them in the text."""
    request: str = ""
    """Further fields of the request as JSON, for example {"chat_template_kwargs": {"enable_thinking": false}}."""

    def __post_init__(self) -> None:
        if not self.model:
            raise ConfigError("--model is empty")
        if self.concurrency < 1 or self.max_tokens < 1 or self.timeout_s <= 0:
            raise ConfigError("--concurrency and --max-tokens must be at least 1, and --timeout-s above 0")
        if self.temperature < 0 or not 0 < self.top_p <= 1:
            raise ConfigError("--temperature must be at least 0, and --top-p above 0 and at most 1")
        if self.tool_format and self.tool_format not in FORMATS:
            raise ConfigError(f"There is no tool format {self.tool_format!r}. There are: {', '.join(sorted(FORMATS))}.")
        if not isinstance(self.more(), dict):
            raise ConfigError(f"--request {self.request!r} is no JSON object")

    def more(self) -> dict[str, Any]:
        try:
            return json.loads(self.request) if self.request else {}
        except ValueError as error:
            raise ConfigError(f"--request is no JSON: {error}") from error

    def identity(self) -> dict[str, Any]:
        """What decides an answer, besides the question and its number."""
        names = ("model", "temperature", "top_p", "max_tokens", "seed", "tool_format")
        made = {name: getattr(self, name) for name in names} | {"request": self.more()}
        if not self.base_url and Path(self.model).is_dir():  # other weights may be written into the same folder
            found = sorted(p for p in Path(self.model).iterdir() if p.is_file())
            made["files"] = [(p.name, p.stat().st_size, p.stat().st_mtime_ns) for p in found]
        return made

    def backend(self) -> Backend:
        return Server(self) if self.base_url else Embedded(self)


class Server:
    """Deadlines, tries and limits are those of the judge's client (rewards/judges/openai_compatible.py)."""

    def __init__(self, sampling: Sampling):
        from rufus_plugins.rewards.judges.openai_compatible import OpenAICompatibleJudge

        self.sampling, self.identity = sampling, sampling.identity()
        self._client = OpenAICompatibleJudge(
            sampling.base_url,
            sampling.model,
            api_key_env=sampling.api_key_env,
            structured_output="off",
            concurrency=sampling.concurrency,
            timeout_s=sampling.timeout_s,
        )

    async def reply(
        self, messages: Sequence[Message], tools: Sequence[Mapping[str, Any]], seed: int, max_tokens: int
    ) -> Reply:
        body = {
            "model": self.sampling.model,
            "messages": [_sent(message) for message in messages],
            "temperature": self.sampling.temperature,
            "top_p": self.sampling.top_p,
            "max_tokens": max_tokens,
            "seed": seed % (1 << 31),
            **({"tools": list(tools)} if tools else {}),
            **self.sampling.more(),
        }
        try:
            choice, usage = await self._client.complete(body, _choice)
        except InfrastructureError as error:
            return self._without_answer(str(error), error)
        message = choice["message"]
        tokens = usage.get("completion_tokens")
        turn = self._turn(message, tools)
        written = sum(len(str(part)) for part in (turn.content, turn.thinking, turn.calls))
        return Reply(turn, choice.get("finish_reason") == "length", tokens if isinstance(tokens, int) else written // 4)

    def _without_answer(self, text: str, error: InfrastructureError) -> Reply:
        found = re.search(r"failed \(http_(\d+)\)", text)
        status = int(found.group(1)) if found else 0
        if status in (400, 413, 422):
            if re.search(r"context|maximum|too long|max_tokens", text, re.I):
                return Reply(ParsedTurn((), ""), True, 0)
            raise DataError(f"the server refuses this request: {text}") from error
        if status in (401, 402, 403, 404, 405) or "(redirect)" in text:
            raise ConfigError(f"the server refuses every request: {text}") from error
        raise InfrastructureError(f"the model gave no answer: {text}", Termination.ENGINE_FAILED) from error

    def _turn(self, message: Mapping[str, Any], tools: Sequence[Mapping[str, Any]]) -> ParsedTurn:
        content = _clean(message.get("content") or "")
        thinking = _clean(message.get("reasoning_content") or message.get("reasoning") or "")
        calls = tuple(_call(raw) for raw in message.get("tool_calls") or ())
        if not calls and tools and self.sampling.tool_format:
            turn = parse(self.sampling.tool_format, content, tools)
            return ParsedTurn(turn.calls, turn.content, thinking or turn.thinking)
        if not thinking:
            thinking, content = split_thinking(content)
        return ParsedTurn(calls, content.strip(), thinking.strip())

    async def aclose(self) -> None:
        await self._client.aclose()


def _choice(raw: bytes) -> tuple[tuple[dict[str, Any], dict[str, Any]], dict[str, Any]]:
    from rufus_plugins.rewards.judges.openai_compatible import Unusable

    try:
        data = json.loads(raw)
        choice = data["choices"][0]
        message = choice["message"]
        usage = data.get("usage") if isinstance(data.get("usage"), dict) else {}
        if not isinstance(message, dict) or not isinstance(message.get("content") or "", str):
            raise TypeError("the message holds no text")
    except (ValueError, RecursionError, KeyError, IndexError, TypeError, AttributeError) as error:
        shown = raw[:200].decode("utf-8", "replace")
        raise Unusable("bad_shape", f"no choices[0].message ({type(error).__name__}: {error}): {shown!r}") from error
    return (choice, usage), usage


def _call(raw: Any) -> ParsedCall:
    function = raw.get("function") if isinstance(raw, Mapping) else None
    if not isinstance(function, Mapping) or not isinstance(function.get("name"), str):
        return ParsedCall("", str(raw), CallStatus.MALFORMED, "the call names no function")
    name, arguments = _clean(function["name"]), function.get("arguments") or "{}"
    if isinstance(arguments, str):
        try:
            arguments = json.loads(_clean(arguments), strict=False)
        except (ValueError, RecursionError) as error:
            return ParsedCall(name, str(arguments), CallStatus.MALFORMED, f"the arguments are no JSON: {error}")
    if not isinstance(arguments, dict):
        return ParsedCall(name, str(arguments), CallStatus.MALFORMED, "the arguments are no JSON object")
    return ParsedCall(name, arguments)


def _clean(text: str) -> str:
    """Without half surrogate pairs, which JSON may hold and UTF-8 may not."""
    return text.encode("utf-8", "replace").decode("utf-8")


def _sent(message: Message) -> dict[str, Any]:
    """The message as the API takes it: known keys, arguments as text."""
    sent = {key: message[key] for key in ("role", "content", "name", "tool_call_id") if message.get(key) is not None}
    if message.get("tool_calls"):
        sent["tool_calls"] = [
            call | {"function": call["function"] | {"arguments": _text(call["function"]["arguments"])}}
            for call in message["tool_calls"]
        ]
    return sent


def _text(arguments: Any) -> str:
    return arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False)


@dataclass(eq=False)
class Embedded:
    """Continuous batching over a transformers model (hosts/verl/transformers_rollout), in one thread of its own."""

    sampling: Sampling
    identity: Mapping[str, Any] = field(init=False)

    def __post_init__(self) -> None:
        self.identity = self.sampling.identity()
        if not (Path(self.sampling.model) / "config.json").is_file():
            raise ConfigError(
                f"--model {self.sampling.model} is no folder of a transformers model (no config.json). For a model "
                "behind a server give --base-url http://HOST:8000/v1"
            )
        self._ready = threading.Condition()
        self._asked: deque[Any] = deque()
        self._thread: threading.Thread | None = None
        self._closed = False
        self._chat: Any = None
        self.tokenizer: Any = None

    def _model(self) -> Any:
        import torch
        from transformers import AutoModelForCausalLM

        return AutoModelForCausalLM.from_pretrained(self.sampling.model, dtype=torch.float32)

    def _end_ids(self, model: Any) -> frozenset[int]:
        ends = model.generation_config.eos_token_id or self.tokenizer.eos_token_id
        return frozenset(ends if isinstance(ends, list) else [ends])

    def _load(self) -> None:
        from transformers import AutoTokenizer

        from rufus_plugins.hosts.verl.chat_tokens import ChatTokens
        from rufus_plugins.hosts.verl.transformers_rollout.generator import Generator

        try:
            self.tokenizer = tokenizer = AutoTokenizer.from_pretrained(self.sampling.model)
            model = self._model()
        except (OSError, ValueError) as error:
            raise ConfigError(f"--model {self.sampling.model} cannot be loaded: {error}") from error
        self._ends = self._end_ids(model)
        kwargs = self.sampling.more()
        unknown = set(kwargs) - {"chat_template_kwargs"}
        if unknown:
            raise ConfigError(
                f"--request: a model in this process knows chat_template_kwargs only, no {min(unknown)!r}"
            )
        self._chat = ChatTokens(
            tokenizer,
            model.config.model_type,
            end_ids=self._ends,
            template_kwargs=kwargs.get("chat_template_kwargs"),
            tool_format=self.sampling.tool_format or None,
        )
        self._room = model.config.get_text_config().max_position_embeddings
        self._generator = Generator(model, tokenizer, max_rows=self.sampling.concurrency, max_length=self._room)
        self._thread = threading.Thread(target=self._run, name="rufus-sample", daemon=True)
        self._thread.start()

    async def reply(
        self, messages: Sequence[Message], tools: Sequence[Mapping[str, Any]], seed: int, max_tokens: int
    ) -> Reply:
        chat = self.chat
        try:
            prompt = chat.opening(messages, tools)
        except Exception as error:  # a template raises what its author chose
            raise DataError(f"the chat template refuses this conversation: {error}") from error
        if len(prompt) >= self._room:
            return Reply(ParsedTurn((), ""), True, 0)
        made = await self.sampled(prompt, max_tokens, seed, self.sampling.temperature)
        return Reply(await chat.read(made.tokens, tools), made.finish == "length", len(made.tokens))

    @property
    def chat(self) -> Any:
        """The model's chat format (rollouts/turns.py); loads the model."""
        if self._chat is None:
            self._load()
        return self._chat

    async def sampled(
        self, prompt: Sequence[int], max_tokens: int, seed: int, temperature: float, stop: Sequence[str] = ()
    ) -> Any:
        """The generator's `Request`, finished: tokens after `prompt`, which leaves room for one at least.

        Raises `InfrastructureError(ENGINE_FAILED)`.
        """
        from rufus_plugins.hosts.verl.transformers_rollout.generator import Request
        from rufus_plugins.hosts.verl.transformers_rollout.sampling import Sampling as Rules

        if self._chat is None:
            self._load()
        rules = Rules(
            max_tokens=min(max_tokens, self._room - len(prompt)),
            temperature=temperature,
            top_p=self.sampling.top_p,
            stop_token_ids=self._ends,
            stop_strings=tuple(stop),
            seed=seed,
        )
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Any] = loop.create_future()

        def settle(result: Any) -> None:
            loop.call_soon_threadsafe(lambda: future.done() or future.set_result(result))

        with self._ready:
            self._asked.append(Request(list(prompt), rules, done=settle, failed=settle))
            self._ready.notify()
        try:
            async with asyncio.timeout(self.sampling.timeout_s):
                made = await future
        except TimeoutError:
            raise InfrastructureError(
                f"the model in this process gave no answer within {self.sampling.timeout_s:g} s",
                Termination.ENGINE_FAILED,
            ) from None
        if isinstance(made, Exception):
            raise InfrastructureError(f"{type(made).__name__}: {made}", Termination.ENGINE_FAILED) from made
        return made

    def _run(self) -> None:
        """Owns the generator; an error in a step fails all that is running, not the thread."""
        flying: list[Any] = []
        while True:
            with self._ready:
                while not (self._asked or self._generator.busy or self._closed):
                    self._ready.wait()
                if self._closed:
                    return
                new = list(self._asked)
                self._asked.clear()
            for request in new:
                try:
                    self._generator.submit(request)
                    flying.append(request)
                except Exception as error:
                    request.failed(error)
            try:
                self._generator.step()
            except Exception as error:
                self._generator.running, self._generator.waiting = [], deque()
                self._generator.cache.clear()
                for request in flying:
                    if request.finish is None:
                        request.failed(error)
            flying = [request for request in flying if request.finish is None and self._generator.busy]

    async def aclose(self) -> None:
        with self._ready:
            self._closed = True
            self._ready.notify()
        if self._thread is not None:
            await asyncio.to_thread(self._thread.join, 30)
