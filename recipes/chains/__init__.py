"""Chains of stages: `rufus run`. A chain is a yaml file here; docs/chains.md says how to write one and what a run
leaves on disk."""
