"""Filter, select, compute, verbalise: answers checked by a second implementation, and tables that mean harm."""

import csv
import json
import math
import random
import re
import sqlite3
from collections import Counter

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from rufus_plugins.errors import ConfigError
from rufus_plugins.recipes.construct import built_in, draw, quantities, verbalise
from rufus_plugins.recipes.construct.build import Construct
from rufus_plugins.recipes.construct.spec import Solved, Unfit, read, solve
from rufus_plugins.recipes.construct.tables import open_tables
from rufus_plugins.rewards.progress_chain import ProgressChain, targets_of


@pytest.fixture(scope="module")
def tables():
    return open_tables()


@pytest.fixture(scope="module")
def tasks(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tasks")
    manifest = Construct(folder / "out").run()
    return manifest, [json.loads(line) for line in (folder / "out.tasks.jsonl").read_text().splitlines()], folder


COMPARE = {
    "=": lambda a, b: a == b, "!=": lambda a, b: a != b, "<": lambda a, b: a < b, "<=": lambda a, b: a <= b,
    ">": lambda a, b: a > b, ">=": lambda a, b: a >= b,
}  # fmt: skip


def by_hand(table, construction):
    """The answer's row, without SQL."""
    rows = [
        row
        for row in table.rows
        if all(row[f["column"]] is not None and COMPARE[f["op"]](row[f["column"]], f["value"]) for f in
               construction["filters"])
        and row[construction["select"]["column"]] is not None
    ]  # fmt: skip
    best = max if construction["select"]["extreme"] == "max" else min
    return best(rows, key=lambda row: row[construction["select"]["column"]]), rows


FORMULAS = {
    # SI by hand: value in the formula's first unit
    "density/g/cm^3": lambda r: r["mass"] / (4 / 3 * math.pi * (r["radius"] * 1e3) ** 3) / 1e3,
    "density/kg/m^3": lambda r: r["mass"] / (4 / 3 * math.pi * (r["radius"] * 1e3) ** 3),
    "gravity/m/s^2": lambda r: 6.6743e-11 * r["mass"] / (r["radius"] * 1e3) ** 2,
    "escape/km/s": lambda r: math.sqrt(2 * 6.6743e-11 * r["mass"] / (r["radius"] * 1e3)) / 1e3,
    "escape/m/s": lambda r: math.sqrt(2 * 6.6743e-11 * r["mass"] / (r["radius"] * 1e3)),
    "area/km^2": lambda r: 4 * math.pi * r["radius"] ** 2,
    "molar_volume/cm^3/mol": lambda r: r["molar_mass"] / r["density"],
    "liquid_range/K": lambda r: r["boiling"] - r["melting"],
    "cube/kg": lambda r: r["density"] * 8000 / 1000,
    "amount/mol": lambda r: 1000 / r["molar_mass"],
    "burn/kg/km": lambda r: r["fuel"] * 1000 / r["distance"],
    "rate/USD/t": lambda r: r["freight"] / r["tonnes"],
}


def second(construction, row):
    key = f"{construction['compute']['formula']}/{construction['compute']['unit']}"
    if construction["compute"]["formula"] == "speed":
        if "axis" in row:
            return 2 * math.pi * row["axis"] / (row["period"] * 86400)
        return row["distance"] / row["duration"] / (1 if construction["compute"]["unit"] == "km/h" else 3.6)
    return FORMULAS[key](row)


def test_two_hundred_tasks_are_built_and_every_answer_is_that_of_a_second_implementation(tasks, tables):
    manifest, made, _ = tasks
    assert manifest["kept"] == len(made) == 200 and manifest["dropped"] == {}
    assert Counter(t["construction"]["table"] for t in made).keys() == {"bodies", "elements", "voyages"}
    for task in made:
        table = tables.tables[task["construction"]["table"]]
        row, rows = by_hand(table, task["construction"])
        assert str(row[table.entity]) == task["entity"] and len(rows) == task["candidates"]
        value = second(task["construction"], row)
        assert math.isclose(float(task["answer"].split()[0]), value, rel_tol=1e-3), task
        unit = task["construction"]["compute"]["unit"]
        assert task["answer"].endswith(f" {unit}") and f" {unit}" in task["question"]


def test_every_written_construction_can_be_read_and_run_again(tasks, tables):
    for task in tasks[1]:
        again = solve(read(task["construction"], tables), tables)
        assert again.spec.as_json() == task["construction"] and list(again.targets) == task["targets"]


def test_the_margin_is_kept_and_each_filter_is_needed(tasks, tables):
    for task in tasks[1]:
        construction = task["construction"]
        table = tables.tables[construction["table"]]
        row, rows = by_hand(table, construction)
        column = construction["select"]["column"]
        others = [r[column] for r in rows if r is not row]
        nearest = min(abs(row[column] - v) / max(abs(row[column]), abs(v)) for v in others)
        assert nearest >= 0.05
        for at in range(len(construction["filters"])):
            fewer = construction["filters"][:at] + construction["filters"][at + 1 :]
            assert by_hand(table, construction | {"filters": fewer})[0] is not row


def test_no_question_names_its_entity_or_holds_a_target(tasks):
    for task in tasks[1]:
        assert not re.search(rf"\b{re.escape(task['entity'])}\b", task["question"], re.I)
        for f in task["construction"]["filters"]:
            value = f["value"] if isinstance(f["value"], str) else f"{f['value']:.12g}"
            assert value in task["question"]
    assert len({task["question"] for task in tasks[1]}) == 200


def test_the_reward_pays_for_the_chain_in_order(tasks):
    import asyncio

    from rufus_plugins.types import Task, Termination, Trajectory

    _, _, folder = tasks
    rows = pq.read_table(folder / "out/train.parquet").to_pylist()
    reward = ProgressChain()

    def score(truth, said, ending=Termination.ANSWERED):
        messages = [{"role": "assistant", "content": said}]
        task = Task("", "", (), truth)
        return asyncio.run(reward(Trajectory(task, messages=messages, termination=ending))).value

    for row in rows[:20]:
        truth = row["reward_model"]["ground_truth"]
        targets = json.loads(truth)["targets"]
        assert [t.name for t in targets_of(json.loads(truth))][-1] == "answer"
        assert score(truth, f"Answer: {json.loads(truth)['answer']}") == 1.0
        first = f"I found {targets[0]['value']:.10g} {targets[0]['unit']}. Answer: 123456789 lb"
        expected = 0.3 / len(targets)
        passed = sum(1 for t in targets if f"{t['value']:.10g} {t['unit']}" in first)
        assert passed == 1 and score(truth, first) == pytest.approx(expected, abs=0.3)
        assert score(truth, "", Termination.MAX_TURNS) == 0.0


def test_the_construction_database_is_blocked_for_the_solver(tasks):
    from rufus_plugins.rollouts.environments.search_blocklist import of_task

    row = pq.read_table(tasks[2] / "out/train.parquet").to_pylist()[0]
    blocked = of_task(row["extra_info"]["blocked"])
    assert blocked.blocks("https://en.wikipedia.org/wiki/List_of_chemical_elements")
    assert not blocked.blocks("https://en.wikipedia.org/wiki/Gold")


def test_the_same_seed_gives_the_same_tasks(tmp_path):
    for name in ("a", "b"):
        Construct(tmp_path / name, count=12, seed=3).run()
    assert (tmp_path / "a.tasks.jsonl").read_bytes() == (tmp_path / "b.tasks.jsonl").read_bytes()
    assert (tmp_path / "a/train.parquet").read_bytes() == (tmp_path / "b/train.parquet").read_bytes()


def test_facts_are_consistent_with_each_other():
    bodies = {r[0]: r for r in built_in.rows("bodies.txt", 3)}
    # Kepler's third law ties period, axis and the mass of the parent together, within the accuracy of published values
    masses = {name: row[4] for name, row in bodies.items()} | {"the Sun": 1.98847e30}
    for name, row in bodies.items():
        total = masses[row[2]] + (row[4] or 0.0)
        period = 2 * math.pi * math.sqrt((row[5] * 1e3) ** 3 / (6.6743e-11 * total)) / 86400
        assert math.isclose(period, row[6], rel_tol=0.02), (name, period, row[6])
        if row[4]:
            density = row[4] / (4 / 3 * math.pi * (row[3] * 1e3) ** 3)
            assert 400 < density < 8000, (name, density)
    elements = built_in.rows("elements.txt", 2, 9)
    numbers = [r[2] for r in elements]
    assert numbers == sorted(set(numbers))
    for row in elements:
        assert 1 <= row[4] <= 7 and 1 <= row[5] <= 18 and 1.0 < row[3] / row[2] < 2.7
        assert row[7] is None or row[8] is None or row[7] < row[8]


# Tables of a user, and what can be wrong with them


def described(folder, rows, columns=None, formulas=None, kind="parquet", **more):
    """A table set over one file."""
    import yaml

    names = list(rows[0])
    if kind == "parquet":
        pq.write_table(pa.table({n: [r[n] for r in rows] for n in names}), folder / "t.parquet")
    elif kind == "csv":
        with (folder / "t.csv").open("w", newline="") as file:
            writer = csv.DictWriter(file, names)
            writer.writeheader()
            writer.writerows(rows)
    entry = {
        "entity": "name",
        "noun": ["thing", "things"],
        "file": f"t.{kind}",
        "columns": columns or {"size": {"words": "size", "unit": "m"}, "kind": {"words": "kind"}},
        "formulas": formulas or {"double": {"words": "double size", "of": "2 * size", "units": ["m", "cm"]}},
        **more,
    }
    (folder / "t.yaml").write_text(yaml.safe_dump({"tables": {"t": entry}}))
    return str(folder / "t.yaml")


def spec(tables, filters=(), column="size", extreme="max", formula="double", unit="m"):
    return read(
        {
            "table": "t",
            "filters": [{"column": c, "op": o, "value": v} for c, o, v in filters],
            "select": {"column": column, "extreme": extreme},
            "compute": {"formula": formula, "unit": unit},
        },
        tables,
    )


def things(*sizes, kind="k"):
    return [{"name": f"n{i}", "size": s, "kind": kind} for i, s in enumerate(sizes)]


@pytest.mark.parametrize(
    ("rows", "reason"),
    [
        (things(9.0, 9.0, 3.0), "tie"),
        (things(9.0, 8.9, 3.0), "small_margin"),
        (things(9.0, 3.0), "few_candidates"),
        (things(9.0, None, 3.0, 1.0), "missing_value"),
        (things(9.0, float("nan"), 3.0, 1.0), "missing_value"),
        (things(9.0, float("inf"), 3.0, 1.0), "missing_value"),
        ([*things(9.0, 5.0, 3.0), {"name": "n0", "size": 1.0, "kind": "k"}], "entity_not_unique"),
        (things(0.0, -5.0, -9.0), "impossible"),
    ],
)
def test_hostile_values_are_no_tasks(tmp_path, rows, reason):
    tables = open_tables(described(tmp_path, rows))
    with pytest.raises(Unfit) as error:
        solve(spec(tables), tables)
    assert error.value.reason == reason


def test_an_idle_filter_and_a_near_threshold_are_no_tasks(tmp_path):
    tables = open_tables(described(tmp_path, things(9.25, 5.0, 3.0, 1.0)))
    for filters, reason in (
        ([("kind", "=", "k")], "idle_filter"),
        ([("size", "<", 9.26)], "near_threshold"),
        ([("kind", "=", "x")], "no_candidates"),
    ):
        with pytest.raises(Unfit) as error:
            solve(spec(tables, filters), tables)
        assert error.value.reason == reason
    assert solve(spec(tables, [("size", "<", 6.0)]), tables).answer == 10.0


def test_quotes_and_sql_in_names_and_values_are_plain_data(tmp_path):
    evil = "x'; DROP TABLE t; --"
    rows = [{"name": 'Rob"ert', 'si"ze': 9.0, "kind": evil}, {"name": "b", 'si"ze': 5.0, "kind": evil}]
    rows += [{"name": "c", 'si"ze': 3.0, "kind": evil}, {"name": "d", 'si"ze': 20.0, "kind": "other"}]
    columns = {'si"ze': {"words": "size", "unit": "m"}, "kind": {"words": "kind"}}
    formulas = {"area": {"words": "area", "of": "4 * m", "units": ["m"]}}
    with pytest.raises(ConfigError, match="at least one column"):
        open_tables(described(tmp_path, rows, columns, formulas))
    rows = [{**r, "w": r['si"ze']} for r in rows]
    columns["w"] = {"words": "width", "unit": "m"}
    formulas = {"double": {"words": "double width", "of": "2 * w", "units": ["m"]}}
    tables = open_tables(described(tmp_path, rows, columns, formulas))
    solved = solve(spec(tables, [("kind", "=", evil)], column='si"ze'), tables)
    assert solved.entity == 'Rob"ert' and solved.answer == 18.0
    text = verbalise.template(solved, tables.tables["t"], random.Random(0))
    verbalise.check(text, solved, tables.tables["t"])


@pytest.mark.parametrize("kind", ["csv", "sqlite", "duckdb"])
def test_other_containers_give_the_same(tmp_path, kind):
    import duckdb
    import yaml

    rows = things(9.0, 5.0, 3.0, 20.0)
    rows[3]["kind"] = "other"
    if kind == "csv":
        path = described(tmp_path, rows, kind="csv")
    else:
        path = described(tmp_path, rows)
        raw = yaml.safe_load((tmp_path / "t.yaml").read_text())
        del raw["tables"]["t"]["file"]
        raw["database"] = f"t.{kind}"
        (tmp_path / "t.yaml").write_text(yaml.safe_dump(raw))
        connect = sqlite3.connect if kind == "sqlite" else duckdb.connect
        with connect(str(tmp_path / f"t.{kind}")) as database:
            database.execute("CREATE TABLE t (name TEXT, size DOUBLE, kind TEXT)")
            database.executemany("INSERT INTO t VALUES (?, ?, ?)", [tuple(r.values()) for r in rows])
        database.close()
    tables = open_tables(path)
    assert solve(spec(tables, [("kind", "=", "k")], unit="cm"), tables).answer == 1800.0


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"formulas": {"x": {"words": "x", "of": "size + 3 * kg", "units": ["m"]}}}, "does not fit its units"),
        ({"formulas": {"x": {"words": "x", "of": "size", "units": ["kg"]}}}, "does not fit its units"),
        ({"formulas": {"x": {"words": "x", "of": "size * nosuch", "units": ["m"]}}}, "unknown to Pint"),
        ({"formulas": {"x": {"words": "x", "of": "__import__('os').getcwd()", "units": ["m"]}}}, "no place in a"),
        ({"formulas": {"x": {"words": "x", "of": "size ** 9999", "units": ["m"]}}}, "power"),
        ({"formulas": {"x": {"words": "x", "of": "size +", "units": ["m"]}}}, "no formula"),
        ({"formulas": {"x": {"words": "x", "of": "kind * 2", "units": ["m"]}}}, "is no number"),
        ({"columns": {"nosuch": {"words": "x", "unit": "m"}}, "formulas": {}}, "nosuch"),
        ({"columns": {"size": {"words": "x", "unit": "blorps"}}, "formulas": {}}, "unknown to Pint"),
        ({"columns": {"size": {"word": "x"}}, "formulas": {}}, "described wrongly"),
        ({"file": "nosuch.parquet"}, "no file"),
        ({"noun": "thing"}, "needs `entity`"),
        ({"query": "SELECT nonsense FROM nowhere"}, "cannot be read"),
    ],
)
def test_a_wrong_description_says_what_is_wrong(tmp_path, change, message):
    with pytest.raises(ConfigError, match=message):
        open_tables(described(tmp_path, things(9.0, 5.0, 3.0), **change))


@pytest.mark.parametrize("content", [b"", b"tables: [", b"tables: {}", b"\xff\xfe\x00", b"- 1"])
def test_a_broken_description_is_said(tmp_path, content):
    (tmp_path / "t.yaml").write_bytes(content)
    with pytest.raises(ConfigError):
        open_tables(tmp_path / "t.yaml")


def test_a_cut_off_file_is_said(tmp_path):
    path = described(tmp_path, things(9.0, 5.0, 3.0))
    data = (tmp_path / "t.parquet").read_bytes()
    (tmp_path / "t.parquet").write_bytes(data[: len(data) // 2])
    with pytest.raises(ConfigError, match="cannot be read"):
        open_tables(path)


def test_tables_that_give_no_task_say_why(tmp_path):
    with pytest.raises(ConfigError, match="few_candidates|no_candidates|tie"):
        Construct(tmp_path / "o", tables=described(tmp_path, things(1.0, 1.0))).run()


def test_temperatures_convert_with_their_zero(tmp_path):
    rows = things(300.0, 250.0, 200.0)
    path = described(
        tmp_path, rows, {"size": {"words": "temperature", "unit": "K"}},
        {"double": {"words": "temperature in another unit", "of": "1 * size", "units": ["degC"]}},
    )  # fmt: skip
    tables = open_tables(path)
    assert solve(spec(tables, unit="degC"), tables).answer == pytest.approx(26.85)


# Wordings


@pytest.fixture
def moon(tables):
    construction = {
        "table": "bodies",
        "filters": [{"column": "parent", "op": "=", "value": "Saturn"}, {"column": "period", "op": "<", "value": 10.0}],
        "select": {"column": "mass", "extreme": "max"},
        "compute": {"formula": "density", "unit": "g/cm^3"},
    }
    return solve(read(construction, tables), tables), tables.tables["bodies"]


GOOD = (
    "Think of everything that orbits Saturn with an orbital period below 10 d. Which mean density, in g/cm^3, does the "
    "one with the greatest mass have, taken as a sphere?"
)


def test_a_free_wording_that_keeps_everything_passes(moon):
    assert moon[0].entity == "Rhea"
    verbalise.check(GOOD, *moon)
    verbalise.check(GOOD.replace("g/cm^3", "g/cm³").replace("10 d", "10 days"), *moon)


@pytest.mark.parametrize(
    ("old", "new", "reason"),
    [
        ("Saturn", "a giant planet", "lost"),
        ("below 10 d", "that is short", "lost"),
        ("below 10 d", "of 10 d", "lost"),
        ("10 d", "12 d", "lost"),
        ("greatest mass", "mass", "lost"),
        ("greatest", "smallest", "lost"),
        ("g/cm^3", "the usual unit", "lost"),
        ("mean density", "volume", "lost"),
        ("orbital period", "day", "lost"),
        ("Saturn", "Saturn, like Rhea,", "entity_leak"),
        ("Saturn", "Saturn (Rhea's neighbours)", "entity_leak"),
        ("Saturn", "Saturn, ＲＨＥＡ,", "entity_leak"),
        ("everything", "the 7 moons", "invented"),
        ("sphere?", "sphere of 763.8 km?", "invented"),
        ("sphere?", "sphere of about 1.236 g/cm^3?", "invented"),
    ],
)
def test_a_wording_that_loses_or_gives_away_something_is_refused(moon, old, new, reason):
    with pytest.raises(Unfit) as error:
        verbalise.check(GOOD.replace(old, new), *moon)
    assert error.value.reason == reason


def test_a_symbol_leaks_and_the_same_letters_in_a_word_do_not(tables):
    construction = {
        "table": "elements",
        "filters": [{"column": "column", "op": "=", "value": 13.0}, {"column": "row", "op": "=", "value": 5.0}],
        "select": {"column": "density", "extreme": "max"},
        "compute": {"formula": "amount", "unit": "mol"},
    }
    table = tables.tables["elements"]
    indium = next(row for row in table.rows if row["name"] == "Indium")
    solved = Solved(read(construction, tables), "Indium", indium, "", 1.0, 3, 8.71, ())
    text = (
        "Which chemical element in group 13 and period 5 of the periodic table has the highest density? Give the "
        "amount of substance in 1 kg of it in mol."
    )
    verbalise.check(text, solved, table)
    with pytest.raises(Unfit, match="names In"):
        verbalise.check(text.replace("Which", "Not In, which"), solved, table)


def test_a_model_rewords_what_it_can_and_the_rest_stays_plain(tmp_path, serve):
    def rule(body):
        question = body["messages"][0]["content"].split("\n\n", 1)[1]
        if "voyages" in question:
            return "What is the biggest ship?"  # nonsense: everything lost
        return f'"I wonder: {question}"' if body["seed"] == 1 else "It is Titan."

    server = serve(rule)
    manifest = Construct(tmp_path / "o", count=12, base_url=server.url, model="writer").run()
    assert manifest["wordings"] == {"model": 8, "template": 4}
    audit = [json.loads(line) for line in (tmp_path / "o.audit.jsonl").read_text().splitlines()]
    assert sum("kept" in line for line in audit) == 8
    assert {line["refused"] for line in audit if "refused" in line} == {"lost"}
    asked = len(server.bodies)
    again = Construct(
        tmp_path / "p", count=12, base_url=server.url, model="writer", cache_dir=str(tmp_path / "o.cache")
    )
    assert again.run()["wordings"] == manifest["wordings"] and len(server.bodies) == asked


def test_what_a_model_answers_without_tools_is_left_out(tmp_path, serve):
    tasks = tmp_path / "o.tasks.jsonl"
    Construct(tmp_path / "o", count=9).run()
    known = [json.loads(line) for line in tasks.read_text().splitlines()][:3]

    def rule(body):
        text = body["messages"][0]["content"]
        found = next((t["answer"] for t in known if t["question"] in text), "unknown")
        return f"Answer: {found}" if body["seed"] == 2 else "Answer: unknown"

    server = serve(rule)
    tool = Construct(tmp_path / "q", count=9, closed_book_url=server.url, closed_book_model="base")
    manifest = tool.run()
    assert manifest["dropped"] == {"closed_book": 3} and manifest["kept"] == 9
    left = [json.loads(line)["question"] for line in (tmp_path / "q.tasks.jsonl").read_text().splitlines()]
    assert not {t["question"] for t in known} & set(left)


def test_draws_that_failed_are_counted(tables):
    refused = Counter()
    for _, _found in zip(range(20), draw.constructions(tables, 1, refused), strict=False):
        pass
    assert refused["idle_filter"] and refused["small_margin"] and refused["missing_value"]


def test_quantities_agree_with_values_in_books(tables):
    bodies = tables.tables["bodies"]
    earth = next(r for r in bodies.rows if r["name"] == "Earth")
    for formula, unit, value in (("escape", "km/s", 11.186), ("gravity", "m/s^2", 9.820), ("density", "g/cm^3", 5.513)):
        assert quantities.compute(bodies.formulas[formula], bodies, earth, unit) == pytest.approx(value, rel=1e-3)


def test_the_shipped_tasks_are_those_that_the_command_builds(tasks):
    from pathlib import Path

    shipped = (Path(built_in.__file__).parent / "tasks.jsonl").read_bytes()
    assert shipped == (tasks[2] / "out.tasks.jsonl").read_bytes()


def test_the_description_in_the_docs_is_a_whole_one(tmp_path):
    from pathlib import Path

    page = (Path(__file__).parents[3] / "docs/data.md").read_text()
    text = page.split("```yaml\n")[1].split("```")[0]
    (tmp_path / "t.yaml").write_text(text)
    rows = [{"name": f"n{i}", "height": 900.0 * 1.3**i, "range": "Alps", "first": 1800.0 + 7 * i} for i in range(12)]
    pq.write_table(pa.table({k: [r[k] for r in rows] for k in rows[0]}), tmp_path / "peaks.parquet")
    made = Construct(tmp_path / "o", tables=str(tmp_path / "t.yaml"), count=2)
    assert made.run()["kept"] == 2
