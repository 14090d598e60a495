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
    for schema in ("main", "before"):
        with pytest.raises(DataError, match="readonly|query_only|attempt to write"):
            score({"sql": [{"query": f"DELETE FROM {schema}.orders RETURNING 1"}]}, states)


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


BOB = {"query": "SELECT count FROM orders WHERE id = 2", "equals": 5}


@pytest.mark.parametrize(
    "statements",
    [
        ["CREATE TABLE g (a INT, b INT GENERATED ALWAYS AS (a * 2))", "INSERT INTO g (a) VALUES (3)"],
        [
            "PRAGMA writable_schema = ON",
            "INSERT INTO sqlite_master VALUES ('table', 'z', 'z', 0, 'CREATE VIRTUAL TABLE z USING nosuch(x)')",
        ],
    ],
)
def test_a_table_that_the_model_made_strange_does_not_keep_the_state_from_being_scored(states, statements):
    change(states[1], "UPDATE orders SET count = 5 WHERE id = 2", *statements)
    found = score({"sql": [BOB]}, states)
    assert found.value == 1.0 and "~ orders [id=2] count: 2 -> 5" in found.explanation


def test_rows_are_compared_as_values_in_any_order(states):
    # 1 and 2 are whole numbers in the database, true is how a condition may be written down
    assert (
        score({"sql": [{"query": "SELECT id, count FROM orders", "rows": [[2, 2.0], [1.0, 1]]}]}, states).value == 1.0
    )
    assert (
        score({"sql": [{"query": "SELECT id, id > 0 FROM orders", "rows": [[1, True], [2, True]]}]}, states).value
        == 1.0
    )
    assert score({"sql": [{"query": "SELECT 1 UNION ALL SELECT 1", "rows": [[1]]}]}, states).value == 0.0
    many = "WITH RECURSIVE c(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM c WHERE n < 1500) SELECT n FROM c"
    assert score({"sql": [{"query": many, "rows": [[n] for n in range(1, 1501)]}]}, states).value == 1.0


def test_nulls_of_parquet_are_absent_keys(states):
    query = "SELECT count(*) FROM orders"
    assert score({"sql": [{"query": query, "equals": 2, "rows": None, "ordered": None}]}, states).value == 1.0
    assert score({"sql": [{"query": query, "rows": [[2]], "equals": None}]}, states).value == 1.0


@pytest.mark.parametrize(
    "condition",
    [
        {"query": "SELEC 1"},
        {"query": "SELECT 1; SELECT 2"},
        {"query": "SELECT 1\0"},
        {"query": "DELETE FROM orders RETURNING 1"},
        {"query": "SELECT nosuch(1)"},
        {"query": "SELECT 1", "rows": 1},
        {"query": "SELECT 1", "rows": [1]},
        {"query": "SELECT 1", "equals": [1]},
        {"query": "SELECT 1", "equal": 1},
    ],
)
def test_a_condition_that_no_database_could_answer_makes_the_record_unusable(condition, states):
    with pytest.raises(DataError):
        score({"sql": [condition]}, states)


def test_a_table_that_nobody_made_yet_fails_the_condition(states):
    assert score({"sql": [{"query": "SELECT count(*) FROM archive", "equals": 1}]}, states).value == 0.0


def test_an_endless_view_in_the_place_of_a_table_does_not_hold(states):
    endless = "CREATE VIEW orders AS WITH RECURSIVE c(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM c) SELECT n id FROM c"
    change(states[1], "DROP TABLE orders", endless)
    trajectory = Trajectory(
        Task("1", "awm", [], {"sql": [{"query": "SELECT count(*) FROM orders"}]}),
        artifacts={"db_before": str(states[0]), "db_after": str(states[1])},
    )
    found = asyncio.run(PostState(timeout_s=2)(trajectory))
    assert found.value == 0.0 and "interrupted" in found.explanation


def test_a_keyword_of_the_verifier_is_left_alone(states):
    source = "def verify_x(initial_db_path, final_db_path, *, strict=False):\n    return not strict"
    assert score({"verifier": source}, states).value == 1.0


def test_a_path_that_is_none_is_a_lost_state(states):
    with pytest.raises(InfrastructureError, match="no path"):
        score({"sql": [BOB]}, states, db_after=5)
