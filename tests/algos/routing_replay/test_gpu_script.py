"""bench/gpu_routing_replay.py, which needs a GPU: every line of it runs on a CPU too, with small layers."""

import json
import pathlib
import subprocess
import sys

SCRIPT = pathlib.Path(__file__).parents[3] / "bench" / "gpu_routing_replay.py"


def test_the_gpu_script_runs_dry_and_finds_replay_exact():
    command = [sys.executable, SCRIPT, "--dry", "--layers", "1", "--tokens", "64", "--rounds", "2"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr[-3000:]
    line = json.loads(done.stdout.splitlines()[-1])
    assert line["device"] == "cpu" and line["ok"]
    assert [line["ours"][name] for name in ("logits", "gradients", "checkpointed")] == [0.0, 0.0, 0.0]
