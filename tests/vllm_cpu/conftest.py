from importlib.metadata import PackageNotFoundError, version

try:
    at_hand = version("vllm").endswith("+cpu")
except PackageNotFoundError:
    at_hand = False
# setup.sh makes the environment of these
collect_ignore = [] if at_hand else ["test_vllm_routes.py", "test_vllm_run.py"]
