"""Rejection sampling with and without tools, against a loopback server with tool calls."""

import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))
from chat_peer import ChatPeer, chance  # noqa: E402

from rufus_plugins.errors import ConfigError  # noqa: E402
from rufus_plugins.recipes.data.conversations import conversation  # noqa: E402
from rufus_plugins.recipes.data.run import execute  # noqa: E402
from rufus_plugins.recipes.data.trajectories import Trajectories  # noqa: E402

TOOLS = '''
from rufus_plugins.errors import InfrastructureError

def add(a: int, b: int) -> int:
    """Adds two numbers."""
    if a == 999:
        raise InfrastructureError("the adder is gone")
    return a + b
'''


@pytest.fixture(autouse=True)
def adder(tmp_path, monkeypatch):
    (tmp_path / "adder_tools.py").write_text(TOOLS)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    sys.modules.pop("adder_tools", None)


def jsonl(path, records):
    path.write_text("".join(json.dumps(r) + "\n" for r in records), encoding="utf-8")
    return path


def lines(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def sums(count, first=10):
    return [{"id": f"s{i}", "question": f"{first + i} + {i}", "answer": str(first + 2 * i)} for i in range(count)]


def calling(body):
    """Calls `add`; sometimes writes a call that cannot be read first; then gives the result, sometimes wrongly."""
    asked = next(m["content"] for m in body["messages"] if m["role"] == "user")
    a, _, b = asked.split()
    last = body["messages"][-1]
    luck = chance(asked, body["seed"])
    if last["role"] == "user" and luck < 0.2:
        return {"content": "", "tool_calls": [{"id": "x", "function": {"name": "add", "arguments": "{a: 1"}}]}
    if last["role"] == "user" or "could not be read" in last["content"]:
        arguments = json.dumps({"a": int(a), "b": int(b)})
        call = {"id": "from the server", "type": "function", "function": {"name": "add", "arguments": arguments}}
        return {"content": None, "reasoning_content": "I add.", "tool_calls": [call]}
    result = int(last["content"]) if luck < 0.6 else -1
    return {"content": f"The sum is \\boxed{{{result}}}."}


def collect(server, source, output, **fields):
    options = {
        "attempts": 4,
        "reward": "math_answer",
        "environment": "functions",
        "environment_fields": ("functions=[adder_tools:add]", "max_turns=6"),
        "concurrency": 8,
        "timeout_s": 20.0,
    } | fields
    tool = Trajectories(model="m", base_url=server.url, **options)
    return execute(tool, source, output, workers=1, overwrite=True)


def test_right_episodes_are_kept_as_conversations_that_a_trainer_can_read(tmp_path):
    source = jsonl(tmp_path / "in.jsonl", sums(8))
    with ChatPeer(calling) as server:
        manifest = collect(server, source, tmp_path / "o.jsonl", keep=4)
    kept = lines(tmp_path / "o.jsonl")
    assert kept and manifest["notes"]["trajectories"] == len(kept)
    assert (
        manifest["counts"]["read"]
        == 8
        == len({r["id"].partition("#")[0] for r in kept}) + manifest["set_aside"].get("never_right", 0)
    )
    gold = {r["id"]: r["answer"] for r in sums(8)}
    for record in kept:
        messages = record["messages"]
        assert messages[0] == {
            "role": "user",
            "content": next(r["question"] for r in sums(8) if r["id"] == record["id"].split("#")[0]),
        }
        assert messages[-1]["content"] == f"The sum is \\boxed{{{gold[record['id'].partition('#')[0]]}}}."
        calls = [m for m in messages if m.get("tool_calls")]
        results = [m for m in messages if m["role"] == "tool"]
        assert [m["tool_call_id"] for m in results] == [c["id"] for m in calls for c in m["tool_calls"]]
        assert all(m["reasoning_content"] == "I add." for m in calls)
        assert all(set(json.loads(c["function"]["arguments"])) == {"a", "b"} for m in calls for c in m["tool_calls"])
        assert json.loads(record["tools"])[0]["function"]["name"] == "add"
        again, tools = conversation(record, Counter())  # the schema that `normalise` reads and writes
        assert [m["role"] for m in again] == [m["role"] for m in messages] and tools
    assert manifest["notes"]["right_with_unreadable_call"] > 0 and "{a: 1" not in json.dumps(kept)
    sent = [r for r in server.requests if r["messages"][-1]["role"] == "tool"]
    assert sent and all(r["tools"][0]["function"]["name"] == "add" for r in sent)
    assert all(isinstance(r["messages"][-2]["tool_calls"][0]["function"]["arguments"], str) for r in sent)
    assert all(r["messages"][-2]["tool_calls"][0]["id"] == r["messages"][-1]["tool_call_id"] for r in sent)


def test_an_environment_that_fails_gives_no_attempt(tmp_path):
    source = jsonl(tmp_path / "in.jsonl", [*sums(2), {"id": "bad", "question": "999 + 1", "answer": "1000"}])
    right = lambda body: calling(body | {"seed": next(s for s in range(999) if 0.2 <= chance(  # noqa: E731
        next(m["content"] for m in body["messages"] if m["role"] == "user"), s) < 0.6)})  # fmt: skip
    with ChatPeer(right) as server:
        manifest = collect(server, source, tmp_path / "o.jsonl", attempts=2, retries=1)
    assert [r["id"] for r in lines(tmp_path / "o.jsonl")] == ["s0#0", "s1#0"]
    assert manifest["set_aside"] == {"incomplete": 1} and sum(manifest["faults_of_this_run"].values()) == 4


def test_budgets_end_episodes_and_what_is_cut_off_is_not_kept(tmp_path):
    source = jsonl(tmp_path / "in.jsonl", sums(1))
    forever = {"content": "", "tool_calls": [{"id": "x", "function": {"name": "add", "arguments": {"a": 1, "b": 1}}}]}
    with ChatPeer(lambda body: json.loads(json.dumps(forever))) as server:
        manifest = collect(server, source, tmp_path / "o.jsonl", attempts=1)
        assert manifest["set_aside"] == {"never_right": 1} and len(server.requests) == 6  # max_turns
    cut = {"content": "\\boxed{10} and so", "finish_reason": "length"}
    with ChatPeer(lambda body: dict(cut)) as server:
        manifest = collect(server, source, tmp_path / "p.jsonl", attempts=1, environment="", environment_fields=())
        assert manifest["set_aside"] == {"never_right": 1} and manifest["notes"]["right_but_cut_off"] == 1


def test_answers_without_tools_are_kept_with_their_thinking_and_once_each(tmp_path):
    source = jsonl(tmp_path / "in.jsonl", sums(1))
    with ChatPeer(lambda body: {"content": "<think>Easy.</think>It is \\boxed{10}."}) as server:
        collect(server, source, tmp_path / "o.jsonl", environment="", environment_fields=(), keep=3, system="Be brief.")
    (record,) = lines(tmp_path / "o.jsonl")  # four equal answers are one
    assert record["messages"] == [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "10 + 0"},
        {"role": "assistant", "content": "It is \\boxed{10}.", "reasoning_content": "Easy."},
    ]


def test_a_kill_loses_no_episode_and_the_output_is_the_same(tmp_path):
    source = jsonl(tmp_path / "in.jsonl", sums(20))
    with ChatPeer(calling) as server:
        collect(server, source, tmp_path / "straight.jsonl")
        needed = len(server.requests)
    with ChatPeer(calling, delay_s=0.03) as server:
        out = tmp_path / "killed.jsonl"
        command = [sys.executable, "-m", "rufus_plugins.cli", "data", "trajectories", "--input", str(source),
                   "--output", str(out), "--model", "m", "--base-url", server.url, "--reward", "math_answer",
                   "--attempts", "4",
                   "--environment", "functions", "--environment-fields", "functions=[adder_tools:add]", "max_turns=6",
                   "--concurrency", "8", "--timeout-s", "20", "--workers", "1"]  # fmt: skip
        process = subprocess.Popen(command, stderr=subprocess.DEVNULL, start_new_session=True)
        try:
            limit = time.monotonic() + 60
            while len(server.requests) < needed // 2 and time.monotonic() < limit:
                time.sleep(0.005)
        finally:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        subprocess.run(command, check=True, capture_output=True, timeout=120)
        assert out.read_bytes() == (tmp_path / "straight.jsonl").read_bytes()
        assert len(server.requests) <= needed + 8 * 5  # the episodes that were under way


@pytest.mark.parametrize("damage", ["a body", "pages"])
def test_a_damaged_file_of_attempts_is_said_and_not_a_traceback(tmp_path, damage):
    import sqlite3

    source, kept = jsonl(tmp_path / "in.jsonl", sums(20)), tmp_path / "kept.sqlite"
    more = {"environment": "", "environment_fields": (), "attempts_file": str(kept)}
    with ChatPeer(lambda body: {"content": "It is \\boxed{10}. " + "x" * 500}) as server:
        collect(server, source, tmp_path / "o.jsonl", **more)
        with sqlite3.connect(kept) as file:
            if damage == "a body":
                file.execute("UPDATE scores SET body = ?", ('{"value"',))
            file.commit()
            file.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        file.close()
        if damage == "pages":
            content = kept.read_bytes()
            kept.write_bytes(content[:8192] + bytes(len(content) - 8192))
        with pytest.raises(ConfigError, match="kept.sqlite"):
            collect(server, source, tmp_path / "again.jsonl", **more)


def test_a_wrong_set_up_is_said_before_anything_is_asked(tmp_path):
    source = jsonl(tmp_path / "in.jsonl", sums(1))
    with ChatPeer(calling) as server:
        for fields, said in (
            ({"environment": "nowhere"}, "nowhere"),
            ({"environment_fields": ("maxturns=3",)}, "no field 'maxturns'"),
            ({"reward": "nothing"}, "nothing"),
        ):
            with pytest.raises(ConfigError, match=said):
                collect(server, source, tmp_path / "o.jsonl", **fields)
        assert not server.requests
    with pytest.raises(ConfigError, match="no JSON"):
        Trajectories(model="m", reward="math_answer", request="{")
