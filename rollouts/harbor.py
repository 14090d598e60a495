"""Harbor task directories (task format 1.4 and older) and legacy terminal-bench tasks, read as one shape.

A directory with `task.toml` is a Harbor task: `instruction.md` (leading canary lines are dropped), `environment/`,
`tests/` and perhaps `solution/`, or `steps/<name>/` with the same inside and a `workdir/`, laid out before the step.
A directory with `task.yaml` is a terminal-bench task: its `run-tests.sh` passes or fails by its exit code.
Unknown keys are ignored, as Harbor does. What cannot be run here is a `DataError` with the reason.
"""

from __future__ import annotations

import os
import re
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rufus_plugins.errors import DataError
from rufus_plugins.rollouts.harbor_fields import env_of, least_reward, megabytes, seconds, table_of, text_of, texts_of

_CANARY = re.compile(r"(<!--.*canary.*-->|#.*canary.*)", re.IGNORECASE)
_VARIABLE = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)(?::-(.*))?\}", re.DOTALL)
_STEP = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
AGENT_TIMEOUT_S = 3600.0
"""For tasks that give none. Ours."""
_MOST_BYTES = 256 << 20
"""Of one folder that is copied into a sandbox. Ours."""

_LEGACY_TEST = """#!/bin/bash
export TEST_DIR=/tests
bash /tests/run-tests.sh
code=$?
if [ $code -eq 0 ]; then echo 1 > /logs/verifier/reward.txt; else echo 0 > /logs/verifier/reward.txt; fi
exit $code
"""


@dataclass(frozen=True)
class Healthcheck:
    command: str
    interval_s: float = 5.0
    timeout_s: float = 30.0
    start_period_s: float = 0.0
    retries: int = 3


@dataclass(frozen=True)
class Step:
    """What the agent is asked, and what checks it. A task without steps has one, without a name."""

    name: str
    instruction: str
    tests: tuple[Path, ...]
    """Folders that are laid over each other at /tests."""
    agent_timeout_s: float
    agent_user: str
    verifier_timeout_s: float
    verifier_user: str
    verifier_env: Mapping[str, str]
    min_reward: float | Mapping[str, float] | None = None
    workdir: Path | None = None
    """Laid out in the working folder before the step; a `setup.sh` in it is run."""
    solution: Path | None = None
    healthcheck: Healthcheck | None = None
    test_script: str | None = None
    """Text of the test script where the task has none of its own (terminal-bench)."""

    def test_files(self) -> dict[str, bytes]:
        files: dict[str, bytes] = {}
        for folder in self.tests:
            files.update(read_folder(folder))
        if self.test_script is not None:
            files["test.sh"] = self.test_script.encode()
        if "test.sh" not in files:
            raise DataError(f"step {self.name!r} has no test.sh" if self.name else "the task has no tests/test.sh")
        return files


@dataclass(frozen=True)
class HarborTask:
    name: str
    folder: Path
    steps: tuple[Step, ...]
    multi_step: bool
    strategy: str
    """mean | final"""
    dockerfile: Path | None
    docker_image: str | None
    context: Path
    """Folder of the build's files."""
    env: Mapping[str, str] = field(default_factory=dict)
    workdir: str | None = None
    network_mode: str = "public"
    allowed_hosts: Sequence[str] = ()
    memory_mb: int | None = None
    storage_mb: int | None = None
    build_timeout_s: float = 600.0
    healthcheck: Healthcheck | None = None
    solution_env: Mapping[str, str] = field(default_factory=dict)
    metadata: Mapping[str, Any] = field(default_factory=dict)


def find(folder: str | Path) -> list[Path]:
    """The task directories in `folder`: itself, or what lies below it."""
    folder = Path(folder)
    if _is_task(folder):
        return [folder]
    found: list[Path] = []
    for path, folders, _ in os.walk(folder):
        folders.sort()
        if _is_task(Path(path)):
            found.append(Path(path))
            folders.clear()
    return found


def _is_task(folder: Path) -> bool:
    return (folder / "task.toml").is_file() or (folder / "task.yaml").is_file()


def load(folder: str | Path) -> HarborTask:
    """Reads one task. Raises `DataError` for what Harbor would refuse or this cannot run."""
    folder = Path(folder).resolve()
    if (folder / "task.toml").is_file():
        return _harbor(folder)
    if (folder / "task.yaml").is_file():
        return _terminal_bench(folder)
    raise DataError(f"{folder} is no task: it has neither task.toml (Harbor) nor task.yaml (terminal-bench)")


def _harbor(folder: Path) -> HarborTask:
    try:
        config = tomllib.loads((folder / "task.toml").read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise DataError(f"{folder}/task.toml does not read: {error}") from error
    version = str(config.get("schema_version", config.get("version", "1.0")))
    if not re.fullmatch(r"1(\.\d+)?", version):
        raise DataError(f"{folder.name}: task format {version}; formats 1.0 to 1.4 are read")
    environment = table_of(config, "environment")
    agent, verifier = table_of(config, "agent"), table_of(config, "verifier")
    if str(environment.get("os", "linux")).lower() != "linux":
        raise DataError(f"{folder.name}: it wants the operating system {environment['os']!r}; only linux runs here")
    for key in ("gpus", "tpu"):
        if environment.get(key):
            raise DataError(f"{folder.name}: it wants {key}; sandboxes have none")
    if environment.get("mcp_servers"):
        raise DataError(f"{folder.name}: environment.mcp_servers is not supported by the shell environment")
    if (folder / "environment" / "docker-compose.yaml").is_file():
        raise DataError(f"{folder.name}: environment/docker-compose.yaml needs several containers; a sandbox is one")
    common = {"agent": agent, "verifier": verifier}
    given = config.get("steps") or []
    if not isinstance(given, list) or not all(isinstance(entry, Mapping) for entry in given):
        raise DataError(f"{folder.name}: steps is no list of tables; write [[steps]]")
    steps = tuple(_step(folder, entry, common) for entry in given) or (_single(folder, common),)
    if len({step.name.casefold() for step in steps}) < len(steps):
        raise DataError(f"{folder.name}: two steps have one name, or differ in case only")
    strategy = config.get("multi_step_reward_strategy") or "mean"
    if strategy not in ("mean", "final"):
        raise DataError(f"{folder.name}: multi_step_reward_strategy is {strategy!r}; it can be mean or final")
    dockerfile = folder / "environment" / "Dockerfile"
    network = environment.get("network_mode")
    if network is None:
        network = {False: "no-network"}.get(environment.get("allow_internet"), "public")
    if network not in ("public", "no-network", "allowlist"):
        raise DataError(f"{folder.name}: network_mode is {network!r}; it can be public, no-network or allowlist")
    return HarborTask(
        name=str(table_of(config, "task").get("name") or folder.name),
        folder=folder,
        steps=steps,
        multi_step=bool(given),
        strategy=strategy,
        dockerfile=dockerfile if dockerfile.is_file() else None,
        docker_image=text_of(environment, "docker_image", folder.name),
        context=folder / "environment",
        env=resolved(env_of(environment, f"{folder.name}: environment"), f"{folder.name}: environment.env"),
        workdir=text_of(environment, "workdir", folder.name),
        network_mode=network,
        allowed_hosts=texts_of(environment, "allowed_hosts", folder.name),
        memory_mb=megabytes(environment, "memory", folder),
        storage_mb=megabytes(environment, "storage", folder),
        build_timeout_s=seconds(environment, "build_timeout_sec", 600.0, folder.name),
        healthcheck=_healthcheck(environment, folder.name),
        solution_env=env_of(table_of(config, "solution"), f"{folder.name}: solution"),
        metadata=table_of(config, "metadata"),
    )


def _single(folder: Path, common: Mapping[str, Any]) -> Step:
    return _made(folder.name, "", folder, (folder / "tests",), {}, common)


def _step(folder: Path, entry: Mapping[str, Any], common: Mapping[str, Any]) -> Step:
    name = str(entry.get("name", ""))
    if not _STEP.fullmatch(name):
        raise DataError(f"{folder.name}: a step is called {name!r}; names are letters, digits, dots and dashes")
    at = folder / "steps" / name
    tests = tuple(path for path in (folder / "tests", at / "tests") if path.is_dir())
    return _made(f"{folder.name}, step {name}", name, at, tests, entry, common)


def _made(
    what: str, name: str, at: Path, tests: tuple[Path, ...], entry: Mapping[str, Any], common: Mapping[str, Any]
) -> Step:
    """A step's own tables come before the task's."""
    agent = {**common["agent"], **table_of(entry, "agent")}
    verifier = {**common["verifier"], **table_of(entry, "verifier")}
    if verifier.get("environment_mode") == "separate" or verifier.get("environment") is not None:
        raise DataError(
            f"{what}: a verifier in an environment of its own (environment_mode=separate) does not run here"
        )
    env = {
        **env_of(common["verifier"], f"{what}: verifier"),
        **env_of(table_of(entry, "verifier"), f"{what}: verifier"),
    }
    try:
        instruction = without_canary((at / "instruction.md").read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"{what}: instruction.md does not read: {error}") from error
    if not instruction.strip():
        raise DataError(f"{what}: instruction.md is empty")
    if not any((folder / "test.sh").is_file() for folder in tests):
        raise DataError(f"{what}: there is no tests/test.sh")
    return Step(
        name=name,
        instruction=instruction,
        tests=tests,
        agent_timeout_s=seconds(agent, "timeout_sec", AGENT_TIMEOUT_S, f"{what}: agent"),
        agent_user=text_of(agent, "user", f"{what}: agent") or "",
        verifier_timeout_s=seconds(verifier, "timeout_sec", 600.0, f"{what}: verifier"),
        verifier_user=text_of(verifier, "user", f"{what}: verifier") or "",
        verifier_env=env,
        min_reward=least_reward(entry.get("min_reward"), what),
        workdir=at / "workdir" if name and (at / "workdir").is_dir() else None,
        solution=at / "solution" if (at / "solution" / "solve.sh").is_file() else None,
        healthcheck=_healthcheck(entry, what),
    )


def _terminal_bench(folder: Path) -> HarborTask:
    import yaml

    try:
        config = yaml.safe_load((folder / "task.yaml").read_text(encoding="utf-8"))
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise DataError(f"{folder}/task.yaml does not read: {error}") from error
    if not isinstance(config, dict) or not (text_of(config, "instruction", folder.name) or "").strip():
        raise DataError(f"{folder.name}: task.yaml has no instruction")
    script = folder / "run-tests.sh"
    if not script.is_file():
        raise DataError(f"{folder.name}: there is no run-tests.sh")
    compose = folder / "docker-compose.yaml"
    if compose.is_file():
        try:
            services = (yaml.safe_load(compose.read_text(encoding="utf-8")) or {}).get("services") or {}
        except (yaml.YAMLError, UnicodeDecodeError, AttributeError) as error:
            raise DataError(f"{compose} does not read: {error}") from error
        if len(services) > 1:
            raise DataError(
                f"{folder.name}: docker-compose.yaml has {len(services)} services; a sandbox is one container"
            )
    step = Step(
        name="",
        instruction=without_canary(str(config["instruction"])),
        tests=tuple(path for path in (folder / "tests",) if path.is_dir()),
        agent_timeout_s=seconds(config, "max_agent_timeout_sec", 360.0, folder.name),
        agent_user="",
        verifier_timeout_s=seconds(config, "max_test_timeout_sec", 60.0, folder.name),
        verifier_user="",
        verifier_env={},
        solution=folder if (folder / "solution.sh").is_file() else None,
        test_script=_LEGACY_TEST,
    )
    dockerfile = folder / "Dockerfile"
    return HarborTask(
        name=folder.name,
        folder=folder,
        steps=(step,),
        multi_step=False,
        strategy="mean",
        dockerfile=dockerfile if dockerfile.is_file() else None,
        docker_image=None,
        context=folder,
        env={"TEST_DIR": "/tests"},
        metadata={key: config[key] for key in ("difficulty", "category", "tags") if key in config},
    )


def test_files(task: HarborTask, step: Step) -> dict[str, bytes]:
    """What lies at /tests when the step is checked; `test.sh` is in it."""
    files = step.test_files()
    if step.test_script is not None:
        files["run-tests.sh"] = (task.folder / "run-tests.sh").read_bytes()
    return files


def solution_files(step: Step) -> dict[str, bytes]:
    """What lies at /solution for the oracle; `solve.sh` is in it. Empty if the task has none."""
    if step.solution is None:
        return {}
    if (step.solution / "solve.sh").is_file():
        return read_folder(step.solution)
    return {"solve.sh": (step.solution / "solution.sh").read_bytes()}


def read_folder(folder: Path) -> dict[str, bytes]:
    """Relative path -> content of every file. Links that lead outside and `__pycache__` are left out."""
    files: dict[str, bytes] = {}
    size = 0
    inside = folder.resolve()
    for path in sorted(folder.rglob("*")):
        if path.is_file() and path.resolve().is_relative_to(inside) and "__pycache__" not in path.parts:
            size += path.stat().st_size
            if size > _MOST_BYTES:
                raise DataError(f"{folder} holds more than {_MOST_BYTES >> 20} MB")
            files[path.relative_to(folder).as_posix()] = path.read_bytes()
    return files


def resolved(env: Mapping[str, Any], what: str) -> dict[str, str]:
    """`${NAME}` and `${NAME:-default}` from this process's environment; a name that is not there is a `DataError`."""
    values = {}
    for key, value in env.items():

        def found(match: re.Match, key: str = key) -> str:
            name, default = match[1], match[2]
            if name in os.environ:
                return os.environ[name]
            if default is None:
                raise DataError(f"{what}.{key} needs the environment variable {name}, which is not set")
            return default

        values[str(key)] = _VARIABLE.sub(found, str(value))
    return values


def without_canary(text: str) -> str:
    """Without the marker lines at the start that ask not to be trained on by accident, and the blank lines after."""
    lines = text.split("\n")
    at = 0
    while at < len(lines) and _CANARY.fullmatch(lines[at].strip()):
        at += 1
    if at:
        while at < len(lines) and not lines[at].strip():
            at += 1
    return "\n".join(lines[at:])


def _healthcheck(entry: Mapping[str, Any], what: str) -> Healthcheck | None:
    table, what = table_of(entry, "healthcheck"), f"{what}: healthcheck"
    if not table:
        return None
    command = text_of(table, "command", what)
    if not command:
        raise DataError(f"{what} has no command")
    retries = table.get("retries", 3)
    if not isinstance(retries, int) or isinstance(retries, bool) or retries < 1:
        raise DataError(f"{what}.retries is {retries!r}; it is a whole number, at least 1")
    return Healthcheck(
        command,
        seconds(table, "interval_sec", 5.0, what, least=0.0),
        seconds(table, "timeout_sec", 30.0, what),
        seconds(table, "start_period_sec", 0.0, what, least=0.0),
        retries,
    )
