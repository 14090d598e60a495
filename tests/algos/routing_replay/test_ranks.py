"""Two ranks, FSDP2 over gloo: own routes replayed give the same logits and gradients, to the last bit."""

import pathlib
import subprocess
import sys

import pytest

SCRIPT = pathlib.Path(__file__).with_name("two_ranks.py")
FAMILIES = ["glm4_moe", "qwen3_moe", "gpt_oss", "deepseek_v3"]


@pytest.mark.timeout(180)
def test_two_ranks_replay_exactly_with_checkpointing_and_two_outstanding_forwards(tmp_path):
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node=2", "--master-addr=127.0.0.1"]
    command += ["--master-port=0", "--rdzv-backend=c10d", "--rdzv-endpoint=127.0.0.1:0", str(SCRIPT), *FAMILIES]
    done = subprocess.run(command, capture_output=True, text=True, timeout=150, cwd=tmp_path)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
    for family in FAMILIES:
        for rank in (0, 1):
            assert f"{family} rank {rank} exact" in done.stdout
