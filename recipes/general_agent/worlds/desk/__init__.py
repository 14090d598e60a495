"""The sources of the world `desk`: code, tables, rows, tasks. `pack.py` makes the JSONL of them."""
