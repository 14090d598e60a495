"""The sources of the world `bank`: code, tables, rows, tasks. `pack.py` makes the JSONL of them."""
