"""Terminal database states, on real SQLite files; verifiers are written by hand."""

import asyncio
import sqlite3

import pytest

from rufus_plugins.errors import DataError, InfrastructureError
from rufus_plugins.rewards.post_state import PostState
from rufus_plugins.types import Task, Termination, Trajectory

VERIFIER = """
import sqlite3
def verify_task_completion(initial_db_path, final_db_path, final_answer=None):
    old = sqlite3.connect(initial_db_path).execute("SELECT count(*) FROM orders").fetchone()[0]
    rows = sqlite3.connect(final_db_path).execute("SELECT item, count FROM orders").fetchall()
    return {"result": "complete" if len(rows) == old + 1 and ("pen", 3) in rows else "others"}
"""


@pytest.fixture
def states(tmp_path):
    before, after = tmp_path / "before.db", tmp_path / "after.db"
    for path in (before, after):
        with sqlite3.connect(path) as db:
            db.execute("CREATE TABLE orders (id INTEGER PRIMARY KEY, item TEXT, count INTEGER)")
            db.execute("INSERT INTO orders VALUES (1, 'ink', 1), (2, 'cap', 2)")
        db.close()
    return before, after


def change(path, *statements):
    db = sqlite3.connect(path)
    for statement in statements:
        db.execute(statement)
    db.commit()
    db.close()


def score(truth, states, ending=Termination.ANSWERED, **artifacts):
    kept = {"db_before": str(states[0]), "db_after": str(states[1])} | artifacts
    trajectory = Trajectory(
        Task("1", "awm", [], truth),
        messages=[{"role": "assistant", "content": "done"}],
        artifacts={k: v for k, v in kept.items() if v is not None},
        termination=ending,
    )
    return asyncio.run(PostState(timeout_s=10)(trajectory))


def test_the_wanted_state_scores_1_and_the_explanation_shows_the_change(states):
    change(states[1], "INSERT INTO orders VALUES (3, 'pen', 3)", "UPDATE orders SET count = 5 WHERE id = 2")
    found = score({"verifier": VERIFIER}, states)
    assert found.value == 1.0
    assert "+ orders id=3, item='pen', count=3" in found.explanation
    assert "~ orders [id=2] count: 2 -> 5" in found.explanation


def test_another_state_scores_0(states):
    change(states[1], "DELETE FROM orders WHERE id = 1")
    found = score({"verification": {"code": VERIFIER}}, states)
    assert found.value == 0.0 and "- orders id=1" in found.explanation


def test_sql_conditions_must_all_hold_and_see_the_state_before(states):
    change(states[1], "INSERT INTO orders VALUES (3, 'pen', 3)")
    new = {"query": "SELECT item FROM orders WHERE id NOT IN (SELECT id FROM before.orders)", "rows": [["pen"]]}
    count = {"query": "SELECT count(*) FROM orders", "equals": 3}
    exists = {"query": "SELECT EXISTS (SELECT 1 FROM orders WHERE item = 'cap')"}
    assert score({"sql": [new, count, exists]}, states).value == 1.0
    found = score({"sql": [new, {"query": "SELECT count(*) FROM orders", "equals": 2}]}, states)
    assert found.value == 0.0 and "fails: SELECT count(*) FROM orders -> [[3]]" in found.explanation


def test_a_condition_on_a_table_that_the_agent_dropped_fails(states):
    change(states[1], "DROP TABLE orders")
    found = score({"sql": [{"query": "SELECT 1 FROM orders"}]}, states)
    assert found.value == 0.0 and "- table orders" in found.explanation
    gone = {"query": "SELECT count(*) FROM before.orders", "equals": 2}
    assert score({"sql": [gone]}, states).value == 1.0


def test_a_condition_cannot_write(states):
    found = score({"sql": [{"query": "DELETE FROM orders RETURNING 1"}]}, states)
    assert found.value == 0.0


def test_a_verifier_that_only_the_agents_change_breaks_scores_0(states):
    change(states[1], "DROP TABLE orders")
    found = score({"verifier": VERIFIER}, states)
    assert found.value == 0.0 and found.metrics["verifier_failed"]


@pytest.mark.parametrize(
    "source", ["def verify_x(a, b:", "x = 1", "def verify_x(a, b):\n    return 3", "def verify_x(a, b):\n    1/0"]
)
def test_a_verifier_that_can_score_nothing_makes_the_record_unusable(source, states):
    with pytest.raises(DataError, match="verifier"):
        score({"verifier": source}, states)


def test_a_verifier_that_hangs_is_a_fault_of_ours_and_no_0(states):
    with pytest.raises(InfrastructureError, match="without a verdict") as caught:
        trajectory = Trajectory(
            Task("1", "awm", [], {"verifier": "def verify_x(a, b):\n    while True: pass"}),
            artifacts={"db_before": str(states[0]), "db_after": str(states[1])},
        )
        asyncio.run(PostState(timeout_s=1)(trajectory))
    assert caught.value.termination is Termination.REWARD_FAILED


def test_a_verifier_cannot_reach_the_original_files(states):
    source = (
        "import os\ndef verify_x(a, b):\n"
        f"    return {{'result': 'others' if os.path.exists({str(states[0])!r}) else 'complete'}}"
    )
    assert score({"verifier": source}, states).value == 1.0


def test_committed_changes_in_a_write_ahead_log_count(states):
    db = sqlite3.connect(states[1])
    db.execute("PRAGMA journal_mode = WAL")
    db.execute("INSERT INTO orders VALUES (3, 'pen', 3)")
    db.commit()
    assert (states[1].parent / "after.db-wal").stat().st_size > 0
    assert score({"verifier": VERIFIER}, states).value == 1.0
    db.close()


def test_a_lost_environment_or_a_missing_state_is_no_0(states):
    with pytest.raises(InfrastructureError):
        score({"verifier": VERIFIER}, states, Termination.ENVIRONMENT_LOST)
    with pytest.raises(InfrastructureError, match="db_after"):
        score({"verifier": VERIFIER}, states, db_after=None)


@pytest.mark.parametrize("truth", [None, "{", {}, {"sql": []}, {"sql": [{}]}, {"verifier": ""}])
def test_a_record_without_a_verifier_says_what_it_needs(truth, states):
    with pytest.raises(DataError, match="post_state"):
        score(truth, states)
