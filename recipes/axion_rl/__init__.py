"""Axion's RL: asynchronous GRPO over search episodes under context compaction, reward by a chain of targets."""
