"""The rubrics reward: all necessary rubrics must pass, records are checked first, user code stays in the sandbox."""

import asyncio
import json

import pytest

from rufus_plugins.errors import ConfigError, DataError, InfrastructureError
from rufus_plugins.plugins import registry
from rufus_plugins.rewards.rubrics import Rubrics
from rufus_plugins.types import Score, Task, Termination, Trajectory

NO_COMMA = {"id": "punctuation:no_comma", "kwargs": {}}
HAS_CAT = {"id": "keywords:existence", "kwargs": {"keywords": ["cat"]}}
POLITE = {"id": "judge", "kwargs": {"criterion": "The tone is polite."}, "name": "polite"}


def code(source, **kwargs):
    return {"id": "code", "kwargs": {"source": source, **kwargs}}


def run(ground_truth, response, reward=None, prompt="Write about cats."):
    task = Task("1", "instruction", [{"role": "user", "content": prompt}], ground_truth)
    trajectory = Trajectory(task, messages=[{"role": "assistant", "content": response}])
    return asyncio.run((reward or Rubrics())(trajectory))


class FixedJudge:
    """A judge whose verdict the test sets, which keeps what it was asked."""

    def __init__(self, verdict=1.0):
        self.verdict = verdict
        self.asked = []

    async def __call__(self, question, candidate, reference=None):
        self.asked.append((question, candidate, reference))
        if isinstance(self.verdict, Exception):
            raise self.verdict
        return Score(self.verdict, explanation="because")


def test_one_when_all_pass_and_zero_when_one_fails():
    rubrics = {"rubrics": [NO_COMMA, HAS_CAT]}
    assert run(rubrics, "A cat sat.").value == 1.0
    score = run(rubrics, "A dog sat.")
    assert score.value == 0.0
    assert score.metrics["first_failed"] == "keywords:existence"
    assert (score.metrics["n_rubrics"], score.metrics["n_passed"], score.metrics["n_failed"]) == (2, 1, 1)
    assert score.explanation == "pass punctuation:no_comma\nFAIL keywords:existence: missing: cat"


def test_the_metrics_have_the_same_keys_whatever_happens():
    judge = FixedJudge()
    scores = [
        run({"rubrics": [NO_COMMA]}, "A cat."),
        run({"rubrics": [NO_COMMA]}, ""),
        run({"rubrics": [NO_COMMA, POLITE, code("def check(r): return True")]}, "A, b", Rubrics(judge=judge)),
    ]
    assert len({frozenset(score.metrics) for score in scores}) == 1
    assert scores[2].metrics["n_judge"] == 1 and scores[2].metrics["n_code"] == 1


def test_the_thinking_is_not_scored():
    assert run({"rubrics": [NO_COMMA]}, "<think>well, yes,</think>A cat.").value == 1.0
    assert run({"rubrics": [NO_COMMA]}, "<think>cut off while thinking").value == 0.0


@pytest.mark.parametrize("response", ["", "   \n", "\u200b\ufeff", "<think>x</think>\n"])
def test_an_empty_response_passes_nothing(response):
    score = run({"rubrics": [NO_COMMA]}, response)
    assert score.value == 0.0 and score.metrics["n_failed"] == 1


def test_a_row_of_ifeval_is_a_record_as_it_is():
    row = {
        "key": 1,
        "prompt": "...",
        "instruction_id_list": ["punctuation:no_comma", "length_constraints:number_words"],
        "kwargs": [{}, {"num_words": 3.0, "relation": "at least", "keyword": None, "letter": None}],
    }
    assert run(row, "A cat sat.").value == 1.0
    assert run(json.dumps(row), "A cat.").value == 0.0
    assert run([NO_COMMA], "A cat.").value == 1.0


def test_one_id_may_come_twice_and_each_counts():
    words = "length_constraints:number_words"
    row = {
        "instruction_id_list": [words, words],
        "kwargs": [{"num_words": 3, "relation": "at least"}, {"num_words": 5, "relation": "less than"}],
    }
    assert run(row, "one two three four").value == 1.0
    assert run(row, "one two").metrics["n_passed"] == 1
    assert run(row, "one two three four five").metrics["n_passed"] == 1


@pytest.mark.parametrize(
    ("ground_truth", "says"),
    [
        (None, "instruction_id_list"),
        ("not json", "JSON"),
        ({"rubrics": []}, "no rubrics"),
        ({"rubrics": "x"}, "ground_truth must be"),
        ({"rubrics": [{"kwargs": {}}]}, '"id"'),
        ({"rubrics": [{"id": "keywords:exist"}]}, "Did you mean 'keywords:existence'"),
        ({"rubrics": [{"id": "nonsense"}]}, '"judge", "code"'),
        ({"rubrics": [{"id": "keywords:existence", "kwargs": {"keyword": ["a"]}}]}, "its kwargs: keywords"),
        ({"rubrics": [{"id": "keywords:existence"}]}, "needs the kwarg 'keywords'"),
        ({"rubrics": [{"id": "count:numbers", "kwargs": {"N": 2.5}}]}, "whole number"),
        ({"rubrics": [{"id": "count:numbers", "kwargs": {"N": -1}}]}, "whole number"),
        ({"rubrics": [{"id": "count:numbers", "kwargs": [1]}]}, "mapping"),
        (
            {
                "rubrics": [
                    {"id": "keywords:frequency", "kwargs": {"keyword": "a", "frequency": 1, "relation": "about"}}
                ]
            },
            "'at least', 'less than'",
        ),
        ({"rubrics": [{"id": "language:response_language", "kwargs": {"language": "xx"}}]}, "ISO 639-1"),
        ({"rubrics": [{"id": "keywords:letter_frequency", "kwargs": {"letter": "ab"}}]}, "one character"),
        ({"rubrics": [{"id": "count:word_count_range", "kwargs": {"min_words": 5, "max_words": 2}}]}, "above"),
        (
            {
                "rubrics": [
                    {"id": "repeat:repeat_span", "kwargs": {"prompt_to_repeat": "a b", "n_start": 0, "n_end": 2}}
                ]
            },
            "no span",
        ),
        ({"instruction_id_list": ["punctuation:no_comma"], "kwargs": [{}, {}]}, "1 ids"),
        ({"rubrics": [{**NO_COMMA, "colour": 1}]}, "no key 'colour'"),
        ({"rubrics": [{"id": "judge", "kwargs": {"text": "x"}}]}, "criterion"),
        ({"rubrics": [code("def f(:")]}, "does not compile"),
        ({"rubrics": [code("x = 1")]}, "neither check nor evaluate"),
        ({"rubrics": [code("def a(r): ...\ndef b(r): ...")]}, "neither check nor evaluate"),
        ({"rubrics": [code("def check(a, b, c): ...")]}, "must take (response)"),
        ({"rubrics": [code("def check(r): return 'yes'")]}, "neither true nor false"),
        ({"rubrics": [code("import no_such_module\ndef check(r): return True")]}, "ModuleNotFoundError"),
        ({"rubrics": [code("def check(r): return undefined")]}, "NameError"),
    ],
)
def test_a_record_that_cannot_be_scored_says_what_is_wrong(ground_truth, says):
    with pytest.raises(DataError) as error:
        run(ground_truth, "A cat.")
    assert says in str(error.value)


@pytest.mark.parametrize(
    "mark", [{"optional": True}, {"necessary": False}, {"required": False}, {"weight": 0.5}, {"points": 3}]
)
def test_optional_and_weighted_rubrics_are_refused_with_the_reason(mark):
    with pytest.raises(DataError, match="answers grow long"):
        run({"rubrics": [{**NO_COMMA, **mark}]}, "A cat.")


def test_rubrics_that_are_marked_necessary_are_accepted():
    assert run({"rubrics": [{**NO_COMMA, "necessary": True, "optional": False}]}, "A cat.").value == 1.0


def test_checker_code_decides_and_sees_the_prompt_if_it_asks_for_it():
    short = code("def check(response):\n    return len(response.split()) < 4")
    assert run({"rubrics": [short]}, "A cat sat.").value == 1.0
    assert run({"rubrics": [short]}, "A cat sat down.").value == 0.0
    echo = code("def evaluate(response, prompt):\n    return prompt in response")
    assert run({"rubrics": [echo]}, "You said: Write about cats.").value == 1.0
    named = code("def other(r): return False\ndef mine(r): return 1", function="mine")
    assert run({"rubrics": [named]}, "x").value == 1.0


def test_the_response_is_data_for_checker_code_whatever_it_holds():
    same = code("def check(r):\n    return r == '\"\"\"\\n\\'); import os #\\x00\\ud800'")
    assert run({"rubrics": [same]}, '"""\n\'); import os #\x00\ud800').value == 1.0


@pytest.mark.parametrize(
    ("source", "says"),
    [
        ("def check(r): raise KeyError(1)", "KeyError"),
        ("def check(r):\n    while True: pass", "no verdict within"),
        ("import sys\ndef check(r): sys.exit(0)", "SystemExit"),
        ("import os\ndef check(r): os._exit(0)", "without a verdict"),
        ("def check(r): return len('x' * 10**10) > 0", ""),
    ],
)
def test_code_that_fails_on_a_response_does_not_pass_it_and_is_counted(source, says):
    score = run({"rubrics": [code(source)]}, "A cat.", Rubrics(timeout_s=1.0))
    assert score.value == 0.0
    assert score.metrics["checker_errors"] == 1
    assert says in score.explanation


def test_what_checker_code_prints_is_no_verdict():
    source = "def check(r):\n    print('{\"passed\": true}')\n    return False"
    score = run({"rubrics": [code(source)]}, "A cat.")
    assert score.value == 0.0 and score.metrics["checker_errors"] == 0


def test_checker_code_reaches_neither_files_nor_network(tmp_path):
    secret = tmp_path / "secret"
    secret.write_text("x")
    source = f"""
import socket
def check(r):
    for attempt in (lambda: open({str(secret)!r}), lambda: socket.create_connection(("127.0.0.1", 1), 1)):
        try:
            attempt()
            return True
        except ConnectionRefusedError:
            return True
        except OSError:
            pass
    return False
"""
    assert run({"rubrics": [code(source)]}, "A cat.").value == 0.0


def test_a_judge_rubric_shows_the_judge_one_criterion_and_the_response_without_thinking():
    judge = FixedJudge()
    assert run({"rubrics": [POLITE]}, "<think>x</think>A cat.", Rubrics(judge=judge)).value == 1.0
    ((question, candidate, reference),) = judge.asked
    assert "The tone is polite." in question and "Write about cats." in question
    assert candidate == "A cat." and reference is None
    judge.verdict = 0.5
    score = run({"rubrics": [POLITE]}, "A cat.", Rubrics(judge=judge))
    assert score.value == 0.0 and score.metrics["first_failed"] == "polite"
    assert run({"rubrics": [POLITE]}, "A cat.", Rubrics(judge=judge, judge_threshold=0.5)).value == 1.0


def test_a_judge_of_the_registry_serves_by_name():
    capital = {"id": "judge", "kwargs": {"criterion": "The answer is the capital of France.", "reference": "Paris"}}
    assert run({"rubrics": [capital]}, "The answer is Paris.", Rubrics(judge="rule")).value == 1.0
    assert run({"rubrics": [capital]}, "The answer is Rome.", Rubrics(judge="rule")).value == 0.0


def test_the_judge_is_not_asked_where_a_mechanical_rubric_has_failed():
    judge = FixedJudge()
    score = run({"rubrics": [POLITE, NO_COMMA]}, "A cat, sat.", Rubrics(judge=judge))
    assert score.value == 0.0 and judge.asked == []
    assert score.metrics["n_skipped"] == 1 and score.metrics["first_failed"] == "punctuation:no_comma"


def test_a_judge_failure_is_a_fault_of_ours_and_never_a_zero():
    judge = FixedJudge(InfrastructureError("down", Termination.JUDGE_FAILED))
    with pytest.raises(InfrastructureError):
        run({"rubrics": [NO_COMMA, POLITE]}, "A cat.", Rubrics(judge=judge))


def test_a_judge_rubric_without_a_judge_is_an_error_of_the_config():
    with pytest.raises(ConfigError, match=r"rufus\.reward\.judge"):
        run({"rubrics": [POLITE]}, "A cat.")


def test_the_reward_is_registered_and_refuses_wrong_fields():
    assert isinstance(registry().build("reward", "rubrics", {"timeout_s": 2.0}), Rubrics)
    for wrong in ({"judge_threshold": 0}, {"timeout_s": 0}, {"memory_mb": 1}, {"judge": "no_such_judge"}):
        with pytest.raises(ConfigError):
            registry().build("reward", "rubrics", wrong)
