"""Math answers: pairs worked out by hand, the real cases, poison, and the extraction of the final answer."""

import asyncio
import json
import threading
from pathlib import Path

import pytest

from rufus_plugins.errors import DataError
from rufus_plugins.rewards.final_answer import final_answer
from rufus_plugins.rewards.math_answer import MathAnswer
from rufus_plugins.rewards.math_canonical import canonical, too_large
from rufus_plugins.rewards.math_compare import quick
from rufus_plugins.types import Task, Trajectory

HERE = Path(__file__).parent
PAIRS = [json.loads(line) for line in (HERE / "math_pairs.jsonl").read_text("utf-8").splitlines()]
CASES = [json.loads(line) for line in (HERE / "math_cases.jsonl").read_text("utf-8").splitlines()]


def trajectory(gold, response):
    return Trajectory(Task("1", "math", [], gold), messages=[{"role": "assistant", "content": response}])


def scores(items, **config):
    async def all_of_them():
        reward = MathAnswer(**config)
        return await asyncio.gather(*(reward(trajectory(gold, response)) for gold, response in items))

    return [s.value for s in asyncio.run(all_of_them())]


def test_pairs_whose_equality_was_worked_out_by_hand():
    found = scores([(p["gold"], f"\\boxed{{{p['answer']}}}") for p in PAIRS])
    wrong = [(p["gold"], p["answer"], v) for p, v in zip(PAIRS, found, strict=True) if v != p["correct"]]
    assert len(PAIRS) > 350 and wrong == []


def test_what_is_settled_outside_the_jail_agrees_with_the_pairs():
    settled = [(p["gold"], p["answer"], v) for p in PAIRS if (v := quick(p["gold"], p["answer"])) is not None]
    by_text = {(p["gold"], p["answer"]): p["correct"] for p in PAIRS}
    assert len(settled) > 40 and all(by_text[g, a] == v for g, a, v in settled)


@pytest.mark.timeout(120)
@pytest.mark.parametrize("case", CASES, ids=[c["id"] for c in CASES])
def test_real_cases_of_other_graders(case, tmp_path):
    marker = tmp_path / "executed"
    given, wanted = case["input"], case["expected"]
    if "items" not in given:
        response = given["response"].replace("{MARKER}", str(marker))
        assert scores([(given["gold"], response)]) == [float(wanted["correct"])], case["why"]
        assert not marker.exists()
        return
    found = [None] * len(given["items"])

    def from_a_thread(i, item):
        found[i] = scores([(item["gold"], item["response"])], timeout_s=given.get("per_item_timeout_s", 5))[0]

    threads = [threading.Thread(target=from_a_thread, args=pair) for pair in enumerate(given["items"])]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=300)
    assert found == [float(c) for c in wanted["correct"]], case["why"]


SLOW = r"\int_0^{\infty} \frac{\sin(x^{3})}{x^{7}+\cos(x)} dx"
HUGE = r"((((x+y+z)^{200}+1)^{200}+1)^{200}+\pi)"


def test_a_poisonous_answer_costs_its_own_deadline_and_its_neighbours_nothing():
    right = [(rf"\frac{{\sqrt{{{k}}}}}{{2}}", rf"\boxed{{\sqrt{{{k}}}/2}}") for k in (2, 3, 5, 6, 7, 10, 11, 13)]
    scores(right)  # the worker is loaded
    found = scores([*right[:4], (r"\sqrt{2}", rf"\boxed{{{SLOW}}}"), *right[4:]], timeout_s=2, workers=1)
    assert found == [1, 1, 1, 1, 0, 1, 1, 1, 1]


def test_an_answer_that_eats_memory_is_wrong_and_the_next_one_is_scored():
    found = scores([(r"\sqrt{3}", rf"\boxed{{{HUGE}}}"), (r"\sqrt8", r"\boxed{2\sqrt2}")], timeout_s=3)
    assert found == [0, 1]


def test_towers_of_powers_are_seen_without_computing_them():
    assert too_large(canonical("9**9**9**9")) and too_large(canonical(r"x^{10^{10^{10}}}"))
    assert too_large(canonical(r"\frac{(10^{9})!}{3}")) and too_large(canonical("((2^9)^9)^9^9"))
    assert not too_large(canonical(r"2^{2^{2^2}}")) and not too_large(canonical("100!"))


def test_a_gold_that_cannot_be_compared_is_a_bad_record_and_no_wrong_answer():
    with pytest.raises(DataError, match="itself"):
        scores([(SLOW, r"\boxed{\sqrt{2}}")], timeout_s=1)


def test_a_list_of_golds_accepts_any():
    assert scores([(["5", r"\sqrt{25}+x"], "\\boxed{5}"), (["4", "6"], "\\boxed{5}")]) == [1, 0]


@pytest.mark.parametrize("gold", [None, "", [], [None], {"a": 1}, True])
def test_a_record_without_a_gold_string_says_so(gold):
    with pytest.raises(DataError, match="ground_truth"):
        scores([(gold, "\\boxed{5}")])


@pytest.mark.parametrize(
    "response, answer",
    [
        (r"First \boxed{1}, finally $\boxed{\frac{1}{2}}$.", r"\frac{1}{2}"),
        (r"\boxed{\left\{x : \sqrt{x} < 2\right\}}", r"\left\{x : \sqrt{x} < 2\right\}"),
        (r"\boxed{\{1,2\}}", r"\{1,2\}"),
        (r"\boxed{\boxed{3}}", "3"),
        (r"$\boxed{1}$ and $\boxed{2}$", "1, 2"),
        (r"\boxed{1} is wrong, so it is \boxed{2}", "2"),
        (r"\boxed{7}. I was told to use \boxed{} for it.", "7"),
        (r"The format asks for \boxed at the end. Thus $\boxed{7}$.", "7"),
        (r"\fbox{12}", "12"),
        (r"thus \boxed 7.", "7"),
        (r"\boxed{12} but then \boxed{3 is cut", "12"),
        ("Final Answer: **58**", "58"),
        ("**Final answer: 7**", "7"),
        ("The answer is $12$ cm.", r"12 \text{cm}"),
        ("So the answer is $x=3$ and $x=5$.", "x=3, x=5"),
        ("The answer is 3.14.", "3.14"),
        ("The correct option is B.", "B"),
        ("So the best choice is (C), because the rest is wrong.", "(C)"),
        ("The final answer is: $\\frac{1}{2}$. I hope it is correct.", r"\frac{1}{2}"),
        ("Half is\n#### 42\nand more words", "42"),
        ("<answer>9</answer>", "9"),
        ("<think>\\boxed{1}</think>\\boxed{2}", "2"),
        ("I thought \\boxed{1}</think>So 2.\nAnswer: 2", "2"),
        ("42", "42"),
        ("so\n$$x = 4$$", "x = 4"),
        ("<think>maybe \\boxed{7}?", None),
        ("I think 42 or so, who knows", None),
        ("", None),
        ("\\boxed{}", None),
        ("the answer", None),
    ],
)
def test_the_final_answer_is_what_the_model_committed_to(response, answer):
    assert final_answer(response) == answer


HOSTILE = (
    r"\boxed{ { } <think> answer_is_ answer:_ $ \boxed{1},_ <answer> #### ** \( 1 1_ 1, 1/ ^ , : % [1, \text{a} \text{ "
    r"( ) \frac{1}{2} \frac ^{2} x= = < \cup_ \{ 1e - \pm_ \circ \in _ km_ /m \begin{cases} x_\in_"
).split(" ")
"""Pieces that patterns stumble over when they are repeated; `_` is a blank."""


@pytest.mark.timeout(120)  # an exponential or cubic pattern takes longer than anybody waits
@pytest.mark.parametrize("piece", [p.replace("_", " ") for p in HOSTILE])
def test_what_runs_outside_the_jail_ends_on_hostile_texts(piece):
    found = final_answer(piece * 20_000)
    assert found is None or len(found) <= 10_000
    assert quick("\\sqrt{2}", piece * (4900 // len(piece))) in (None, False)


def test_a_box_that_was_cut_off_is_no_answer():
    assert final_answer("The answer is \\boxed{12") is None
    assert final_answer("The answer is 12. Check: \\boxed{12") == "12"
    assert final_answer("\\boxed{5} so the final answer: $\\boxed{\\frac{1}{2") == "5"
