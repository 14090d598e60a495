"""What a forked child of the zygote does: run a program, or call a function of ours for a batch of items.

An entry point gets its part of the request's body, confined already, and returns the exit code. The source that the
items of a request have in common is `shared_source()`. It answers through
`answer`, whose descriptor the program can find as well: what comes back is a claim of whatever ran here, never a fact.
"""

from __future__ import annotations

import atexit
import gc
import importlib
import io
import json
import os
import struct
import sys
import threading
import traceback
import types

_RESULT_FD = 3


def answer(data: bytes) -> None:
    """One frame to the host."""
    view = memoryview(struct.pack("!I", len(data)) + data)
    while len(view):
        view = view[os.write(_RESULT_FD, view) :]


def open_standard_streams() -> None:
    """As a new interpreter would, in UTF-8 whatever the locale. Once per zygote: later only the descriptors move."""
    for name, fd, mode, buffering in (("stdin", 0, "r", -1), ("stdout", 1, "w", -1), ("stderr", 2, "w", 1)):
        stream = open(fd, mode, buffering, encoding="utf-8", errors="surrogateescape", closefd=False)
        setattr(sys, name, stream)
        setattr(sys, f"__{name}__", stream)


_shared: tuple[str, types.CodeType | None] = "", None


def prepare(source: bytes) -> None:
    """Keeps the source that the items of a request share, compiled if it can be; else each run says why it cannot."""
    global _shared
    text = source.decode("utf-8", "surrogatepass")
    try:
        _shared = text, _compiled(text)
    except BaseException:
        _shared = text, None


def shared_source() -> str:
    return _shared[0]


def _compiled(source: str) -> types.CodeType:
    return compile(source, "main.py", "exec", dont_inherit=True)


def run_program(body: bytes) -> int:
    """Runs Python source, the body's or the shared one, as `__main__`, like `python main.py`."""
    code, module = run_source(body.decode("utf-8", "surrogatepass") or shared_source(), "__main__")
    return end(code or 0, module)


def run_source(source: str, name: str) -> tuple[int | None, types.ModuleType]:
    """Executes `source` as module `name`. Returns (exit code, or None if it ran to its last line; the module)."""
    module = types.ModuleType(name)
    module.__file__ = "main.py"
    sys.modules[name] = module
    sys.argv = ["main.py"]
    gc.enable()
    code = None
    known, compiled = _shared
    try:
        exec(compiled if compiled is not None and source == known else _compiled(source), module.__dict__)
    except BaseException as error:
        code = exit_code_of(error)
    return code, module


def exit_code_of(error: BaseException) -> int:
    """What CPython would exit with, and the same text on standard error."""
    if isinstance(error, SystemExit):
        if error.code is None:
            return 0
        if isinstance(error.code, int):
            return error.code & 0xFF
        print(error.code, file=sys.stderr)
        return 1
    try:
        answer(json.dumps({"exception": type(error).__name__}).encode())
        traceback.print_exception(error, limit=-8)
    except BaseException:
        pass
    return 1


def end(code: int, module: types.ModuleType) -> int:
    """What follows a program's last line: threads are waited for, exit functions run, streams are flushed."""
    try:
        threading._shutdown()  # waits for threads that are no daemons
        atexit._run_exitfuncs()
        for value in [*vars(module).values()]:
            if isinstance(value, io.IOBase) and not value.closed:
                value.flush()
        for stream in (sys.stdout, sys.__stdout__, sys.stderr):
            if stream is not None and not stream.closed:
                stream.flush()
    except BaseException as error:
        return code or exit_code_of(error) or 120
    return code


def serve_batch(body: bytes) -> int:
    """Calls a function of ours for each item: `{"function": "module:name", "items": [...]}`, one frame each.

    A frame is `{"value": ...}` or `{"error": type, "message": text}`; values must be JSON.
    """
    request = json.loads(body)
    module, _, name = request["function"].partition(":")
    gc.enable()
    function = getattr(importlib.import_module(module), name)
    for item in request["items"]:
        try:
            frame = json.dumps({"value": function(item)})
        except Exception as error:
            frame = json.dumps({"error": type(error).__name__, "message": str(error)[:2000]})
        answer(frame.encode())
    return 0
