"""verl's platform for a machine without an accelerator: plain torch on CPU, gloo, logical Ray GPUs."""

from __future__ import annotations

import os
import resource
from contextlib import contextmanager
from types import ModuleType

import torch
from verl.plugin.platform import PlatformBase, PlatformRegistry

NAME = "cpu"


def register(module: ModuleType) -> None:
    PlatformRegistry.register(platform=NAME)(PlatformCPU)


class _CpuDevice(ModuleType):
    """The part of `torch.cuda`'s interface that verl calls, for CPU."""

    def is_available(self) -> bool:
        return False  # verl asks this before it queries accelerator memory

    def device_count(self) -> int:
        return 1

    def current_device(self) -> str:
        return "cpu"

    def set_device(self, device) -> None: ...
    def empty_cache(self) -> None: ...
    def ipc_collect(self) -> None: ...
    def synchronize(self, device=None) -> None: ...
    def set_per_process_memory_fraction(self, fraction, device=None) -> None: ...

    def get_device_name(self, device=None) -> str:
        return "CPU"

    def current_stream(self, device=None):
        return torch.cpu.current_stream()

    def stream(self, stream):
        return torch.cpu.stream(stream)

    def get_rng_state(self, device=None) -> torch.Tensor:
        return torch.get_rng_state()

    def set_rng_state(self, state: torch.Tensor, device=None) -> None:
        torch.set_rng_state(state)

    def memory_allocated(self, device=None) -> int:
        """Resident bytes of this process."""
        with open("/proc/self/statm") as statm:
            return int(statm.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")

    def max_memory_allocated(self, device=None) -> int:
        """Peak resident bytes of this process."""
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024

    memory_reserved = memory_allocated
    max_memory_reserved = max_memory_allocated

    def mem_get_info(self, device=None) -> tuple[int, int]:
        page = os.sysconf("SC_PAGE_SIZE")
        return os.sysconf("SC_AVPHYS_PAGES") * page, os.sysconf("SC_PHYS_PAGES") * page


_device = _CpuDevice("rufus_plugins.hosts.verl.cpu_device")


class PlatformCPU(PlatformBase):
    """Chosen by `VERL_PLATFORM=cpu`, by a config of ours with `trainer.device=cpu`, or when nothing else can be."""

    device_name = NAME
    vendor_name = NAME
    device_module = _device

    def is_available(self) -> bool:
        return True

    def is_platform_available(self, use_smi_check: bool = False) -> bool:
        """True only where no accelerator can be meant.

        A driver without a GPU in a GPU cluster must keep verl's own answer. So: a torch built for CPU, or a
        torchrun process (it computes itself) that sees no device; and no other registered platform.
        """
        built_for_cpu = torch.version.cuda is None and torch.version.hip is None
        computes_itself = "TORCHELASTIC_RUN_ID" in os.environ and not torch.cuda.is_available()
        if not (built_for_cpu or computes_itself):
            return False
        others = (PlatformRegistry.get(name) for name in PlatformRegistry.registered_names() if name != NAME)
        return not any(_available(platform, use_smi_check) for platform in others)

    def current_device(self) -> str:  # verl passes it to Tensor.to()
        return "cpu"

    def device_count(self) -> int:
        return 1

    def set_device(self, device_index: int) -> None: ...
    def synchronize(self, device_index: int | None = None) -> None: ...
    def set_allocator_settings(self, settings: str) -> None: ...
    def empty_cache(self) -> None: ...
    def profiler_start(self) -> None: ...
    def profiler_stop(self) -> None: ...

    def manual_seed(self, seed: int) -> None:
        torch.manual_seed(seed)

    manual_seed_all = manual_seed

    def get_device_capability(self, device_index: int = 0) -> tuple[None, None]:
        return None, None

    def communication_backend_name(self) -> str:
        return "gloo"

    def visible_devices_envvar(self) -> str:
        return "CUDA_VISIBLE_DEVICES"

    @contextmanager
    def nvtx_range(self, msg: str):
        yield

    def ray_resource_name(self) -> str:
        return "GPU"  # single_controller/ray/base.py:230 counts GPU and NPU only: `ray_init.num_gpus` are logical

    def ray_noset_envvars(self) -> list[str]:
        return []

    def is_ipc_supported(self) -> bool:
        return False

    def cudart(self) -> None:
        return None


def _available(platform: type[PlatformBase], use_smi_check: bool) -> bool:
    try:
        return bool(platform().is_platform_available(use_smi_check=use_smi_check))
    except Exception:  # as verl's own detection does: a probe that fails is an absent device
        return False
