"""What a turn of a long rollout costs to tokenise and keep: its own tokens, or the whole conversation's.

`python -m bench.segments [--quick]`

One conversation of 100 turns to 128K tokens (25 turns, 32K with `--quick`): each turn samples an answer and reads a
tool result. Ours: `ChatTokens` and `SegmentBuffer` with the audit, as the agent loop uses them. Peers: verl 0.9.1's own
path (`merge_assistant_tokens`, `merge_context_tokens`, `align_response_metadata`, as experimental/agent_loop/
tool_agent_loop.py calls them), and rendering the conversation anew at every turn. CPU time of this process; tokens
encoded are counted at the tokenizer.

The bars: tokens encoded per token added at most 1.01, and the last turns at most 5 times as dear as the first ones (the
copy of the prompt that goes to the engine grows, nothing else may).
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable
from typing import Any

BAR_ENCODED = 1.01
BAR_GROWTH = 5.0
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": f"tool_{i}",
            "description": "Runs a command and gives back what it prints. " * 4,
            "parameters": {"type": "object", "properties": {"command": {"type": "string"}}, "required": ["command"]},
        },
    }
    for i in range(8)
]


class Counting:
    """A tokenizer that counts what it encodes."""

    def __init__(self, tokenizer: Any):
        self.__dict__.update(tokenizer=tokenizer, encoded=0)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.tokenizer, name)

    def encode(self, text: str, **kwargs: Any) -> list[int]:
        ids = self.tokenizer.encode(text, **kwargs)
        self.__dict__["encoded"] += len(ids)
        return ids

    def apply_chat_template(self, *args: Any, tokenize: bool = True, **kwargs: Any) -> Any:
        kwargs.pop("return_dict", None)
        text = self.tokenizer.apply_chat_template(*args, tokenize=False, **kwargs)
        return self.encode(text, add_special_tokens=False) if tokenize else text


def script(tokenizer: Any, turns: int, tokens: int) -> list[tuple[list[int], str]]:
    """(sampled ids, tool result) of each turn."""
    sampled = tokenizer.encode("\n<think></think>\nThe result is the sum of the two numbers. " * 6)[:96]
    line = "def solve(x):\n    return x * 2  # the answer is correct\n"
    result = ""
    while len(tokenizer.encode(result, add_special_tokens=False)) < tokens // turns - len(sampled) - 20:
        result += line
    end = tokenizer.convert_tokens_to_ids("<|observation|>")
    return [([*sampled, end], f"{turn}: {result}") for turn in range(turns)]


def messages(turn: int, result: str) -> tuple[dict, dict]:
    call = {"id": f"call_{turn}_0", "type": "function", "function": {"name": "tool_0", "arguments": {}}}
    return (
        {"role": "assistant", "content": "", "tool_calls": [call]},
        {"role": "tool", "content": result, "name": "tool_0", "tool_call_id": call["id"]},
    )


OPENING = [{"role": "user", "content": "Mend the program."}]


def ours(tokenizer: Any, turns: list[tuple[list[int], str]]) -> tuple[list[float], int, int]:
    """(CPU seconds of each turn, tokens encoded, tokens added) behind the opening."""
    from rufus_plugins.hosts.verl.chat_tokens import ChatTokens
    from rufus_plugins.rollouts.segment import SegmentBuffer, TokenAudit
    from rufus_plugins.rollouts.turns import TAIL

    ends = [tokenizer.convert_tokens_to_ids(t) for t in ("<|endoftext|>", "<|user|>", "<|observation|>")]
    chat = ChatTokens(tokenizer, "glm4_moe", end_ids=ends)
    opening = chat.opening(OPENING, TOOLS)
    buffer, audit = SegmentBuffer(opening), TokenAudit(opening)
    chat.plain.encoded, seconds, added = 0, [], 0
    for turn, (sampled, result) in enumerate(turns):
        start = time.process_time()
        audit.asks(buffer.ids())
        logprobs = [-0.5] * len(sampled)
        audit.answers(sampled, logprobs, None)
        buffer.add_sampled(sampled, logprobs)
        ids = chat.following(buffer.tail(TAIL), ["tool_0"], [messages(turn, result)[1]], TOOLS)
        buffer.add_context(ids)
        added += len(ids)
        seconds.append(time.process_time() - start)
    audit.closes(buffer.close())
    return seconds, chat.plain.encoded, added


def verls(tokenizer: Any, turns: list[tuple[list[int], str]]) -> tuple[list[float], int, int]:
    from verl.utils.tokenizer.continuous_token import GLMContinuousTokenBuilder

    counting = Counting(tokenizer)
    builder = GLMContinuousTokenBuilder(counting)
    ids = builder.build_initial_tokens(OPENING, tools=TOOLS)
    counting.__dict__["encoded"] = 0
    log, mask, logprobs, seconds, added = list(OPENING), [], [], [], 0
    for turn, (sampled, result) in enumerate(turns):
        start = time.process_time()
        merged = builder.merge_assistant_tokens(ids, sampled)
        mask, logprobs = builder.align_response_metadata(
            merged, mask, logprobs, assistant_logprobs=[-0.5] * len(sampled)
        )
        said, answer = messages(turn, result)
        previous = [*log, said]
        log = [*previous, answer]
        before = len(merged.token_ids)
        merged = builder.merge_context_tokens(previous, log, merged.token_ids, tools=TOOLS)
        mask, logprobs = builder.align_response_metadata(merged, mask, logprobs)
        ids = merged.token_ids
        added += len(ids) - before
        seconds.append(time.process_time() - start)
    return seconds, counting.encoded, added


def anew(tokenizer: Any, turns: list[tuple[list[int], str]]) -> tuple[list[float], int, int]:
    counting, log, seconds = Counting(tokenizer), list(OPENING), []
    last = len(counting.apply_chat_template(log, tools=TOOLS, add_generation_prompt=True))
    counting.__dict__["encoded"], added = 0, 0
    for turn, (_, result) in enumerate(turns):
        start = time.process_time()
        log += messages(turn, result)
        length = len(counting.apply_chat_template(log, tools=TOOLS, add_generation_prompt=True))
        added += length - last
        last = length
        seconds.append(time.process_time() - start)
    return seconds, counting.encoded, added


def growth(seconds: list[float]) -> float:
    """Mean cost of the last tenth of the turns over that of the first, the very first turn left out (caches)."""
    count = max(len(seconds) // 10, 2)
    first = seconds[1 : 1 + count]
    return (sum(seconds[-count:]) / count) / (sum(first) / count)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--quick", action="store_true", help="25 turns to 32K tokens, under a minute")
    quick = parser.parse_args().quick
    from rufus_plugins.recipes.tiny.tokenizer import build

    tokenizer = build()
    count, tokens = (25, 32_768) if quick else (100, 131_072)
    turns = script(tokenizer, count, tokens)
    found: dict[str, tuple[list[float], int, int]] = {}
    runs: dict[str, Callable[..., Any]] = {"ours": ours, "verl": verls, "anew": anew}
    for name, run in runs.items():
        seconds, encoded, added = found[name] = run(tokenizer, turns)
        print(
            f"{name:5} {count} turns: {sum(seconds) * 1e3:8.1f} ms, last turns {growth(seconds):5.1f} x the first; "
            f"{encoded} tokens encoded for {added} added ({encoded / added:.2f})"
        )
    mine, encoded, added = found["ours"]
    ok = encoded <= BAR_ENCODED * added and growth(mine) <= BAR_GROWTH
    print(
        json.dumps(
            {
                "bench": "segments",
                "ours": round(encoded / added, 4),
                "peer": round(found["verl"][1] / found["verl"][2], 4),
                "ratio": round(sum(found["verl"][0]) / sum(mine), 2),
                "bar": BAR_ENCODED,
                "ok": ok,
            }
        )
    )
    return 0 if ok else 1


if __name__ == "__main__":
    sys.exit(main())
