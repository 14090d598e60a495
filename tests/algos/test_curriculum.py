import json

import pytest

from rufus_plugins.algos.curriculum import FILE, Curriculum, Judged, read, windows
from rufus_plugins.cli import main
from rufus_plugins.errors import ConfigError


def judged(step, prompt, side, mean=0.5):
    return Judged(step, prompt, 8, mean, side, "kept" if side == "inside" else f"{side}_band")


HISTORY = [
    judged(1, "a", "below", 0.0),
    judged(1, "b", "inside", 0.5),
    judged(2, "c", "above", 1.0),
    judged(2, "d", "unknown", None),
    judged(3, "a", "inside", 0.25),  # an impossible prompt came into the band
    judged(4, "b", "above", 1.0),
]


def test_the_history_survives_writing_and_reading_in_pieces(tmp_path):
    curriculum = Curriculum(tmp_path / "run" / FILE)
    curriculum.append(HISTORY[:2])
    curriculum.append(HISTORY[2:])
    assert read(curriculum.path) == HISTORY


def test_a_resumed_run_forgets_the_steps_it_does_again(tmp_path):
    curriculum = Curriculum(tmp_path / FILE)
    curriculum.resume(1)  # nothing there yet
    curriculum.append(HISTORY)
    curriculum.resume(3)
    assert read(curriculum.path) == HISTORY[:4]


def test_a_half_written_last_line_is_dropped_and_a_broken_one_before_it_is_named(tmp_path):
    file = tmp_path / FILE
    Curriculum(file).append(HISTORY[:1])
    with file.open("a") as stream:
        stream.write('{"step": 2, "pro')
    assert read(file) == HISTORY[:1]
    with file.open("a") as stream:
        stream.write("\n" + json.dumps({"step": 3}) + "\n")
    with pytest.raises(ConfigError, match=f"{FILE}:2"):
        read(file)


def test_windows_count_where_every_prompt_stood_last_and_who_moved():
    first, second = windows(HISTORY, 2)
    assert (first.first_step, first.last_step, first.groups) == (1, 2, 4)
    assert first.pass_rate == pytest.approx(0.5)  # 0, .5, 1; the group without a mean does not count
    assert first.prompts == {"below": 1, "inside": 1, "above": 1}
    assert (first.moved_in, first.moved_out) == (0, 0)
    assert second.prompts == {"below": 0, "inside": 1, "above": 2}
    assert (second.moved_in, second.moved_out) == (1, 1)
    assert windows([], 5) == []
    assert len(windows(HISTORY, 10)) == 4


def test_the_command_prints_one_line_per_window(tmp_path, capsys):
    Curriculum(tmp_path / FILE).append(HISTORY)
    assert main(["curriculum", str(tmp_path), "--rows", "2"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[1].split() == ["1-2", "4", "0.500", "1", "1", "1", "0", "/", "0"]
    assert lines[2].split() == ["3-4", "2", "0.625", "0", "1", "2", "1", "/", "1"]
    assert main(["curriculum", str(tmp_path / FILE), "--json"]) == 0
    assert json.loads(capsys.readouterr().out.splitlines()[-1])["prompts"] == {"below": 0, "inside": 1, "above": 2}


def test_the_command_says_what_is_missing(tmp_path, capsys):
    assert main(["curriculum", str(tmp_path)]) == 1
    assert "rufus.group_filter" in capsys.readouterr().err
