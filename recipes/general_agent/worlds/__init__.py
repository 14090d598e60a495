"""Three small worlds of our own, in AgentWorldModel's JSONL: a shop, a ticket desk, a bank; ten tasks each.

The folders hold what they are written from; `python -m rufus_plugins.recipes.general_agent.worlds.pack` writes it.
"""
