"""`rufus data dialogues`: a teacher as user, rotating assistants, rubrics for the last turn."""

import asyncio
import json

import pytest

from rufus_plugins.errors import ConfigError
from rufus_plugins.recipes.data.run import execute
from rufus_plugins.recipes.instruction_rl.dialogues import Dialogues
from rufus_plugins.recipes.instruction_rl.faithful import lost
from rufus_plugins.recipes.instruction_rl.prepare import prepare
from rufus_plugins.recipes.instruction_rl.requests import everything


def plain_of(body):
    text = body["messages"][-1]["content"]
    return text.split("further requirement:\n\n")[1].removesuffix("\n\nReply with the message only.")


class Models:
    def __init__(self, teacher=lambda plain: f"Hello! {plain}", assistant="The text."):
        self.teacher, self.assistant = teacher, assistant

    def __call__(self, body):
        if body["model"] == "teacher":
            return self.teacher(plain_of(body))
        return f"{body['model']}: {self.assistant}"


def run(tmp_path, server, count=12, **fields):
    source = tmp_path / "requests.jsonl"
    source.write_text("".join(json.dumps({"request": text}) + "\n" for text in everything()[:count]))
    tool = Dialogues(server.url, "teacher", [f"one@{server.url}", f"two@{server.url}", f"three@{server.url}"], **fields)
    manifest = execute(tool, source, tmp_path / "talk.jsonl", workers=1)
    return manifest, [json.loads(line) for line in (tmp_path / "talk.jsonl").read_text().splitlines()]


def test_conversations_add_change_and_distract_and_end_with_the_user(tmp_path, serve):
    manifest, rows = run(tmp_path, serve(Models()), count=10)
    assert len(rows) == 10 and not manifest["set_aside"]
    assert {move for row in rows for move in row["moves"]} == {"add", "change", "distract"}
    for row in rows:
        roles = [m["role"] for m in row["prompt"]]
        assert roles == ["user", "assistant"] * (row["turns"] - 1) + ["user"]
        assert 4 <= row["turns"] <= 8 and len(row["moves"]) == row["turns"]
        assert "the whole text again" in row["prompt"][-1]["content"]
    assert 5 <= sum(row["turns"] for row in rows) / len(rows) <= 7


def test_the_assistants_take_turns(tmp_path, serve):
    _, rows = run(tmp_path, serve(Models()), count=4)
    for row in rows:
        order = ["one", "two", "three"]
        start = order.index(row["assistants"][0])
        assert row["assistants"] == [order[(start + i) % 3] for i in range(len(row["assistants"]))]


def test_a_changed_constraint_is_held_in_its_last_form_only(tmp_path, serve):
    _, rows = run(tmp_path, serve(Models()), count=10)
    for row in rows:
        ids = [rubric["id"] for rubric in row["rubrics"]]
        assert len(set(ids)) == len(ids) and 1 <= len(ids) <= 6
        added, changed = row["moves"].count("add"), row["moves"].count("change")
        assert len(ids) == added and changed >= 1


def test_the_reward_reads_what_comes_out(tmp_path, serve):
    _, rows = run(tmp_path, serve(Models()), count=6)
    manifest = prepare(str(tmp_path / "talk.jsonl"), tmp_path / "rl")
    assert manifest["kept"] == len(rows) and manifest["dropped"] == {}


def test_a_wording_that_loses_a_constraint_is_replaced_by_the_plain_one(tmp_path, serve):
    manifest, rows = run(tmp_path, serve(Models(teacher=lambda plain: "Do it better, please.")), count=5)
    moves = sum(move != "distract" for row in rows for move in row["moves"])
    assert manifest["notes"]["worded plainly"] >= moves
    assert all("about the text:" in row["prompt"][0]["content"] for row in rows)


def test_a_wording_that_adds_a_number_is_replaced(tmp_path, serve):
    manifest, _ = run(tmp_path, serve(Models(teacher=lambda plain: f"{plain} Write 77777 words.")), count=3)
    assert manifest["notes"]["worded by the teacher"] == 0


def test_an_assistant_that_breaks_constraints_is_distracted(tmp_path, serve):
    _, rows = run(tmp_path, serve(Models(assistant="x")), count=10)
    assert sum(row["moves"].count("distract") for row in rows) >= len(rows)
    assert any(share < 1 for row in rows for share in row["followed"])


@pytest.mark.parametrize(
    ("reply", "reason"),
    [
        ((200, b'{"choices": [{"message": {"content": null}}]}'), "no_model_answer"),
        ((400, b"context too long"), "no_model_answer"),
    ],
)
def test_an_assistant_without_an_answer_costs_its_conversation_only(tmp_path, serve, reply, reason):
    def rule(body):
        return reply if body["model"] == "two" else Models()(body)

    manifest, rows = run(tmp_path, serve(rule), count=3)
    assert rows == [] and manifest["set_aside"] == {reason: 3}


def test_the_same_seed_and_answers_give_the_same_bytes(tmp_path, serve):
    made = []
    for at in range(2):
        folder = tmp_path / str(at)
        folder.mkdir()
        run(folder, serve(Models()), count=5)
        made.append((folder / "talk.jsonl").read_bytes())
    assert made[0] == made[1]


def test_a_judge_rubric_can_be_added_and_is_read_by_the_reward(tmp_path, serve):
    from rufus_plugins.rewards.rubrics import Rubrics
    from rufus_plugins.types import Task, Trajectory

    _, rows = run(tmp_path, serve(Models()), count=1, judge_rubric=True)
    assert rows[0]["rubrics"][-1]["id"] == "judge"
    score = asyncio.run(
        Rubrics(judge="rule")(
            Trajectory(
                Task("", "", rows[0]["prompt"], {"rubrics": rows[0]["rubrics"]}),
                messages=[{"role": "assistant", "content": "x"}],
            )
        )
    )
    assert score.value == 0.0


def test_options_that_cannot_be_are_refused():
    with pytest.raises(ConfigError, match="NAME@URL"):
        Dialogues("http://127.0.0.1/v1", "t", ["nobody"])
    with pytest.raises(ConfigError, match="turns"):
        Dialogues("http://127.0.0.1/v1", "t", ["a@http://127.0.0.1/v1"], fewest_turns=9)


def test_every_plain_wording_passes_its_own_check():
    import random

    from rufus_plugins.recipes.instruction_rl.catalog import KINDS

    rng = random.Random(3)
    for kind in KINDS.values():
        for _ in range(5):
            made = kind.make(rng, "Write about rivers.")
            assert lost(made.text, made) is None, made
