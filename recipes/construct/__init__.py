"""Tasks whose answer is computed before the question is written: filter, select, compute, verbalise (Axion 1.0)."""
