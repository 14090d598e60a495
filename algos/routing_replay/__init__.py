"""Routing replay: the rollout's experts in the training forward pass. See docs/routing_replay.md."""
