"""`environment=mcp` on servers of our own, in memory, over stdio and over HTTP: what the model reads, what ends an
episode, and what is left afterwards."""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import signal
import subprocess
import sys
import time
import types
from pathlib import Path

import pytest

from rufus_plugins.errors import ConfigError, DataError, InfrastructureError
from rufus_plugins.rollouts.environments import mcp_servers
from rufus_plugins.rollouts.environments.mcp import Mcp
from rufus_plugins.rollouts.environments.mcp_tools import usable
from rufus_plugins.testing import check_environment
from rufus_plugins.types import CallStatus, Task, Termination

SERVER = Path(__file__).with_name("mcp_attack_server.py")


def task(**extra) -> Task:
    return Task("t", "tests", [{"role": "user", "content": "do it"}], extra=extra)


def turn(*calls):
    return {
        "role": "assistant",
        "content": "",
        "tool_calls": [
            {"id": f"c{i}", "type": "function", "function": {"name": name, "arguments": arguments}}
            for i, (name, arguments) in enumerate(calls)
        ],
    }


async def say(environment: Mcp, name: str, **arguments):
    return (await environment.step(turn((name, arguments)))).messages[0]


@contextlib.contextmanager
def http_server(**env):
    process = subprocess.Popen(
        [sys.executable, str(SERVER), "http"], stdout=subprocess.PIPE, env={**os.environ, **env}, text=True
    )
    try:
        port = int(process.stdout.readline())
        yield process, f"http://127.0.0.1:{port}/mcp"
    finally:
        process.kill()
        process.wait()


@contextlib.contextmanager
def server(kind: str, **env):
    """The configuration of a server of this kind."""
    if kind == "memory":
        module = types.ModuleType("attack_in_memory")
        exec(compile(SERVER.read_text(), str(SERVER), "exec"), module.__dict__)
        module.LOG = env.get("ATTACK_LOG", "/dev/null")
        sys.modules["attack_in_memory"] = module
        yield {"object": "attack_in_memory:make"}
    elif kind == "http":
        with http_server(**env) as (_, url):
            yield {"url": url}
    else:
        yield {"command": [sys.executable, str(SERVER), kind], "env": env}


def gone(pid: int) -> bool:
    for _ in range(100):
        try:
            state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        except OSError:
            return True
        if state == "Z":
            return True
        time.sleep(0.05)
    return False


@pytest.mark.parametrize("kind", ["memory", "stdio", "http", "noise"])
def test_what_a_tool_does_is_a_result_on_every_transport(kind, tmp_path):
    log = tmp_path / "log"

    async def play(spec):
        environment = Mcp(servers={"attack": spec}, call_timeout_s=1.5, max_result_chars=1000)
        try:
            await environment.start(task())
            done = await say(environment, "add", a=1, b=2)
            assert (done["content"], done["status"]) == ("3", CallStatus.OK)
            # arguments that do not fit are never sent
            wrong = await say(environment, "add", a="one", b=2)
            assert wrong["status"] is CallStatus.ERROR and not wrong["started"] and "integer" in wrong["content"]
            missing = await say(environment, "add", a=1)
            assert not missing["started"] and "'b' is a required property" in missing["content"]
            unknown = await say(environment, "subtract", a=1)
            assert not unknown["started"] and "there is no tool 'subtract'" in unknown["content"]
            failed = await say(environment, "refuse", why="closed")
            assert failed["status"] is CallStatus.ERROR and failed["started"] and "no: closed" in failed["content"]
            # a deadline: the outcome is unknown, the model is told, nothing is sent again
            late = await say(environment, "slow", seconds=3)
            assert late["status"] is CallStatus.ERROR and late["started"]
            assert "no result within 1.5 s" in late["content"] and "may or may not" in late["content"]
            assert log.read_text() == "slow\n"
            assert (await say(environment, "add", a=2, b=2))["content"] == "4"
            environment._box.max_chars = 1000
            for connection in environment._connections:
                connection.call_timeout_s = 30.0
            big = (await say(environment, "big", megabytes=10))["content"]
            assert big.startswith("BEGINxxx") and big.endswith("xxxEND") and len(big) < 1100
            assert f"{(10 << 20) + 8 - 1000} characters left out" in big
            picture = (await say(environment, "picture"))["content"]
            assert picture == "look\n[image image/png, 300 bytes, not shown]"
            assert (await environment.step({"role": "assistant", "content": "done"})).done
            assert await environment.finish() == {}
        finally:
            await environment.close()

    with server(kind, ATTACK_LOG=str(log)) as spec:
        asyncio.run(play(spec))


@pytest.mark.parametrize("kind", ["stdio", "http"])
def test_a_server_that_crashes_loses_the_environment_and_its_call_is_not_sent_again(kind, tmp_path):
    log = tmp_path / "log"

    async def play(spec):
        environment = Mcp(servers={"attack": spec}, call_timeout_s=5, connect_timeout_s=5)
        try:
            await environment.start(task())
            with pytest.raises(InfrastructureError, match="is gone") as caught:
                await say(environment, "crash")
            assert caught.value.termination is Termination.ENVIRONMENT_LOST
            with pytest.raises(InfrastructureError):
                await say(environment, "add", a=1, b=1)
        finally:
            await environment.close()

    with server(kind, ATTACK_LOG=str(log)) as spec:
        asyncio.run(play(spec))
    assert log.read_text() == "crash\n"


def test_a_server_that_was_killed_between_two_calls_is_lost():
    async def play():
        environment = Mcp(servers={"attack": spec}, call_timeout_s=5, connect_timeout_s=5)
        try:
            await environment.start(task())
            assert (await say(environment, "add", a=1, b=2))["content"] == "3"
            process.kill()
            process.wait()
            with pytest.raises(InfrastructureError, match="is gone") as caught:
                await say(environment, "add", a=1, b=2)
            assert caught.value.termination is Termination.ENVIRONMENT_LOST
        finally:
            await environment.close()

    with http_server() as (process, url):
        spec = {"url": url}
        asyncio.run(play())


def test_closing_ends_everything_that_a_server_started():
    async def play():
        environment = Mcp(servers={"attack": {"command": [sys.executable, str(SERVER), "stdio"]}})
        try:
            await environment.start(task())
            return int((await say(environment, "child"))["content"])
        finally:
            await environment.close()

    assert gone(asyncio.run(play()))


def test_a_deaf_server_is_given_up_and_ended_with_its_children():
    async def play():
        environment = Mcp(servers={"deaf": {"command": [sys.executable, str(SERVER), "deaf"]}}, connect_timeout_s=2)
        try:
            with pytest.raises(InfrastructureError, match="did not answer within 2 s") as caught:
                await environment.start(task())
        finally:
            await environment.close()
        return [int(word) for word in str(caught.value).rpartition("It said: ")[2].split()]

    assert all(map(gone, asyncio.run(play())))


def test_servers_end_when_their_owner_is_killed(tmp_path):
    source = f"""
import asyncio, sys
sys.path.insert(0, {str(tmp_path)!r})
from rufus_plugins.rollouts.environments.mcp import Mcp
from rufus_plugins.types import Task
async def main():
    environment = Mcp(servers={{"a": {{"command": [sys.executable, {str(SERVER)!r}, "stdio"]}}}})
    await environment.start(Task("t", "x", [{{"role": "user", "content": "x"}}]))
    call = {{"id": "1", "type": "function", "function": {{"name": "child", "arguments": {{}}}}}}
    print((await environment.step({{"role": "assistant", "content": "", "tool_calls": [call]}})).messages[0]["content"],
          flush=True)
    await asyncio.sleep(600)
asyncio.run(main())
"""
    owner = subprocess.Popen([sys.executable, "-c", source], stdout=subprocess.PIPE, text=True)
    grandchild = int(owner.stdout.readline())
    below = _descendants(owner.pid)
    assert grandchild in below and len(below) >= 3
    owner.send_signal(signal.SIGKILL)
    owner.wait()
    assert all(map(gone, below))


def _descendants(pid: int) -> list[int]:
    found, todo = [], [pid]
    while todo:
        at = todo.pop()
        for path in Path(f"/proc/{at}/task").glob("*/children"):
            todo += [int(word) for word in path.read_text().split()]
        found.append(at)
    return found[1:]


def test_an_endless_line_ends_the_server_and_not_us(monkeypatch):
    monkeypatch.setattr(mcp_servers, "_LINE_BYTES", 4 << 20)

    async def play():
        environment = Mcp(servers={"endless": {"command": [sys.executable, str(SERVER), "endless"]}})
        try:
            with pytest.raises(InfrastructureError) as caught:
                await environment.start(task())
            assert caught.value.termination is Termination.ENVIRONMENT_LOST
        finally:
            await environment.close()

    asyncio.run(play())


def test_a_records_own_server_runs_in_the_sandbox(tmp_path, monkeypatch):
    secret = tmp_path / "secret"
    secret.write_text("x")
    secret.chmod(0o644)
    monkeypatch.setenv("ATTACK_SECRET", "1")
    import socket

    listening = socket.create_server(("127.0.0.1", 0))
    env = {"ATTACK_FILE": str(secret), "ATTACK_PORT": str(listening.getsockname()[1])}
    own = {"command": ["python", "server.py", "stdio"], "files": {"server.py": SERVER.read_text()}, "env": env}

    async def play():
        environment = Mcp()
        try:
            await environment.start(task(mcp_server=own))
            return [
                (await say(environment, name, **a))["content"] for name, a in (("probe", {}), ("add", {"a": 1, "b": 4}))
            ]
        finally:
            await environment.close()

    with listening:
        assert asyncio.run(play()) == ["nothing", "5"]


def test_tools_are_chosen_by_the_configuration_and_by_the_record():
    async def names(environment, **extra):
        try:
            await environment.start(task(**extra))
            return [tool["function"]["name"] for tool in environment.tools]
        finally:
            await environment.close()

    with server("memory") as spec:
        found = asyncio.run(names(Mcp(servers={"a": spec}, deny=["c*"]), tools={"allow": ["add", "child", "sl*"]}))
        assert found == ["add", "slow"]
        found = asyncio.run(names(Mcp(servers={"a": spec}), tools='{"deny": ["[b-z]*"]}'))
        assert found == ["add"]
        two = asyncio.run(names(Mcp(servers={"a": spec, "b": spec}, allow=["*_add"])))
        assert two == ["a_add", "b_add"]
        one = asyncio.run(names(Mcp(servers={"a": spec, "b": spec}, allow=["add"]), server="b"))
        assert one == ["add"]
        with pytest.raises(DataError, match="no tool is left; offered: add, refuse"):
            asyncio.run(names(Mcp(servers={"a": spec}, allow=["nothing"])))


def test_the_environment_keeps_the_contract():
    with server("memory") as spec:
        steps = check_environment(Mcp, task(), [turn(("add", {"a": 1, "b": 2})), "three"], {"servers": {"a": spec}})
    assert [step.done for step in steps] == [False, True]
    assert steps[0].metrics == {"mcp_calls": 1, "mcp_errors": 0}


@pytest.mark.parametrize(
    ("servers", "message"),
    [
        ({"a": "http://x"}, "is a mapping with one of object, command, url"),
        ({"a": {}}, "needs exactly one of"),
        ({"a": {"command": "python x.py"}}, "a list of words"),
        ({"a": {"url": "ftp://x"}}, "is no http"),
        ({"a": {"url": "http://x", "headers": "no"}}, "headers is 'no'; it is a mapping of texts"),
        ({"a": {"command": ["python"], "env": {"A": 1}}}, "quote numbers"),
        ({"a": {"url": "http://x", "env": {}}}, "there is no 'env' for a server with url; fields: url, headers"),
    ],
)
def test_a_wrong_server_is_told_when_the_environment_is_built(servers, message):
    with pytest.raises(ConfigError, match=message):
        Mcp(servers=servers)


@pytest.mark.parametrize("field", ["cpu_s", "disk_mb", "call_timeout_s"])
@pytest.mark.parametrize("value", [0, -1, float("nan")])
def test_limits_are_positive(field, value):
    with pytest.raises(ConfigError, match=f"{field}=.*: a positive number"):
        Mcp(**{field: value})


@pytest.mark.parametrize(
    ("spec", "error", "message"),
    [
        ({"command": ["no-such-program"]}, ConfigError, "'no-such-program' is not there"),
        ({"object": "no.such:thing"}, ConfigError, "does not load"),
        ({"object": "json:dumps"}, InfrastructureError, "does not start"),
        ({"command": ["sh", "-c", "echo my words >&2"]}, InfrastructureError, "It said: my words"),
        ({"url": "http://127.0.0.1:9/mcp"}, InfrastructureError, "does not start: All connection attempts failed"),
    ],
)
def test_a_server_that_does_not_start_says_why(spec, error, message):
    async def play():
        environment = Mcp(servers={"a": spec}, connect_timeout_s=20)
        try:
            with pytest.raises(error, match=message):
                await environment.start(task())
        finally:
            await environment.close()

    asyncio.run(play())


def test_a_record_that_names_nothing_is_told_what_to_name():
    async def start(extra):
        environment = Mcp()
        try:
            await environment.start(task(**extra))
        finally:
            await environment.close()

    with pytest.raises(DataError, match="names no world and no server"):
        asyncio.run(start({}))
    with pytest.raises(DataError, match="no MCP server 'x' in rufus.environment.servers; known: none"):
        asyncio.run(start({"server": "x"}))
    with pytest.raises(DataError, match="mcp_server must be"):
        asyncio.run(start({"mcp_server": {"url": "http://169.254.169.254"}}))
    with pytest.raises(DataError, match=r"'\.\./x' leads out of the server's folder"):  # costs the record, not the run
        asyncio.run(start({"mcp_server": {"command": ["python3", "s.py"], "files": {"../x": "1"}}}))
    with pytest.raises(DataError, match="no scenario 'nowhere'; there are shop, desk, bank"):
        asyncio.run(start({"world": "Nowhere"}))


# -- schemas that lie ------------------------------------------------------------------------------------------------


def listed(schema, name="tool", description="d"):
    return types.SimpleNamespace(name=name, title=None, description=description, input_schema=schema)


def a_tool(schema, **options):
    connection = types.SimpleNamespace(name="server")
    return usable(connection, listed(schema, **options), {}, prefix=False)


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "strin", "properties": []},
        {"type": "object", "properties": {"a": {"$ref": "#/$defs/nowhere"}}},
        {"type": "object", "properties": {"a": {"$ref": "http://127.0.0.1:9/schema.json"}}},
        {"$ref": "#"},
        {"type": "object", "properties": {"a": {"type": 7}}},
        None,
        "text",
    ],
)
def test_an_unusable_schema_is_left_to_the_server(schema):
    tool = a_tool(schema)
    assert tool._problem({"a": "x"}) == ""
    assert tool.schema["function"]["parameters"]["type"] == "object"


def test_a_servers_regular_expression_is_not_run_here():
    tool = a_tool({"type": "object", "properties": {"a": {"type": "string", "pattern": "^(a+)+$"}, "pattern": {}}})
    start = time.monotonic()
    assert tool._problem({"a": "a" * 40 + "!", "pattern": 1}) == ""
    assert time.monotonic() - start < 5  # the expression itself would take years
    assert "pattern" in tool.schema["function"]["parameters"]["properties"]


def test_names_that_no_model_can_call_are_changed_and_doubles_left_out():
    taken: dict = {}
    connection = types.SimpleNamespace(name="my server")
    first = usable(connection, listed({}, "get/item é"), taken, prefix=True)
    assert first.schema["function"]["name"] == "my_server_get_item_" and first.name == "get/item é"
    assert usable(connection, listed({}, "get/item é"), taken, prefix=True) is None
    long = usable(connection, listed({}, "x" * 200), taken, prefix=False).schema["function"]["name"]
    assert len(long) == 64


def test_tools_whose_names_no_model_can_call_are_all_there():
    names = ["查询", "删除", "a.b", "a/b", "a_b", "a.b"]
    connection, taken = types.SimpleNamespace(name="s"), {}
    tools = [usable(connection, listed({}, name), taken, prefix=False) for name in names]
    assert tools.pop() is None
    assert [tool.name for tool in tools] == names[:5]
    shown = [tool.schema["function"]["name"] for tool in tools]
    assert len(set(shown)) == 5 and shown[2] == "a_b" and all(re.fullmatch("[a-z0-9_]*[a-z0-9]", one) for one in shown)


@pytest.mark.parametrize("kind", ["memory", "stdio", "http"])
def test_an_error_of_the_servers_own_never_ends_the_episode_whatever_its_words_and_code(kind):
    """The words and codes are those by which the SDK tells of broken connections: a model could cause them at will."""
    said = {-32602: "training session 12 not found", -32000: "not enough money", -32001: "there is no such order"}

    async def play(spec):
        environment = Mcp(servers={"attack": spec}, call_timeout_s=20)
        try:
            await environment.start(task())
            for code, text in said.items():
                answer = await say(environment, "protocol_error", code=code, text=text)
                assert answer["status"] is CallStatus.ERROR and answer["started"]
                assert answer["content"] == f"Error: {text} (code {code})"
            assert (await say(environment, "add", a=1, b=2))["content"] == "3"
        finally:
            await environment.close()

    with server(kind) as spec:
        asyncio.run(play(spec))


def test_nested_problems_are_told_with_their_place():
    schema = {
        "type": "object",
        "properties": {"lines": {"type": "array", "items": {"$ref": "#/$defs/line"}}},
        "$defs": {"line": {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}},
    }
    problem = a_tool(schema)._problem({"lines": [{"n": 1}, {"n": "two"}]})
    assert problem == "lines.1.n: 'two' is not of type 'integer'"
