"""Adds the option groups of rufus-plugins to the command lines of verl; other Hydra programs are left alone.

`hydra_plugins` is Hydra's own namespace package: there must be no `__init__.py` beside this file.
"""

import importlib.util
import os
import sys

from hydra.core.config_search_path import ConfigSearchPath
from hydra.plugins.search_path_plugin import SearchPathPlugin


class RufusSearchPath(SearchPathPlugin):
    def manipulate_search_path(self, search_path: ConfigSearchPath) -> None:
        paths = [element.path for element in search_path.get_path() if element.path]
        if not ({"verl", "rufus_plugins"} & set(sys.modules) or any("verl" in path for path in paths)):
            return
        from rufus_plugins.recipes import config

        config.publish()
        # `--config-path` replaces verl's directory by the user's own, which then could not say
        # `defaults: [ppo_trainer]`. A path and not pkg://verl..., because that would import verl.
        verl = importlib.util.find_spec("verl")
        if verl is not None and verl.submodule_search_locations:
            directory = os.path.join(verl.submodule_search_locations[0], "trainer", "config")
            if f"file://{directory}" not in paths and directory not in paths:
                search_path.append("rufus-verl", f"file://{directory}")
        search_path.append("rufus", "pkg://rufus_plugins.recipes.config")
        search_path.append("rufus-stages", "pkg://rufus_plugins.recipes")
