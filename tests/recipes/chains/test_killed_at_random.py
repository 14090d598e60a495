"""`rufus run`, killed with -9 at random moments and given again, against a run that nothing disturbed."""

import os
import random
import signal
import time

import pytest

from .conftest import products


def test_an_undisturbed_run_hands_each_checkpoint_to_the_next_stage(kit, whole):
    found = products(whole)
    sft, first, second = (found[name] for name in ("00-sft", "01-first", "02-second"))
    assert [stage["state"] for stage in (sft, first, second)] == ["done"] * 3
    assert first["parent"]["stage"] == "sft" and first["parent"]["digest"] == sft["checkpoint"]["digest"]
    assert second["parent"]["stage"] == "first" and second["parent"]["digest"] == first["checkpoint"]["digest"]
    # losses 1.5, 1.25, 1.125, 1.0625, 1.03125, 1.015625: the fifth is the first within 2 % of the best later one
    assert sft["pick"]["step"] == 5 and "global_step_5" in sft["checkpoint"]["path"]
    assert len([name for name in found if name.startswith("evidence/")]) == 5  # 2 + 2, and the first one's guard
    assert not kit.living()


SEEDS = [*range(3), *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(3, 8))]
"""Three kills each."""


@pytest.mark.parametrize("seed", SEEDS)
def test_a_run_killed_at_random_moments_ends_like_one_that_was_not(kit, whole, seed):
    runs, rng = kit.place / f"killed-{seed}", random.Random(seed)
    for kill in range(3):
        pid, began = kit.start(runs), time.monotonic()
        # the first kill anywhere, the others soon after the run has gone on
        wait = rng.uniform(0, 12 if kill == 0 else 6)
        while time.monotonic() - began < wait and (ended := os.waitpid(pid, os.WNOHANG)) == (0, 0):
            time.sleep(0.005)
        if ended == (0, 0):
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
    assert kit.run(runs) == 0, kit.said[-4000:]
    assert products(runs) == products(whole)
    assert not (kit.place / "overlaps").exists(), (kit.place / "overlaps").read_text()
    assert not kit.living()
