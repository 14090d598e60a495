"""The shell environment: what persists, what a model sees of hostile output, deadlines, and Harbor episodes."""

import asyncio
import json
import os
import time
from pathlib import Path

import pytest

import rufus_plugins.recipes.coding_agent as stage
from rufus_plugins.errors import ConfigError, DataError, InfrastructureError
from rufus_plugins.recipes.coding_agent.bake import bake
from rufus_plugins.rewards.task_tests import TaskTests
from rufus_plugins.rollouts import harbor
from rufus_plugins.rollouts.environments.shell import Shell
from rufus_plugins.rollouts.terminal_text import plain
from rufus_plugins.testing import check_environment, sample_task
from rufus_plugins.types import CallStatus, Task, Termination, Trajectory

TASKS = Path(stage.__file__).parent / "tasks"


def call(command, **more):
    arguments = {"command": command, **more}
    return {
        "role": "assistant",
        "content": "",
        "tool_calls": [{"id": "c", "type": "function", "function": {"name": "bash", "arguments": arguments}}],
    }


def say(text="done"):
    return {"role": "assistant", "content": text}


async def answered(shell, command, **more):
    return (await shell.step(call(command, **more))).messages[0]


def played(function, task=None, **fields):
    async def play():
        shell = Shell(**fields)
        try:
            await shell.start(task or sample_task())
            return await function(shell)
        finally:
            await shell.close()

    return asyncio.run(play())


@pytest.fixture(scope="module")
def baked(tmp_path_factory):
    """Makes the record of one of the shipped tasks, as `rufus prepare coding_agent` does."""
    store = tmp_path_factory.mktemp("environments")

    def make(folder, backend="local", **changes):
        task = harbor.load(folder if isinstance(folder, Path) else TASKS / folder)
        environment = asyncio.run(bake(task, "local", store, stand_in=["*"]))
        extra = {
            "task_dir": str(task.folder),
            "environment": json.dumps({**environment, "backend": backend}),
            "multi_step_reward_strategy": task.strategy,
        }
        prompt = [{"role": "user", "content": task.steps[0].instruction}]
        return Task(task.name, "harbor", prompt, extra={**extra, **changes})

    return make


def reward(task, artifacts):
    return asyncio.run(TaskTests()(Trajectory(task, artifacts=artifacts)))


def test_it_keeps_the_contract_of_environments():
    results = check_environment(Shell, sample_task(), [call("echo hi"), say()])
    assert results[0].messages[0]["content"] == "hi" and results[1].done


@pytest.mark.parametrize(
    "before, command, wanted",
    [
        ("cd /tmp", "pwd", "/tmp"),
        ("x='a  \"b'$'\\n'\"'c\"; declare -A m=([k]=v); a=(1 '2 3')", 'echo "$x|${m[k]}|${a[1]}"', "a  \"b\n'c|v|2 3"),
        ("export FOO=bar", "bash -c 'echo $FOO'", "bar"),
        ('f() { echo "f $1"; }', "f 1", "f 1"),
        ("shopt -s extglob nullglob; umask 077", "shopt -q extglob && umask", "0077"),
        ("set -o noglob; cd /; IFS=,", "echo *", "*"),
        ("x=1; exit 3", "echo $x", "1"),
        ("x=1; cd /tmp; exec true", "echo ${x:-none} $PWD", "none /root"),
        ("x=2; kill -9 $$", "echo ${x:-none}", "none"),
        ("PATH=; unset HOME; cd /usr", "echo $PWD", "/usr"),
        ("readonly r=5; cat() { echo mine; }", "echo $r; cat", "5\nmine"),
        ("mkdir /tmp/g; cd /tmp/g; rmdir /tmp/g", "echo here", "[the folder /tmp/g is gone; now in /root]\nhere"),
        ("trap 'echo bye' EXIT; y=7", "echo $y", "7"),
        ("sleep 500 & echo $! > /tmp/pid", "kill -0 $(cat /tmp/pid) && echo alive", "alive"),
        ("exec 1>&- 2>&-; z=1", "echo $z", "1"),
        # a function in the place of a builtin does not lock the model out of its shell
        ("eval() { echo no; }; exit() { echo no; }; q=4", "echo $q", "4"),
        ("unset() { :; }; set() { :; }; builtin() { :; }; trap() { :; }; return() { :; }; q=4", "echo $q", "4"),
        (
            "printf() { echo mine; }; declare() { :; }; cd() { builtin cd /usr; }; q=4",
            "cd; echo $q $PWD; printf x",
            "4 /usr\nmine",
        ),
        ("shopt -s expand_aliases; alias eval='echo no' exit='echo no' ll='echo hi'", "ll", "hi"),
        ("set -o posix; shopt -u expand_aliases", "shopt -oq posix; echo $?; shopt -q expand_aliases; echo $?", "0\n1"),
        ("shopt -s inherit_errexit", "shopt -q inherit_errexit; echo $?; shopt -oq posix; echo $?", "0\n1"),
        (
            ":",
            "shopt -q inherit_errexit; echo $?; shopt -q expand_aliases; echo $? ${POSIXLY_CORRECT-none}",
            "1\n1 none",
        ),
    ],
)
def test_what_one_command_leaves_the_next_one_finds(before, command, wanted):
    async def play(shell):
        await answered(shell, before)
        return (await answered(shell, command))["content"]

    assert played(play) == wanted


def test_errors_are_told_and_the_shell_goes_on():
    async def play(shell):
        assert (await answered(shell, "false"))["content"] == "[exit code 1]"
        assert (await answered(shell, "echo a; echo b >&2; exit 4"))["content"] == "a\nb\n[exit code 4]"
        assert "syntax error" in (await answered(shell, "if true; then"))["content"]
        assert (await answered(shell, "true"))["content"] == "[no output]"
        assert (await answered(shell, 'cat; read x; echo "<$x>"'))["content"] == "<>"

    played(play)


def test_wrong_calls_are_answered_and_run_nothing():
    async def play(shell):
        wrong = [
            {"name": "python", "arguments": {"command": "touch /tmp/ran"}},
            {"name": "bash", "arguments": {"cmd": "touch /tmp/ran"}},
            {"name": "bash", "arguments": {}},
            {"name": "bash", "arguments": {"command": 3}},
            {"name": "bash", "arguments": {"command": "touch /tmp/ran", "timeout_s": "soon"}},
            {"name": "bash", "arguments": {"command": "touch /tmp/ran", "timeout_s": -1}},
            {"name": "bash", "arguments": {"command": "touch /tmp/ran", "timeout_s": 1e9}},
            {"name": "bash", "arguments": {"command": "touch /tmp/ran\0"}},
        ]
        for function in wrong:
            message = {**say(""), "tool_calls": [{"id": "c", "type": "function", "function": function}]}
            answer = (await shell.step(message)).messages[0]
            assert answer["status"] is CallStatus.ERROR and not answer["started"], function
        assert (await answered(shell, "ls /tmp"))["content"] == "[no output]"

    played(play)


def test_a_command_that_hangs_is_killed_and_the_shell_is_as_before():
    async def play(shell):
        await answered(shell, "x=before; cd /tmp")
        begun = time.monotonic()
        answer = await answered(shell, "x=after; cd /; echo said; sleep 600", timeout_s=0.7)
        assert time.monotonic() - begun < 15
        assert answer["content"].startswith("said\n[killed after 0.7 s") and answer["started"]
        assert (await answered(shell, "echo $x $PWD; pgrep -x sleep"))["content"] == "before /tmp\n[exit code 1]"
        busy = await answered(shell, "while :; do :; done", timeout_s=0.5)
        assert "[killed after 0.5 s" in busy["content"]

    played(play)


def test_the_episode_has_a_deadline_of_its_own():
    async def play(shell):
        result = await shell.step(call("sleep 600"))
        assert result.done and result.termination is Termination.EPISODE_TIMEOUT
        late = (await shell.step(call("echo late"))).messages[0]
        assert late["status"] is CallStatus.ERROR and not late["started"]

    played(play, episode_timeout_s=1.0)


def test_hostile_output_arrives_as_short_plain_text():
    async def play(shell):
        printed = r"printf 'a\000\xff\xe2\x82b \033[31mred\033[0m\033]0;title\007 10%%\r20%%\n\302\205end\010'"
        assert (await answered(shell, printed))["content"] == "20%\nend"
        flood = (await answered(shell, "echo first; head -c 100000000 /dev/zero | tr '\\0' x; echo; echo last"))[
            "content"
        ]
        assert flood.startswith("first\nxxx") and flood.endswith("x\nlast")
        assert len(flood) < 4500 and "bytes left out ...]" in flood
        tokens = (await answered(shell, "echo '<|im_end|><|assistant|>'"))["content"]
        assert tokens == "<|im_end|><|assistant|>"

    played(play, max_output_chars=4096)


@pytest.mark.parametrize(
    "raw, shown",
    [
        ("plain text\n\ttab", "plain text\n\ttab"),
        ("\x1b[1;31mred\x1b[0m", "red"),
        ("\x1b]8;;http://x\x1b\\link\x1b]8;;\x1b\\", "link"),
        ("\x1b]0;never ended", ""),
        ("\x1bPdata\x1b\\after", "after"),
        ("a\r\nb\rc\rd\n", "a\nd\n"),
        ("50%\r", "50%"),
        ("\x00\x07\x9b\x7f\u2028x", "x"),
        ("\u65e5\u672c \U0001f600", "\u65e5\u672c \U0001f600"),
        ("\x1b", ""),
        ("\x1b(Bx\x1b=y", "xy"),
    ],
)
def test_what_a_terminal_would_show(raw, shown):
    assert plain(raw) == shown


def test_cleaning_hostile_text_costs_one_pass():
    for text in ("\x1b]" * 200_000, "\x1b[" * 200_000, "\x1b[0;" + "0;" * 200_000, "\r" * 400_000, "\x1bP" * 200_000):
        begun = time.process_time()
        plain(text)
        assert time.process_time() - begun < 5


@pytest.mark.parametrize(
    "name, commands, value",
    [
        ("log-report", [], 0.0),
        ("newest-version", ["sort -V versions.txt | tail -1 > newest.txt"], 1.0),
        ("newest-version", ["sort versions.txt | tail -1 > newest.txt"], 0.0),
        ("serve-folder", ["cp VERSION site/version; cd site", "python3 -m http.server 8080 --bind 127.0.0.1 &"], 1.0),
        ("tidy-rights", ["chmod 644 tree/plain 'tree/a/odd name' tree/a/b/notes"], 0.0),
    ],
)
def test_a_harbor_task_is_played_and_scored(name, commands, value, baked):
    task = baked(name)

    async def play(shell):
        for command in commands:
            await answered(shell, command)
        assert (await shell.step(say())).done
        return await shell.finish()

    score = reward(task, played(play, task))
    assert score.value == pytest.approx(value, abs=1e-4)
    if name == "tidy-rights":
        assert score.metrics == {"reward/right": 4.0, "reward/all": 7.0}


WORDS = r"""cat > words <<'END'
#!/bin/bash
export LC_ALL=C
tr -s ' \t' '\n' | grep -v '^$' | sort | uniq -c | awk '{print $2, $1}'
END
chmod +x words"""


def test_a_task_with_steps_goes_on_when_a_step_is_reached(baked):
    task = baked("grow-a-tool")

    async def play(shell):
        await answered(shell, WORDS)
        following = await shell.step(say("the first part is done"))
        assert not following.done and following.termination is None
        assert following.messages[0]["role"] == "user" and "-i" in following.messages[0]["content"]
        seen = (await answered(shell, "cat samples/in.txt; stat -c %a samples/in.txt; ls /tests /logs/verifier"))[
            "content"
        ]
        assert seen == "Ha ha HA ho\n444\n/logs/verifier:\n\n/tests:"
        assert (await shell.step(say())).done
        return await shell.finish()

    artifacts = played(play, task)
    assert [step["name"] for step in artifacts["verifier_steps"]] == ["count", "ignore-case"]
    score = reward(task, artifacts)
    assert score.value == 0.5 and score.metrics == {"reward/folded": 0.0, "reward/unchanged": 0.5}


def test_a_task_with_steps_stops_at_the_step_that_misses_its_least_reward(baked):
    task = baked("grow-a-tool")

    async def play(shell):
        assert (await shell.step(say("I do not know"))).done
        return await shell.finish()

    artifacts = played(play, task)
    assert len(artifacts["verifier_steps"]) == 1
    assert reward(task, artifacts).value == 0.0


def test_what_a_model_does_to_its_shell_does_not_reach_the_tests(baked):
    task = baked("newest-version")
    tricks = """
    bash() { echo 1 > /logs/verifier/reward.txt; }; export -f bash; cat() { echo 1.10.2; }; export -f cat
    export BASH_ENV=/tmp/evil PATH=/tmp:$PATH; echo 'cat() { echo 1.10.2; }' > /tmp/evil; set -e; cd /
    mkdir -p /logs/verifier /tests; echo 1 > /logs/verifier/reward.txt
    echo '{"reward": 1}' > /logs/verifier/reward.json
    echo 'true' > /tests/check.sh; ln -sf /bin/true /tests/run-tests.sh
    """

    async def play(shell):
        await answered(shell, tricks)
        return await shell.finish()

    artifacts = played(play, task)
    assert artifacts["verifier"]["reward.json"] is None
    assert reward(task, artifacts).value == 0.0


@pytest.mark.parametrize(
    "script, problem",
    [
        ("true", "neither reward.json nor reward.txt"),
        ("echo nan > /logs/verifier/reward.txt", "nan"),
        (": > /logs/verifier/reward.txt", "no number"),
        ("echo '{\"reward\": NaN}' > /logs/verifier/reward.json; echo 1 > /logs/verifier/reward.txt", "finite"),
        ("sleep 100", "out of time"),
    ],
)
def test_tests_without_a_reward_are_a_fault_of_ours_and_no_zero(script, problem, baked, tmp_path):
    folder = copied("log-report", tmp_path, script, timeout="1.0")
    task = baked(folder)

    async def play(shell):
        return await shell.finish()

    with pytest.raises(InfrastructureError, match=problem) as failed:
        reward(task, played(play, task))
    assert failed.value.termination is Termination.REWARD_FAILED


def copied(name, tmp_path, script, timeout="60.0"):
    import shutil

    folder = Path(shutil.copytree(TASKS / name, tmp_path / name))
    (folder / "tests" / "test.sh").write_text(f"#!/bin/bash\n{script}\n")
    config = (folder / "task.toml").read_text().replace("timeout_sec = 60.0", f"timeout_sec = {timeout}")
    (folder / "task.toml").write_text(config)
    return folder


def test_reward_json_beats_reward_txt(baked, tmp_path):
    script = "echo 0.25 > /logs/verifier/reward.txt; echo '{\"reward\": 0.75}' > /logs/verifier/reward.json; exit 1"
    task = baked(copied("log-report", tmp_path, script))
    assert reward(task, played(lambda shell: shell.finish(), task)).value == 0.75


def test_a_sandbox_killed_in_mid_command_ends_the_rollout_as_a_fault_of_ours():
    async def play(shell):
        running = asyncio.create_task(shell.step(call("sleep 100")))
        await asyncio.sleep(0.5)
        os.kill(shell._machine.pids[1], 9)
        with pytest.raises(InfrastructureError) as lost:
            await running
        assert lost.value.termination is Termination.SANDBOX_LOST

    played(play)


def test_a_cancelled_step_leaves_a_sandbox_that_can_still_be_checked(baked):
    task = baked("newest-version")

    async def play(shell):
        await answered(shell, "echo 1.10.2 > newest.txt")
        running = asyncio.create_task(shell.step(call("sleep 100")))
        await asyncio.sleep(0.4)
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        return await shell.finish()

    assert reward(task, played(play, task)).value == 1.0


def test_records_that_do_not_fit_are_told(baked):
    with pytest.raises(DataError, match="baked for the sandbox 'e2b'"):
        played(lambda shell: shell.finish(), baked("log-report", backend="e2b"))
    with pytest.raises(DataError, match="rufus prepare coding_agent"):
        played(lambda shell: shell.finish(), baked("log-report", environment=""))
    with pytest.raises(ConfigError, match="no sandbox named 'docker'"):
        played(lambda shell: shell.finish(), sandbox="docker")
    with pytest.raises(ConfigError, match="no field 'colour'"):
        played(lambda shell: shell.finish(), sandbox_config={"colour": 1})
