"""Seccomp filters as classic BPF, for x86_64 and aarch64. Runs inside the jail.

Two filters, because the zygote itself needs what its programs must not have:
`zygote_filter` is inherited by everything in the jail; `program_filter` is added after the fork.
Both deny by list and answer ENOSYS to every call newer than the list, so that a later kernel opens nothing.
Numbers: linux/arch/x86/entry/syscalls/syscall_64.tbl and include/uapi/asm-generic/unistd.h.
"""

from __future__ import annotations

import ctypes
import errno
import os
import platform
import struct

_ARCHES = {"x86_64": (0xC000003E, 0), "aarch64": (0xC00000B7, 1)}
_FIRST_UNKNOWN = 440
"""From 424 on the numbers are the same everywhere; the last one that CPython and glibc may need is below 440."""

# name: (x86_64, aarch64); None = the architecture has no such call
_NEVER: dict[str, tuple[int | None, int | None]] = {
    # network and everything that names a kernel object outside the jail
    "socket": (41, 198),
    "shmget": (29, 194),
    "msgget": (68, 186),
    "semget": (64, 190),
    "mq_open": (240, 180),
    "add_key": (248, 217),
    "request_key": (249, 218),
    "keyctl": (250, 219),
    "inotify_init": (253, None),
    "inotify_init1": (294, 26),
    "fanotify_init": (300, 262),
    "name_to_handle_at": (303, 264),
    "open_by_handle_at": (304, 265),
    # other processes
    "ptrace": (101, 117),
    "process_vm_readv": (310, 270),
    "process_vm_writev": (311, 271),
    "kcmp": (312, 272),
    "pidfd_send_signal": (424, 424),
    "pidfd_getfd": (438, 438),
    "migrate_pages": (256, 238),
    "move_pages": (279, 239),
    "setpriority": (141, 140),
    "ioprio_set": (251, 30),
    "sched_setparam": (142, 118),
    "sched_setscheduler": (144, 119),
    "sched_setaffinity": (203, 122),
    "sched_setattr": (314, 274),
    # kernel surface that no program under test needs
    "bpf": (321, 280),
    "perf_event_open": (298, 241),
    "userfaultfd": (323, 282),
    "io_uring_setup": (425, 425),
    "io_uring_enter": (426, 426),
    "io_uring_register": (427, 427),
    "io_setup": (206, 0),
    "unshare": (272, 97),
    "setns": (308, 268),
    "mount": (165, 40),
    "umount2": (166, 39),
    "pivot_root": (155, 41),
    "chroot": (161, 51),
    "open_tree": (428, 428),
    "move_mount": (429, 429),
    "fsopen": (430, 430),
    "fsconfig": (431, 431),
    "fsmount": (432, 432),
    "fspick": (433, 433),
    "mknod": (133, None),
    "mknodat": (259, 33),
    "swapon": (167, 224),
    "swapoff": (168, 225),
    "reboot": (169, 142),
    "sethostname": (170, 161),
    "setdomainname": (171, 162),
    "iopl": (172, None),
    "ioperm": (173, None),
    "modify_ldt": (154, None),
    "init_module": (175, 105),
    "finit_module": (313, 273),
    "delete_module": (176, 106),
    "kexec_load": (246, 104),
    "kexec_file_load": (320, 294),
    "acct": (163, 89),
    "quotactl": (179, 60),
    "syslog": (103, 116),
    "personality": (135, 92),
    "lookup_dcookie": (212, 18),
    "vhangup": (153, 58),
    "settimeofday": (164, 170),
    "clock_settime": (227, 112),
    "adjtimex": (159, 171),
    "clock_adjtime": (305, 266),
}
# Landlock does not govern metadata: without a mount namespace these would reach the owner's files.
_METADATA: dict[str, tuple[int | None, int | None]] = {
    "truncate": (76, 45),
    "chmod": (90, None),
    "fchmod": (91, 52),
    "fchmodat": (268, 53),
    "chown": (92, None),
    "fchown": (93, 55),
    "lchown": (94, None),
    "fchownat": (260, 54),
    "utime": (132, None),
    "utimes": (235, None),
    "futimesat": (261, None),
    "utimensat": (280, 88),
    "setxattr": (188, 5),
    "lsetxattr": (189, 6),
    "fsetxattr": (190, 7),
    "removexattr": (197, 14),
    "lremovexattr": (198, 15),
    "fremovexattr": (199, 16),
}
_CLONE, _FORK, _VFORK, _CLONE3 = (56, 220), (57, None), (58, None), (435, 435)
_LANDLOCK = (444, 445, 446)
_MEMFD = (319, 279)
"""Memory that neither RLIMIT_AS nor the resident size of a process shows."""
_KILL, _TKILL, _TGKILL, _SIGQUEUE, _TGSIGQUEUE = (62, 129), (200, 130), (234, 131), (129, 138), (297, 240)
_PRLIMIT = (302, 261)
_PRCTL, _PR_SET_PDEATHSIG = (157, 167), 1
_CLONE_THREAD, _CLONE_NEW = 0x00010000, 0x7E020080
"""CLONE_NEW{NS,CGROUP,UTS,IPC,USER,PID,NET,TIME}."""

_LD, _JEQ, _JGE, _JSET, _RET = 0x20, 0x15, 0x35, 0x45, 0x06
_ALLOW, _KILL_PROCESS, _ERRNO = 0x7FFF0000, 0x80000000, 0x00050000
_NR, _ARCH, _ARG0 = 0, 4, 16


def _arch() -> tuple[int, int]:
    machine = platform.machine()
    if machine not in _ARCHES:
        raise OSError(errno.ENOTSUP, f"no seccomp numbers for {machine}; known: {', '.join(_ARCHES)}")
    return _ARCHES[machine]


def _begin(audit_arch: int, column: int) -> list[tuple[int, int, int, int]]:
    code = [(_LD, 0, 0, _ARCH), (_JEQ, 1, 0, audit_arch), (_RET, 0, 0, _KILL_PROCESS), (_LD, 0, 0, _NR)]
    if column == 0:  # the x32 numbers would pass every comparison below
        code += [(_JGE, 0, 1, 0x40000000), (_RET, 0, 0, _KILL_PROCESS)]
    return code


def _deny(code: list, number: int | None, error: int = errno.EPERM) -> None:
    if number is not None:
        code += [(_JEQ, 0, 1, number), (_RET, 0, 0, _ERRNO | error)]


def _deny_flags(code: list, number: int, flags: int, *, unless: bool = False) -> None:
    """EPERM for `number` when argument 0 has one of `flags` (`unless`: when it has none)."""
    code += [
        (_JEQ, 0, 4, number),
        (_LD, 0, 0, _ARG0),
        (_JSET, 1, 0, flags) if unless else (_JSET, 0, 1, flags),
        (_RET, 0, 0, _ERRNO | errno.EPERM),
        (_LD, 0, 0, _NR),
    ]


def _only_self(code: list, number: int, pid: int, *, zero: bool = False) -> None:
    """EPERM for `number` unless argument 0 is `pid` (or 0 where `zero`)."""
    code += [
        (_JEQ, 0, 5, number),
        (_LD, 0, 0, _ARG0),
        (_JEQ, 2, 0, pid),
        (_JEQ, 1, 0, 0 if zero else pid),
        (_RET, 0, 0, _ERRNO | errno.EPERM),
        (_LD, 0, 0, _NR),
    ]


def _end(code: list) -> bytes:
    code.append((_RET, 0, 0, _ALLOW))
    return b"".join(struct.pack("=HBBI", *instruction) for instruction in code)


def zygote_filter(*, metadata: bool, landlock: bool = False) -> bytes:
    """What nothing in the jail may do. `metadata`: also deny changes of file metadata (no mount namespace).
    `landlock`: processes may still take file rights from themselves."""
    audit_arch, column = _arch()
    code = _begin(audit_arch, column)
    for number in _LANDLOCK if landlock else ():
        code += [(_JEQ, 0, 1, number), (_RET, 0, 0, _ALLOW)]
    code += [(_JGE, 0, 1, _FIRST_UNKNOWN), (_RET, 0, 0, _ERRNO | errno.ENOSYS)]
    for numbers in [*_NEVER.values(), *(_METADATA.values() if metadata else ())]:
        _deny(code, numbers[column])
    _deny(code, _CLONE3[column], errno.ENOSYS)  # its flags lie in memory: glibc then falls back to clone
    _deny_flags(code, _CLONE[column], _CLONE_NEW)
    return _end(code)


_OF_A_SESSION = frozenset(
    "socket shmget msgget semget mq_open inotify_init inotify_init1 ptrace setpriority ioprio_set sched_setparam "
    "sched_setscheduler sched_setaffinity sched_setattr pidfd_send_signal io_setup mknod mknodat chroot personality "
    "name_to_handle_at".split()
)
"""What everyday programs in a sandbox with its own namespaces may use."""


def session_filter() -> bytes:
    """What nothing in a local sandbox may do: it has its own network, processes, IPC and mounts, and may use those."""
    audit_arch, column = _arch()
    code = _begin(audit_arch, column)
    for name, numbers in _NEVER.items():
        if name not in _OF_A_SESSION:
            _deny(code, numbers[column])
    _deny(code, _CLONE3[column], errno.ENOSYS)  # its flags lie in memory: glibc then falls back to clone
    _deny(code, _MEMFD[column], errno.ENOSYS)  # memory that no process and no file system shows
    _deny_flags(code, _CLONE[column], _CLONE_NEW)
    return _end(code)


def program_filter(*, forks: bool, own_pid: int | None) -> bytes:
    """What a program may not do beyond that. `own_pid`: the only process it may signal (None: its namespace)."""
    audit_arch, column = _arch()
    code = _begin(audit_arch, column)
    _deny(code, _MEMFD[column])
    if not forks:
        _deny(code, _FORK[column])
        _deny(code, _VFORK[column])
        _deny_flags(code, _CLONE[column], _CLONE_THREAD, unless=True)
    if own_pid is not None:
        _deny(code, _TKILL[column])
        for numbers in (_KILL, _TGKILL, _SIGQUEUE, _TGSIGQUEUE):
            _only_self(code, numbers[column], own_pid)
        _only_self(code, _PRLIMIT[column], own_pid, zero=True)
        # it must not outlive the zygote, and no namespace sees to that
        code += [
            (_JEQ, 0, 4, _PRCTL[column]),
            (_LD, 0, 0, _ARG0),
            (_JEQ, 0, 1, _PR_SET_PDEATHSIG),
            (_RET, 0, 0, _ERRNO | errno.EPERM),
            (_LD, 0, 0, _NR),
        ]
    return _end(code)


class _Program(ctypes.Structure):
    _fields_ = [("length", ctypes.c_ushort), ("filter", ctypes.c_void_p)]


_libc = ctypes.CDLL(None, use_errno=True)
_libc.prctl.argtypes = [ctypes.c_int, ctypes.c_ulong, ctypes.c_void_p, ctypes.c_ulong, ctypes.c_ulong]
_PR_SET_NO_NEW_PRIVS, _PR_SET_SECCOMP, _MODE_FILTER = 38, 22, 2


def load(code: bytes) -> None:
    """Puts the filter on the calling thread, for good."""
    buffer = ctypes.create_string_buffer(code, len(code))
    program = _Program(len(code) // 8, ctypes.cast(buffer, ctypes.c_void_p))
    if _libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, None, 0, 0):
        raise OSError(ctypes.get_errno(), "PR_SET_NO_NEW_PRIVS: " + os.strerror(ctypes.get_errno()))
    if _libc.prctl(_PR_SET_SECCOMP, _MODE_FILTER, ctypes.addressof(program), 0, 0):
        raise OSError(ctypes.get_errno(), "PR_SET_SECCOMP: " + os.strerror(ctypes.get_errno()))
