"""Bakes a task's environment once, so that no rollout builds: a snapshot folder (local) or an E2B snapshot.

Both backends follow the Dockerfile by the same code (rollouts/dockerfile.py), in a sandbox of theirs. They differ in
FROM: E2B makes a template from the image; the local sandbox runs this machine's own system and says no where that is
not what the image is. What cannot be built is `CannotBuild` with the reason.
"""

from __future__ import annotations

import hashlib
import json
import platform
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rufus_plugins.errors import ConfigError, InfrastructureError
from rufus_plugins.rollouts import retry
from rufus_plugins.rollouts.dockerfile import Built, CannotBuild, Instruction, base_image, build, parse, stands_in
from rufus_plugins.rollouts.harbor import HarborTask, read_folder
from rufus_plugins.types import Termination

FOLDERS = "mkdir -p /tests /logs/verifier /logs/agent /logs/artifacts && chmod 777 /logs/verifier /logs/agent"


async def bake(
    task: HarborTask, backend: str, store: Path, *, stand_in: Sequence[str] = (), network: bool = False
) -> dict[str, Any]:
    """What a record says of its environment: `{"backend", "snapshot", "workdir", "user", "env"}`.

    `store`: where local snapshots lie; one that was baked from the same files before is used again. `network`: let a
    local build use this machine's network (apt-get, pip). Raises `CannotBuild`.
    """
    instructions = _instructions(task)
    _network_fits(task, backend)
    if backend == "local":
        return await _local(task, instructions, store, stand_in, network)
    if backend == "e2b":
        return await _e2b(task, instructions)
    raise ConfigError(f"--backend is {backend!r}; environments can be baked for local and e2b")


def _instructions(task: HarborTask) -> list[Instruction]:
    if task.dockerfile is not None:
        try:
            return parse(task.dockerfile.read_text(encoding="utf-8"))
        except (OSError, UnicodeDecodeError) as error:
            raise CannotBuild(f"{task.dockerfile} does not read: {error}") from error
    if task.docker_image:
        return parse(f"FROM {task.docker_image}")
    raise CannotBuild("there is neither a Dockerfile nor environment.docker_image")


def _network_fits(task: HarborTask, backend: str) -> None:
    if backend == "local" and task.network_mode == "allowlist":
        hosts = ", ".join(task.allowed_hosts) or "none"
        raise CannotBuild(
            f"network_mode=allowlist ({hosts}): the local sandbox has no network or all of it; the backend e2b filters"
        )


async def _local(
    task: HarborTask, instructions: Sequence[Instruction], store: Path, stand_in: Sequence[str], network: bool
) -> dict[str, Any]:
    from rufus_plugins.rollouts.sandboxes.local import Local, ids

    why = stands_in(base_image(instructions), _os_release(), _system_python(), stand_in)
    if why:
        raise CannotBuild(why)
    key = _digest(task, [*map(str, stand_in), str(network), ids(), platform.machine(), json.dumps(_os_release())])
    path = store / f"{task.folder.name}-{key}"
    environment = {"backend": "local", "snapshot": str(path.resolve())}
    if (path / "snapshot.json").is_file():
        about = json.loads((path / "snapshot.json").read_text())
        return environment | {name: about[name] for name in ("workdir", "user", "env")}
    sandbox = Local(network=network, disk_mb=task.storage_mb or 4096, workdir="/")
    try:
        built = await _follow(sandbox, task, instructions)
        environment |= {"workdir": task.workdir or built.workdir, "user": built.user, "env": built.env}
        await sandbox.snapshot_to(path, **{name: environment[name] for name in ("workdir", "user", "env")})
    finally:
        await sandbox.close()
    return environment


async def _e2b(task: HarborTask, instructions: Sequence[Instruction]) -> dict[str, Any]:
    from rufus_plugins.rollouts.sandboxes.e2b import E2B

    try:
        from e2b import AsyncTemplate, BuildException, Template
    except ImportError as error:
        raise ConfigError("Baking for E2B needs its SDK: pip install 'rufus-plugins[e2b]'") from error
    image = base_image(instructions)
    name = f"rufus-{hashlib.sha256(f'{image} {task.memory_mb}'.encode()).hexdigest()[:16]}"

    async def template() -> None:
        try:
            await AsyncTemplate.build(
                Template().from_image(image), name, cpu_count=2, memory_mb=task.memory_mb or 2048, retries=0
            )
        except BuildException as error:
            raise CannotBuild(f"E2B makes no template from the image {image}: {error}") from error

    try:  # building the same name from the same image twice gives the same
        await retry.exchange(template, f"the template of {image}", repeatable=True, deadline_s=task.build_timeout_s)
    except retry.NeverStarted as error:
        raise ConfigError(f"E2B builds no templates for this account: {error}") from error
    except retry.OutcomeUnknown as error:
        raise InfrastructureError(f"E2B: {error}", Termination.ENVIRONMENT_LOST) from error
    sandbox = E2B(template=name, network="public", metadata={"task": task.name})
    try:
        built = await _follow(sandbox, task, instructions)
        snapshot = await sandbox.snapshot()
    finally:
        await sandbox.close()
    workdir = task.workdir or built.workdir
    return {"backend": "e2b", "snapshot": snapshot, "workdir": workdir, "user": built.user, "env": built.env}


async def _follow(sandbox: Any, task: HarborTask, instructions: Sequence[Instruction]) -> Built:
    try:
        made = await sandbox.exec(FOLDERS, 60.0, cwd="/")
        if made.exit_code != 0:
            raise CannotBuild(f"/tests and /logs cannot be made: {made.stderr.strip()[-200:]}")
        return await build(
            instructions, task.context, sandbox.exec, sandbox.write_file, task.build_timeout_s, dict(task.env)
        )
    except InfrastructureError as error:
        raise CannotBuild(f"the sandbox failed during the build: {error}") from error


def _digest(task: HarborTask, more: Sequence[str]) -> str:
    """Of everything that the build reads."""
    digest = hashlib.sha256(json.dumps([1, dict(task.env), task.workdir, task.docker_image, *more]).encode())
    if task.dockerfile is not None:
        digest.update(task.dockerfile.read_bytes())
        for name, content in read_folder(task.context).items():
            digest.update(f"\0{name}\0{len(content)}\0".encode())
            digest.update(content)
    return digest.hexdigest()[:16]


def _os_release() -> Mapping[str, str]:
    try:
        return platform.freedesktop_os_release()
    except OSError:
        return {}


def _system_python() -> str:
    """X.Y of /usr/bin/python3, which is what the sandbox has; "" if there is none."""
    import os
    import re

    target = os.path.realpath("/usr/bin/python3")
    found = re.search(r"python(\d+\.\d+)$", target)
    if found:
        return found[1]
    return f"{sys.version_info.major}.{sys.version_info.minor}" if target == os.path.realpath(sys.executable) else ""
