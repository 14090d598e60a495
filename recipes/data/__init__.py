"""Data tools: `rufus data <tool>`. Each is a dataclass in a file of this folder (how: tool.py, docs/data.md)."""

TOOLS: dict[str, tuple[str, str]] = {
    # name: (module:class, one line for `rufus data --help`)
}
