"""`make demo`: warm-start a tiny MoE with verl's SFT trainer, then train it by Coding RL with GSPO, on CPU."""
