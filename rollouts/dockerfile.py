"""Dockerfiles, as far as one sandbox can follow them: one stage, local files, commands.

`parse` gives the instructions; `build` carries them out in a sandbox. What a sandbox without images cannot do is
refused with the line and the reason: further stages, other stages' or the web's files, entry points, base images that
are not what the sandbox runs (`stands_in`).
"""

from __future__ import annotations

import fnmatch
import json
import os
import posixpath
import re
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from rufus_plugins.errors import DataError
from rufus_plugins.rollouts.dockerignore import ignored
from rufus_plugins.types import ExecResult

IGNORED = frozenset("LABEL EXPOSE STOPSIGNAL HEALTHCHECK MAINTAINER CMD VOLUME ONBUILD".split())
"""They say how a container is run, not what is in it; a task's container is kept running by who runs it."""
_NAME = re.compile(r"\$(?:\{([A-Za-z_]\w*)(?:(:?[-+])([^}]*))?\}|([A-Za-z_]\w*))")


class CannotBuild(DataError):
    """This backend cannot make this environment; the message is the reason."""


@dataclass(frozen=True)
class Instruction:
    line: int
    name: str
    text: str
    heredocs: tuple[tuple[str, str], ...] = ()
    """(name, content)"""


@dataclass
class Built:
    """What the image's configuration would say."""

    env: dict[str, str] = field(default_factory=dict)
    workdir: str = "/"
    user: str = ""


def parse(text: str) -> list[Instruction]:
    lines = text.split("\n")
    found: list[Instruction] = []
    at = 0
    while at < len(lines):
        start, line = at, lines[at]
        at += 1
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        while line.rstrip().endswith("\\") and at < len(lines):
            following = lines[at]
            at += 1
            if following.lstrip().startswith("#") or not following.strip():
                continue
            line = line.rstrip()[:-1] + " " + following.lstrip()
        name, _, rest = line.strip().partition(" ")
        heredocs = []
        for mark in re.findall(r"<<-?\s*[\"']?(\w+)[\"']?", rest) if name.upper() in ("RUN", "COPY", "ADD") else []:
            body = []
            while at < len(lines) and lines[at].strip() != mark:
                body.append(lines[at])
                at += 1
            if at == len(lines):
                raise CannotBuild(f"line {start + 1}: the text after <<{mark} does not end")
            at += 1
            heredocs.append((mark, "\n".join(body) + "\n"))
        found.append(Instruction(start + 1, name.upper(), rest.strip(), tuple(heredocs)))
    return found


def base_image(instructions: Sequence[Instruction]) -> str:
    """The image of the only FROM. Raises `CannotBuild`."""
    from_lines = [i for i in instructions if i.name == "FROM"]
    if len(from_lines) != 1:
        raise CannotBuild(f"it has {len(from_lines)} FROM lines; one stage can be built")
    arguments = dict(
        (i.text.partition("=")[0].strip(), i.text.partition("=")[2].strip("\"' "))
        for i in instructions
        if i.name == "ARG" and i.line < from_lines[0].line
    )
    words = [word for word in from_lines[0].text.split() if not word.startswith("--")]
    return substituted(words[0], arguments)


def stands_in(image: str, os_release: Mapping[str, str], python: str, allowed: Sequence[str] = ()) -> str:
    """ "" if a system of this release may stand in for `image`, else the reason why not.

    Without images a sandbox runs the machine's own system: it stands in for an image of the same distribution and
    version, for `python:X.Y` if that is its Python, and for what `allowed` (shell patterns) names.
    """
    name = image.split("@")[0].removeprefix("docker.io/").removeprefix("library/")
    if any(fnmatch.fnmatchcase(image, pattern) or fnmatch.fnmatchcase(name, pattern) for pattern in allowed):
        return ""
    base, _, tag = name.partition(":")
    version, codename = os_release.get("VERSION_ID", ""), os_release.get("VERSION_CODENAME", "")
    here = f"{os_release.get('ID', 'linux')}:{version} ({codename}) with Python {python}"
    known = tag.removesuffix("-slim")
    if base == os_release.get("ID") and known and known in (version, codename, f"{version}.0"):
        return ""
    if base == "python" and tag and (tag.split("-")[0] == python or tag.split("-")[0].startswith(python + ".")):
        return ""
    return (
        f"FROM {image}: there are no images here, the sandbox runs this machine's {here}. Say --stand-in '{image}' if "
        "that will do, or use a backend with images"
    )


async def build(
    instructions: Sequence[Instruction],
    context: Path,
    run: Callable[..., object],
    write: Callable[[str, bytes], object],
    timeout_s: float,
    env: Mapping[str, str] | None = None,
) -> Built:
    """Carries out everything after FROM. `run(command, timeout_s, env=, cwd=, user=) -> ExecResult`, awaited.

    Raises `CannotBuild` at the first instruction that fails, with the line and the end of what it said.
    """
    built, arguments = Built(dict(env or {})), {}
    shell: list[str] | None = None

    async def done(i: Instruction, command: str, user: str | None = None) -> None:
        result: ExecResult = await run(
            command, timeout_s, env={**arguments, **built.env}, cwd=built.workdir, user=user or None
        )
        if result.exit_code != 0:
            said = (result.stderr.strip() or result.stdout.strip())[-400:]
            how = f"exit code {result.exit_code}" if result.exit_code is not None else f"no end within {timeout_s:g} s"
            raise CannotBuild(f"line {i.line}: {i.name} {i.text[:120]}: {how}: {said}")

    for i in instructions:
        known = {**arguments, **built.env}
        if i.name in IGNORED or i.name == "FROM":
            continue
        if i.name == "ARG":
            name, given, value = i.text.partition("=")
            if given:
                arguments[name.strip()] = substituted(_unquoted(value), known)
        elif i.name == "ENV":
            built.env.update({k: substituted(v, known) for k, v in _pairs(i)})
        elif i.name == "WORKDIR":
            built.workdir = posixpath.normpath(posixpath.join(built.workdir, substituted(_unquoted(i.text), known)))
            made: ExecResult = await run(f"mkdir -p {shlex.quote(built.workdir)}", 60.0, cwd="/", user=None)
            if made.exit_code != 0:
                raise CannotBuild(f"line {i.line}: WORKDIR {built.workdir}: {made.stderr.strip()[-200:]}")
        elif i.name == "USER":
            built.user = substituted(i.text.strip(), known)
        elif i.name == "SHELL":
            shell = json.loads(i.text)
        elif i.name == "RUN":
            await done(i, _command(i, shell), built.user)
        elif i.name in ("COPY", "ADD"):
            await _copy(i, context, built, known, done, write)
        elif i.name == "ENTRYPOINT":
            raise CannotBuild(f"line {i.line}: ENTRYPOINT wraps every command of a container; a sandbox has none")
        else:
            raise CannotBuild(f"line {i.line}: {i.name} is no instruction of a Dockerfile")
    return built


def _command(i: Instruction, shell: list[str] | None) -> str:
    text = i.text
    while text.startswith("--"):  # mounts of caches and the like change no result
        flag, _, text = text.partition(" ")
        if not flag.startswith(("--mount=type=cache", "--network=default", "--security=sandbox")):
            raise CannotBuild(f"line {i.line}: RUN {flag} is not supported")
        text = text.lstrip()
    if text.startswith("["):
        try:
            return shlex.join(json.loads(text))
        except (ValueError, TypeError):
            pass  # as Docker does: no JSON list, so a shell's line
    if i.heredocs and re.fullmatch(r"<<-?\s*[\"']?\w+[\"']?", text):
        text = i.heredocs[0][1]
    elif i.heredocs:
        text += "\n" + "".join(f"{body}{mark}\n" for mark, body in i.heredocs)
    return shlex.join([*(shell or ["/bin/sh", "-c"]), text])


async def _copy(i: Instruction, context: Path, built: Built, known: Mapping[str, str], done, write) -> None:
    words = _words(i)
    flags = [word for word in words if word.startswith("--")]
    words = [substituted(word, known) for word in words if not word.startswith("--")]
    owner = mode = ""
    for flag in flags:
        name, _, value = flag.partition("=")
        if name == "--chown":
            owner = substituted(value, known)
        elif name == "--chmod":
            mode = value
        elif name == "--from":
            raise CannotBuild(f"line {i.line}: {i.name} {flag}: files of another stage or image cannot be had")
        elif name not in ("--link", "--parents"):
            raise CannotBuild(f"line {i.line}: {i.name} {flag} is not supported")
    if len(words) < 2:
        raise CannotBuild(f"line {i.line}: {i.name} needs a source and a target")
    *sources, target = words
    into = target.endswith("/") or len(sources) > 1 or target in (".", "..")
    target = posixpath.normpath(posixpath.join(built.workdir, target))
    written: list[str] = []
    executable: list[str] = []
    for mark, body in i.heredocs:
        sources = [s for s in sources if s.lstrip("<-").strip("\"' ") != mark]
        path = f"{target}/{mark}" if into else target
        await write(path, body.encode())
        written.append(path)
    inside, left_out = context.resolve(), ignored(context)
    for source in sources:
        if re.match(r"https?://|git@", source):
            raise CannotBuild(f"line {i.line}: {i.name} {source}: nothing is fetched from the web")
        found = sorted(context.glob(source.lstrip("/"))) if source.strip("/.") else [context]
        found = [
            path for path in found if path.is_dir() or not path.resolve().is_relative_to(inside) or not left_out(path)
        ]
        if not found:
            raise CannotBuild(f"line {i.line}: {i.name} {source}: there is no such file in {context.name}/")
        for path in found:
            if not path.resolve().is_relative_to(inside):
                raise CannotBuild(f"line {i.line}: {i.name} {source} leads outside {context.name}/")
            if i.name == "ADD" and path.name.endswith((".tar", ".tar.gz", ".tgz", ".tar.bz2", ".tar.xz")):
                raise CannotBuild(f"line {i.line}: ADD unpacks {path.name}; use COPY and RUN tar")
            if path.is_dir():
                for file in sorted(path.rglob("*")):
                    if left_out(file):
                        continue
                    goal = f"{target}/{file.relative_to(path).as_posix()}"
                    if file.is_dir() and not any(file.iterdir()):
                        await done(i, f"mkdir -p {shlex.quote(goal)}")
                    elif file.is_file() and file.resolve().is_relative_to(inside):
                        await write(goal, file.read_bytes())
                        executable += [goal] if os.access(file, os.X_OK) else []
                written.append(target)
            else:
                goal = f"{target}/{path.name}" if into else target
                await write(goal, path.read_bytes())
                executable += [goal] if os.access(path, os.X_OK) else []
                written.append(goal)
    for paths, command in ((executable, "chmod +x"), (written, f"chmod -R {mode}"), (written, f"chown -R {owner}")):
        if paths and not command.endswith(" "):
            await done(i, f"{command} {' '.join(map(shlex.quote, dict.fromkeys(paths)))}")


def _words(i: Instruction) -> list[str]:
    flags, rest = [], i.text
    while rest.startswith("--"):
        flag, _, rest = rest.partition(" ")
        flags.append(flag)
        rest = rest.lstrip()
    if rest.startswith("["):
        try:
            return [*flags, *json.loads(rest)]
        except ValueError:
            pass
    return [*flags, *rest.split()]


def _pairs(i: Instruction) -> list[tuple[str, str]]:
    if re.match(r"[A-Za-z_]\w*\s+[^=\s]", i.text) and "=" not in i.text.split()[0]:
        name, _, value = i.text.partition(" ")  # the old form: ENV name value
        return [(name, value.strip())]
    try:
        words = shlex.split(i.text)
    except ValueError as error:
        raise CannotBuild(f"line {i.line}: ENV {i.text[:80]}: {error}") from None
    pairs = [word.partition("=") for word in words]
    if not all(given for _, given, _ in pairs):
        raise CannotBuild(f"line {i.line}: ENV {i.text[:80]}: write NAME=value")
    return [(name, value) for name, _, value in pairs]


def _unquoted(text: str) -> str:
    text = text.strip()
    return text[1:-1] if len(text) > 1 and text[0] == text[-1] and text[0] in "\"'" else text


def substituted(text: str, known: Mapping[str, str]) -> str:
    """`$NAME`, `${NAME}`, `${NAME:-default}` and `${NAME:+other}` as Docker replaces them outside of RUN."""

    def found(match: re.Match) -> str:
        name, how, other = match[1] or match[4], match[2] or "", match[3] or ""
        value = known.get(name, "")
        if how.endswith("-"):
            return value or other
        if how.endswith("+"):
            return other if value else ""
        return value

    return _NAME.sub(found, text)
