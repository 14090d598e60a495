"""The stage Instruction RL: requests with atomic constraints, all of which are necessary."""
