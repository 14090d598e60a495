"""Harbor and terminal-bench directories, Dockerfiles, and `rufus prepare coding_agent`."""

import asyncio
import json
import os
import shutil
import subprocess
import textwrap
from pathlib import Path

import pytest

import rufus_plugins.recipes.coding_agent as stage
from rufus_plugins.errors import ConfigError, DataError
from rufus_plugins.recipes.coding_agent.bake import bake
from rufus_plugins.recipes.coding_agent.prepare import oracle_reward, prepare
from rufus_plugins.rollouts import harbor
from rufus_plugins.rollouts.dockerfile import CannotBuild, base_image, build, parse, stands_in
from rufus_plugins.types import ExecResult

TASKS = Path(stage.__file__).parent / "tasks"
ORACLE = Path(os.environ.get("RUFUS_HARBOR_PYTHON", "no-harbor"))
"""A Python 3.12 with the package `harbor` 0.x: it cannot be imported on 3.11."""


def task_at(
    folder, toml="", instruction="Do it.\n", dockerfile="FROM debian:12\n", test="echo 1 > /logs/verifier/reward.txt"
):
    (folder / "environment").mkdir(parents=True)
    (folder / "tests").mkdir()
    (folder / "task.toml").write_text(textwrap.dedent(toml))
    (folder / "instruction.md").write_text(instruction)
    (folder / "environment" / "Dockerfile").write_text(dockerfile)
    (folder / "tests" / "test.sh").write_text(f"#!/bin/bash\n{test}\n")
    return folder


def test_the_shipped_tasks_read_as_they_are_meant():
    tasks = {path.name: harbor.load(path) for path in harbor.find(TASKS)}
    assert len(tasks) == 8
    grow, tidy, newest = tasks["grow-a-tool"], tasks["tidy-rights"], tasks["newest-version"]
    assert [s.name for s in grow.steps] == ["count", "ignore-case"] and grow.multi_step and grow.strategy == "mean"
    assert (grow.steps[0].min_reward, grow.steps[1].min_reward) == (1.0, None)
    assert (grow.steps[0].agent_timeout_s, grow.steps[1].agent_timeout_s) == (300.0, 200.0)
    assert (tidy.memory_mb, tidy.storage_mb, tidy.network_mode) == (1024, 512, "no-network")
    assert newest.steps[0].agent_timeout_s == 180.0 and newest.steps[0].verifier_timeout_s == 30.0
    assert set(harbor.test_files(newest, newest.steps[0])) == {"test.sh", "run-tests.sh", "check.sh"}
    assert not tasks["join-tables"].steps[0].instruction.startswith("<!--")
    assert all(harbor.solution_files(step) for task in tasks.values() for step in task.steps)


def test_tables_of_a_task_and_their_older_spellings(tmp_path, monkeypatch):
    monkeypatch.setenv("RUFUS_TEST_KEY", "from-here")
    folder = task_at(
        tmp_path / "t",
        """
        version = "1.0"
        unknown = 1
        [agent]
        timeout_sec = 12.5
        user = 1000
        [verifier]
        timeout_sec = 7
        env = { KEY = "${RUFUS_TEST_KEY}", OTHER = "a-${NOT_SET:-b}-c" }
        [environment]
        memory = "1.5G"
        storage = "10240M"
        allow_internet = true
        env = { A = "1" }
        workdir = "/w"
        [environment.healthcheck]
        command = "true"
        retries = 5
        """,
        instruction="<!-- canary GUID 1 -->\n# CANARY line\n\n\nReal text.\n# not canary? yes\n",
    )
    task = harbor.load(folder)
    step = task.steps[0]
    assert (step.agent_timeout_s, step.agent_user, step.verifier_timeout_s) == (12.5, "1000", 7.0)
    assert (task.memory_mb, task.storage_mb, task.network_mode, task.workdir) == (1536, 10240, "public", "/w")
    assert harbor.resolved(step.verifier_env, "x") == {"KEY": "from-here", "OTHER": "a-b-c"}
    assert step.instruction == "Real text.\n# not canary? yes\n"
    assert task.healthcheck.retries == 5 and task.env == {"A": "1"}


@pytest.mark.parametrize(
    "toml, files, reason",
    [
        ("[environment", {}, "does not read"),
        ('schema_version = "2.0"', {}, "task format 2.0"),
        ("[environment]\ngpus = 1", {}, "gpus"),
        ('[environment]\nos = "windows"', {}, "windows"),
        ('[environment]\nmemory = "lots"', {}, "lots"),
        ('[environment]\nenv = { A = "${RUFUS_NOT_SET}" }', {}, "RUFUS_NOT_SET"),
        ('[verifier]\nenvironment_mode = "separate"', {}, "separate"),
        ('[[environment.mcp_servers]]\nname = "x"', {}, "mcp_servers"),
        ('multi_step_reward_strategy = "best"', {}, "best"),
        ('[[steps]]\nname = "../up"', {}, "a step is called"),
        ('[[steps]]\nname = "one"', {}, "instruction.md"),
        (
            '[[steps]]\nname = "a"\n[[steps]]\nname = "A"',
            {f"steps/{n}/{f}": "x" for n in "aA" for f in ("instruction.md", "tests/test.sh")},
            "two steps have one name",
        ),
        ("steps = [1]", {}, "no list of tables"),
        ('agent = "x"', {}, "agent is 'x'; it is a table"),
        ('[agent]\ntimeout_sec = "soon"', {}, "'soon'; it is a number of seconds"),
        ("[verifier]\ntimeout_sec = nan", {}, "nan; it is a number of seconds"),
        ("[environment]\nbuild_timeout_sec = -1", {}, "-1; it is a number of seconds"),
        ("[environment]\nmemory_mb = -5", {}, "a whole number of megabytes"),
        ('[environment]\nmemory = "1.2.3G"', {}, "1.2.3G"),
        ('[environment]\nenv = ["A"]', {}, "a table of texts"),
        ("[solution]\nenv = 5", {}, "a table of texts"),
        ("[agent]\nuser = true", {}, "user is True"),
        ("[environment.healthcheck]\nretries = 2", {}, "healthcheck has no command"),
        ('[environment.healthcheck]\ncommand = "x"\nretries = 0', {}, "retries is 0"),
        ('[environment]\nallowed_hosts = "x"', {}, "a list of texts"),
        ("", {"instruction.md": "  \n"}, "empty"),
        ("", {"tests/test.sh": None}, "test.sh"),
        ("", {"environment/docker-compose.yaml": "services: {}"}, "several containers"),
    ],
)
def test_what_cannot_run_here_is_refused_with_the_reason(toml, files, reason, tmp_path):
    folder = task_at(tmp_path / "t", toml)
    for name, text in files.items():
        if text is None:
            (folder / name).unlink()
        else:
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_text(text)
    with pytest.raises(DataError, match=reason):
        harbor.load(folder)


@pytest.mark.parametrize(
    "text, reason",
    [
        ("a: [", "does not read"),
        ("- a", "no instruction"),
        ("instruction: [a]", "it is a text"),
        ("instruction: x\nmax_agent_timeout_sec: soon", "number of seconds"),
        ("instruction: x\nmax_test_timeout_sec: .nan", "number of seconds"),
    ],
)
def test_a_terminal_bench_task_that_does_not_read_is_refused(text, reason, tmp_path):
    (tmp_path / "task.yaml").write_text(text)
    (tmp_path / "run-tests.sh").write_text("")
    with pytest.raises(DataError, match=reason):
        harbor.load(tmp_path)


def test_numbers_and_users_are_read_as_harbor_reads_them(tmp_path):
    toml = '[agent]\ntimeout_sec = "60"\nuser = 1000\n[[steps]]\nname = "a"\nmin_reward = {x = 0.5}'
    folder = task_at(tmp_path / "t", toml)
    for name in ("instruction.md", "tests/test.sh"):
        (folder / "steps/a" / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / "steps/a" / name).write_text("x")
    [step] = harbor.load(folder).steps
    assert (step.agent_timeout_s, step.agent_user, step.min_reward) == (60.0, "1000", {"x": 0.5})


def test_files_outside_of_a_task_are_not_taken_along(tmp_path):
    folder = task_at(tmp_path / "t")
    (tmp_path / "secret").write_text("s")
    (folder / "tests" / "link").symlink_to(tmp_path / "secret")
    assert set(harbor.test_files(harbor.load(folder), harbor.load(folder).steps[0])) == {"test.sh"}


def followed(text, context, env=None):
    """(commands in order as (command, env, cwd, user), files) of a build whose commands all succeed."""
    ran, files = [], {}

    async def run(command, timeout_s, env=None, cwd=None, user=None):
        ran.append((command, dict(env or {}), cwd, user))
        return ExecResult(0, "", "", True, 0.0)

    async def write(path, content):
        files[path] = content

    built = asyncio.run(build(parse(text), context, run, write, 10.0, env))
    return ran, files, built


def test_a_dockerfile_is_followed_line_by_line(tmp_path):
    (tmp_path / "src" / "sub").mkdir(parents=True)
    (tmp_path / "src" / "a.py").write_text("a")
    (tmp_path / "src" / "sub" / "b.sh").write_text("b")
    (tmp_path / "src" / "sub" / "b.sh").chmod(0o755)
    (tmp_path / "x1.txt").write_text("1")
    (tmp_path / "x2.txt").write_text("2")
    text = r"""
    # comment
    FROM debian:12-slim AS base
    ARG V=3
    ENV A=1 B="two words" C=$V
    ENV OLD style value
    WORKDIR /app
    WORKDIR sub
    RUN echo $A \
        # a comment between
        && echo done
    RUN ["touch", "a b"]
    USER ann
    RUN <<END
    echo one
    echo two
    END
    COPY src ./code
    COPY --chown=ann:ann x*.txt /data/
    COPY x1.txt renamed
    CMD ["sleep", "1"]
    LABEL a=b
    """
    ran, files, built = followed(textwrap.dedent(text), tmp_path)
    env = {"A": "1", "B": "two words", "C": "3", "OLD": "style value"}
    assert built.env == env and built.workdir == "/app/sub" and built.user == "ann"
    commands = [command for command, *_ in ran]
    assert commands[:2] == ["mkdir -p /app", "mkdir -p /app/sub"]
    assert commands[2] == "/bin/sh -c 'echo $A  && echo done'"
    assert commands[3] == "touch 'a b'"
    assert commands[4] == "/bin/sh -c 'echo one\necho two\n'"
    assert ran[2][1] == {**env, "V": "3"} and ran[2][2] == "/app/sub" and (ran[2][3], ran[4][3]) == (None, "ann")
    assert files == {
        "/app/sub/code/a.py": b"a",
        "/app/sub/code/sub/b.sh": b"b",
        "/data/x1.txt": b"1",
        "/data/x2.txt": b"2",
        "/app/sub/renamed": b"1",
    }
    assert "chmod +x /app/sub/code/sub/b.sh" in commands
    assert "chown -R ann:ann /data/x1.txt /data/x2.txt" in commands


@pytest.mark.parametrize(
    "text, reason",
    [
        ("FROM a\nFROM b", "2 FROM lines"),
        ("RUN true", "0 FROM lines"),
    ],
)
def test_one_stage_only(text, reason):
    with pytest.raises(CannotBuild, match=reason):
        base_image(parse(text))


@pytest.mark.parametrize(
    "line, reason",
    [
        ("COPY --from=builder /a /b", "another stage"),
        ("COPY missing.txt /b", "no such file"),
        ("COPY ../up /b", "line 2"),
        ("ADD https://example.org/x /b", "from the web"),
        ("ADD x.tar.gz /b", "unpacks"),
        ('ENTRYPOINT ["run"]', "ENTRYPOINT"),
        ("RUN --mount=type=secret,id=x cat /run/x", "not supported"),
        ("FLY away", "FLY"),
        ("RUN <<END\nnever ends", "does not end"),
    ],
)
def test_lines_that_cannot_be_followed_are_refused_with_the_reason(line, reason, tmp_path):
    context = tmp_path / "environment"
    context.mkdir()
    (context / "x.tar.gz").write_bytes(b"x")
    (tmp_path / "up").write_text("secret")
    with pytest.raises(CannotBuild, match=reason):
        followed(f"FROM a\n{line}\n", context)


DEBIAN = {"ID": "debian", "VERSION_ID": "12", "VERSION_CODENAME": "bookworm"}


@pytest.mark.parametrize(
    "image, allowed, fits",
    [
        ("debian:12", (), True),
        ("debian:12-slim", (), True),
        ("docker.io/library/debian:bookworm-slim", (), True),
        ("debian:11", (), False),
        ("debian", (), False),
        ("ubuntu:24.04", (), False),
        ("ubuntu:24.04", ("ubuntu:*",), True),
        ("python:3.11-slim-bookworm", (), True),
        ("python:3.11.4", (), True),
        ("python:3.12", (), False),
        ("python:3", (), False),
        ("ghcr.io/a/b:1", (), False),
        ("ghcr.io/a/b:1", ("ghcr.io/*",), True),
    ],
)
def test_the_machine_stands_in_only_for_what_it_is(image, allowed, fits):
    assert (stands_in(image, DEBIAN, "3.11", allowed) == "") is fits


def test_preparing_bakes_checks_and_sets_aside(tmp_path):
    tasks = tmp_path / "tasks"
    for name in ("log-report", "newest-version", "grow-a-tool"):
        shutil.copytree(TASKS / name, tasks / name)
    task_at(tasks / "foreign", dockerfile="FROM ghcr.io/some/image:1\n")
    task_at(tasks / "broken-build", dockerfile="FROM debian:12\nRUN echo why >&2; exit 9\n")
    task_at(tasks / "gpu", "[environment]\ngpus = 1\n")
    task_at(tasks / "unsolved", test="echo 0 > /logs/verifier/reward.txt")
    (tasks / "unsolved" / "solution").mkdir()
    (tasks / "unsolved" / "solution" / "solve.sh").write_text("true\n")
    manifest = prepare(str(tasks), tmp_path / "out", stand_in="debian:*,python:*")
    assert manifest["dropped"] == {"bad_task": 1, "cannot_build": 2, "solution_fails": 1}
    assert manifest["formats"] == {"harbor": 1, "multi_step": 1, "terminal_bench": 1}
    lines = [json.loads(line) for line in (tmp_path / "out" / "set_aside.jsonl").read_text().splitlines()]
    why = {Path(line["where"]).name: line["detail"] for line in lines}
    assert "there are no images here" in why["foreign"]
    assert "line 2: RUN" in why["broken-build"] and "why" in why["broken-build"]
    snapshots = sorted(path.name for path in (tmp_path / "out-environments").iterdir())
    assert [name.rpartition("-")[0] for name in snapshots] == [
        "grow-a-tool",
        "log-report",
        "newest-version",
        "unsolved",
    ]
    again = prepare(str(tasks), tmp_path / "out", stand_in="debian:*,python:*", check="no")
    assert again["kept"] == 4
    assert sorted(path.name for path in (tmp_path / "out-environments").iterdir()) == snapshots
    parquet = pytest.importorskip("pyarrow.parquet")
    rows = parquet.read_table(tmp_path / "out" / "train.parquet").to_pylist()
    environment = json.loads(rows[0]["extra_info"]["environment"])
    assert environment["backend"] == "local" and Path(environment["snapshot"]).is_dir()


def test_wrong_options_of_prepare_are_told(tmp_path):
    with pytest.raises(ConfigError, match="holds no task"):
        prepare(str(tmp_path), tmp_path / "out")
    with pytest.raises(ConfigError, match="--check"):
        prepare(str(TASKS), tmp_path / "out", check="maybe")
    with pytest.raises(ConfigError, match="local and e2b"):
        prepare(str(TASKS), tmp_path / "out", backend="docker")


@pytest.mark.parametrize("name", sorted(path.name for path in harbor.find(TASKS)))
def test_each_shipped_task_is_solved_by_its_solution_and_not_by_doing_nothing(name, tmp_path):
    task = harbor.load(TASKS / name)
    environment = asyncio.run(bake(task, "local", tmp_path, stand_in=["*"]))
    assert asyncio.run(oracle_reward(task, environment)) == 1.0
    assert asyncio.run(oracle_reward(task, environment, solved=False)) == 0.0


def test_for_e2b_the_image_becomes_a_template_and_the_rest_a_snapshot(tmp_path):
    pytest.importorskip("e2b")
    import sys

    sys.path.insert(0, str(Path(__file__).parent))
    from e2b_peer import peer

    async def play():
        async with peer() as served:
            task = harbor.load(TASKS / "keep-three")
            environment = await bake(task, "e2b", tmp_path)
            assert list(served.templates.values()) == ["debian:12-slim"] and not served.sandboxes
            wanted = {"backend": "e2b", "snapshot": "snap0", "workdir": "/app", "user": ""}
            assert environment == wanted | {"env": {"BACKUPS": "/app/backups"}}
            assert await oracle_reward(task, environment) == 1.0
            network = [json.loads(b) for m, p, _, b in served.requests if (m, p) == ("POST", "/v2/sandboxes")]
            assert [body["allow_internet_access"] for body in network] == [True, False]
            missing = harbor.load(task_at(tmp_path / "t", dockerfile="FROM missing/image:1\n"))
            with pytest.raises(CannotBuild, match="no image missing/image:1"):
                await bake(missing, "e2b", tmp_path)

    asyncio.run(play())


READ = textwrap.dedent("""
    import json, sys
    from pathlib import Path
    from harbor.models.task.task import Task
    found = {}
    for path in sys.argv[1:]:
        task = Task(Path(path))
        config = task.config
        steps = [
            {"name": s.name, "instruction": task.step_instruction(s.name), "min_reward": s.min_reward,
             "timeout": s.agent.timeout_sec or config.agent.timeout_sec}
            for s in config.steps or []
        ] or [{"name": "", "instruction": task.instruction, "min_reward": None, "timeout": config.agent.timeout_sec}]
        found[Path(path).name] = {
            "steps": steps, "verifier": config.verifier.timeout_sec, "memory": config.environment.memory_mb,
            "storage": config.environment.storage_mb, "network": config.environment.network_mode.value,
            "env": config.verifier.env,
        }
    print(json.dumps(found))
""")


@pytest.mark.slow
@pytest.mark.skipif(not ORACLE.exists(), reason="RUFUS_HARBOR_PYTHON names no Python with Harbor")
def test_harbor_itself_reads_the_shipped_tasks_alike():
    paths = [path for path in harbor.find(TASKS) if (path / "task.toml").is_file()]
    said = subprocess.run([str(ORACLE), "-c", READ, *map(str, paths)], capture_output=True, text=True, check=True)
    theirs = json.loads(said.stdout.splitlines()[-1])
    for path in paths:
        ours, seen = harbor.load(path), theirs[path.name]
        assert [(s.name, s.instruction, s.min_reward, s.agent_timeout_s) for s in ours.steps] == [
            (s["name"], s["instruction"], s["min_reward"], s["timeout"]) for s in seen["steps"]
        ]
        assert ours.steps[0].verifier_timeout_s == seen["verifier"]
        assert (ours.memory_mb, ours.storage_mb) == (seen["memory"], seen["storage"])
        assert dict(ours.steps[0].verifier_env) == seen["env"]


REFUSED = [
    "[environment]\nenv = {A = 1}",
    '[environment]\nenv = ["a"]',
    "[environment]\nmemory_mb = 5.5",
    '[agent]\ntimeout_sec = "soon"',
    '[[steps]]\nname = "a"\n[[steps]]\nname = "A"',
    'multi_step_reward_strategy = "best"\n[[steps]]\nname = "a"',
    "[environment.healthcheck]\nretries = 2",
]
VALIDATE = textwrap.dedent("""
    import json, sys
    from harbor.models.task.config import TaskConfig
    for text in json.loads(sys.argv[1]):
        try:
            TaskConfig.model_validate_toml(text)
        except ValueError:
            print("refused")
        else:
            print("read")
""")


@pytest.mark.slow
@pytest.mark.skipif(not ORACLE.exists(), reason="RUFUS_HARBOR_PYTHON names no Python with Harbor")
def test_what_harbor_itself_refuses_is_refused(tmp_path):
    arguments = [str(ORACLE), "-c", VALIDATE, json.dumps(REFUSED)]
    said = subprocess.run(arguments, capture_output=True, text=True, check=True).stdout.split()
    assert said == ["refused"] * len(REFUSED)
    for at, toml in enumerate(REFUSED):
        folder = task_at(tmp_path / str(at), toml)
        for name in ("a/instruction.md", "A/instruction.md", "a/tests/test.sh", "A/tests/test.sh"):
            (folder / "steps" / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / "steps" / name).write_text("x")
        with pytest.raises(DataError):
            harbor.load(folder)


MAP = textwrap.dedent("""
    import sys
    from pathlib import Path
    from harbor.mappers.terminal_bench import TerminalBenchMapper
    result = TerminalBenchMapper().map(Path(sys.argv[1]), Path(sys.argv[2]))
    assert len(result.mapped) == 1 and not result.failed, result
""")


@pytest.mark.slow
@pytest.mark.skipif(not ORACLE.exists(), reason="RUFUS_HARBOR_PYTHON names no Python with Harbor")
def test_a_legacy_task_mapped_by_harbor_itself_scores_as_ours_does(tmp_path):
    (tmp_path / "in").mkdir()
    shutil.copytree(TASKS / "newest-version", tmp_path / "in" / "newest-version")
    arguments = [str(ORACLE), "-c", MAP, str(tmp_path / "in"), str(tmp_path / "mapped")]
    subprocess.run(arguments, check=True, capture_output=True)
    ours, theirs = harbor.load(TASKS / "newest-version"), harbor.load(tmp_path / "mapped" / "newest-version")
    assert ours.steps[0].instruction.strip() == theirs.steps[0].instruction.strip()
    for task in (ours, theirs):
        environment = asyncio.run(bake(task, "local", tmp_path / "store", stand_in=["*"]))
        for solved, value in ((True, 1.0), (False, 0.0)):
            assert asyncio.run(oracle_reward(task, environment, solved=solved)) == value
