"""`rufus prepare general_agent`: AgentWorldModel's JSONL, whole and broken."""

import json

import pyarrow.parquet as pq
import pytest

from rufus_plugins.errors import ConfigError
from rufus_plugins.recipes.general_agent.prepare import prepare

GOOD = """def verify_task_completion(initial_db_path, final_db_path, final_answer=None):
    import sqlite3
    on = sqlite3.connect(final_db_path).execute("SELECT is_on FROM lamp WHERE id = 1").fetchone()[0]
    return {"result": "complete" if on else "others"}
"""
CONTENT = GOOD.replace("if on", "if not on")


def folder(
    path, verifiers, tasks=None, ddl="CREATE TABLE lamp (id INTEGER PRIMARY KEY, is_on INTEGER)", name="My Lamps!"
):
    path.mkdir()
    tasks = tasks or [f"Turn lamp 1 on, in way {i}." for i in range(len(verifiers))]
    files = {
        "gen_tasks": [{"scenario": name, "tasks": tasks}],
        "gen_db": [{"scenario": "my_lamps", "db_schema": {"tables": [{"name": "lamp", "ddl": ddl, "indexes": []}]}}],
        "gen_sample": [
            {
                "scenario": name,
                "sample_data": {
                    "tables": [{"table_name": "lamp", "insert_statements": ["INSERT INTO lamp VALUES (1, 0)"]}]
                },
            }
        ],
        "gen_envs": [{"scenario": name, "db_path": "x.db", "full_code": "app = None"}],
        "gen_verifier.pure_code": [
            {"scenario": name, "task_idx": i, "task": "", "verification": {"code": code}}
            for i, code in enumerate(verifiers)
            if code is not None
        ],
    }
    for file, lines in files.items():
        (path / f"{file}.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return str(path)


def rows(output, split="train"):
    return pq.read_table(output / f"{split}.parquet").to_pylist()


def test_a_task_becomes_a_row_that_environment_and_reward_read(tmp_path):
    source = folder(tmp_path / "awm", [GOOD])
    assert prepare(source, tmp_path / "o")["kept"] == 1
    row = rows(tmp_path / "o")[0]
    assert row["prompt"] == [{"role": "user", "content": "Turn lamp 1 on, in way 0."}]
    assert json.loads(row["reward_model"]["ground_truth"]) == {"verifier": GOOD}
    assert row["extra_info"]["scenario"] == "my_lamps" and row["extra_info"]["task_idx"] == "0"
    assert row["extra_info"]["worlds"] == source


def test_tasks_that_teach_the_wrong_thing_are_set_aside(tmp_path):
    source = folder(
        tmp_path / "awm", [GOOD, None, CONTENT, "def check(): pass", "def verify_x(:", "def verify_x(a, b):\n    1/0\n"]
    )
    manifest = prepare(source, tmp_path / "o")
    assert manifest["kept"] == 1
    assert manifest["dropped"] == {"no_verifier": 1, "already_done": 1, "bad_verifier": 3}


def test_without_the_check_only_what_can_be_seen_is_set_aside(tmp_path):
    source = folder(tmp_path / "awm", [GOOD, CONTENT])
    assert prepare(source, tmp_path / "o", check="no")["kept"] == 2


def test_a_world_that_cannot_be_made_is_set_aside_as_a_whole(tmp_path):
    source = folder(tmp_path / "awm", [GOOD], ddl="CREATE TABLE lamp (id")
    with pytest.raises(ConfigError, match="bad_world 1"):
        prepare(source, tmp_path / "o")


def test_a_folder_without_the_files_and_options_that_do_not_exist_are_said(tmp_path):
    (tmp_path / "empty").mkdir()
    for source in (str(tmp_path / "empty"), str(tmp_path / "nosuch")):
        with pytest.raises(ConfigError):
            prepare(source, tmp_path / "o")
    with pytest.raises(ConfigError, match="yes or no"):
        prepare("builtin", tmp_path / "o", check="maybe")
    source = folder(tmp_path / "awm", [GOOD])
    (tmp_path / "awm/gen_tasks.jsonl").write_bytes(b"\xff\xfe{")
    with pytest.raises(ConfigError):
        prepare(source, tmp_path / "o")


def test_whole_worlds_are_held_out(tmp_path):
    manifest = prepare("builtin", tmp_path / "o", check="no", heldout_share=0.4)
    held = {r["extra_info"]["scenario"] for r in rows(tmp_path / "o", "heldout")}
    assert held == set(manifest["held_out"]) and held
    assert not held & {r["extra_info"]["scenario"] for r in rows(tmp_path / "o")}
