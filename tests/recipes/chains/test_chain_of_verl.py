"""Two stages through verl's real trainers and the real evaluation: what is handed over, measured and kept."""

import json
import os
import subprocess
import sys

import pytest

CHAIN = "name: two\nbase: {tiny: generated}\nstages: [{stage: sft}, {stage: reasoning_rl}]\n"
SHORT = [
    *("sft:trainer.total_training_steps=20", "sft:trainer.save_freq=10", "sft:trainer.test_freq=10"),
    *(
        "trainer.total_training_steps=2",
        "trainer.save_freq=1",
        "rufus.group_filter=null",
        "--items",
        "12",
        "--samples",
        "2",
    ),
]


@pytest.mark.slow
@pytest.mark.e2e
def test_sft_and_a_stage_of_rl_hand_over_a_model_that_is_measured_before_and_after(tmp_path):
    (tmp_path / "two.yaml").write_text(CHAIN)
    command = [sys.executable, "-m", "rufus_plugins.cli", "run", "two.yaml", *SHORT]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}

    def run():
        return subprocess.run(command, capture_output=True, text=True, timeout=900, cwd=tmp_path, env=environment)

    done = run()
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]
    folder = tmp_path / "runs" / "two-tiny-seed0"
    sft, rl = (
        json.loads((folder / "stages" / name / "stage.json").read_text()) for name in ("00-sft", "01-reasoning_rl")
    )
    assert rl["parent"]["digest"] == sft["checkpoint"]["digest"] != rl["checkpoint"]["digest"]
    assert sft["pick"]["step"] in (10, 20) and len(sft["pick"]["losses"]) == 2
    assert rl["steps"] == {"done": 2, "total": 2}
    measured = {path.stem for path in (folder / "evidence").rglob("*.json")}
    assert measured == {sft["checkpoint"]["digest"], rl["checkpoint"]["digest"]}
    steps = [json.loads(line) for line in (folder / "stages" / "01-reasoning_rl" / "metrics" / "0000.jsonl").open()]
    assert all(step["data"]["training/rollout_probs_diff_max"] < 1e-4 for step in steps)  # replayed routes
    assert (folder / "report.html").is_file() and list((folder / "stages" / "01-reasoning_rl" / "samples").iterdir())
    again = run()
    assert again.returncode == 0 and "reasoning_rl: done" in again.stdout, again.stdout[-4000:]
