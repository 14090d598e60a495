"""What happens once, in the process the user started: broken plugins are reported, the config is checked.

verl's entry points (`trainer/main_ppo.py:174-181`, `trainer/sft_trainer.py:464`) call `auto_set_device` and
`validate_config` first, before Ray starts. They run as `__main__`, so these two functions are where we come in.
"""

from __future__ import annotations

import functools
import os
from types import ModuleType
from typing import Any


def wrap_auto_set_device(device: ModuleType) -> None:
    """verl 0.9.1 utils/device.py:153 overrides `trainer.device` by the accelerator it detects."""
    stock = device.auto_set_device

    @functools.wraps(stock)
    def auto_set_device(config: Any) -> None:
        from rufus_plugins.plugins import registry

        registry().warn_once()
        if _asks_for_cpu(config):
            use_cpu()
        return stock(config)

    device.auto_set_device = auto_set_device


def wrap_validate_config(config_module: ModuleType) -> None:
    """verl 0.9.1 utils/config.py `validate_config` is where its own config errors end a run."""
    stock = config_module.validate_config

    @functools.wraps(stock)
    def validate_config(config: Any, *args: Any, **kwargs: Any) -> None:
        from .preflight import preflight

        preflight(config)
        return stock(config, *args, **kwargs)

    config_module.validate_config = validate_config


def _asks_for_cpu(config: Any) -> bool:
    """A config of ours that names the CPU. Stock configs keep verl's own detection."""
    return "rufus" in config and config.trainer.get("device") == "cpu"


def use_cpu() -> None:
    """Makes the CPU platform this process's, and that of the Ray workers it starts."""
    from verl.plugin.platform import get_platform, set_platform

    from .cpu_platform import NAME, PlatformCPU

    os.environ["VERL_PLATFORM"] = NAME
    if get_platform().device_name != NAME:
        set_platform(PlatformCPU())
