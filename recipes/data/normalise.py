"""`rufus data normalise`: chat records of any common shape to the schema that the other tools and SFT read."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from typing import Any

from rufus_plugins.recipes.data.conversations import conversation
from rufus_plugins.recipes.data.records import Raw, Refused
from rufus_plugins.recipes.data.tool import RecordTool


def schema() -> Any:
    """For Parquet: every field of a message is a column, absent ones null."""
    import pyarrow as pa

    text = pa.string()
    function = pa.struct([("name", text), ("arguments", text)])
    call = pa.struct([("id", text), ("type", text), ("function", function)])
    message = pa.struct(
        [
            ("role", text),
            ("content", text),
            ("reasoning_content", text),
            ("tool_calls", pa.list_(call)),
            ("tool_call_id", text),
            ("name", text),
            ("train", pa.bool_()),
        ]
    )
    return pa.schema(
        [
            ("id", text),
            ("data_source", text),
            ("category", text),
            ("messages", pa.list_(message)),
            ("tools", text),
            ("enable_thinking", pa.bool_()),
        ]
    )


@dataclass
class Normalise(RecordTool):
    """Output: id, data_source, category, messages, and where they apply tools (JSON text) and enable_thinking."""

    category: str | None = None
    """The category of all records, for `mixture`; default: each record's field named by --category-field."""
    category_field: str = "category"
    """Field of a record that holds its category."""
    data_source: str | None = None
    """Name of the origin; default: the record's own data_source or source."""

    name = "normalise"
    version = 2
    schema = staticmethod(schema)

    def record(self, raw: Raw) -> dict[str, Any]:
        record = raw.without_nulls()
        messages, tools = conversation(record, self.notes)
        try:
            text = json.dumps(messages, ensure_ascii=False)
            digest = hashlib.sha256(text.encode("utf-8")).hexdigest()[:32]
        except UnicodeEncodeError as error:
            raise Refused("bad_text", f"half a surrogate pair: {error.reason}") from error
        made: dict[str, Any] = {
            "id": _text(record, "id", "uuid", "conversation_id") or digest,
            "data_source": self.data_source or _text(record, "data_source", "source") or "",
            "category": self.category or _text(record, self.category_field) or "",
            "messages": messages,
        }
        if tools:
            made["tools"] = json.dumps(tools, ensure_ascii=False)
        if isinstance(record.get("enable_thinking"), bool):
            made["enable_thinking"] = record["enable_thinking"]
        self.notes["with_reasoning"] += any("reasoning_content" in m for m in messages)
        self.notes["with_tool_calls"] += any("tool_calls" in m for m in messages)
        return made


def _text(record: Any, *keys: str) -> str:
    for key in keys:
        value = record.get(key)
        if isinstance(value, (str, int)) and not isinstance(value, bool) and value != "":
            return str(value)
    return ""
