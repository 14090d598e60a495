"""Prompts for environments that other projects define."""
