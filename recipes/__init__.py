"""Recipes: Hydra configs, data tools and the stages. This module registers the built-in stages."""

from rufus_plugins import hookimpl


@hookimpl
def register_stages():
    return {}
