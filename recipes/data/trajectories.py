"""`rufus data trajectories`: rejection sampling for SFT (both papers keep only correct trajectories).

Makes attempts as `solve-rate` does, with or without an environment, and writes those that are right as conversations in
the schema of `rufus data normalise`. Attempts of a `solve-rate` run can be reused: give its --attempts-file and the
same options.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from rufus_plugins.errors import ConfigError
from rufus_plugins.recipes.data.asking import Asking
from rufus_plugins.recipes.data.normalise import schema
from rufus_plugins.recipes.data.records import Raw, Refused
from rufus_plugins.recipes.data.run import Job
from rufus_plugins.recipes.data.texts import text_of
from rufus_plugins.types import CallStatus, Fault, Termination


@dataclass(kw_only=True)
class Trajectories(Asking):
    """Keeps what is right, with its messages."""

    keep: int = 1
    """Right trajectories that are kept per record, the first ones; different in what they say. Ours."""
    solved_at: float = 1.0
    """Score from which on a trajectory is right."""
    category: str = ""
    """The category of all conversations, for `mixture`."""

    name = "trajectories"
    schema = staticmethod(schema)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.keep < 1:
            raise ConfigError("--keep must be at least 1")

    def record(self, raw: Raw) -> Iterator[Mapping[str, Any]]:
        task = self.task(raw)
        scores = self.scores(task)
        kept: list[Mapping[str, Any]] = []
        said: set[str] = set()
        for number, score in enumerate(scores):
            ending = Termination(score["termination"])
            if score["value"] < self.solved_at:
                continue
            if ending.fault is Fault.BUDGET:
                self.notes["right_but_cut_off"] += 1
                continue
            body = self._store.get("answers", self._plan.keys(task, number)[0])
            if any(m.get("name") == "compaction" and m["role"] == "user" for m in body["messages"]):
                self.notes["right_but_compacted"] += 1  # no context of the episode held this conversation
                continue
            if any(call["status"] == CallStatus.MALFORMED for call in body["tool_calls"]):
                self.notes["right_with_unreadable_call"] += 1  # no chat template can write it again
                continue
            opening = body.get("opening") or self._plan.prompt_of(task)
            messages = [_message(m) for m in (*opening, *body["messages"])]
            digest = hashlib.sha256(json.dumps(messages, sort_keys=True).encode()).hexdigest()
            if digest not in said and len(kept) < self.keep:
                said.add(digest)
                made: dict[str, Any] = {
                    "id": f"{task.id}#{number}",
                    "data_source": task.data_source,
                    "category": self.category or str(raw.record.get("category") or ""),
                    "messages": messages,
                }
                if body.get("tools"):
                    made["tools"] = json.dumps(body["tools"], ensure_ascii=False)
                kept.append(made)
        if not kept:
            raise Refused("never_right", f"none of {len(scores)} attempts scores {self.solved_at:g} or more in full")
        self.notes["trajectories"] += len(kept)
        return iter(kept)

    def finish(self, job: Job) -> Mapping[str, Any]:
        return {"faults_of_this_run": self._faults}


def _message(message: Mapping[str, Any]) -> dict[str, Any]:
    """In the schema: text contents, arguments as JSON text, nothing of ours."""
    made: dict[str, Any] = {"role": message["role"], "content": text_of(message.get("content"))}
    for key in ("reasoning_content", "tool_call_id", "name"):
        if message.get(key):
            made[key] = message[key]
    if message.get("tool_calls"):
        made["tool_calls"] = [
            {
                "id": call.get("id", ""),
                "type": "function",
                "function": {
                    "name": call["function"]["name"],
                    "arguments": json.dumps(call["function"]["arguments"], ensure_ascii=False),
                },
            }
            for call in message["tool_calls"]
        ]
    return made
