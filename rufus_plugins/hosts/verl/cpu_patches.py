"""What of verl 0.9.1 does not run on CPU, one function per mend. Each does nothing on other platforms."""

from __future__ import annotations

import functools
import os
from datetime import timedelta
from types import ModuleType


def on_cpu() -> bool:
    """Whether verl's platform in this process is our CPU one."""
    from verl.utils.device import get_device_name

    return get_device_name() == "cpu"


def use_gloo_alone(distributed: ModuleType) -> None:
    """verl 0.9.1 utils/distributed.py:63 and :89 ask torch for the backend "cpu:gloo,cpu:gloo", a ValueError."""
    stock = distributed.initialize_global_process_group
    stock_ray = distributed.initialize_global_process_group_ray

    @functools.wraps(stock)
    def initialize_global_process_group(timeout_second: int = 36000):
        if not on_cpu():
            return stock(timeout_second)
        import torch

        torch.distributed.init_process_group(
            backend="cpu:gloo",
            timeout=timedelta(seconds=timeout_second),
            init_method=os.environ.get("DIST_INIT_METHOD"),
        )
        return tuple(int(os.environ[name]) for name in ("LOCAL_RANK", "RANK", "WORLD_SIZE"))

    @functools.wraps(stock_ray)
    def initialize_global_process_group_ray(timeout_second=None, backend=None):
        return stock_ray(timeout_second, backend or ("cpu:gloo" if on_cpu() else None))

    distributed.initialize_global_process_group = initialize_global_process_group
    distributed.initialize_global_process_group_ray = initialize_global_process_group_ray
