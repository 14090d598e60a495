"""Reasoning RL: GSPO on mathematics, science and puzzles, each with a deterministic reward."""
