"""Hydra groups; found through hydra_plugins."""
