"""A data tool that asks models: all records of a chunk at once, every answer kept on disk, every step in a log."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

from rufus_plugins.errors import RufusError
from rufus_plugins.recipes.audit import AuditLog
from rufus_plugins.recipes.data.records import Raw, Refused
from rufus_plugins.recipes.data.run import Job
from rufus_plugins.recipes.data.tool import RecordTool, SetAside
from rufus_plugins.recipes.teacher import NoAnswer


@dataclass
class ModelTool(RecordTool):
    """Subclasses write `models()` and `one(raw, models, audit)`.

    A server that cannot be reached ends the run; the same command goes on where it stopped, and answers that were given
    already are not asked for again.
    """

    cache_dir: str = field(default="", kw_only=True)
    """Where the models' answers are kept; empty: OUTPUT.cache."""

    chunk_records: ClassVar[int] = 16
    """Asked about at the same time, and what a kill loses (not its answers: those are kept). Ours."""

    def survey(self, job: Job) -> None:
        self.cache_dir_used = self.cache_dir or f"{job.output}.cache"
        self.audit_path = f"{job.output}.audit.jsonl"

    def models(self) -> Mapping[str, Any]:
        """The models by role; made anew for each chunk."""
        raise NotImplementedError

    async def one(self, raw: Raw, models: Mapping[str, Any], audit: AuditLog) -> Mapping[str, Any]:
        """What becomes of one record. Raises `Refused`."""
        raise NotImplementedError

    def batch(self, raws: Sequence[Raw]) -> Iterator[Mapping[str, Any] | SetAside]:
        return iter(asyncio.run(self._all(raws)))

    async def _all(self, raws: Sequence[Raw]) -> list[Mapping[str, Any] | SetAside]:
        models = self.models()
        with AuditLog(self.audit_path) as audit:
            tasks = [asyncio.ensure_future(self._one(raw, models, audit)) for raw in raws]
            try:
                return await asyncio.gather(*tasks)
            finally:
                for task in tasks:
                    task.cancel()
                await asyncio.gather(*tasks, return_exceptions=True)
                for model in models.values():
                    for each in model if isinstance(model, list) else [model]:
                        await each.aclose()

    async def _one(self, raw: Raw, models: Mapping[str, Any], audit: AuditLog) -> Mapping[str, Any] | SetAside:
        try:
            made = await self.one(raw, models, audit)
        except NoAnswer as error:
            audit.write("set_aside", where=raw.where, reason="no_model_answer", detail=str(error))
            return SetAside(raw, "no_model_answer", str(error))
        except Refused as error:
            audit.write("set_aside", where=raw.where, reason=error.reason, detail=str(error))
            return SetAside(raw, error.reason, str(error))
        except (RufusError, MemoryError):
            raise
        except UnicodeEncodeError as error:
            return SetAside(raw, "bad_text", f"half a surrogate pair: {error.reason}")
        except Exception as error:  # as in RecordTool.batch
            audit.write("set_aside", where=raw.where, reason="tool_error", detail=repr(error))
            return SetAside(raw, "tool_error", f"{type(error).__name__}: {error}")
        audit.write("kept", where=raw.where)
        return made
