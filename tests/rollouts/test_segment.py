"""The buffer and its audit: bit for bit what was sampled, over random episodes, and what a change of tokens becomes."""

import asyncio
import importlib.util
import random
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rufus_plugins.rollouts.episode import Episode, Limits
from rufus_plugins.rollouts.rules import EpisodeRules
from rufus_plugins.rollouts.segment import SegmentBuffer, TokenAudit, TokensDiverged
from rufus_plugins.rollouts.turns import Sampled
from rufus_plugins.types import CallStatus, ContextSegment, Fault, StepResult, Task, Termination

_spec = importlib.util.spec_from_file_location("chat_families", Path(__file__).with_name("chat_families.py"))
chat_families = sys.modules.setdefault("chat_families", importlib.util.module_from_spec(_spec))
if not hasattr(chat_families, "FAMILIES"):
    _spec.loader.exec_module(chat_families)
FAMILIES, TOOLS, chat_of, tokenizer_of = (
    chat_families.FAMILIES,
    chat_families.TOOLS,
    chat_families.chat_of,
    chat_families.tokenizer_of,
)

TASK = Task("t", "test", ({"role": "user", "content": "What is there?"},))
LAYERS, TOP_K = 3, 2


# ---- the buffer ------------------------------------------------------------------------------------------------------


def test_a_segment_holds_ids_mask_and_logprobs_of_prompt_turns_and_context():
    buffer = SegmentBuffer([1, 2])
    buffer.add_sampled([3, 4], [-0.5, -0.25])
    buffer.add_context([5])
    buffer.add_sampled([6], [-1.0])
    assert buffer.close() == ContextSegment([1, 2], [3, 4, 5, 6], [1, 1, 0, 1], [-0.5, -0.25, 0.0, -1.0])
    assert len(buffer) == 6 and buffer.response_length == 4 and buffer.sampled == 3 and buffer.tail(2) == [5, 6]


def test_what_the_buffer_hands_out_is_a_copy():
    buffer = SegmentBuffer([1, 2])
    buffer.ids().append(9)
    buffer.close().response_mask.append(1)
    assert buffer.ids() == [1, 2] and buffer.close().response_mask == []


def test_earlier_routes_stay_and_new_rows_are_appended():
    buffer = SegmentBuffer([1, 2])
    first = np.full((3, LAYERS, TOP_K), 1, np.uint8)
    buffer.add_sampled([3, 4], [0.0, 0.0], first)
    buffer.add_context([5, 6])
    second = np.full((6, LAYERS, TOP_K), 2, np.uint8)  # the engine routes the whole context again
    buffer.add_sampled([7], [0.0], second)
    buffer.add_context([8])  # nobody routed the last sampled token and this one
    routes = buffer.close().routed_experts
    assert routes.shape == (7, LAYERS, TOP_K) and routes.dtype == np.uint8
    assert [int(row[0, 0]) for row in routes] == [1, 1, 1, 2, 2, 2, 255]


def test_weights_of_the_first_and_last_token_are_remembered():
    buffer = SegmentBuffer([1])
    buffer.add_sampled([2], versions=(3, 4))
    buffer.add_sampled([5], versions=(4, 6))
    assert buffer.versions == (3, 6)


def test_logprobs_for_some_turns_only_are_refused():
    buffer = SegmentBuffer([1])
    buffer.add_sampled([2], [-0.1])
    with pytest.raises(TokensDiverged, match="log-probabilities"):
        buffer.add_sampled([3])


# ---- the audit -------------------------------------------------------------------------------------------------------


def audited():
    audit = TokenAudit([1, 2])
    audit.asks([1, 2])
    audit.answers([3, 4], [-0.5, -0.25], None)
    return audit


@pytest.mark.parametrize("prompt", [[1, 2, 3], [1, 2, 3, 5, 6], [1, 9, 3, 4, 6], []])
def test_a_prompt_must_extend_what_went_before(prompt):
    with pytest.raises(TokensDiverged, match="differ from token") as error:
        audited().asks(prompt)
    assert error.value.termination is Termination.TOKENS_DIVERGED


def test_a_prompt_that_extends_passes():
    audited().asks([1, 2, 3, 4, 9, 9])


@pytest.mark.parametrize(
    ("logprobs", "rows"), [([-0.5], None), ([-0.5, 0.0, 0.0], None), (None, 4), (None, 6), ([0.0, 0.0], 3)]
)
def test_lengths_must_agree(logprobs, rows):
    audit = TokenAudit([1, 2])
    audit.asks([1, 2, 3, 4])
    routes = None if rows is None else np.zeros((rows, LAYERS, TOP_K), np.uint8)
    with pytest.raises(TokensDiverged):
        audit.answers([5, 6], logprobs, routes)


GOOD = ContextSegment([1, 2], [3, 4, 9], [1, 1, 0], [-0.5, -0.25, 0.0])


@pytest.mark.parametrize(
    "segment",
    [
        ContextSegment([1, 2], [3, 5, 9], [1, 1, 0], [-0.5, -0.25, 0.0]),
        ContextSegment([1, 2], [3], [1], [-0.5]),
        ContextSegment([1, 2], [3, 4, 9], [1, 1], [-0.5, -0.25, 0.0]),
        ContextSegment([1, 2], [3, 4, 9], [1, 0, 1], [-0.5, -0.25, 0.0]),
        ContextSegment([1, 2], [3, 4, 9], [1, 1, 1], [-0.5, -0.25, 0.0]),
        ContextSegment([1, 2], [3, 4, 9], [1, 1, 0], [-0.5, -0.2, 0.0]),
        ContextSegment([1, 2], [3, 4, 9], [1, 1, 0], [-0.5, -0.25]),
        ContextSegment([1, 2], [3, 4, 9], [1, 1, 0], None, np.zeros((3, LAYERS, TOP_K), np.uint8)),
    ],
)
def test_a_segment_that_is_not_what_was_sampled_never_gets_to_training(segment):
    audited().closes(GOOD)
    with pytest.raises(TokensDiverged):
        audited().closes(segment)


# ---- random episodes -------------------------------------------------------------------------------------------------


class RandomPolicy:
    """Samples anything: valid calls, broken ones, control tokens, no end token or two. Keeps its own record."""

    def __init__(self, name, seed, routes):
        self.name, self.random, self.routes = name, random.Random(seed), routes
        self.log: list[tuple[list[int], list[int], list[float]]] = []

    def turn(self):
        tokenizer, family, rng = tokenizer_of(self.name), FAMILIES[self.name], self.random
        kinds = ["ids", "call", "broken", "text", "unicode"]
        kind = rng.choice(kinds)
        if kind == "ids":
            ids = [rng.randrange(len(tokenizer)) for _ in range(rng.randint(1, 12))]
        else:
            said = {
                "call": '<tool_call>{"name": "look", "arguments": {"at": "x"}}</tool_call>',
                "broken": '<tool_call>{"name": "look", "argu',
                "text": "It is there.",
                "unicode": "日本 🙂 <tool_call>look\n<arg_key>at</arg_key>\n<arg_value>é</arg_value>\n</tool_call>",
            }[kind]
            ids = tokenizer.encode(said, add_special_tokens=False)
            if rng.random() < 0.5:  # not as the tokenizer would write it: a character at a time
                ids = [i for c in said for i in tokenizer.encode(c, add_special_tokens=False)]
        end = tokenizer.convert_tokens_to_ids(family.end)
        return ids + [end] * rng.choice([0, 1, 1, 2])  # a stop string, an end, a doubled end

    async def generate(self, prompt_ids, max_tokens):
        ids = self.turn()
        finish = "stop" if len(ids) <= max_tokens else "length"
        ids = ids[:max_tokens]
        logprobs = [-self.random.random() for _ in ids]
        self.log.append((list(prompt_ids), ids, logprobs))
        routes = None
        if self.routes:  # every call routes the whole context, each time otherwise
            shape = (len(prompt_ids) + len(ids) - 1, LAYERS, TOP_K)
            routes = np.random.default_rng(len(self.log)).integers(0, 8, shape).astype(np.uint8)
        return Sampled(ids, finish, logprobs, routes)


class Noise:
    """Answers anything, control tokens included."""

    def __init__(self, name, seed):
        self.random, self.controls = random.Random(seed), FAMILIES[name].controls
        self.tools = TOOLS

    async def start(self, task):
        return task.prompt

    def noise(self):
        pieces = ["ok", "\n\n", "日本", "\ud800", *self.random.choices(self.controls, k=3)]
        return "".join(self.random.choices(pieces, k=self.random.randint(0, 8)))

    async def step(self, message):
        calls = message.get("tool_calls") or []
        if not calls:
            if self.random.random() < 0.3:
                return StepResult(done=True)
            return StepResult([{"role": "user", "content": self.noise()}])
        return StepResult(
            [
                {"role": "tool", "tool_call_id": c["id"], "name": c["function"]["name"], "content": self.noise()}
                for c in calls
            ]
        )

    async def finish(self):
        return {}

    async def close(self):
        pass


def play(name, seed, compacted=False, routes=False, **more):
    rules = {"max_turns": 8, "max_malformed": 3}
    if compacted:
        rules["compaction"] = {"by": more.pop("by", "policy"), "at": 0.6, "max_tokens": 20, "keep_chars": 40}
    policy = RandomPolicy(name, seed, routes)
    opening = len(chat_of(name).opening(TASK.prompt, TOOLS))
    limits = Limits(opening + 250, 160) if compacted else Limits(opening + 300, 300)
    episode = Episode(TASK, Noise(name, seed), policy, chat_of(name), EpisodeRules(**rules), limits)
    return asyncio.run(episode.run()), policy


def check_against(policy, segments):
    """The segments, recomputed from the policy's own record: every prompt, every sampled token in its place."""
    calls = list(policy.log)
    for segment in segments:
        ids = [*segment.prompt_ids, *segment.response_ids]
        mask = [0] * len(segment.prompt_ids) + list(segment.response_mask)
        logprobs = [0.0] * len(segment.prompt_ids) + list(segment.response_logprobs)
        expected, told = [0] * len(ids), [0.0] * len(ids)
        rows = []
        while calls and calls[0][0] == ids[: len(calls[0][0])] and len(calls[0][0]) >= len(segment.prompt_ids):
            prompt, sampled, given_logprobs = calls.pop(0)
            at = len(prompt)
            assert ids[at : at + len(sampled)] == sampled
            expected[at : at + len(sampled)] = [1] * len(sampled)
            told[at : at + len(sampled)] = given_logprobs
            rows.append((len(policy.log) - len(calls), at + len(sampled) - 1))
        assert rows, "every segment was generated in"
        assert mask == expected and logprobs == told
        if segment.routed_experts is not None:
            start = 0
            for number, stop in rows:
                given_rows = np.random.default_rng(number).integers(0, 8, (stop, LAYERS, TOP_K)).astype(np.uint8)
                np.testing.assert_array_equal(segment.routed_experts[start:stop], given_rows[start:])
                start = stop
    assert not calls, "every turn is in a segment"


@pytest.mark.parametrize("name", sorted(FAMILIES))
@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(seed=st.integers(0, 10**9), compacted=st.booleans(), routes=st.booleans())
def test_random_episodes_keep_every_sampled_token_bit_for_bit(name, seed, compacted, routes):
    rollout, policy = play(name, seed, compacted, routes)
    trajectory = rollout.trajectory
    assert trajectory.termination.fault is not Fault.INFRASTRUCTURE, rollout.problem
    check_against(policy, trajectory.segments)
    assert trajectory.metrics["tokens_sampled"] == sum(len(ids) for _, ids, _ in policy.log)
    assert trajectory.metrics["tool_calls_malformed"] == sum(
        c.status is CallStatus.MALFORMED for c in trajectory.tool_calls
    )
    for segment in trajectory.segments:
        assert len(segment.response_ids) <= 300
        assert len(segment.response_ids) == len(segment.response_mask) == len(segment.response_logprobs)


@pytest.mark.parametrize("by", ["policy", "rule"])
def test_compaction_happens_in_random_episodes(by):
    counts = [len(play("qwen", seed, True, by=by)[0].trajectory.segments) for seed in range(30)]
    assert max(counts) > 1


# ---- mutations: a re-tokenisation must be caught, wherever it happens ------------------------------------------------


def retokenised(name, ids):
    tokenizer = tokenizer_of(name)
    return tokenizer.encode(tokenizer.decode(ids, skip_special_tokens=False), add_special_tokens=False)


def mutate_prompt(monkeypatch, name):
    """The prompt of each turn is made from text again."""
    monkeypatch.setattr(SegmentBuffer, "ids", lambda self: retokenised(name, self._ids))


def mutate_sampled(monkeypatch, name):
    """A turn is stored as its text would be tokenised."""
    stock = SegmentBuffer.add_sampled

    def add(self, ids, logprobs=None, routes=None, versions=None):
        new = retokenised(name, ids)
        stock(self, new, (list(logprobs) + [0.0] * len(new))[: len(new)], routes, versions)

    monkeypatch.setattr(SegmentBuffer, "add_sampled", add)


def mutate_segment(monkeypatch, name):
    """The finished segment is made from text again."""
    stock = SegmentBuffer.close

    def close(self):
        whole = stock(self)
        response = retokenised(name, whole.response_ids)
        pad = len(response) - len(whole.response_ids)
        mask = list(whole.response_mask) + [0] * max(pad, 0)
        logprobs = list(whole.response_logprobs) + [0.0] * max(pad, 0)
        return ContextSegment(whole.prompt_ids, response, mask[: len(response)], logprobs[: len(response)])

    monkeypatch.setattr(SegmentBuffer, "close", close)


def mutate_boundary(monkeypatch, name):
    """A sampled token is taken back where the next message begins, as verl's GLM builder does."""
    stock = SegmentBuffer.add_context

    def add(self, ids):
        del self._ids[-1], self._mask[-1], self._logprobs[-1]
        stock(self, ids)

    monkeypatch.setattr(SegmentBuffer, "add_context", add)


@pytest.mark.parametrize("mutate", [mutate_prompt, mutate_sampled, mutate_segment, mutate_boundary])
@pytest.mark.parametrize("name", ["glm", "qwen"])
def test_a_change_of_tokens_ends_the_rollout_as_a_fault(monkeypatch, mutate, name):
    seeds = range(12)
    sound = [play(name, seed)[0].trajectory.termination for seed in seeds]
    assert Termination.TOKENS_DIVERGED not in sound
    mutate(monkeypatch, name)
    found = [play(name, seed)[0].trajectory for seed in seeds]
    caught = [t for t in found if t.termination is Termination.TOKENS_DIVERGED]
    assert len(caught) >= 6, [t.termination for t in found]
    assert all(t.metrics["tokens_diverged"] == 1 for t in caught)
