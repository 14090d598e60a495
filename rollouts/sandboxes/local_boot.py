"""Builds the root of one local sandbox and becomes bubblewrap. A script: `python -I -S local_boot.py CONFIG`.

In namespaces of its own (so that the kernel takes everything away with the last process, whatever kills it):

- A tmpfs of the sandbox's disk size lies on /sys, where nobody keeps data. It holds what the sandbox writes.
- Two overlays: `/` over an empty skeleton and `/usr` over the machine's own, with the layers of a snapshot between.
  Under root, /usr is mapped into the sandbox's user ids (idmapped mount, Linux 5.19), so that its root may change it.
- Inside, uid 0 is nobody on the machine: 65536 ids from `FIRST_UID` when root starts it, else the caller's own alone.

With `{"copy": ...}` it enters a running sandbox's mounts instead and copies what the sandbox has written.
Numbers: linux/mount.h, sched.h; the syscalls from 424 on are the same on every architecture.
"""

from __future__ import annotations

import ctypes
import json
import os
import resource
import shutil
import signal
import stat
import struct
import subprocess
import sys

FIRST_UID, IDS = 524288, 65536
"""A subordinate range as distributions give them out. One for all sandboxes, so that snapshots fit. Ours."""
SCRATCH = "/sys"
INODES = 400_000
"""Files and folders that a sandbox may make. Ours: they cost kernel memory beyond the disk's size."""
_NEWNS, _NEWUSER = 0x20000, 0x10000000
_REC, _PRIVATE, _BIND, _RDONLY, _REMOUNT, _NOSUID, _NODEV = 0x4000, 0x40000, 0x1000, 1, 32, 2, 4
_OPEN_TREE, _MOUNT_SETATTR, _MOVE_MOUNT = 428, 442, 429
_KEPT = ("CHOWN", "DAC_OVERRIDE", "FOWNER", "FSETID", "KILL", "SETGID", "SETUID", "NET_BIND_SERVICE", "SYS_CHROOT")
"""A subset of what container engines leave; nothing that reaches mounts, devices, tracing or raw sockets."""
_ETC_FILES = (
    "debian_version os-release lsb-release ld.so.cache ld.so.conf nsswitch.conf services protocols mime.types "
    "shells login.defs bash.bashrc inputrc locale.alias adduser.conf deluser.conf netconfig"
).split()
_ETC_DIRS = (
    "alternatives ssl ca-certificates ld.so.conf.d python3 python3.11 perl skel terminfo java-17-openjdk".split()
)
_FOLDERS = (
    "dev proc sys run tmp var/tmp var/log var/lib var/cache home root opt srv mnt media tests solution "
    "logs/verifier logs/agent logs/artifacts .rufus/python .rufus/code usr"
).split()
_OPEN = {"tmp": 0o1777, "var/tmp": 0o1777, "root": 0o700, "logs/verifier": 0o777, "logs/agent": 0o777}

_libc = ctypes.CDLL(None, use_errno=True)


def check(result: int, what: str) -> int:
    if result < 0:
        raise OSError(ctypes.get_errno(), f"{what}: {os.strerror(ctypes.get_errno())}")
    return result


def mount(source: str, target: str, kind: str | None = None, flags: int = 0, options: str | None = None) -> None:
    encoded = [None if value is None else os.fsencode(value) for value in (source, target, kind)]
    data = None if options is None else os.fsencode(options)
    check(_libc.mount(*encoded, ctypes.c_ulong(flags), data), f"mount {target}")


def map_ids(pid: int | str, outside: int, gid: int, count: int) -> None:
    if count == 1:
        with open(f"/proc/{pid}/setgroups", "w") as file:
            file.write("deny")
    for name, first in (("uid_map", outside), ("gid_map", gid)):
        with open(f"/proc/{pid}/{name}", "w") as file:
            file.write(f"0 {first} {count}")


def user_namespace() -> int:
    """A descriptor of a new user namespace with the whole range of ids. Root only."""
    ready, told = os.pipe()
    pid = os.fork()
    if not pid:
        try:
            check(_libc.unshare(_NEWUSER), "unshare")
            os.write(told, b"x")
            signal.pause()
        finally:
            os._exit(1)
    os.close(told)
    try:
        if not os.read(ready, 1):
            raise OSError("no user namespace can be made")
        map_ids(pid, FIRST_UID, FIRST_UID, IDS)
        return os.open(f"/proc/{pid}/ns/user", os.O_RDONLY | os.O_CLOEXEC)
    finally:
        os.close(ready)
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)


def mapped_bind(source: str, target: str, user: int) -> bool:
    """Binds `source` with its ids moved into the namespace `user`; False where the kernel cannot."""
    tree = _libc.syscall(_OPEN_TREE, -100, os.fsencode(source), ctypes.c_uint(1 | os.O_CLOEXEC))
    if tree < 0:
        return False
    try:
        attributes = struct.pack("=QQQQ", 0x100000, 0, 0, user)  # MOUNT_ATTR_IDMAP
        if _libc.syscall(_MOUNT_SETATTR, tree, b"", ctypes.c_uint(0x1000), attributes, ctypes.c_size_t(32)) < 0:
            return False
        return _libc.syscall(_MOVE_MOUNT, tree, b"", -100, os.fsencode(target), ctypes.c_uint(4)) >= 0
    finally:
        os.close(tree)


def skeleton(base: str, owner: int, hostname: str, network: bool) -> None:
    """The empty root: folders, links and the few files of /etc that programs expect."""
    for name in _FOLDERS:
        os.makedirs(f"{base}/{name}", exist_ok=True)
        os.chmod(f"{base}/{name}", _OPEN.get(name, 0o755))
    for name in ("bin", "sbin", "lib", "lib64", "lib32", "libx32"):
        if os.path.islink(f"/{name}"):
            os.symlink(os.readlink(f"/{name}"), f"{base}/{name}")
        elif os.path.isdir(f"/{name}"):
            os.mkdir(f"{base}/{name}")
    etc = f"{base}/etc"
    os.mkdir(etc)
    for name in _ETC_FILES:
        if os.path.isfile(f"/etc/{name}"):
            shutil.copyfile(f"/etc/{name}", f"{etc}/{name}")
    for name in _ETC_DIRS:
        if os.path.isdir(f"/etc/{name}"):
            os.mkdir(f"{etc}/{name}")
    written = {
        "passwd": _system_lines("/etc/passwd", "root:x:0:0:root:/root:/bin/bash"),
        "group": _system_lines("/etc/group", "root:x:0:"),
        "hostname": f"{hostname}\n",
        "hosts": f"127.0.0.1 localhost {hostname}\n::1 localhost\n",
        "profile": 'PATH="${PATH:-/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin}"\nexport PATH\n',
        "resolv.conf": "",
    }
    if network and os.path.isfile("/etc/resolv.conf"):
        with open("/etc/resolv.conf", errors="replace") as file:
            written["resolv.conf"] = file.read()
    for name, text in written.items():
        with open(f"{etc}/{name}", "w") as file:
            file.write(text)
    if owner:
        for folder, folders, files in os.walk(base):
            for name in [".", *folders, *files]:
                os.chown(os.path.join(folder, name), owner, owner, follow_symlinks=False)


def _system_lines(path: str, first: str) -> str:
    """The system's own accounts (ids below 1000) and nobody; no person's."""
    lines = [first]
    with open(path, errors="replace") as file:
        for line in file:
            parts = line.rstrip("\n").split(":")
            if len(parts) > 2 and parts[2].isdigit() and (0 < int(parts[2]) < 1000 or int(parts[2]) == 65534):
                if path.endswith("passwd") and len(parts) == 7:
                    parts[1], parts[4] = "x", ""
                elif len(parts) == 4:
                    parts[1], parts[3] = "x", ""
                lines.append(":".join(parts))
    return "\n".join(lines) + "\n"


def overlay(name: str, base: str, layers: list[str], owner: int, copy_from: str | None) -> str:
    """Mounts one overlay below the scratch and returns its path."""
    own = f"{SCRATCH}/{name}"
    for part in ("up", "wk", "m"):
        os.makedirs(f"{own}/{part}")
    if copy_from:
        subprocess.run(["cp", "-a", f"{copy_from}/{name}/up/.", f"{own}/up/"], check=True, capture_output=True)
    if owner:
        for part in ("up", "wk"):
            os.chown(f"{own}/{part}", owner, owner)
    lower = []
    for i, layer in enumerate(layers):  # short names: all options must fit into a page
        if os.path.isdir(f"{layer}/{name}"):
            os.makedirs(f"{own}/{i}")
            mount(f"{layer}/{name}", f"{own}/{i}", None, _BIND)
            lower.append(f"{own}/{i}")
    options = f"lowerdir={':'.join([*lower, base])},upperdir={own}/up,workdir={own}/wk,userxattr"
    mount("overlay", f"{own}/m", "overlay", _NODEV, options)
    return f"{own}/m"


def boot(config: dict) -> None:
    root = os.geteuid() == 0
    uid, gid = os.geteuid(), os.getegid()
    owner = FIRST_UID if root else 0
    copy_from = None
    if config["fork_of"]:  # opened before the namespaces change
        there = os.open(f"/proc/{config['fork_of']}/root{SCRATCH}", os.O_PATH | os.O_DIRECTORY)
        copy_from = f"/proc/self/fd/{there}"
    layers = config["layers"]
    import seccomp  # beside this file; loaded while the interpreter can still be read

    filter_file = os.memfd_create("seccomp", 0)
    os.write(filter_file, seccomp.session_filter())
    os.lseek(filter_file, 0, os.SEEK_SET)
    user = user_namespace() if root else -1
    check(_libc.unshare(_NEWNS | (0 if root else _NEWUSER)), "unshare")
    if not root:
        map_ids("self", uid, gid, 1)
    mount("none", "/", None, _REC | _PRIVATE)
    mount("tmpfs", SCRATCH, "tmpfs", _NOSUID | _NODEV, f"size={config['disk_bytes']},nr_inodes={INODES},mode=0755")
    os.mkdir(f"{SCRATCH}/base")
    skeleton(f"{SCRATCH}/base", owner, config["hostname"], config["network"])
    if copy_from:
        copy_from = copy_from.replace("/self/", f"/{os.getpid()}/")  # `cp` has its own /proc/self
    usr = f"{SCRATCH}/lower_usr"
    os.mkdir(usr)
    if not (root and mapped_bind("/usr", usr, user)):
        mount("/usr", usr, None, _BIND)
    merged = overlay("root", f"{SCRATCH}/base", layers, owner, copy_from)
    merged_usr = overlay("usr", usr, layers, owner, copy_from)
    os.mkdir(f"{SCRATCH}/shm")
    os.chmod(f"{SCRATCH}/shm", 0o1777)
    if owner:
        os.chown(f"{SCRATCH}/shm", owner, owner)
    binds = []
    for name, path in (("python", config["python"]), ("code", os.path.dirname(os.path.realpath(__file__)))):
        os.mkdir(f"{SCRATCH}/{name}")  # lifted out of folders that only the caller may enter
        mount(path, f"{SCRATCH}/{name}", None, _BIND | _REC)
        binds += ["--ro-bind", f"{SCRATCH}/{name}", f"/.rufus/{name}"]
    for name in _ETC_DIRS:
        if os.path.isdir(f"/etc/{name}"):
            binds += ["--ro-bind", f"/etc/{name}", f"/etc/{name}"]
    for name in ("bin", "sbin", "lib", "lib64", "lib32", "libx32"):
        if os.path.isdir(f"/{name}") and not os.path.islink(f"/{name}"):
            binds += ["--ro-bind", f"/{name}", f"/{name}"]
    for limit, amount in (
        (resource.RLIMIT_NPROC, config["processes"]),
        (resource.RLIMIT_CORE, 0),
        (resource.RLIMIT_NOFILE, 4096),
    ):
        hard = resource.getrlimit(limit)[1]
        amount = amount if hard == resource.RLIM_INFINITY else min(amount, hard)
        resource.setrlimit(limit, (amount, amount))
    if root:
        check(_libc.setns(user, _NEWUSER), "setns")
        os.setgroups([])
        os.setresgid(0, 0, 0)
        os.setresuid(0, 0, 0)
    try:
        with open("/proc/sys/user/max_user_namespaces", "w") as file:
            file.write("0")
    except OSError:  # read-only /proc/sys: the filter on unshare and clone stays
        pass
    become_bubblewrap(config, merged, merged_usr, binds, filter_file)


def become_bubblewrap(config: dict, merged: str, merged_usr: str, binds: list[str], filter_file: int) -> None:
    args = ["bwrap", "--as-pid-1", "--new-session", "--unshare-pid", "--unshare-ipc", "--unshare-uts"]
    args += ["--unshare-cgroup-try", "--cap-drop", "ALL"]
    for name in _KEPT:
        args += ["--cap-add", f"CAP_{name}"]
    if not config["network"]:
        args += ["--unshare-net"]
    args += ["--clearenv", "--hostname", config["hostname"], "--seccomp", str(filter_file)]
    args += ["--setenv", "LD_LIBRARY_PATH", "/.rufus/python/lib", "--setenv", "LANG", "C.UTF-8"]
    args += ["--bind", merged, "/", "--bind", merged_usr, "/usr", *binds, "--proc", "/proc", "--dev", "/dev"]
    # bubblewrap's /dev may take half of the machine's memory: what is written there counts as disk
    args += ["--bind", f"{SCRATCH}/shm", "/dev/shm", "--remount-ro", "/dev"]
    args += ["--chdir", "/", f"/.rufus/python/{config['interpreter']}", "-I", "-S", "-X", "utf8"]
    args += ["/.rufus/code/local_server.py", json.dumps(config["server"])]
    for fd in os.listdir("/proc/self/fd"):
        if int(fd) > 2 and int(fd) not in (config["server"]["fd"], filter_file):
            try:
                os.close(int(fd))
            except OSError:
                continue
    os.set_inheritable(config["server"]["fd"], True)
    os.execv(config["bwrap"], args)


def copy_out(pid: int, target: str) -> None:
    """What the sandbox of monitor `pid` has written, to `target`/{root,usr}."""
    ours = os.stat("/proc/self/ns/user")
    theirs = os.open(f"/proc/{pid}/ns/user", os.O_RDONLY)
    mounts = os.open(f"/proc/{pid}/ns/mnt", os.O_RDONLY)
    if os.geteuid() and os.fstat(theirs).st_ino != ours.st_ino:
        check(_libc.setns(theirs, _NEWUSER), "setns")
    check(_libc.setns(mounts, _NEWNS), "setns")
    for name in ("root", "usr"):
        subprocess.run(["cp", "-a", f"{SCRATCH}/{name}/up", f"{target}/{name}"], check=True)
        _prune(f"{target}/{name}")


def _prune(folder: str) -> None:
    """Drops sockets and pipes, which mean nothing without their processes."""
    for path, _, files in os.walk(folder):
        for name in files:
            mode = os.lstat(os.path.join(path, name)).st_mode
            if stat.S_ISSOCK(mode) or stat.S_ISFIFO(mode):
                os.unlink(os.path.join(path, name))


def main() -> None:
    config = json.loads(sys.argv[1])
    if "copy" in config:
        copy_out(config["copy"], config["target"])
        return
    sys.path.insert(0, os.path.dirname(os.path.realpath(__file__)))
    boot(config)


if __name__ == "__main__":
    main()
