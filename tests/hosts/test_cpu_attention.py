"""A token's numbers must not depend on its batch, or fp32's rounding hides real mismatches of the same size."""

import os
import re
import subprocess
import sys
from pathlib import Path

import yaml

import rufus_plugins.recipes.config

TINY = Path(rufus_plugins.recipes.config.__file__).parent / "scale" / "tiny.yaml"


def sharp_model_difference(attention, env):
    result = subprocess.run(
        [sys.executable, Path(__file__).with_name("sharp_model_difference.py"), attention],
        env={key: value for key, value in os.environ.items() if key not in ("MKL_CBWR", "ATEN_CPU_CAPABILITY")} | env,
        capture_output=True,
        text=True,
        timeout=300,
    )
    found = re.search(r"logits (\S+) difference (\S+)", result.stdout)
    assert found, result.stderr[-3000:]
    return float(found[1]), float(found[2])


def test_a_sharp_model_samples_and_trains_with_the_same_probabilities_in_the_tiny_scale():
    config = yaml.safe_load(TINY.read_text())
    attention = config["actor_rollout_ref"]["model"]["override_config"]["attn_implementation"]
    env = config["ray_kwargs"]["ray_init"]["runtime_env"]["env_vars"]
    scale, difference = sharp_model_difference(attention, env)
    assert scale > 10, "the model is not sharp: this test would show nothing"
    assert difference == 0
