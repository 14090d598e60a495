"""Lessons that a tiny model learns by heart, and the Coding Agent's own."""

import asyncio
from pathlib import Path

import pytest

import rufus_plugins.recipes.coding_agent
from rufus_plugins.errors import ConfigError, RufusError
from rufus_plugins.recipes.coding_agent.warm_start import commands, say
from rufus_plugins.recipes.tiny import by_heart

TASKS = Path(rufus_plugins.recipes.coding_agent.__file__).parent / "tasks"


def test_only_sampled_tokens_after_a_shared_beginning_are_left_to_chance():
    lessons = [([1, 2, 3, 4], [0, 0, 1, 1]), ([1, 2, 5, 4], [0, 0, 1, 1]), ([1, 7, 3, 9], [0, 0, 0, 1])]
    assert by_heart._partings(lessons) == {(1, 2)}
    _, attention, mask, sure = by_heart._tensors([*lessons[:1], ([1, 2], [0, 1])], by_heart._partings(lessons))
    assert attention.tolist() == [[1, 1, 1, 1], [1, 1, 0, 0]]
    assert mask.tolist() == [[0, 1, 1], [1, 0, 0]]  # of the token that comes next
    assert sure.tolist() == [[1, 0, 1], [1, 1, 1]]


def test_a_lesson_is_learnt_to_the_token_or_it_is_said_that_it_was_not():
    import torch

    model, tokenizer = by_heart.small_model()
    prompt, answer = tokenizer.encode("What? "), tokenizer.encode("This.<|endoftext|>")
    lesson = ([*prompt, *answer], [0] * len(prompt) + [1] * len(answer))
    with pytest.raises(RufusError, match="after 1 steps the model does not know its 1 lessons"):
        by_heart.teach(model, [lesson], steps=1)
    assert by_heart.teach(model, [lesson], steps=60) > 0
    ids = list(prompt)
    for _ in answer:
        with torch.no_grad():
            ids.append(int(model(torch.tensor([ids])).logits[0, -1].argmax()))
    assert ids == lesson[0]


def test_a_played_episode_gives_the_segments_that_a_rollout_would_train_on():
    from rufus_plugins.rollouts.environments.functions import Functions
    from rufus_plugins.rollouts.episode import Limits
    from rufus_plugins.rollouts.rules import EpisodeRules
    from rufus_plugins.types import Task

    model, words = by_heart.small_model()
    said = say("ls")("<|user|>\nGo.<|assistant|>")
    call = by_heart.Script(words, say("ls"))
    task = Task("t", "d", ({"role": "user", "content": "Go."},))
    environment = Functions(functions=["os.path:basename"])
    play = by_heart.play(task, environment, by_heart.chat_of(model, words), call, EpisodeRules(), Limits(900, 900))
    [(ids, mask)], rollout = asyncio.run(play)
    trained = words.decode([i for i, m in zip(ids, mask, strict=True) if m])
    assert trained == said + "\n<think></think>\nDone.<|endoftext|>"
    assert rollout.trajectory.termination == "answered"
    assert "<|observation|>\n<tool_response>" in words.decode(ids)  # a call's end token ends the turn


def test_a_solution_of_one_script_is_one_command():
    assert commands(str(TASKS / "newest-version")) == "sort -V /app/versions.txt | tail -n 1 > /app/newest.txt"


def test_a_task_with_steps_is_not_taught():
    with pytest.raises(ConfigError, match="only tasks of one step"):
        commands(str(TASKS / "grow-a-tool"))
