from importlib.metadata import PackageNotFoundError, version

try:
    at_hand = version("vllm").endswith("+cpu")
except PackageNotFoundError:
    at_hand = False
collect_ignore = [] if at_hand else ["test_vllm_routes.py", "test_vllm_run.py"]  # setup.sh makes their environment
