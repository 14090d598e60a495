"""Documents of a family as the index that `environment=search` searches, and as that environment shows them."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path


def shown(document: Mapping[str, str]) -> str:
    """The answer to a search that finds this document alone."""
    return f"1. {document['title']}\ndoc:{document['id']}\n{document['text']}"


def write_index(folder: Path, documents: Sequence[Mapping[str, str]]) -> None:
    from rufus_plugins.recipes.search_agent.corpus import prepare

    lines = "".join(json.dumps(dict(document)) + "\n" for document in documents)
    (folder / "corpus.jsonl").write_text(lines, encoding="utf-8")
    prepare(str(folder / "corpus.jsonl"), folder / "index")


def overrides(folder: Path) -> dict[str, Path]:
    """What verl's command is told of the index in `folder`."""
    return {"rufus.environment.backend_config.path": folder / "index"}
