"""A plugin for runs with an environment: a tool, a reward, and a teacher from whom the tiny model learns to call it."""

import json
import os
from dataclasses import dataclass

from rufus_plugins import InfrastructureError, Score, Termination, hookimpl

PRICES = {"apple": 3, "bread": 5, "chair": 41, "dance": 8, "eagle": 70, "flame": 2}
LONG = ("chair", "eagle")
"""Words whose entry fills the context, so that it is compacted."""
LOST = "grape"
"""The word for which the tool's machine is lost."""


def lookup(word: str) -> str:
    """Looks a word up.

    word: the word
    """
    if word == LOST:
        raise InfrastructureError("the dictionary's machine is gone", Termination.SANDBOX_LOST)
    if word not in PRICES:
        raise KeyError(word)
    # what a tool prints is text, also where it looks like the template's own tokens
    padding = " and so on" * (16 if word in LONG else 1)
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

    def __init__(self, tokenizer, word):
        self.tokenizer, self.word = tokenizer, word

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
            said, end = f"\n<think></think>\n{self.word} costs {price}", "<|endoftext|>"
        else:
            said, end = call, "<|observation|>"
        return Sampled(self.tokenizer.encode(said + end, add_special_tokens=False), "stop")


def lessons(model_type, tokenizer, end_ids, rules, limits):
    """The segments of one episode per word, as (ids, mask)."""
    import asyncio

    from rufus_plugins.hosts.verl.chat_tokens import ChatTokens
    from rufus_plugins.rollouts.environments.functions import Functions
    from rufus_plugins.rollouts.episode import Episode

    chat = ChatTokens(tokenizer, model_type, end_ids=end_ids)
    found = []
    for word in [*PRICES, LOST]:
        environment = Functions(functions=["lookup_plugin:lookup"])
        teacher = Teacher(tokenizer, word)
        rollout = asyncio.run(Episode(task(word), environment, teacher, chat, rules, limits).run())
        for segment in rollout.trajectory.segments:
            ids = [*segment.prompt_ids, *segment.response_ids]
            found.append((ids, [0] * len(segment.prompt_ids) + list(segment.response_mask)))
    return found


def task(word):
    from rufus_plugins import Task

    prompt = ({"role": "user", "content": f"What does {word} cost?"},)
    return Task(word, "prices", prompt, str(PRICES.get(word, 0)))


def teach(model, found, steps, lr=3e-3):
    """Supervised steps on the sampled tokens of all lessons at once, the rate falling to 0. Returns the last loss."""
    import torch

    longest = max(len(ids) for ids, _ in found)
    ids = torch.tensor([i + [0] * (longest - len(i)) for i, _ in found])
    mask = torch.tensor([m + [0] * (longest - len(m)) for _, m in found])
    attention = torch.tensor([[1] * len(i) + [0] * (longest - len(i)) for i, _ in found])
    optimizer = torch.optim.AdamW(model.parameters(), lr=lr, betas=(0.9, 0.95))
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: min((step + 1) / 5, 1 - step / steps))
    model.train()
    for _ in range(steps):
        logits = model(input_ids=ids, attention_mask=attention, use_cache=False).logits[:, :-1]
        losses = torch.nn.functional.cross_entropy(logits.transpose(1, 2), ids[:, 1:], reduction="none")
        loss = (losses * mask[:, 1:]).sum() / mask[:, 1:].sum()
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
    model.eval()
    return loss.item()
