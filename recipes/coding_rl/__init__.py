"""Coding RL: GSPO with the reward `coding_tests`."""
