"""Where chunks are processed: in this process, in a pool of processes, or on Ray Data. The shards are the same."""

from __future__ import annotations

import itertools
import os
import pickle
import sys
import threading
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rufus_plugins.errors import ConfigError, RufusError
from rufus_plugins.recipes.data import writing
from rufus_plugins.recipes.data.records import Chunk
from rufus_plugins.recipes.data.tool import RecordTool

if TYPE_CHECKING:
    from rufus_plugins.recipes.data.run import Job

SMALL = 32 << 20
"""Bytes of input below which starting processes costs more than it saves. Ours."""

RAY_WINDOW = 64
"""Chunks that one Ray Data execution gets (some 256 MiB in the object store). Ours."""


def run_all(job: Job, tool: RecordTool, folder: Path) -> int:
    """Processes the chunks whose shard is missing in `folder`; returns the number of all chunks."""
    bar = _Bar(job)
    with bar:
        missing = bar.missing(folder)
        if job.ray:
            _on_ray(tool, missing, bar)
        elif (workers := _workers(job)) == 1:
            tool.start()
            for chunk, shard in missing:
                writing.write_shard(tool, chunk, shard)
                bar.done(chunk)
        else:
            _in_pool(tool, missing, bar, workers)
    return bar.chunks


def _workers(job: Job) -> int:
    from rufus_plugins.recipes.data.run import cpus

    if job.workers is not None:
        return job.workers
    size = sum(f["bytes"] for f in job.inputs) if job.files else 0
    return cpus() if size >= SMALL else 1


class _Bar:
    """Progress on stderr, if it was asked for and stderr is a terminal."""

    def __init__(self, job: Job):
        self.job, self.chunks, self._progress = job, 0, None
        if job.progress and sys.stderr.isatty():
            from rich.console import Console
            from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

            columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
            self._progress = Progress(*columns, console=Console(stderr=True), transient=True)
            self._task = self._progress.add_task(f"{job.name}: records", total=None)

    def __enter__(self) -> _Bar:
        if self._progress:
            self._progress.start()
        return self

    def __exit__(self, *_: Any) -> None:
        if self._progress:
            self._progress.stop()

    def missing(self, folder: Path) -> Iterator[tuple[Chunk, Path]]:
        for index, chunk in enumerate(self.job.chunks()):
            self.chunks = index + 1
            shard = folder / writing.shard_name(index)
            if writing.marker_of(shard).exists():
                self.done(chunk)
            else:
                yield chunk, shard

    def done(self, chunk: Chunk) -> None:
        if self._progress:
            self._progress.advance(self._task, chunk.size)


def _in_pool(tool: RecordTool, missing: Iterable[tuple[Chunk, Path]], bar: _Bar, workers: int) -> None:
    """At most two chunks per process are in flight, so memory does not depend on the input."""
    import multiprocessing
    from concurrent.futures import FIRST_COMPLETED, ProcessPoolExecutor, wait
    from concurrent.futures.process import BrokenProcessPool

    context = multiprocessing.get_context("spawn")  # a fork would copy the threads' locks of whoever calls us
    with ProcessPoolExecutor(workers, context, _start_worker, (pickle.dumps(tool),)) as pool:
        flying: dict[Any, Chunk] = {}
        try:
            for chunk, shard in missing:
                flying[pool.submit(_work, chunk, shard)] = chunk
                if len(flying) >= 2 * workers:
                    _collect(wait(flying, return_when=FIRST_COMPLETED).done, flying, bar)
            _collect(wait(flying).done, flying, bar)
        except BrokenProcessPool as error:
            raise RufusError(
                "A worker process died, most likely killed for lack of memory. What is done is kept: run the same "
                "command again, perhaps with fewer --workers."
            ) from error
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise


def _collect(finished: Iterable[Any], flying: dict[Any, Chunk], bar: _Bar) -> None:
    for future in finished:
        chunk = flying.pop(future)
        future.result()
        bar.done(chunk)


_tool: RecordTool | None = None
_failure: BaseException | None = None


def _start_worker(pickled: bytes) -> None:
    global _tool, _failure
    import multiprocessing.connection

    parent = multiprocessing.parent_process()
    assert parent is not None

    def leave_with_parent() -> None:  # a killed parent would leave us waiting for work for ever
        multiprocessing.connection.wait([parent.sentinel])
        os._exit(1)

    threading.Thread(target=leave_with_parent, daemon=True).start()
    try:
        _tool = pickle.loads(pickled)
        _tool.start()
    except BaseException as error:  # raised here it would only break the pool; `_work` hands it to whoever waits
        _failure = error


def _work(chunk: Chunk, shard: Path) -> None:
    if _failure is not None:
        raise _failure
    assert _tool is not None
    writing.write_shard(_tool, chunk, shard)


def _on_ray(tool: RecordTool, missing: Iterable[tuple[Chunk, Path]], bar: _Bar) -> None:
    try:
        import ray
        import ray.data
    except ImportError as error:
        raise ConfigError("--ray needs Ray Data: pip install 'ray[data]'") from error
    if not ray.is_initialized():
        ray.init(log_to_driver=False)
    ray.data.DataContext.get_current().enable_progress_bars = False
    pickled = pickle.dumps(tool)
    work = iter(missing)
    while window := list(itertools.islice(work, RAY_WINDOW)):
        rows = [{"chunk": pickle.dumps(chunk), "shard": str(shard.absolute())} for chunk, shard in window]
        data = ray.data.from_items(rows, override_num_blocks=len(rows))
        made = data.map_batches(_on_node, batch_size=1, fn_kwargs={"pickled": pickled}).take_all()
        errors = [pickle.loads(row["error"]) for row in made if row["error"]]
        if errors:
            raise errors[0]
        for chunk, _ in window:
            bar.done(chunk)


def _on_node(batch: dict[str, Any], pickled: bytes) -> dict[str, Any]:
    """One chunk on a Ray worker, which keeps the started tool. An error of ours comes back as itself."""
    global _tool
    errors = []
    try:
        if _tool is None or getattr(_tool, "_pickled", None) != pickled:
            _tool = pickle.loads(pickled)
            _tool.start()
            _tool._pickled = pickled  # type: ignore[attr-defined]
        for chunk, shard in zip(batch["chunk"], batch["shard"], strict=True):
            writing.write_shard(_tool, pickle.loads(bytes(chunk)), Path(str(shard)))
            errors.append(b"")
    except RufusError as error:
        errors = [pickle.dumps(error)] * len(batch["chunk"])
    return {"error": errors}
