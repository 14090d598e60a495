"""The stage RLHF: prompts of preference pairs, a reward model on the policy's own rollouts."""
