"""`rufus prepare search_corpus`: documents to the index that `environment=search` searches by default.

A record is `{"id", "title", "text", "url"}`; `text` is needed, or Search-R1's `contents` (title, newline, text).
Without an id it is the record's place in the input. The same input gives the same ranking, on every machine.
"""

from __future__ import annotations

import json
import shutil
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

from rufus_plugins.errors import ConfigError
from rufus_plugins.recipes.data.records import Unreadable, read

HEAP_BYTES = 256 << 20
"""Of the writer; a fuller one is written out as a further segment. Ours."""
MOST_CHARS = 2_000_000
"""Of one document; a longer one is set aside: it is a whole collection in one record. Ours."""


def prepare(input: str, output_dir: Path, *, split: str = "train", subset: str | None = None) -> dict[str, Any]:
    """Writes `index/`, `set_aside.jsonl` and `manifest.json`, all or nothing; returns the manifest.

    Raises `ConfigError` if nothing can be indexed or the folder holds other things.
    """
    try:
        import tantivy
    except ImportError as error:
        raise ConfigError("the search corpus needs tantivy: pip install 'rufus-plugins[gym]'") from error
    from rufus_plugins.rollouts.environments.search_corpus import ANALYSER, FORMAT, MANIFEST, analyser, schema

    output_dir = Path(output_dir)
    if output_dir.exists() and not _ours(output_dir, MANIFEST):
        raise ConfigError(f"{output_dir} exists and holds other things: choose another --output, or remove it.")
    records = read(input, split, subset)
    try:
        output_dir.parent.mkdir(parents=True, exist_ok=True)
        part = Path(tempfile.mkdtemp(prefix=f".{output_dir.name}.", dir=output_dir.parent))
    except OSError as error:
        raise ConfigError(f"{output_dir} cannot be written: {error.strerror}.") from error
    try:
        (part / "index").mkdir()
        index = tantivy.Index(schema(), path=str(part / "index"))
        index.register_tokenizer(ANALYSER, analyser())
        writer = index.writer(HEAP_BYTES, 1)  # one thread: documents keep their order
        dropped: Counter[str] = Counter()
        seen: set[str] = set()
        with (part / "set_aside.jsonl").open("w", encoding="utf-8") as aside:
            for place, item in enumerate(records):
                if isinstance(item, Unreadable):
                    why, detail = item.reason, item.detail
                else:
                    fields = _fields(item.record, place)
                    if isinstance(fields, dict) and fields["id"] not in seen:
                        seen.add(fields["id"])
                        writer.add_document(_document(tantivy, fields))
                        continue
                    why, detail = fields if isinstance(fields, tuple) else ("same_id", f"id {fields['id']!r} again")
                dropped[why] += 1
                aside.write(json.dumps({"where": item.where, "reason": why, "detail": detail}) + "\n")
        if not seen:
            reasons = ", ".join(f"{reason} {count}" for reason, count in dropped.most_common()) or "no records"
            raise ConfigError(f"Nothing to index: no usable document ({reasons}).")
        writer.commit()
        writer.wait_merging_threads()
        manifest = {
            "format": FORMAT,
            "stage": "search_corpus",
            "input": input,
            "records": len(seen) + sum(dropped.values()),
            "kept": len(seen),
            "dropped": dict(sorted(dropped.items())),
            "files": {"index": {"rows": len(seen)}},
            "tantivy": tantivy.__version__,
        }
        (part / MANIFEST).write_text(json.dumps(manifest, indent=2) + "\n", encoding="utf-8")
        part.chmod(0o755)
        if output_dir.exists():
            old = part.with_name(part.name + ".old")
            output_dir.rename(old)
            part.rename(output_dir)
            shutil.rmtree(old)
        else:
            part.rename(output_dir)
        return manifest
    finally:
        shutil.rmtree(part, ignore_errors=True)  # already renamed after success


def _ours(folder: Path, manifest: str) -> bool:
    if not folder.is_dir():
        return False
    return not any(folder.iterdir()) or ((folder / manifest).is_file() and (folder / "index").is_dir())


def _fields(record: dict[str, Any], place: int) -> dict[str, str] | tuple[str, str]:
    """The document's fields as text, or (reason, detail) why it is none."""
    title, text, url, key = (record.get(name) for name in ("title", "text", "url", "id"))
    if text is None and isinstance(record.get("contents"), str):
        head, _, rest = record["contents"].partition("\n")
        title, text = (title or head.strip('"'), rest) if rest.strip() else (title, record["contents"])
    if not isinstance(text, str) or not text.strip():
        return "no_text", f"`text` is {str(text)[:100]!r}"
    if len(text) > MOST_CHARS:
        return "too_long", f"{len(text)} characters; at most {MOST_CHARS} are indexed as one document"
    if isinstance(key, bool) or not isinstance(key, str | int | type(None)):
        return "bad_id", f"`id` is a {type(key).__name__}"
    fields = {"id": str(place) if key in (None, "") else str(key), "title": title, "text": text, "url": url}
    for name in ("title", "url"):
        if not isinstance(fields[name], str | type(None)):
            return "bad_field", f"`{name}` is a {type(fields[name]).__name__}"
    return {name: (value or "").encode("utf-8", "replace").decode("utf-8") for name, value in fields.items()}


def _document(tantivy: Any, fields: dict[str, str]) -> Any:
    from rufus_plugins.rollouts.environments.search_corpus import address_of, prepared

    document = tantivy.Document()
    document.add_text("id", fields["id"])
    if fields["url"]:
        document.add_text("address", address_of(fields["url"]))
    document.add_text("title", prepared(fields["title"]))
    document.add_text("text", prepared(fields["text"]))
    for name, field in (("shown", "title"), ("url", "url"), ("body", "text")):
        document.add_bytes(name, fields[field].encode())
    return document
