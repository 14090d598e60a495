"""What a tool answered, as text for the model."""

from __future__ import annotations

import json
from typing import Any


def text_of(result: Any) -> str:
    """A `CallToolResult` for the model: its texts, or its structure; what is no text is named."""
    parts = []
    for content in result.content:
        kind = getattr(content, "type", type(content).__name__)
        if kind == "text":
            parts.append(content.text)
        elif kind == "resource" and isinstance(getattr(content.resource, "text", None), str):
            parts.append(content.resource.text)
        elif kind == "resource_link":
            parts.append(f"[link to {content.uri}]")
        else:
            data = getattr(content, "data", None) or getattr(getattr(content, "resource", None), "blob", None) or ""
            size = f", {len(data) * 3 // 4} bytes" if isinstance(data, str) else ""
            media = getattr(content, "mime_type", None) or getattr(getattr(content, "resource", None), "mime_type", "")
            parts.append(f"[{kind} {media or ''}{size}, not shown]".replace(" ,", ","))
    if not any(parts) and result.structured_content is not None:
        parts = [json.dumps(result.structured_content, ensure_ascii=False)]
    return "\n".join(parts)
