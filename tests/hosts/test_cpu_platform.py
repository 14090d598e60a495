import os
import socket
import subprocess
import sys

import pytest
import torch
from omegaconf import OmegaConf

from rufus_plugins.hosts.verl import driver
from rufus_plugins.hosts.verl.cpu_platform import PlatformCPU


def python(code, **env):
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        env={k: v for k, v in os.environ.items() if k != "VERL_PLATFORM"} | {"OMP_NUM_THREADS": "1"} | env,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip().splitlines()[-1]


@pytest.fixture
def no_device(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    monkeypatch.delenv("TORCHELASTIC_RUN_ID", raising=False)
    from verl.plugin.platform import PlatformRegistry

    stock = {name: cls for name, cls in PlatformRegistry._platforms.items() if name == "cpu"}
    monkeypatch.setattr(PlatformRegistry, "_platforms", stock)
    return PlatformRegistry


def test_a_gpu_clusters_driver_without_a_gpu_is_not_taken_for_a_cpu_machine(no_device):
    assert not PlatformCPU().is_platform_available(use_smi_check=True)


def test_a_torch_built_for_cpu_and_a_torchrun_process_without_device_are(no_device, monkeypatch):
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "1")
    assert PlatformCPU().is_platform_available()
    monkeypatch.delenv("TORCHELASTIC_RUN_ID")
    monkeypatch.setattr(torch.version, "cuda", None)
    monkeypatch.setattr(torch.version, "hip", None)
    assert PlatformCPU().is_platform_available()


def test_any_other_platform_that_is_there_comes_first(no_device, monkeypatch):
    monkeypatch.setattr(torch.version, "cuda", None)

    class Other(PlatformCPU):
        def is_platform_available(self, use_smi_check=False):
            return True

    no_device._platforms["other"] = Other
    assert not PlatformCPU().is_platform_available()


@pytest.mark.parametrize(
    ("config", "chosen"),
    [
        ({"rufus": {}, "trainer": {"device": "cpu"}}, True),
        ({"rufus": {}, "trainer": {"device": "cuda"}}, False),
        ({"trainer": {"device": "cpu"}}, False),
    ],
)
def test_a_config_of_ours_that_names_the_cpu_makes_it_the_platform(config, chosen):
    assert driver._asks_for_cpu(OmegaConf.create(config)) is chosen


def test_such_a_config_beats_a_detected_accelerator_in_the_driver_and_its_workers():
    code = """
import os
from omegaconf import OmegaConf
from verl.plugin.platform import set_platform, platform_cuda
set_platform(platform_cuda.PlatformCUDA())  # as if detected
from verl.utils.device import auto_set_device, get_device_name
stock = OmegaConf.create({"trainer": {"device": "cpu"}})
auto_set_device(stock)
ours = OmegaConf.create({"rufus": {}, "trainer": {"device": "cpu"}})
auto_set_device(ours)
print(stock.trainer.device, ours.trainer.device, get_device_name(), os.environ["VERL_PLATFORM"])
"""
    assert python(code) == "cuda cpu cpu cpu"


def test_verls_process_groups_come_up_on_gloo():
    code = """
import os, torch
os.environ |= {"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": PORT}
from verl.utils.distributed import destroy_global_process_group, initialize_global_process_group
from verl.utils.distributed import initialize_global_process_group_ray
ranks = initialize_global_process_group(60)
first = torch.distributed.get_backend()
destroy_global_process_group()
initialize_global_process_group_ray(60)
from verl.utils.device import get_device_name
print(ranks, first, torch.distributed.get_backend(), get_device_name())
"""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        code = code.replace("PORT}", f"'{free.getsockname()[1]}'}}")
    assert python(code, VERL_PLATFORM="cpu") == "(0, 0, 1) cpu:gloo cpu:gloo cpu"


def test_memory_is_reported_as_resident_bytes():
    device = PlatformCPU().device_module
    assert 0 < device.memory_allocated() <= device.max_memory_allocated() * 1.1
    free, total = device.mem_get_info()
    assert 0 < free < total


def test_fsdp1_is_refused_with_the_mend():
    code = """
from types import SimpleNamespace
from verl.workers.engine import EngineRegistry
try:
    EngineRegistry.new("language_model", "fsdp", None, SimpleNamespace(strategy="fsdp", router_replay={}), None, None)
except Exception as error:
    print(type(error).__name__, error)
"""
    said = python(code, VERL_PLATFORM="cpu")
    assert said.startswith("ConfigError") and "strategy=fsdp2" in said
