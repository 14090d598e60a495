"""The real `verifiers`, in the environment that setup.sh makes (it pins another mcp than ours); elsewhere they skip."""

import pathlib
import sys
from importlib.metadata import PackageNotFoundError, version

import pytest

HERE = pathlib.Path(__file__).parent
try:
    FOUND = version("verifiers")
except PackageNotFoundError:
    FOUND = "none"


def pytest_collection_modifyitems(items):
    if not FOUND.startswith("0.4."):
        skip = pytest.mark.skip(reason=f"needs verifiers 0.4, here is {FOUND}: tests/verifiers_env/setup.sh DIR")
        for item in items:
            if item.path.parent == HERE:
                item.add_marker(skip)


@pytest.fixture(autouse=True)
def taskset(monkeypatch):
    monkeypatch.syspath_prepend(str(HERE))
    yield "counting-taskset"
    sys.modules.pop("counting_taskset", None)
