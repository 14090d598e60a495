"""The sources of the world `shop`: code, tables, rows, tasks. `pack.py` makes the JSONL of them."""
