"""Algorithms: advantages, losses, filters, penalties, routing replay. This module registers the built-in ones."""

from rufus_plugins import hookimpl


@hookimpl
def register_advantage_estimators():
    from rufus_plugins.algos.advantages.group_normalised import group_normalised
    from rufus_plugins.algos.advantages.mean_only import mean_only

    return {"group_normalised": group_normalised, "mean_only": mean_only}


@hookimpl
def register_policy_losses():
    from rufus_plugins.algos.losses.gspo_exact import gspo_exact

    return {"gspo_exact": gspo_exact}


@hookimpl
def register_router_adapters():
    from rufus_plugins.algos.routing_replay.families import built_in_adapters

    return built_in_adapters()
