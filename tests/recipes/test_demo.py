"""The demo's bookkeeping: which folder, what is done again, which numbers, and what it says about them."""

import dataclasses
import io
import json

import pyarrow.parquet as pq
import pytest
from rich.console import Console

from rufus_plugins.errors import ConfigError
from rufus_plugins.recipes.demo import commands, data, report
from rufus_plugins.recipes.demo.__main__ import Demo
from rufus_plugins.recipes.demo.display import Display, sparkline
from rufus_plugins.recipes.demo.settings import Settings
from rufus_plugins.recipes.tiny import tasks


def quiet():
    return Display(Console(quiet=True))


def test_another_seed_or_another_number_gets_a_folder_of_its_own(tmp_path):
    folders = [
        Settings().folder(tmp_path),
        Settings(seed=1).folder(tmp_path),
        Settings(rl_steps=41).folder(tmp_path),
        Settings(rl_lr=1e-4).folder(tmp_path),
    ]
    assert folders[0].name == "demo-seed0" and folders[1].name == "demo-seed1"
    assert len(set(folders)) == 4 and all(f.name.startswith("demo-seed0-") for f in folders[2:])


def test_a_finished_stage_is_not_run_again_and_a_failed_one_is(tmp_path):
    calls = []

    def failing():
        calls.append("failing")
        raise RuntimeError

    with Demo(Settings(), tmp_path, False, quiet()) as demo:
        demo.once("one", lambda: calls.append("one"))
        demo.once("one", lambda: calls.append("one"))
        with pytest.raises(RuntimeError):
            demo.once("two", failing)
    with Demo(Settings(), tmp_path, False, quiet()) as demo:
        demo.once("one", lambda: calls.append("one"))
        demo.once("two", lambda: calls.append("two"))
        assert demo.times().keys() == {"one", "two"}
    assert calls == ["one", "failing", "two"]
    with Demo(Settings(), tmp_path, True, quiet()) as demo:
        demo.once("one", lambda: calls.append("one, fresh"))
    assert calls[-1] == "one, fresh"


def test_a_folder_that_is_in_use_foreign_or_of_another_version_is_refused(tmp_path):
    with Demo(Settings(), tmp_path, False, quiet()) as demo:
        with pytest.raises(ConfigError, match="another demo is running"), Demo(Settings(), tmp_path, False, quiet()):
            pass
        stamp = demo.folder / "settings.json"
    stamp.write_text(json.dumps({**json.loads(stamp.read_text()), "code": "of last week"}))
    with pytest.raises(ConfigError, match="make demo FRESH=1"), Demo(Settings(), tmp_path, False, quiet()):
        pass
    foreign = tmp_path / "demo-seed5"
    foreign.mkdir()
    (foreign / "thesis.tex").write_text("mine")
    for fresh in (False, True):
        with pytest.raises(ConfigError, match="no run of the demo"), Demo(Settings(seed=5), tmp_path, fresh, quiet()):
            pass
    assert (foreign / "thesis.tex").exists()


def test_the_data_of_the_three_files_is_disjoint_and_verls(tmp_path):
    counts = data.write(Settings(sft_rows=700), tmp_path)
    sft = pq.read_table(tmp_path / "sft.parquet").to_pylist()
    rl = {split: pq.read_table(tmp_path / "rl" / f"{split}.parquet").to_pylist() for split in ("train", "heldout")}
    assert counts == {"sft": 700, "train": len(rl["train"]), "heldout": len(rl["heldout"])}
    assert sft[0]["messages"][1]["content"].startswith("```python\n") and sft[0]["enable_thinking"] is False
    ids = [{row["extra_info"]["id"] for row in rl[split]} for split in ("train", "heldout")]
    assert not ids[0] & ids[1]
    statements = {message["content"] for row in sft for message in row["messages"]}
    assert not statements & {row["prompt"][0]["content"] for row in rl["heldout"]}
    assert data.constant_baseline(tasks.problems(0, "heldout")) == 0.0


def test_metrics_of_a_resumed_run_replace_those_of_the_steps_done_again(tmp_path):
    def write(name, *steps):
        lines = [json.dumps({"step": s, "data": {"x": v}}) for s, v in steps]
        (tmp_path / name).write_text("\n".join(lines) + '\n{"step": 9, "da')

    write("rl-000.jsonl", (1, 0.1), (2, 0.2), (3, 0.3))
    write("rl-001.jsonl", (3, 0.33), (4, 0.4))
    write("sft-000.jsonl", (1, 7))
    assert {s: m["x"] for s, m in commands.metrics(tmp_path, "rl").items()} == {1: 0.1, 2: 0.2, 3: 0.33, 4: 0.4}
    assert commands.next_metrics_file(tmp_path, "rl").name == "rl-002.jsonl"


def test_a_sparkline_spans_its_range_clips_and_averages_neighbours():
    assert sparkline([0.0, 0.5, 1.0, 2.0, -1.0]) == "▁▅██▁"
    assert sparkline([0.0, 1.0, 0.0, 1.0], width=2) == "▅▅"
    assert sparkline([]) == ""


def result(before, after):
    def measured(rate):
        problems = {str(i): [int(i < rate)] * 2 for i in range(100)}
        return {"greedy": problems, "sampled": problems, "run_on": 0.0, "truncated": 0.0}

    steps = {i: {report.REWARD: 0.2, report.STEP_S: 4.0, report.PROBABILITY_DIFFERENCE: 1e-8 * i} for i in range(1, 5)}
    return report.summary(measured(before), measured(after), steps, rollouts_per_step=64)


def test_the_summary_takes_rates_from_the_answers_and_speeds_from_verls_metrics():
    summary = result(30, 60)
    assert summary["rates"]["sampled"]["gain"].value == pytest.approx(0.3)
    assert summary["rollouts_per_s"] == pytest.approx(16.0)
    assert summary["probability_difference"] == pytest.approx(4e-8)


def test_the_verdict_claims_a_gain_only_when_the_interval_excludes_zero():
    assert report.verdict(result(30, 60))[0]
    risen, sentence = report.verdict(result(30, 31))
    assert not risen and "includes 0" in sentence and "exit code is 1" in sentence
    risen, sentence = report.verdict(result(60, 30))
    assert not risen and "below 0" in sentence


def test_the_last_screen_shows_every_number_that_was_asked_for_in_80_columns(tmp_path):
    summary = {**result(30, 60), "seconds": {"sft": 90.0, "rl": 300.0}}
    console = Console(width=80, file=io.StringIO())
    console.print(report.table(summary, 0.0, "t"))
    shown = console.file.getvalue() + "\n".join(report.lines(summary, {"logs": tmp_path}))
    wanted = "T=1|greedy|constant program|run on|cut off|rollouts/s|16.0|4.0e-08|sft 1.5, rl 5.0"
    for words in wanted.split("|"):
        assert words in shown, words
    assert "0.600" in shown and "+0.300" in shown and "[+0.2" in shown and "…" not in shown


def test_every_setting_is_an_option_of_the_command():
    import subprocess
    import sys

    command = [sys.executable, "-m", "rufus_plugins.recipes.demo", "--help"]
    shown = subprocess.run(command, capture_output=True, text=True, timeout=60).stdout
    for field in dataclasses.fields(Settings):
        assert f"--{field.name.replace('_', '-')}" in shown


def test_without_a_terminal_each_eighth_is_one_line_and_the_end_is_told_once():
    screen = io.StringIO()
    with Display(Console(file=screen, force_terminal=False)).stage("SFT", 16) as update:
        for done in (0, 0, 1, 2, 3, 16, 16, 16):
            update(done)
    assert screen.getvalue().split("\n") == ["SFT: 0/16", "SFT: 2/16", "SFT: 16/16", ""]
