"""Run folders in every state: what is there is shown, what is not there is said, and nothing ends in a traceback."""

import json
import os
import re
import shutil

import pytest

from rufus_plugins.cli import main
from rufus_plugins.errors import ConfigError
from rufus_plugins.recipes.report import live
from rufus_plugins.recipes.report.curves import Metrics, curriculum, curve, shares
from rufus_plugins.recipes.report.page import page, write
from rufus_plugins.recipes.report.run_folder import QUIET_S, load


def problems(folder):
    run = load(folder)
    page(run)
    return run.problems


def test_a_folder_of_something_else_is_refused(tmp_path):
    with pytest.raises(ConfigError, match="neither run.json nor stages/"):
        write(tmp_path)
    with pytest.raises(ConfigError, match="no run folder"):
        write(tmp_path / "absent")


@pytest.mark.parametrize("file", ["run.json", "stages/01-reasoning_rl/stage.json"])
def test_a_run_of_another_format_is_refused(usual, file):
    told = json.loads((usual.folder / file).read_text())
    usual.write(file, told | {"format": 2})
    with pytest.raises(ConfigError, match="format 2; this version of rufus-plugins reads format 1"):
        write(usual.folder)


def test_a_whole_run_has_nothing_missing(usual):
    assert problems(usual.folder) == []
    assert "What is missing" not in write(usual.folder).read_text()


def test_each_missing_or_broken_file_is_named(usual):
    folder = usual.folder
    (folder / "run.json").unlink()
    (folder / "events.jsonl").unlink()
    (folder / "stages/00-sft/stage.json").write_text('{"format": 1, "name": "sf')
    (folder / "data/sft/mixture.json").write_text("{")
    shutil.rmtree(folder / "stages/01-reasoning_rl/metrics")
    [broken, *_] = (folder / "evidence").glob("*/*.json")
    broken.write_text(broken.read_text()[:200])
    shown = write(folder).read_text()
    for words in (
        "run.json is missing", "events.jsonl is missing", "00-sft/stage.json cannot be read",
        "sft/mixture.json cannot be read", "01-reasoning_rl: no metrics", "Evidence left out",
    ):  # fmt: skip
        assert words in shown, words
    assert "00 sft" in shown  # from its folder's name


def test_any_single_file_may_be_missing_empty_cut_or_garbage(usual, tmp_path):
    files = sorted(p.relative_to(usual.folder) for p in usual.folder.rglob("*") if p.is_file())
    files = [f for f in files if not re.search(r"samples/step-0000[123]|/0[23]-", str(f))]
    assert len(files) > 15
    for n, name in enumerate(files):
        path = usual.folder / name
        whole = path.read_bytes()
        for content in (None, whole[: len(whole) // 2], b"\x00\xff[1, {", b"null\n[]\n"):
            path.unlink(missing_ok=True)
            if content is not None:
                path.write_bytes(content)
            assert page(load(usual.folder)).endswith("</html>\n"), (n, name, content)
        path.write_bytes(whole)


def test_fields_of_unexpected_types_do_no_harm(empty):
    for wrong in (None, 7, "text", [1], {"a": {"b": 1}}, True, 1e400):
        empty.stage(0, "sft", None, "a", None)
        told = json.loads((empty.folder / "stages/00-sft/stage.json").read_text())
        for key in told.keys() - {"format"}:
            empty.write("stages/00-sft/stage.json", told | {key: wrong})
            page(load(empty.folder))
        record = {"format": 1}
        for key in (
            "segments",
            "metrics",
            "score",
            "explanation",
            "termination",
            "step",
            "group",
            "left_out",
            "chosen",
        ):
            empty.lines("stages/00-sft/samples/step-000001.jsonl", [record | {key: wrong}])
            page(load(empty.folder))
        for part in ({"texts": wrong}, {"texts": ["a"], "kinds": wrong}, {"texts": ["a"], "logprobs": wrong}, wrong):
            segment = {"parts": [part], "prompt": wrong, "prompt_tokens": wrong}
            empty.lines("stages/00-sft/samples/step-000001.jsonl", [record | {"segments": [segment]}])
            page(load(empty.folder))
        empty.lines("stages/00-sft/metrics/a.jsonl", [{"step": wrong, "data": {"train/loss": 1}}, wrong])
        empty.lines("stages/00-sft/metrics/b.jsonl", [{"step": 1, "data": {"train/loss": wrong}}])
        empty.lines("events.jsonl", [wrong, {"at": wrong, "event": wrong, "detail": wrong}])
        page(load(empty.folder))


def test_a_resumed_attempt_replaces_the_steps_it_does_again(tmp_path, empty):
    first = empty.lines("a-000.jsonl", [{"step": s, "data": {"m": float(s)}} for s in range(1, 8)])
    second = empty.lines("a-001.jsonl", [{"step": s, "data": {"m": 10.0 * s}} for s in range(5, 7)])
    metrics = Metrics()
    for path in (first, second):
        metrics.attempt(path, lambda name: True)
    assert metrics.series("m") == [
        (1, 1.0),
        (2, 2.0),
        (3, 3.0),
        (4, 4.0),
        (5, 50.0),
        (6, 60.0),
    ]  # 7 was never done again


def test_a_half_written_last_line_and_numbers_that_are_none_leave_gaps(empty):
    lines = [{"step": 1, "data": {"m": 1.0}}, {"step": 2, "data": {"m": float("nan")}}, {"step": 3, "data": {"m": 3.0}}]
    path = empty.lines("m.jsonl", lines)
    path.write_text(path.read_text() + '{"step": 4, "data": {"m": 4')
    metrics = Metrics()
    metrics.attempt(path, lambda name: True)
    made = curve(metrics.series("m"))
    assert (made.steps, made.means, made.dropped) == ([1, 2, 3], [1.0, None, 3.0], 1)


def test_long_curves_are_means_over_buckets_with_their_least_and_most():
    made = curve([(step, float(step)) for step in range(1, 1001)], limit=100)
    assert made.bucket == 10 and len(made.steps) == 100
    assert (made.steps[0], made.means[0], made.lows[0], made.highs[0]) == (10, 5.5, 1.0, 10.0)
    assert (made.steps[-1], made.means[-1], made.lows[-1], made.highs[-1]) == (1000, 995.5, 991.0, 1000.0)


def test_shares_are_weighted_by_what_was_counted():
    made = shares({1: {"a": 1.0, "b": 3.0}, 2: {"a": 3.0, "b": 1.0, "c": 0.0}, 3: {"a": 8.0}}, ("a", "b", "c"), limit=2)
    assert made.names == ["a", "b"] and made.totals == {"a": 12.0, "b": 4.0}
    assert made.steps == [2, 3] and made.shares == [[0.5, 0.5], [1.0, 0.0]]


def test_a_prompts_id_cannot_imitate_a_side_of_the_band(empty):
    from rufus_plugins.algos.curriculum import Curriculum, Judged

    history = Curriculum(empty.folder / "curriculum.jsonl")
    evil = '", "side": "above", "step": 99, "x": "'
    history.append(
        [Judged(1, evil, 8, 0.1, "below", "below_band"), Judged(2, "p", 8, None, "unknown", "too_few_rollouts")]
    )
    assert curriculum(history.path) == {
        1: {"below": 1.0, "inside": 0.0, "above": 0.0},
        2: {"below": 0.0, "inside": 0.0, "above": 0.0, "unknown": 1.0},
    }


def test_a_run_that_was_killed_is_said_to_have_stopped(usual):
    run = load(usual.folder)
    assert run.alive()
    assert 'id="pause"' in page(run)
    later = page(load(usual.folder), now=run.touched + QUIET_S + 1)
    assert "was running, then stopped writing" in later and "wrote nothing since" in later
    assert 'id="pause"' not in later and 'http-equiv="refresh"' not in later
    usual.event("general_agent", "interrupted")
    assert not load(usual.folder).alive()


def test_between_two_stages_a_live_report_waits_and_a_plain_one_does_not(make, tmp_path):
    chain = make.Chain(tmp_path / "run")
    chain.stage(0, "sft", None, "a", "b")
    run = load(chain.folder)
    assert not run.alive() and run.alive(between_s=180) and not run.alive(run.touched + 181, between_s=180)
    assert 'id="pause"' not in page(run) and 'id="pause"' in page(run, between_s=180)
    chain.event("sft", "finished")
    assert load(chain.folder).alive(between_s=180)
    chain.event(None, "finished")  # the chain's own end
    assert not load(chain.folder).alive(between_s=180)


def test_stages_to_come_of_a_known_chain_are_drawn_and_keep_the_run_alive(make, tmp_path):
    chain = make.Chain(tmp_path / "run", chain="rufus_air")
    chain.stage(0, "sft", None, "a", "b")
    chain.event("sft", "finished")
    run = load(chain.folder)
    names = (
        "sft",
        "reasoning_rl",
        "coding_rl",
        "instruction_rl",
        "general_agent",
        "coding_agent",
        "search_agent",
        "rlhf",
    )
    assert [(s.name, s.state) for s in run.stages] == [(name, "pending" if name != "sft" else "done") for name in names]
    assert run.alive(), "between two stages"
    shown = page(run)
    assert re.search(r">00 sft</a>.*<span class=\"name\">07 rlhf <span", shown), "no link to what is not there"
    assert shown.count('<details class="stage"') == 1
    assert "rlhf, pending, from search_agent" in shown
    chain.event(None, "finished")  # as far as was asked for
    ended = load(chain.folder)
    assert not ended.alive() and "the run is not over" not in page(ended)


def test_an_interrupted_stage_says_so(usual):
    told = json.loads((usual.folder / "stages/03-general_agent/stage.json").read_text())
    usual.write("stages/03-general_agent/stage.json", told | {"state": "interrupted"})
    usual.event("general_agent", "interrupted")
    shown = page(load(usual.folder))
    assert "\u2016 interrupted" in shown and "the run is not over: general_agent interrupted" in shown
    assert 'id="pause"' not in shown


def test_a_failed_stage_shows_the_end_of_its_log(usual):
    told = json.loads((usual.folder / "stages/03-general_agent/stage.json").read_text())
    usual.write("stages/03-general_agent/stage.json", told | {"state": "failed"})
    usual.write("stages/03-general_agent/logs/rl-000.log", "an older attempt")
    log = "\n".join(f"line {n}" for n in range(5000)) + "\n\x1b[31mRuntimeError: <it> broke\x1b[0m\r\n"
    usual.write("stages/03-general_agent/logs/rl-001.log", log)
    shown = page(load(usual.folder))
    assert "line 4999\nRuntimeError: &lt;it&gt; broke</pre>" in shown
    assert "line 4000" not in shown and "an older attempt" not in shown
    assert "last lines of rl-001.log" in shown.lower() and "rl-000.log" not in shown


def test_live_writes_until_the_run_is_over(usual):
    pages = []

    def sleep(seconds):
        assert seconds == 15
        pages.append((usual.folder / "report.html").read_text())
        if len(pages) == 2:
            told = json.loads((usual.folder / "stages/03-general_agent/stage.json").read_text())
            usual.write("stages/03-general_agent/stage.json", told | {"state": "failed"})
            usual.event("general_agent", "failed")

    path = live.follow(usual.folder, said=lambda line: None, sleep=sleep)
    assert len(pages) == 2 and all('id="pause"' in text for text in pages)
    assert 'id="pause"' not in path.read_text()


def test_the_command_prints_what_rose_and_fell_and_writes_where_it_is_told(usual, tmp_path, capsys):
    output = tmp_path / "elsewhere" / "page.html"
    assert main(["report", str(usual.folder), "--output", str(output)]) == 0
    shown = capsys.readouterr().out
    assert output.is_file() and not (usual.folder / "report.html").exists()
    assert "reasoning_rl  best constant answer: 0.125, 20 items, 4 samples each\n" in shown
    assert "mean reward  0.250 → 0.750   +0.500 [+0.500, +0.500]  ▲ rose\n" in shown
    assert re.search(r"mean reward  0\.500 → 0\.500   \+0\.000 \[-0\.\d+, \+0\.\d+\]  ≈ within noise\n", shown)
    assert "coding_rl@lower-lr: its end was not measured" in shown
    assert max(len(line) for line in shown.splitlines() if "page:" not in line) <= 80
    assert "▼ reasoning_rl fell by 0.250" in shown
    assert main(["report", str(tmp_path)]) == 1
    assert "is no run folder" in capsys.readouterr().err


def test_the_page_is_replaced_at_once_and_leaves_nothing_beside_it(usual):
    path = write(usual.folder)
    before = path.stat().st_ino
    write(usual.folder)
    assert path.stat().st_ino != before
    assert [name for name in os.listdir(usual.folder) if "partial" in name] == []
