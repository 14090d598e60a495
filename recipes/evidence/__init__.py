"""Evidence: what a checkpoint does on held-out items under a pinned protocol, and whether two of them differ.

`protocol.py` says what is measured, `measure.py` measures it (`python -m rufus_plugins.recipes.evidence measure`),
`compare.py` compares two measurements under equal protocols. docs/evidence.md has the commands and the format.
"""
