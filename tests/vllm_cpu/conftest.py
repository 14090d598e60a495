import pytest

collect_ignore = []
try:
    from importlib.metadata import version

    if not version("vllm").endswith("+cpu"):
        raise ImportError
except ImportError:
    collect_ignore = ["test_vllm_routes.py", "test_vllm_run.py"]  # see setup.sh


def pytest_collection_modifyitems(items):
    for item in items:
        item.add_marker(pytest.mark.slow)
