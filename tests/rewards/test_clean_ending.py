"""`coding_tests` with `require_clean_ending`: the answer ends after its block, or scores 0."""

import asyncio
import json

import pytest

from rufus_plugins import Task, Termination, Trajectory
from rufus_plugins.rewards.code_extract import ends_with_block
from rufus_plugins.rewards.coding_tests import CodingTests

BLOCK = "```python\nprint(int(input()) * 2)\n```"


@pytest.mark.parametrize(
    ("response", "clean"),
    [
        (BLOCK, True),
        (f"Doubling:\n\n{BLOCK}\n \n", True),
        (f"{BLOCK}\n{BLOCK}", True),
        ("~~~py\npass\n~~~~", True),
        (f"{BLOCK} and so", False),
        (f"{BLOCK}\nand so", False),
        (f"{BLOCK}\n```", False),  # opens another block
        (f"{BLOCK}\n```python\nprint(", False),
        ("```python\nprint(1)", False),
        ("```python\nprint(1)\n~~~", False),  # another fence does not close it
        ("````python\nprint(1)\n```", False),  # neither does a shorter one
        ("```", False),
        ("", False),
    ],
)
def test_an_answer_is_clean_when_its_last_line_closes_a_block(response, clean):
    assert ends_with_block(response) is clean


def score(response, termination=Termination.ANSWERED, **config):
    truth = json.dumps({"inputs": ["2", "5"], "outputs": ["4", "10"]})
    task = Task(id="t", data_source="d", prompt=[{"role": "user", "content": "double"}], ground_truth=truth)
    trajectory = Trajectory(task, messages=[{"role": "assistant", "content": response}], termination=termination)
    return asyncio.run(CodingTests(**config)(trajectory))


def test_a_right_program_that_runs_on_scores_0_only_where_a_clean_ending_is_required():
    run_on = f"{BLOCK}\nThe end."
    assert score(BLOCK, require_clean_ending=True).value == 1.0
    refused = score(run_on, require_clean_ending=True)
    assert (refused.value, refused.metrics["reason"], refused.metrics["run_on"]) == (0.0, "unclean_ending", 1)
    accepted = score(run_on)
    assert (accepted.value, accepted.metrics["run_on"]) == (1.0, 1)
    assert score(BLOCK).metrics["run_on"] == 0


def test_an_answer_cut_off_right_after_its_block_did_not_end_by_itself():
    cut_off = score(BLOCK, Termination.RESPONSE_LENGTH, require_clean_ending=True)
    assert (cut_off.value, cut_off.metrics["run_on"]) == (0.0, 0)
    assert score(BLOCK, Termination.RESPONSE_LENGTH).value == 1.0
