"""A plugin for runs with an environment: a tool, a reward, and a teacher from whom a tiny model learns to call it.

The model knows a script by heart: it calls the tool with the word it is asked for and answers with the price, in one
of two ways, so that the samples of a group differ. What it does in a run is not a matter of luck.
"""

import json
import os
from dataclasses import dataclass

from rufus_plugins import InfrastructureError, Score, Termination, hookimpl

PRICES = {"apple": 3, "chair": 41}
LONG = "chair"
"""The word whose entry fills the context, so that it is compacted."""
LOST = "grape"
"""The word for which the tool's machine is lost."""
WORDS = (*PRICES, LOST)


def lookup(word: str) -> str:
    """Looks a word up.

    word: the word
    """
    if word == LOST:
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
                        "logprobs": list(s.response_logprobs or ()),
                    }
                    for s in trajectory.segments
                ],
                "ending": trajectory.termination.value,
                "calls": [[c.name, c.status.value, c.started] for c in trajectory.tool_calls],
                "metrics": dict(trajectory.metrics),
            }
            with open(log, "a", encoding="utf-8") as file:
                file.write(json.dumps(line) + "\n")
        return Score(float(right) + 0.1 / (1 + len(trajectory.response)), {"right": right, "good_calls": good})


@hookimpl
def register_rewards():
    return {"priced": Priced}


class Teacher:
    """Plays the episodes as they should be, as the driver's policy: calls, then answers with the price."""

    def __init__(self, tokenizer, word, short):
        self.tokenizer, self.word, self.short = tokenizer, word, short

    async def generate(self, prompt_ids, max_tokens):
        from rufus_plugins.rollouts.turns import Sampled

        text = self.tokenizer.decode(prompt_ids)
        last = text[text.rindex("<|user|>\n") if "<|user|>\n" in text else 0 :]
        arguments = f"<arg_key>word</arg_key>\n<arg_value>{self.word}</arg_value>"
        call = f"\n<think></think>\n<tool_call>lookup\n{arguments}\n</tool_call>"
        price = PRICES.get(self.word, 0)
        if "context is nearly full" in last:
            said, end = f"\n<think></think>\nCalled lookup for {self.word}.", "<|endoftext|>"
        elif "<|observation|>" in last or "Results of your last calls" in last:
            answer = str(price) if self.short else f"{self.word} costs {price}"
            said, end = f"\n<think></think>\n{answer}", "<|endoftext|>"
        else:
            said, end = call, "<|observation|>"
        return Sampled(self.tokenizer.encode(said + end, add_special_tokens=False), "stop")


def lessons(model_type, tokenizer, end_ids, rules, limits):
    """The different segments of two episodes per word, as (ids, mask)."""
    import asyncio

    from rufus_plugins.hosts.verl.chat_tokens import ChatTokens
    from rufus_plugins.rollouts.environments.functions import Functions
    from rufus_plugins.rollouts.episode import Episode

    chat = ChatTokens(tokenizer, model_type, end_ids=end_ids)
    found = {}
    for word in WORDS:
        for short in (False, True):
            environment = Functions(functions=["lookup_plugin:lookup"])
            teacher = Teacher(tokenizer, word, short)
            rollout = asyncio.run(Episode(task(word), environment, teacher, chat, rules, limits).run())
            for segment in rollout.trajectory.segments:
                ids = (*segment.prompt_ids, *segment.response_ids)
                found[ids] = [0] * len(segment.prompt_ids) + list(segment.response_mask)
    return [(list(ids), mask) for ids, mask in found.items()]


def task(word):
    from rufus_plugins import Task

    prompt = ({"role": "user", "content": f"What does {word} cost?"},)
    return Task(word, "prices", prompt, str(PRICES.get(word, 0)))


def small_model():
    """(model, tokenizer): the tiny Glm4Moe with a dense and two MoE layers of half the width: 0.35M parameters."""
    import torch
    from transformers import Glm4MoeConfig, Glm4MoeForCausalLM

    from rufus_plugins.recipes.tiny import tokenizer
    from rufus_plugins.recipes.tiny.model import config

    words = tokenizer.build()
    fields = config(words).to_dict()
    for derived in ("mlp_layer_types", "layer_types"):
        fields.pop(derived, None)
    sizes = {"hidden_size": 64, "head_dim": 16, "num_hidden_layers": 3, "intermediate_size": 128}
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return Glm4MoeForCausalLM(Glm4MoeConfig(**fields | sizes | {"moe_intermediate_size": 64})).float(), words


def teach(model, found, until=0.004, steps=200, lr=1e-2):
    """Supervised steps on the sampled tokens of all lessons at once, until none of them is a matter of luck."""
    import torch

    longest = max(len(ids) for ids, _ in found)
    ids = torch.tensor([i + [0] * (longest - len(i)) for i, _ in found])
    mask = torch.tensor([m + [0] * (longest - len(m)) for _, m in found])[:, 1:]
    attention = torch.tensor([[1] * len(i) + [0] * (longest - len(i)) for i, _ in found])
    unsure = torch.tensor(undecided(found))[:, 1:]
    optimizer = torch.optim.AdamW(model.parameters(), lr=lr, betas=(0.9, 0.95), weight_decay=0.0)
    model.train()
    for step in range(steps):
        logits = model(input_ids=ids, attention_mask=attention, use_cache=False).logits[:, :-1]
        losses = torch.nn.functional.cross_entropy(logits.transpose(1, 2), ids[:, 1:], reduction="none") * mask
        if (losses * ~unsure).sum() < until * mask.sum():
            model.eval()
            return step
        optimizer.param_groups[0]["lr"] = lr * min((step + 1) / 5, 1)
        optimizer.zero_grad()
        (losses.sum() / mask.sum()).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
    raise AssertionError(f"after {steps} steps the model does not know the script: loss {losses.sum() / mask.sum()}")


def undecided(found):
    """Per lesson and token: whether another lesson goes on differently after the same beginning."""
    next_of = {}
    for ids, _ in found:
        for at in range(1, len(ids)):
            next_of.setdefault(tuple(ids[:at]), set()).add(ids[at])
    longest = max(len(ids) for ids, _ in found)
    return [
        [0 < at < len(ids) and len(next_of[tuple(ids[:at])]) > 1 for at in range(longest)] for ids, _ in found
    ]
