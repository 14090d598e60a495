"""The stage Coding Agent: Harbor tasks in baked sandboxes."""
