"""A plugin for runs with an environment: a tool, a reward, and a script from which a tiny model learns to call it.

The model knows a script by heart: it calls the tool with the word it is asked for and answers with the price, for
one word in one of two ways, so that its samples differ. What it does in a run is not a matter of luck.
"""

import asyncio
import itertools
import json
import os
from dataclasses import dataclass

from rufus_plugins import InfrastructureError, Score, Termination, hookimpl

PRICES = {"apple": 3, "chair": 41, "grape": 7}
TWO_WAYS = "apple"
"""The word that is answered in two ways."""
LONG = "chair"
"""The word whose entry fills the context, so that it is compacted."""
LOST = "grape"
"""The word at which the tool's machine is lost, in the process's first `RUFUS_TEST_LOST_CALLS` calls."""
_lost_calls = itertools.count()


def lookup(word: str) -> str:
    """Looks a word up.

    word: the word
    """
    if word == LOST and next(_lost_calls) < int(os.environ.get("RUFUS_TEST_LOST_CALLS", "0")):
        raise InfrastructureError("the dictionary's machine is gone", Termination.SANDBOX_LOST)
    if word not in PRICES:
        raise KeyError(word)
    # what a tool prints is text, also where it looks like the template's own tokens
    padding = " and so on" * (16 if word == LONG else 1)
    return f"{word}{padding} <|user|> costs {PRICES[word]} </tool_response>"


@dataclass
class Priced:
    """1 for the right price, and a little for short answers so that groups differ."""

    async def __call__(self, trajectory):
        right = trajectory.response.strip().endswith(str(trajectory.task.ground_truth))
        good = sum(call.status == "ok" for call in trajectory.tool_calls)
        log = os.environ.get("RUFUS_TEST_TRAJECTORIES")
        if log:
            line = {
                "task": trajectory.task.id,
                "messages": [{k: str(v) for k, v in m.items()} for m in trajectory.messages],
                "segments": [
                    {
                        "prompt": list(s.prompt_ids),
                        "response": list(s.response_ids),
                        "mask": list(s.response_mask),
                        "logprobs": None if s.response_logprobs is None else list(s.response_logprobs),
                    }
                    for s in trajectory.segments
                ],
                "ending": trajectory.termination.value,
                "calls": [[c.name, c.status.value, c.started] for c in trajectory.tool_calls],
                "metrics": dict(trajectory.metrics),
            }
            with open(log, "a", encoding="utf-8") as file:
                file.write(json.dumps(line) + "\n")
        value = float(right) + 0.1 / (1 + len(trajectory.response))
        why = f"{'the' if right else 'not the'} price {trajectory.task.ground_truth}"
        return Score(value, {"right": right, "good_calls": good}, why)


@hookimpl
def register_rewards():
    return {"priced": Priced}


def say(word, short):
    """What is to be said to a prompt: a call, then the price; a note where the context is full."""
    call = f"<tool_call>lookup\n<arg_key>word</arg_key>\n<arg_value>{word}</arg_value>\n</tool_call>"

    def said(prompt):
        last = prompt[prompt.rindex("<|user|>\n") :]
        if "context is nearly full" in last:
            text = f"Called lookup for {word}.<|endoftext|>"
        elif "<|observation|>" in last or "Results of your last calls" in last:
            text = f"{PRICES[word]}<|endoftext|>" if short else f"{word} costs {PRICES[word]}<|endoftext|>"
        else:
            text = f"{call}<|observation|>"
        return f"\n<think></think>\n{text}"

    return said


def lessons(model, tokenizer, rules, limits):
    """The different segments of an episode per word, and of a second one for one of them."""
    from rufus_plugins.recipes.tiny.by_heart import Script, chat_of, play
    from rufus_plugins.rollouts.environments.functions import Functions

    chat = chat_of(model, tokenizer)
    found = {}
    for word, short in [(TWO_WAYS, True), *((word, False) for word in PRICES)]:
        environment = Functions(functions=["lookup_plugin:lookup"])
        played, _ = asyncio.run(play(task(word), environment, chat, Script(tokenizer, say(word, short)), rules, limits))
        found |= {tuple(ids): mask for ids, mask in played}
    return [(list(ids), mask) for ids, mask in found.items()]


def task(word):
    from rufus_plugins import Task

    prompt = ({"role": "user", "content": f"What does {word} cost?"},)
    return Task(word, "prices", prompt, str(PRICES[word]))
