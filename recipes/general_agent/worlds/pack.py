"""Writes the worlds' JSONL from their folders: tables.sql, rows.sql, app.py and tasks.py (with judge.py).

python -m rufus_plugins.recipes.general_agent.worlds.pack
"""

from __future__ import annotations

import json
import re
import runpy
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
SCENARIOS = ("shop", "desk", "bank")


def statements(path: Path) -> list[str]:
    return [one.strip() for one in re.split(r";\s*\n", path.read_text() + "\n") if one.strip()]


def tasks_of(scenario: str) -> list[dict[str, Any]]:
    """`task`, `expected`, and optionally `free` and `said`, as judge.py takes them."""
    return runpy.run_path(str(HERE / scenario / "tasks.py"))["TASKS"]


def verifier(task: dict[str, Any]) -> str:
    rest = f"free={task.get('free', [])!r}, said={task.get('said', [])!r}"
    return (
        f"{(HERE / 'judge.py').read_text()}\n\n"
        "def verify_task_completion(initial_db_path, final_db_path, final_answer=None):\n"
        f"    return judge(initial_db_path, final_db_path, final_answer, {task['expected']!r}, {rest})\n"
    )


def records(scenario: str) -> dict[str, list[dict[str, Any]]]:
    """File name -> lines."""
    folder = HERE / scenario
    tables: dict[str, dict[str, Any]] = {}
    for ddl in statements(folder / "tables.sql"):
        table = re.match(r"CREATE TABLE (\w+)", ddl)
        if table:
            tables[table.group(1)] = {"name": table.group(1), "ddl": ddl, "indexes": []}
        else:
            tables[re.match(r"CREATE (?:UNIQUE )?INDEX \w+ ON (\w+)", ddl).group(1)]["indexes"].append(ddl)
    rows: dict[str, list[str]] = {}
    for insert in statements(folder / "rows.sql"):
        rows.setdefault(re.match(r"INSERT INTO (\w+)", insert).group(1), []).append(insert)
    tasks = tasks_of(scenario)
    data = [{"table_name": name, "insert_statements": inserts} for name, inserts in rows.items()]
    code = (folder / "app.py").read_text()
    return {
        "gen_scenario.jsonl": [{"name": scenario, "description": code.split('"""')[1]}],
        "gen_tasks.jsonl": [{"scenario": scenario, "tasks": [task["task"] for task in tasks]}],
        "gen_db.jsonl": [{"scenario": scenario, "db_schema": {"tables": list(tables.values())}}],
        "gen_sample.jsonl": [{"scenario": scenario, "sample_data": {"tables": data}}],
        "gen_envs.jsonl": [{"scenario": scenario, "db_path": f"{scenario}.db", "full_code": code}],
        "gen_verifier.pure_code.jsonl": [
            {"scenario": scenario, "task_idx": i, "task": task["task"], "verification": {"code": verifier(task)}}
            for i, task in enumerate(tasks)
        ],
    }


def packed() -> dict[str, str]:
    """File name -> content."""
    files: dict[str, list[str]] = {}
    for scenario in SCENARIOS:
        for name, lines in records(scenario).items():
            files.setdefault(name, []).extend(json.dumps(line) + "\n" for line in lines)
    return {name: "".join(lines) for name, lines in files.items()}


if __name__ == "__main__":
    for name, content in packed().items():
        (HERE / name).write_text(content)
        print(name, len(content))
