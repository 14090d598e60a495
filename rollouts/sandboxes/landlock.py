"""Landlock: which files a process and its children may touch. Runs inside the jail of the fallback backend.

Numbers and layouts: linux/include/uapi/linux/landlock.h (the three syscalls are 444-446 on every architecture).
"""

from __future__ import annotations

import ctypes
import os
import stat
import struct
from collections.abc import Iterable

_libc = ctypes.CDLL(None, use_errno=True)
_EXECUTE, _WRITE_FILE, _READ_FILE, _READ_DIR = 1 << 0, 1 << 1, 1 << 2, 1 << 3
_TRUNCATE, _IOCTL_DEV = 1 << 14, 1 << 15
_ON_FILES = _EXECUTE | _WRITE_FILE | _READ_FILE | _TRUNCATE | _IOCTL_DEV
_BITS = {1: 13, 2: 14, 3: 15, 4: 15, 5: 16}
"""Number of file rights that an ABI version knows."""


def version() -> int:
    """The kernel's Landlock ABI, 0 if it has none."""
    return max(0, _libc.syscall(444, None, ctypes.c_size_t(0), ctypes.c_uint32(1)))


def restrict(read: Iterable[str], write: Iterable[str], devices: Iterable[str] = ()) -> int:
    """From here on only `read` (with exec) and `write` trees and `devices` can be opened. Returns the ABI.

    Raises OSError where the kernel has no Landlock. TCP (ABI 4), abstract sockets and signals (ABI 6) are denied
    where the kernel can; seccomp denies them in any case.
    """
    abi = version()
    if not abi:
        raise OSError(95, "this kernel has no Landlock")
    handled = (1 << _BITS[min(abi, 5)]) - 1
    attributes = struct.pack("=QQQ", handled, 3, 3)[: 8 if abi < 4 else 16 if abi < 6 else 24]
    ruleset = _libc.syscall(444, attributes, ctypes.c_size_t(len(attributes)), ctypes.c_uint32(0))
    if ruleset < 0:
        raise OSError(ctypes.get_errno(), "landlock_create_ruleset: " + os.strerror(ctypes.get_errno()))
    try:
        for path in read:
            _allow(ruleset, path, _EXECUTE | _READ_FILE | _READ_DIR)
        for path in write:
            _allow(ruleset, path, handled & ~_IOCTL_DEV)
        for path in devices:
            _allow(ruleset, path, handled & (_READ_FILE | _WRITE_FILE))
        if _libc.prctl(38, 1, 0, 0, 0) or _libc.syscall(446, ruleset, ctypes.c_uint32(0)):
            raise OSError(ctypes.get_errno(), "landlock_restrict_self: " + os.strerror(ctypes.get_errno()))
    finally:
        os.close(ruleset)
    return abi


def _allow(ruleset: int, path: str, rights: int) -> None:
    try:
        fd = os.open(path, os.O_PATH | os.O_CLOEXEC)
    except FileNotFoundError:
        return
    try:
        if not stat.S_ISDIR(os.fstat(fd).st_mode):
            rights &= _ON_FILES
        rule = struct.pack("=Qi", rights, fd)
        if _libc.syscall(445, ruleset, ctypes.c_int(1), rule, ctypes.c_uint32(0)):
            raise OSError(ctypes.get_errno(), f"landlock_add_rule {path}: " + os.strerror(ctypes.get_errno()))
    finally:
        os.close(fd)
