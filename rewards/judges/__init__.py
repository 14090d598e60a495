"""Judges: one file per judge; registered by `rufus_plugins.rewards`."""
