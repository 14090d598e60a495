"""Hosts: the only code that knows a training framework."""
