"""The real vLLM on CPU, in the environment that setup.sh makes (`make vllm` runs these in it); elsewhere they skip."""

import contextlib
import pathlib
import subprocess
import sys
from importlib.metadata import PackageNotFoundError, version

import pytest

HERE = pathlib.Path(__file__).parent
try:
    VLLM = version("vllm")
except PackageNotFoundError:
    VLLM = "none"


def pytest_collection_modifyitems(items):
    if not VLLM.endswith("+cpu"):
        skip = pytest.mark.skip(reason=f"needs vLLM for CPU, here is {VLLM}: `make vllm`")
        for item in items:
            if item.path.parent == HERE:
                item.add_marker(skip)


@pytest.fixture(scope="session")
def trained(tmp_path_factory):
    """Folder of a trained model, whose router is not uniform."""
    path = tmp_path_factory.mktemp("trained") / "model"
    subprocess.run([sys.executable, HERE / "trained_tiny.py", path], check=True, timeout=600)
    return path


@pytest.fixture(scope="session", autouse=True)
def shared_memory_given_back():
    """A killed vLLM worker leaves its shared memory behind, 400 MB a training: what is new and nobody's is removed."""
    folder = pathlib.Path("/dev/shm")
    before = set(folder.glob("psm_*"))
    yield
    used = ""
    for maps in pathlib.Path("/proc").glob("[0-9]*/maps"):
        with contextlib.suppress(OSError):
            used += maps.read_text(errors="replace")
    for segment in set(folder.glob("psm_*")) - before:
        if segment.name not in used:
            segment.unlink(missing_ok=True)
