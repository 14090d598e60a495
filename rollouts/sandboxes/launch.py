"""Starts one zygote: bubblewrap where namespaces can be had, else rlimits + Landlock + seccomp, else nothing."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import sysconfig
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

BACKENDS = ("bubblewrap", "landlock")
BODY_BYTES, OUTPUT_BYTES = 64 << 20, 16 << 20
"""Capacity for one request and for each stream of an answer. Ours."""
SCRATCH_BYTES = 64 << 20
"""Size of the work directory. Ours."""
STACK_BYTES = 256 << 20
"""Main-thread stack: recursion through C (lru_cache, sort keys) needs it, as on judges. Ours."""
SCRATCH = "/scratch"
"""The work directory under bubblewrap; /tmp leads there unless the interpreter or a package lives below /tmp."""
mount_proc = True
"""Set to False by the self-test where a container forbids it: no /dev/stdin by name, no child processes then."""
_FIRST_UID, _UIDS = 61184, 4336
"""systemd's range for users that exist only while a service runs."""
_SYSTEM = ("/usr", "/bin", "/sbin", "/lib", "/lib64", "/lib32", "/etc/ld.so.cache", "/etc/alternatives")


@dataclass
class Jail:
    """A started zygote process and the socket to it."""

    process: subprocess.Popen
    socket: socket.socket
    work: str | None
    """Work directory on the host, to be removed at the end (Landlock only)."""

    inner: int | None = None
    """pidfd of the zygote below bwrap: a stopped one would not see that its socket is closed."""

    def find_inner(self) -> None:
        pid = self.process.pid
        try:
            with open(f"/proc/{pid}/task/{pid}/children") as file:
                self.inner = os.pidfd_open(int(file.read().split()[0]))
        except (OSError, ValueError, IndexError):
            self.inner = None

    def kill(self) -> None:
        """Ends the jail and everything in it. The socket must have left its event loop already."""
        if self.inner is not None:
            try:
                signal.pidfd_send_signal(self.inner, signal.SIGKILL)
            except OSError:
                pass
            os.close(self.inner)
            self.inner = None
        self.process.kill()
        self.socket.close()
        self.process.wait()
        if self.work:
            shutil.rmtree(self.work, ignore_errors=True)


@lru_cache
def python_paths() -> tuple[tuple[str, ...], tuple[str, ...]]:
    """(sys.path inside, directories to show). Only the interpreter, installed packages and this package."""
    import rufus_plugins

    contract = Path(rufus_plugins.__file__).parent
    shown = {os.path.realpath(sys.base_prefix), os.path.realpath(sys.base_exec_prefix)}
    installed = [sysconfig.get_path("purelib"), sysconfig.get_path("platlib")]
    # what this package needs may stand elsewhere: the user's own, Debian's, or below a venv with system packages
    installed += [p for p in sys.path if os.path.basename(p) in ("site-packages", "dist-packages") and os.path.isdir(p)]
    stdlib = [sysconfig.get_path("stdlib"), sysconfig.get_path("platstdlib")]
    base = os.path.realpath(sys.base_prefix)
    standard = [p for p in sys.path if p and p not in installed and os.path.realpath(p).startswith(base + os.sep)]
    shown.update(installed)
    shown.update(p for p in stdlib if p)
    if not any(str(contract).startswith(p + os.sep) for p in installed if p):
        shown.add(str(contract))  # an editable install: the package and its links, never the whole checkout
        shown.update(str(entry.resolve()) for entry in contract.iterdir() if entry.is_symlink() and entry.is_dir())
    inside = [*dict.fromkeys([*standard, *installed, str(contract.parent)])]
    return tuple(inside), tuple(sorted(p for p in shown if os.path.isdir(p)))


def interpreter() -> str:
    return os.path.realpath(sys._base_executable or sys.executable)


def _can_enter(path: str) -> bool:
    """Whether a user without rights reaches `path`."""
    return all(parent.stat().st_mode & 0o001 for parent in [Path(path), *Path(path).parents] if parent.exists())


def free_uid(index: int) -> int:
    """A user that nothing else on the machine runs as."""
    return _FIRST_UID + index % _UIDS


def tasks_of_user() -> int:
    count, uid = 0, os.getuid()
    for entry in os.scandir("/proc"):
        if entry.name.isdigit():
            try:
                if entry.stat().st_uid == uid:
                    count += len(os.listdir(f"/proc/{entry.name}/task"))
            except OSError:
                continue
    return count


def start(
    backend: str,
    index: int,
    preload: Sequence[str],
    extra_paths: Sequence[str] = (),
    *,
    script: Path | None = None,
    scratch_bytes: int = SCRATCH_BYTES,
) -> Jail:
    """Starts the process; the zygote's hello (or its silence) tells whether the jail holds.

    `script`: what runs in it instead of zygote_main.py, with the same argument and duties (environments/world_main.py).
    Call it from a thread that lives as long as the jail should: the kernel ties the death signal to the thread.
    """
    inside, shown = python_paths()
    shown = (*shown, *extra_paths)
    ours, theirs = socket.socketpair()
    root = os.getuid() == 0
    uid = free_uid(os.getpid() * 16 + index) if root else None
    config = {
        "fd": theirs.fileno(),
        "path": [*inside, *extra_paths],
        "preload": list(preload),
        "owner": os.getpid(),
        "body_bytes": BODY_BYTES,
        "output_bytes": OUTPUT_BYTES,
        "namespaced": backend == "bubblewrap",
        "uid": uid,
        "keep_search": False,
        "tasks_of_user": 0,
        "read": [],
    }
    environment = {"PATH": "/usr/bin:/bin", "LANG": "C.UTF-8", "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
    work = None
    if backend == "bubblewrap":
        config["work"] = SCRATCH
        wrap = bubblewrap(shown, environment, root, scratch_bytes)
    else:
        import tempfile

        work = tempfile.mkdtemp(prefix="rufus-jail-")
        config["work"] = os.path.join(work, "work")
        config["read"] = [*_SYSTEM, *shown]
        config["keep_search"] = root and not all(map(_can_enter, [interpreter(), *shown]))
        config["tasks_of_user"] = 0 if root else tasks_of_user() + 256
        if root:
            os.chmod(work, 0o711)
        wrap = []
    run = str((script or Path(__file__).with_name("zygote_main.py")).resolve())
    command = [*wrap, interpreter(), "-I", "-S", "-X", "utf8", run, json.dumps(config)]
    # `sh` sets the stack before the interpreter starts: later it would not move the mappings
    shell = f'ulimit -Ss {STACK_BYTES >> 10} 2>/dev/null || ulimit -Ss "$(ulimit -Hs)"; exec "$@"'
    try:
        process = subprocess.Popen(
            ["/bin/sh", "-c", shell, "sh", *command],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            env=environment | {"HOME": config["work"], "TMPDIR": config["work"]},
            cwd="/",
            pass_fds=[theirs.fileno()],
            start_new_session=True,
        )
    except BaseException:
        ours.close()
        raise
    finally:
        theirs.close()
    return Jail(process, ours, work)


def bubblewrap(
    shown: Sequence[str], environment: dict[str, str], root: bool, scratch_bytes: int = SCRATCH_BYTES
) -> list[str]:
    binary = shutil.which("bwrap")
    if not binary:
        raise FileNotFoundError("bwrap (bubblewrap) is not installed")
    args = [binary, "--die-with-parent", "--as-pid-1", "--new-session"]
    args += ["--unshare-net", "--unshare-pid", "--unshare-ipc", "--unshare-uts", "--unshare-cgroup-try"]
    if root:  # a real second user: user 0 would not be bound by RLIMIT_NPROC, nor would its image in a user namespace
        args += ["--cap-drop", "ALL", "--cap-add", "CAP_SETUID", "--cap-add", "CAP_SETGID"]
    else:
        args += ["--unshare-user"]
    args += ["--clearenv", "--hostname", "jail", "--dir", "/dev", "--dir", "/etc"]
    for name, value in (environment | {"HOME": SCRATCH, "TMPDIR": SCRATCH}).items():
        args += ["--setenv", name, value]
    for path in _SYSTEM:
        if os.path.islink(path):
            args += ["--symlink", os.readlink(path), path]
        elif os.path.exists(path):
            args += ["--ro-bind", path, path]
    parents = {str(parent) for path in shown if not path.startswith(_SYSTEM) for parent in Path(path).parents}
    for parent in sorted(parents - {"/"}, key=len):  # bwrap would make them for user 0 alone
        args += ["--perms", "0755", "--dir", parent]
    for path in sorted(shown, key=len):
        args += ["--ro-bind", path, path]
    for device in ("null", "zero", "full", "random", "urandom"):
        args += ["--dev-bind", f"/dev/{device}", f"/dev/{device}"]
    for name, target in (("stdin", 0), ("stdout", 1), ("stderr", 2)):
        args += ["--symlink", f"/proc/self/fd/{target}", f"/dev/{name}"]
    args += ["--symlink", "/proc/self/fd", "/dev/fd", "--symlink", SCRATCH, "/dev/shm"]
    if not any(path.startswith("/tmp/") for path in shown):
        args += ["--symlink", SCRATCH, "/tmp"]
    if mount_proc:
        args += ["--proc", "/proc"]
    args += ["--perms", "1777", "--size", str(scratch_bytes), "--tmpfs", SCRATCH]
    return [*args, "--chdir", SCRATCH, "--remount-ro", "/"]
