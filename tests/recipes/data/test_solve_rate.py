"""Solve rates against a loopback server whose answers depend on prompt and seed alone, and that misbehaves."""

import contextlib
import gc
import json
import os
import signal
import sqlite3
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))
from chat_peer import ChatPeer, chance, solver  # noqa: E402

from rufus_plugins.cli import main  # noqa: E402
from rufus_plugins.errors import ConfigError, DataError, RufusError  # noqa: E402
from rufus_plugins.plugins import registry  # noqa: E402
from rufus_plugins.recipes.data.filter import Filter  # noqa: E402
from rufus_plugins.recipes.data.rate_histogram import BINS, bin_of, svg  # noqa: E402
from rufus_plugins.recipes.data.run import execute  # noqa: E402
from rufus_plugins.recipes.data.solve_rate import SolveRate  # noqa: E402
from rufus_plugins.testing import check_data_filter, sample_task  # noqa: E402


def jsonl(path, records):
    path.write_text("".join(json.dumps(r) + "\n" for r in records), encoding="utf-8")
    return path


def lines(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def problems(count, p=lambda i: (i % 5) / 4):
    return [
        {"id": f"t{i}", "question": f"Problem {i} [p={p(i)}] answer {i + 100}", "answer": str(i + 100)}
        for i in range(count)
    ]


def rate(server, source, output, **fields):
    options = {"attempts": 4, "reward": "math_answer", "concurrency": 8, "timeout_s": 20.0} | fields
    tool = SolveRate(model="m", base_url=server.url, **options)
    return execute(tool, source, output, workers=1, overwrite=True)


def expected_values(server, question, gold):
    """What the server said to the seeds that it was asked with, scored by hand."""
    asked = [r for r in server.requests if r["messages"][-1]["content"] == question]
    return sorted(float(solver(r)["content"].endswith(f"boxed{{{gold}}}.")) for r in asked)


def test_rates_are_what_the_server_answered_to_seeds_of_their_own(tmp_path):
    records = problems(10)
    source = jsonl(tmp_path / "in.jsonl", records)
    with ChatPeer() as server:
        manifest = rate(server, source, tmp_path / "out.jsonl")
    made = lines(tmp_path / "out.jsonl")
    assert [r["id"] for r in made] == [r["id"] for r in records] and manifest["counts"]["written"] == 10
    for record in made:
        found = record["extra"]["solve_rate"]["policy"]
        values = expected_values(server, record["question"], record["answer"])
        assert sorted(found["values"]) == values and len(values) == 4
        assert found["correct"] == sum(values) and found["mean"] == sum(values) / 4
    assert len(server.requests) == 40 and len({r["seed"] for r in server.requests}) == 40
    assert {made[i]["extra"]["solve_rate"]["policy"]["correct"] for i in (0, 5)} == {0}  # p=0
    assert {made[i]["extra"]["solve_rate"]["policy"]["correct"] for i in (4, 9)} == {4}  # p=1
    assert (tmp_path / "out.jsonl.histogram.svg").read_text().startswith("<svg")


def test_rl_rows_keep_their_columns_and_several_labels_stand_side_by_side(tmp_path):
    import pyarrow as pa
    import pyarrow.parquet as pq

    rows = [
        {
            "data_source": "m",
            "prompt": [{"role": "user", "content": f"Row {i} [p={i}] answer 7"}],
            "reward_model": {"style": "rule", "ground_truth": "7"},
            "extra_info": {"index": i, "split": "train"},
        }
        for i in (0, 1)
    ]
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "rl.parquet")
    with ChatPeer() as server:
        rate(server, tmp_path / "rl.parquet", tmp_path / "a.parquet", attempts=2, label="teacher")
        rate(
            server, tmp_path / "a.parquet", tmp_path / "b.parquet", attempts=2, label="closed_book", system="No tools."
        )
    assert all(r["messages"][0]["role"] == "system" for r in server.requests[4:])
    made = pq.read_table(tmp_path / "b.parquet").to_pylist()
    assert [r["prompt"] for r in made] == [r["prompt"] for r in rows]
    assert [r["extra_info"]["index"] for r in made] == [0, 1]
    for label in ("teacher", "closed_book"):
        assert [r["extra_info"]["solve_rate"][label]["values"] for r in made] == [[0, 0], [1, 1]]


def test_faults_are_no_attempts_and_change_nothing(tmp_path):
    source = jsonl(tmp_path / "in.jsonl", problems(6))

    def misbehave(handler, count):
        kind = count % 7
        if kind == 1:
            handler.send(429, b"slow down")
        elif kind == 2:
            handler.hang_up()
        elif kind == 3:
            handler.send(200, b'{"choices": []}')
        elif kind == 4:
            handler.send(500, b"oops")
        return kind in (1, 2, 3, 4)

    with ChatPeer() as calm:
        rate(calm, source, tmp_path / "calm.jsonl")
    with ChatPeer(misbehave=misbehave) as wild:
        manifest = rate(wild, source, tmp_path / "wild.jsonl", retries=30)
    assert (tmp_path / "calm.jsonl").read_bytes() == (tmp_path / "wild.jsonl").read_bytes()
    assert manifest["faults_of_this_run"]["engine_failed"] >= 1 and manifest["set_aside"] == {}


def test_a_server_that_stalls_meets_the_deadline_and_the_record_is_incomplete(tmp_path):
    source = jsonl(tmp_path / "in.jsonl", problems(2, p=lambda i: 1))

    def stall(handler, count):
        if "Problem 1 " in server.requests[count - 1]["messages"][-1]["content"]:
            time.sleep(1.5)
            return True

    with ChatPeer(misbehave=stall) as server:
        manifest = rate(server, source, tmp_path / "o.jsonl", attempts=1, timeout_s=0.3, retries=1)
        assert manifest["set_aside"] == {"incomplete": 1} and manifest["counts"]["written"] == 1
        assert manifest["faults_of_this_run"] == {"engine_failed": 2}
    with ChatPeer() as server:  # once it works again only what is missing is asked for
        manifest = rate(server, source, tmp_path / "o.jsonl", attempts=1, timeout_s=5.0)
        assert manifest["counts"]["written"] == 2 and len(server.requests) == 1


def test_a_dead_server_ends_the_run_and_a_refusing_one_says_so(tmp_path):
    source = jsonl(tmp_path / "in.jsonl", problems(200))
    with ChatPeer() as server:
        url = server.url
    gone = SolveRate(
        model="m", base_url=url, reward="math_answer", attempts=8, retries=0, timeout_s=0.5, concurrency=16
    )
    with pytest.raises(RufusError, match="in a row failed on our side.*is kept in"):
        execute(gone, source, tmp_path / "o.jsonl", workers=1)
    with ChatPeer(misbehave=lambda h, n: h.send(401, b"who are you?") or True) as server:
        with pytest.raises(ConfigError, match="refuses every request.*401"):
            rate(server, source, tmp_path / "p.jsonl")
    assert len(server.requests) <= 24  # of 800: what was under way when the first refusal came


def test_requests_that_are_refused_together_are_one_message_without_tracebacks(tmp_path, caplog):
    source = jsonl(tmp_path / "in.jsonl", problems(40))
    gate = threading.Barrier(8)

    def refuse(handler, count):
        with contextlib.suppress(threading.BrokenBarrierError):
            gate.wait(2)  # so that several come back at the same time
        handler.send(401, b"who are you?")
        return True

    with ChatPeer(misbehave=refuse) as server, pytest.raises(ConfigError, match="refuses every request"):
        rate(server, source, tmp_path / "o.jsonl", attempts=1, concurrency=16)
    gc.collect()  # asyncio speaks of an error that nobody asked for when its task goes
    assert not [r for r in caplog.records if r.name == "asyncio"]


def test_a_full_context_is_an_attempt_and_another_refusal_a_bad_record(tmp_path):
    source = jsonl(tmp_path / "in.jsonl", problems(1))
    with ChatPeer(answer=lambda body: 400) as server:
        manifest = rate(server, source, tmp_path / "o.jsonl", attempts=2)
        rates = lines(tmp_path / "o.jsonl")[0]["extra"]["solve_rate"]["policy"]
        assert rates["values"] == [0, 0] and rates["truncated"] == 2
    with ChatPeer(misbehave=lambda h, n: h.send(422, b"no such role") or True) as server:
        manifest = rate(server, source, tmp_path / "p.jsonl", attempts=2)
        assert manifest["set_aside"] == {"data": 1}


def test_records_without_prompt_or_gold_are_set_aside(tmp_path):
    records = [{"id": 1, "x": "no"}, {"id": 2, "question": "How? [p=1] answer 3"}, *problems(1)]
    source = tmp_path / "in.jsonl"
    source.write_bytes(
        b"broken \xff\xfe\n" + "".join(json.dumps(r) + "\n" for r in records).encode() + b'{"question": "cu'
    )
    with ChatPeer() as server:
        manifest = rate(server, source, tmp_path / "o.jsonl", attempts=1)
    assert manifest["set_aside"] == {"no_prompt": 1, "data": 1, "not_utf8": 1, "cut_off": 1}
    assert [r["id"] for r in lines(tmp_path / "o.jsonl")] == ["t0"]


def test_another_reward_scores_the_answers_that_are_there(tmp_path):
    source = jsonl(tmp_path / "in.jsonl", problems(4))
    kept = str(tmp_path / "attempts.sqlite")
    with ChatPeer() as server:
        rate(server, source, tmp_path / "a.jsonl", attempts_file=kept)
        rate(server, source, tmp_path / "b.jsonl", attempts_file=kept, reward="science_answer")
        assert len(server.requests) == 16
        rate(server, source, tmp_path / "c.jsonl", attempts_file=kept, attempts=6)
        assert len(server.requests) == 16 + 8  # attempts five and six
    a, c = lines(tmp_path / "a.jsonl"), lines(tmp_path / "c.jsonl")
    for one, two in zip(a, c, strict=True):
        six = two["extra"]["solve_rate"]["policy"]["values"]
        assert six[:4] == one["extra"]["solve_rate"]["policy"]["values"] and len(six) == 6


def test_a_kill_at_any_moment_loses_no_attempt_and_the_output_is_the_same(tmp_path):
    records = problems(40, p=lambda i: chance(i))
    source = jsonl(tmp_path / "in.jsonl", records)
    with ChatPeer() as server:
        rate(server, source, tmp_path / "straight.jsonl")
    with ChatPeer(delay_s=0.05) as server:
        out = tmp_path / "killed.jsonl"
        command = [sys.executable, "-m", "rufus_plugins.cli", "data", "solve-rate", "--input", str(source), "--output",
                   str(out), "--model", "m", "--base-url", server.url, "--reward", "math_answer", "--attempts", "4",
                   "--concurrency", "8", "--timeout-s", "20", "--workers", "1"]  # fmt: skip
        for target in (30, 80):
            process = subprocess.Popen(command, stderr=subprocess.DEVNULL, start_new_session=True)
            try:
                limit = time.monotonic() + 60
                while len(server.requests) < target and time.monotonic() < limit:
                    time.sleep(0.005)
            finally:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
            assert not out.exists()
        subprocess.run(command, check=True, capture_output=True, timeout=120)
        assert out.read_bytes() == (tmp_path / "straight.jsonl").read_bytes()
        assert 160 <= len(server.requests) <= 160 + 2 * 16  # only what was in flight is asked again
    file = sqlite3.connect(f"{out}.attempts.sqlite")
    assert file.execute("SELECT count(*) FROM answers").fetchone() == (160,)


def test_the_same_record_twice_is_attempted_once(tmp_path):
    source = jsonl(tmp_path / "in.jsonl", problems(1) * 3)
    with ChatPeer(delay_s=0.02) as server:
        rate(server, source, tmp_path / "o.jsonl")
        assert len(server.requests) == 4 and len(lines(tmp_path / "o.jsonl")) == 3


def test_a_model_in_this_process_is_sampled_in_batches(tmp_path):
    from rufus_plugins.recipes.tiny.model import save

    save(tmp_path / "model")
    source = jsonl(tmp_path / "in.jsonl", [{"question": f"{i} + 1 = ?", "answer": str(i + 1)} for i in range(3)])
    options = {
        "model": str(tmp_path / "model"),
        "reward": "math_answer",
        "attempts": 2,
        "max_tokens": 8,
        "concurrency": 4,
    }
    made = []
    for name in ("a.jsonl", "b.jsonl"):
        manifest = execute(SolveRate(**options), source, tmp_path / name, workers=1)
        assert manifest["counts"]["written"] == 3 and manifest["faults_of_this_run"] == {}
        file = sqlite3.connect(tmp_path / f"{name}.attempts.sqlite")
        made.append(sorted(file.execute("SELECT key, body FROM answers").fetchall()))
    assert made[0] == made[1] and len(made[0]) == 6
    with pytest.raises(ConfigError, match="no folder of a transformers model"):
        execute(SolveRate(model="nowhere", reward="math_answer"), source, tmp_path / "c.jsonl", workers=1)


def rated(values, label="policy", **more):
    rates = {"values": values, "solved_at": 1.0}
    return sample_task(extra={"solve_rate": {label: rates} | more})


@pytest.mark.parametrize(
    ("name", "label", "keep", "drop"),
    [
        ("teacher_correct", "teacher", [[0, 0, 0.2], [1]], [[0, 0], [-0.1]]),
        (
            "learnable",
            "policy",
            [[0, 0, 0, 0, 1], [1, 1, 1, 1, 0], [0.8], [0.8] * 3],
            [[0, 0], [1, 1, 1, 1, 1, 0], [1]],
        ),
        ("not_all", "policy", [[1, 1, 1, 0], [0, 0, 0, 0]], [[1, 1, 1, 1]]),
        ("mixed", "policy", [[1] + [0] * 7, [1] * 7 + [0]], [[0] * 8, [1] * 8]),
        ("closed_book", "closed_book", [[0, 0]], [[0, 1]]),
        ("tool_free", "tool_free", [[0, 0.5]], [[1, 0]]),
        ("axion", "policy", [[1, 0, 0, 0], [1, 1, 1, 0.5]], [[0, 0, 0, 0], [1, 1, 1, 1], [0.3, 0, 0, 0]]),
    ],
)
def test_filters_keep_what_the_papers_keep(name, label, keep, drop):
    chosen = registry().build("data_filter", name)
    check_data_filter(registry().get("data_filter", name).factory, [rated(v, label) for v in keep + drop])
    assert [chosen(rated(v, label))[0] for v in keep + drop] == [True] * len(keep) + [False] * len(drop)
    with pytest.raises(DataError, match=f"--label {label}"):
        chosen(sample_task())


def test_too_few_attempts_are_neither_kept_nor_dropped():
    for name, needed in (("mixed", 8), ("not_all", 4), ("axion", 4)):
        with pytest.raises(DataError, match=f"{needed} are needed"):
            registry().build("data_filter", name)(rated([1, 0, 1]))


def test_the_filter_tool_counts_per_filter_and_draws_before_and_after(tmp_path, capsys):
    values = [[0, 0, 0, 0], [1, 0, 0, 0], [1, 1, 0, 0], [1, 1, 1, 1], [1, 1, 1, 0]]
    records = [
        {"id": i, "question": "q", "extra": {"solve_rate": {"policy": {"values": v}}}} for i, v in enumerate(values)
    ]
    source = jsonl(tmp_path / "in.jsonl", [*records, {"id": 9, "question": "q"}])
    out = tmp_path / "o.jsonl"
    command = ["data", "filter", "--input", str(source), "--output", str(out), "--filters", "not_all"]
    assert main([*command, "learnable:high=0.5,low=0"]) == 0
    assert [r["id"] for r in lines(out)] == [1, 2]
    manifest = json.loads((tmp_path / "o.jsonl.manifest.json").read_text())
    assert manifest["set_aside"] == {"not_all": 1, "learnable": 2, "not_all_unknown": 1}
    picture = (tmp_path / "o.jsonl.histogram.svg").read_text()
    assert "before: 5" in picture and "after: 2" in picture
    assert main([*command[:-1], "lernable"]) == 1 and "learnable" in capsys.readouterr().err
    with pytest.raises(ConfigError):
        Filter(())


def test_bins_and_bars_are_in_their_places():
    means = [-1, 0, 0.01, 0.1, 0.11, 0.3, 0.9, 0.95, 1, 2]
    assert [BINS[bin_of(m)] for m in means] == ["0", "0", "≤0.1", "≤0.1", "≤0.2", "≤0.3", "≤0.9", "<1", "1", "1"]
    import xml.etree.ElementTree as tree

    root = tree.fromstring(svg("a < b", {"x": [3, *[0] * 11], "y": [0] * 11 + [6]}))
    bars = [
        r for r in root if r.tag.endswith("rect") and r.get("fill") in ("#9aa5b1", "#2f6f9f") and r.get("y") != "30"
    ]
    assert len(bars) == 24 and {float(r.get("height")) for r in bars} == {0, 125, 250}


def test_a_server_that_is_gone_ends_a_small_run_too_and_says_so(tmp_path):
    source = jsonl(tmp_path / "in.jsonl", problems(1))
    with ChatPeer(misbehave=lambda handler, count: True) as server:  # takes each request and hangs up
        with pytest.raises(RufusError, match=r"4 attempts in a row failed on our side; the last: .*mend it"):
            rate(server, source, tmp_path / "o.jsonl", attempts=2, retries=1)
    assert not (tmp_path / "o.jsonl").exists()
    with ChatPeer() as server:
        assert rate(server, source, tmp_path / "o.jsonl", attempts=2)["counts"]["written"] == 1
