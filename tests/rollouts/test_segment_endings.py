"""Every way in which a rollout can end has one value; what ours breaks is a fault, what the model breaks is data."""

import asyncio

import pytest

from rufus_plugins.errors import ConfigError, DataError, InfrastructureError
from rufus_plugins.rollouts.episode import RETRIED, Episode, Limits
from rufus_plugins.rollouts.rules import EpisodeRules, episode_rules
from rufus_plugins.rollouts.tool_calls import parse, split_thinking
from rufus_plugins.rollouts.tools import tool_message
from rufus_plugins.rollouts.turns import Sampled
from rufus_plugins.types import CallStatus, Fault, StepResult, Task, Termination

TASK = Task("t", "test", ({"role": "user", "content": "go"},))
TOOLS = [{"type": "function", "function": {"name": "act", "description": "", "parameters": {"type": "object"}}}]
CALL = '<tool_call>{"name": "act", "arguments": {"n": 1}}</tool_call>'
BROKEN = '<tool_call>{"name": "act", "argu</tool_call>'


class Letters:
    """A chat format in which a token is a character's code."""

    def opening(self, messages, tools):
        return [ord(c) for m in messages for c in m["content"]]

    def following(self, tail, called, messages, tools):
        return [ord(c) for m in messages for c in m["content"]]

    async def read(self, ids, tools):
        text = "".join(map(chr, ids))
        if not tools:
            from rufus_plugins.rollouts.tool_calls import ParsedTurn

            return ParsedTurn((), split_thinking(text)[1])
        return parse("hermes", text, tools)


class Script:
    """Says its lines in order; one that is too long for its turn is cut."""

    def __init__(self, *lines):
        self.lines = list(lines)
        self.prompts = []

    async def generate(self, prompt_ids, max_tokens):
        self.prompts.append("".join(map(chr, prompt_ids)))
        line = self.lines.pop(0)
        if isinstance(line, Exception):
            raise line
        if isinstance(line, Sampled):
            return line
        if callable(line):
            return await line()
        ids = [ord(c) for c in line]
        return Sampled(ids[:max_tokens], "stop" if len(ids) <= max_tokens else "length")


class World:
    def __init__(self, *answers, tools=TOOLS, start=None, finish=None, close=None):
        self.answers, self.tools = list(answers), tools
        self.on = {"start": start, "finish": finish, "close": close}
        self.seen, self.log = [], []

    async def _do(self, what):
        self.log.append(what)
        action = self.on[what]
        if isinstance(action, BaseException):
            raise action
        if action is not None:
            return await action()

    async def start(self, task):
        await self._do("start")
        return task.prompt

    async def step(self, message):
        self.seen.append(message)
        answer = self.answers.pop(0) if self.answers else None
        if isinstance(answer, BaseException):
            raise answer
        if callable(answer):
            return await answer()
        if answer is not None:
            return answer
        calls = message.get("tool_calls") or []
        return StepResult([tool_message(c["id"], "act", "ok") for c in calls], done=not calls)

    async def finish(self):
        await self._do("finish")
        return {"kept": 1}

    async def close(self):
        await self._do("close")


def play(lines, world=None, context=10_000, response=5_000, **rules):
    world, script = world or World(), Script(*lines)
    episode = Episode(TASK, world, script, Letters(), EpisodeRules(**rules), Limits(context, response))
    return asyncio.run(episode.run()), world, script


async def forever():
    await asyncio.sleep(3600)


ENDINGS = {
    Termination.ANSWERED: lambda: play([CALL, "42"]),
    Termination.STOPPED: lambda: play([CALL], World(StepResult(done=True))),
    Termination.MALFORMED: lambda: play([BROKEN] * 3, max_malformed=2),
    Termination.MAX_TURNS: lambda: play([CALL] * 3, max_turns=3),
    Termination.TOOL_BUDGET: lambda: play([CALL, CALL], max_tool_calls=1),
    Termination.RESPONSE_LENGTH: lambda: play(["a" * 99], response=50),
    Termination.CONTEXT_LENGTH: lambda: play(["a" * 99], context=50),
    Termination.EPISODE_TIMEOUT: lambda: play([forever], episode_timeout_s=0.05),
    Termination.ENVIRONMENT_LOST: lambda: play([CALL], World(ZeroDivisionError("bug"))),
    Termination.SANDBOX_LOST: lambda: play([CALL], World(InfrastructureError("gone", Termination.SANDBOX_LOST))),
    Termination.JUDGE_FAILED: lambda: play([CALL], World(InfrastructureError("down", Termination.JUDGE_FAILED))),
    Termination.REWARD_FAILED: lambda: play(
        ["42"], World(finish=InfrastructureError("no reward", Termination.REWARD_FAILED))
    ),
    Termination.ENGINE_FAILED: lambda: play([RuntimeError("CUDA error")]),
    Termination.TOKENS_DIVERGED: lambda: play([Sampled([65], "stop", logprobs=[-0.1, -0.2])]),
    Termination.TIMEOUT_INFRA: lambda: play([CALL], World(forever), step_timeout_s=0.05),
    Termination.CANCELLED: lambda: play([Sampled([65], "abort")]),
}


@pytest.mark.parametrize("ending", list(Termination))
def test_every_ending_is_reached_by_one_way_at_least_and_the_environment_is_closed(ending):
    rollout, world, _ = ENDINGS[ending]()
    assert rollout.trajectory.termination is ending
    assert world.log[-1] == "close" and world.log.count("close") == 1
    infrastructure = ending.fault is Fault.INFRASTRUCTURE
    assert bool(rollout.problem) == infrastructure, "a fault says what failed"
    assert ("finish" in world.log) == (not infrastructure or ending is Termination.REWARD_FAILED)
    assert rollout.trajectory.artifacts == ({} if infrastructure else {"kept": 1})


@pytest.mark.parametrize(
    ("make", "ending"),
    [
        (lambda: play(["  "]), Termination.STOPPED),  # said nothing
        (lambda: play(["42"], World(StepResult())), Termination.ANSWERED),  # nothing to answer
        (lambda: play([CALL], World(StepResult(termination=Termination.EPISODE_TIMEOUT))), Termination.EPISODE_TIMEOUT),
        (lambda: play([], World(start=RuntimeError("no image"))), Termination.ENVIRONMENT_LOST),
        (lambda: play([], World(start=DataError("no Dockerfile"))), Termination.ENVIRONMENT_LOST),
        (lambda: play([], World(start=forever), start_timeout_s=0.05), Termination.TIMEOUT_INFRA),
        (lambda: play([], World(start=forever), episode_timeout_s=0.05), Termination.EPISODE_TIMEOUT),
        (lambda: play(["42"], World(finish=forever), finish_timeout_s=0.05), Termination.TIMEOUT_INFRA),
        (lambda: play(["42"], World(finish=ValueError("bug"))), Termination.ENVIRONMENT_LOST),
        (lambda: play([forever], generate_timeout_s=0.05), Termination.TIMEOUT_INFRA),
        (lambda: play([Sampled([], "stop")]), Termination.ENGINE_FAILED),
        (lambda: play([CALL], World(TimeoutError("its own"))), Termination.ENVIRONMENT_LOST),
        (lambda: play([], context=2), Termination.CONTEXT_LENGTH),  # the prompt leaves no room
        (lambda: play([CALL], World(StepResult([tool_message("call_0_0", "act", "x" * 99)])), context=120),
         Termination.CONTEXT_LENGTH),
        (lambda: play([CALL], World(StepResult([tool_message("call_0_0", "act", "x" * 99)])), response=120),
         Termination.RESPONSE_LENGTH),
        (lambda: play(["a" * 99], max_turn_tokens=10), Termination.RESPONSE_LENGTH),
        (lambda: play([CALL], max_tool_calls=0), Termination.TOOL_BUDGET),
        (lambda: play([CALL], World(StepResult([{"role": "tool", "tool_call_id": "call_0_0", "content": "x",
                                                 "status": "odd"}]))), Termination.ENVIRONMENT_LOST),
    ],
)  # fmt: skip
def test_other_ways_to_the_same_endings(make, ending):
    rollout, world, _ = make()
    assert rollout.trajectory.termination is ending
    assert world.log[-1] == "close"


def test_a_failing_or_hanging_close_changes_no_ending_and_is_counted(capsys):
    for close in (RuntimeError("stuck"), forever):
        rollout, _, _ = play(["42"], World(close=close), close_timeout_s=0.05)
        assert rollout.trajectory.termination is Termination.ANSWERED
        assert rollout.trajectory.metrics["close_failed"] == 1
    assert "did not close" in capsys.readouterr().err


def test_a_wrong_setup_raises_and_still_closes():
    world = World(start=ConfigError("no such image"))
    with pytest.raises(ConfigError):
        play([], world)
    assert world.log == ["start", "close"]


def test_a_cancelled_rollout_closes_its_environment():
    async def go():
        world = World()
        episode = Episode(TASK, world, Script(forever), Letters(), EpisodeRules(), Limits(100, 100))
        task = asyncio.create_task(episode.run())
        await asyncio.sleep(0.02)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        return world

    assert asyncio.run(go()).log == ["start", "close"]


def test_malformed_calls_are_counted_answered_and_kept_from_the_environment():
    rollout, world, script = play([f"{CALL}{BROKEN}{CALL}", BROKEN, "42"])
    calls = rollout.trajectory.tool_calls
    assert [c.status for c in calls] == [CallStatus.OK, CallStatus.MALFORMED, CallStatus.OK, CallStatus.MALFORMED]
    assert [c.started for c in calls] == [True, False, True, False] and [c.turn for c in calls] == [0, 0, 0, 1]
    assert [len(m.get("tool_calls") or ()) for m in world.seen] == [2, 0], "good calls, then the answer"
    answers = [m for m in rollout.trajectory.messages if m["role"] == "tool"]
    assert [m["tool_call_id"] for m in answers] == ["call_0_0", "call_0_1", "call_0_2", "call_1_0"]
    assert "could not be read" in answers[1]["content"] and "could not be read" in script.prompts[1]
    assert rollout.trajectory.metrics["tool_calls_malformed"] == 2


def test_the_environment_says_how_its_calls_went():
    failed = StepResult([tool_message("call_0_0", "act", "refused", CallStatus.ERROR, False)])
    rollout, _, _ = play([CALL, "42"], World(failed))
    [call] = rollout.trajectory.tool_calls
    assert call.status is CallStatus.ERROR and call.started is False and call.arguments == {"n": 1}


def test_a_call_that_the_environment_forgot_is_answered_all_the_same():
    rollout, _, _ = play([CALL, "42"], World(StepResult([{"role": "user", "content": "hm"}])))
    assert [m["role"] for m in rollout.trajectory.messages] == ["assistant", "tool", "user", "assistant"]


def test_the_spent_budget_is_said_once_before_it_ends_the_episode():
    rollout, world, script = play([CALL + CALL, "42"], max_tool_calls=1)
    assert rollout.trajectory.termination is Termination.ANSWERED
    assert len(world.seen[0]["tool_calls"]) == 1 and "budget of 1" in script.prompts[1]
    refused = rollout.trajectory.tool_calls[1]
    assert refused.status is CallStatus.ERROR and not refused.started


def test_calls_of_a_truncated_turn_do_not_run():
    rollout, world, _ = play([CALL + "a" * 99], response=80)
    assert rollout.trajectory.termination is Termination.RESPONSE_LENGTH
    assert not world.seen and not rollout.trajectory.tool_calls


def test_without_tools_markup_is_just_text():
    rollout, _, _ = play([CALL], World(tools=[]))
    assert rollout.trajectory.termination is Termination.ANSWERED and rollout.trajectory.response == CALL


def test_an_environment_may_go_on_after_an_answer():
    world = World(StepResult([{"role": "user", "content": "and then?"}], metrics={"asked": 1}), None)
    rollout, _, script = play(["first", "second"], world)
    assert rollout.trajectory.turns == 2 and script.prompts[1].endswith("firstand then?")
    assert rollout.trajectory.metrics["asked"] == 1 and rollout.trajectory.response == "second"


def test_only_faults_that_a_new_rollout_may_mend_are_retried():
    assert all(ending.fault is Fault.INFRASTRUCTURE for ending in RETRIED)
    assert not RETRIED & {Termination.TOKENS_DIVERGED, Termination.CANCELLED, Termination.JUDGE_FAILED}


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"max_turns": 0}, "max_turns"),
        ({"retries": -1}, "retries"),
        ({"retries": "many"}, "retries"),
        ({"step_timeout_s": 0}, "step_timeout_s"),
        ({"max_segments": 0}, "max_segments"),
        ({"compaction": {"by": "magic"}}, "policy, openai_compatible, rule"),
        ({"compaction": {"at": 1.5}}, "compaction.at"),
        ({"compaction": {"by": "openai_compatible"}}, "base_url"),
        ({"compaction": {"bye": "rule"}}, "compaction.bye"),
        ({"compaction": 3}, "compaction"),
    ],
)
def test_rules_that_make_no_sense_are_refused_by_name(given, said):
    with pytest.raises(ConfigError, match=said):
        episode_rules(given)


def test_rules_stand_beside_the_environments_own_fields():
    rules = episode_rules({"name": "functions", "functions": ["a:b"], "retries": 3, "max_turns": 7})
    assert rules.retries == 3 and rules.max_turns == 7 and rules.max_tool_calls is None


def test_a_rule_that_the_environment_declares_as_its_own_field_is_left_to_it():
    given = {"name": "shell", "episode_timeout_s": 60.0, "retries": 2}
    rules = episode_rules(given, own={"episode_timeout_s", "command_timeout_s"})
    assert rules.episode_timeout_s is None and rules.retries == 2
