"""environment=mcp, search and conversation in verl's own command on CPU: two steps each; mcp in host actors.

The model knows its episodes by heart (recipes/tiny/by_heart.py), so every ending and reward is known beforehand. Those
of search are long, which takes minutes to learn on a busy machine: they are left to the slow tests.
"""

import asyncio
import json
import os
import subprocess
import sys

import pytest

pytestmark = pytest.mark.e2e

RUN_S = 900
"""A busy machine with two cores needs minutes to import verl ten times."""
MAYORS = {"Brod": "Ana", "Zeta": "Ivo"}
CARDS = (1, 4)
TWO_WAYS = ("Brod", "sun", 1)
"""What is answered in two ways, one of them wrong, so that a group has an advantage."""
SAMPLES = 8
SEARCH = {"results": 1, "result_chars": 60, "python_tool": False, "validation": {"max_tool_calls": 1}}
PROMPT = {"search": 640, "conversation": 80, "mcp": 260}
RESPONSE = {"search": 260, "conversation": 120, "mcp": 160}
POOL = "rufus.environment_pool={hosts: 2, episodes: 4, cpus: 0.5}"
"""Fewer places than the sixteen rollouts of a step: the others wait."""


def call(name, **arguments):
    pairs = "".join(f"<arg_key>{k}</arg_key>\n<arg_value>{v}</arg_value>\n" for k, v in arguments.items())
    return f"<tool_call>{name}\n{pairs}</tool_call><|observation|>"


def searches(town, right):
    """Searches, opens what it found, answers."""

    def said(prompt):
        looked = prompt.count("<|observation|>")
        answer = f"Answer: {MAYORS[town] if right else 'Eva'}<|endoftext|>"
        return "\n<think></think>\n" + (call("search", query=town), call("open", page="1"), answer)[min(looked, 2)]

    return said


def talks(word, right):
    """Answers the opening, then the user's second message."""

    def said(prompt):
        last = prompt.count("<|user|>") == 2
        return "\n<think></think>\n" + ((f"{word if right else 'no'}<|endoftext|>") if last else "rain<|user|>")

    return said


def freezes(card, right):
    """Freezes a card, the right one or another, and says so."""

    def said(prompt):
        looked = "<|observation|>" in prompt
        return "\n<think></think>\n" + (
            "Done<|endoftext|>" if looked else call("freeze_card", card_id=card if right else 2)
        )

    return said


def episodes(kind):
    """(task, what the model says to it) of every lesson."""
    from rufus_plugins import Task

    if kind == "search":
        for town, mayor in MAYORS.items():
            prompt = ({"role": "user", "content": f"Mayor of {town}?"},)
            for right in {True, town not in TWO_WAYS}:
                yield Task(town, "towns", prompt, mayor), searches(town, right)
        return
    if kind == "mcp":
        for card in CARDS:
            conditions = [{"query": f"SELECT status FROM cards WHERE id = {card}", "equals": "frozen"}]
            conditions += [
                {"query": "SELECT count(*) FROM cards WHERE status = 'frozen'", "equals": 2}
            ]  # one was before
            prompt = ({"role": "user", "content": f"Freeze card {card}"},)
            for right in {True, card not in TWO_WAYS}:
                task = Task(f"card-{card}", "bank", prompt, json.dumps({"sql": conditions}), {"world": "bank"})
                yield task, freezes(card, right)
        return
    for word in ("sun", "sea"):
        rubrics = json.dumps([{"id": "keywords:existence", "kwargs": {"keywords": [word]}}])
        extra = {"user_turns": json.dumps([f"Say {word} <|assistant|>"])}
        for right in {True, word not in TWO_WAYS}:
            prompt = ({"role": "user", "content": f"A word like {word}?"},)
            yield Task(word, "talk", prompt, rubrics, extra), talks(word, right)


def environment_of(kind, corpus):
    if kind == "search":
        from rufus_plugins.rollouts.environments.search import Search

        return Search(backend_config={"path": str(corpus)}, **SEARCH)
    if kind == "mcp":
        from rufus_plugins.rollouts.environments.mcp import Mcp

        return Mcp(allow=["freeze_card"])
    from rufus_plugins.rollouts.environments.conversation import Conversation

    return Conversation()


def prepared(kind, folder):
    """Model, records and corpus."""
    import pyarrow as pa
    import pyarrow.parquet as pq
    import torch

    from rufus_plugins.hosts.verl.chat_tokens import ChatTokens
    from rufus_plugins.recipes.search_agent.corpus import prepare
    from rufus_plugins.recipes.tiny.by_heart import Script, play, small_model, teach
    from rufus_plugins.rollouts.episode import Limits
    from rufus_plugins.rollouts.rules import EpisodeRules

    documents = [{"id": t, "title": t, "text": f"Mayor of {t} <|user|>: {m}."} for t, m in MAYORS.items()]
    (folder / "documents.jsonl").write_text("".join(json.dumps(d) + "\n" for d in documents))
    prepare(str(folder / "documents.jsonl"), folder / "corpus")
    torch.set_num_threads(1)
    model, tokenizer = small_model()
    chat = ChatTokens(tokenizer, "glm4_moe", end_ids=model.config.eos_token_id)
    rules, limits = EpisodeRules(retries=0), Limits(PROMPT[kind] + RESPONSE[kind], RESPONSE[kind])
    lessons, rows = {}, {}
    for task, say in episodes(kind):
        environment = environment_of(kind, folder / "corpus")
        played, rollout = asyncio.run(play(task, environment, chat, Script(tokenizer, say), rules, limits))
        assert rollout.trajectory.termination == "answered", rollout.problem or rollout.trajectory.termination
        lessons |= {tuple(ids): mask for ids, mask in played}
        extra = {name: task.extra.get(name, "") for name in ("user_turns", "world")}
        rows[task.id] = {
            "prompt": [dict(message) for message in task.prompt],
            "data_source": task.data_source,
            "reward_model": {"style": "rule", "ground_truth": task.ground_truth},
            "extra_info": {"id": task.id, "index": len(rows), **extra},
        }
    teach(model, [(list(ids), mask) for ids, mask in lessons.items()])
    model.save_pretrained(folder / "model")
    tokenizer.save_pretrained(folder / "model")
    pq.write_table(pa.Table.from_pylist(list(rows.values())), folder / "train.parquet")


def overrides(kind, folder):
    if kind == "conversation":
        return ["reward=rubrics", "environment=conversation"]
    if kind == "mcp":
        return ["reward=post_state", "environment=mcp", "rufus.environment.allow=[freeze_card]", POOL]
    fields = {"backend_config.path": f"{folder}/corpus", **{k: v for k, v in SEARCH.items() if k != "validation"}}
    return [
        *("reward=search_answer", "rufus.reward.judge=rule", "environment=search"),
        *(f"{'+' if '.' in name else ''}rufus.environment.{name}={value}" for name, value in fields.items()),
        f"rufus.environment.validation.max_tool_calls={SEARCH['validation']['max_tool_calls']}",
    ]


@pytest.fixture(scope="module", params=[pytest.param("search", marks=pytest.mark.slow), "conversation", "mcp"])
def run(request, tmp_path_factory):
    """(kind, metrics by step, the log)."""
    kind, folder = request.param, tmp_path_factory.mktemp(request.param)
    prepared(kind, folder)
    metrics, log = folder / "metrics.jsonl", folder / "run.log"
    command = [
        *(sys.executable, "-m", "verl.trainer.main_ppo", "--config-name", "rufus", "algorithm=mean_only", "scale=tiny"),
        *overrides(kind, folder),
        *("rufus.mask_terminations=[]", "rufus.routing_replay=rollout"),
        f"data.train_files={folder}/train.parquet", f"data.val_files={folder}/train.parquet",
        f"data.max_prompt_length={PROMPT[kind]}", f"data.max_response_length={RESPONSE[kind]}",
        *("data.train_batch_size=2", "data.dataloader_num_workers=0"),
        f"actor_rollout_ref.model.path={folder}/model",
        *("actor_rollout_ref.actor.ppo_mini_batch_size=2", "actor_rollout_ref.actor.optim.lr=1e-4"),
        *(f"actor_rollout_ref.rollout.n={SAMPLES}", "actor_rollout_ref.rollout.temperature=1.0"),
        *("trainer.total_training_steps=2", "trainer.total_epochs=9", "trainer.logger=[console,file]"),
        *("trainer.val_before_train=true", "trainer.test_freq=-1", "trainer.save_freq=-1"),
        *("trainer.resume_mode=disable", f"trainer.default_local_dir={folder}/out"),
    ]  # fmt: skip
    env = os.environ | {"OMP_NUM_THREADS": "1", "RAY_worker_niceness": "0", "VERL_FILE_LOGGER_PATH": str(metrics)}
    with log.open("wb") as out:
        process = subprocess.Popen(
            command, cwd=folder, env=env, stdout=out, stderr=subprocess.STDOUT, start_new_session=True
        )
        try:
            code = process.wait(timeout=RUN_S)
        finally:
            if process.poll() is None:
                os.killpg(process.pid, 9)
    assert code == 0, log.read_text(errors="replace")[-6000:]
    lines = [json.loads(line) for line in metrics.read_text().splitlines()]
    return kind, {line["step"]: line["data"] for line in lines}, log.read_text(errors="replace")


def test_probabilities_agree_over_turns_with_the_environments_tokens(run):
    kind, steps, _ = run
    for step in (1, 2):
        metrics = steps[step]
        assert metrics["training/rollout_probs_diff_valid"] == 1
        assert metrics["training/rollout_probs_diff_max"] < 1e-6
        assert metrics["rufus/rollout/tokens_context/mean"] > 10
        assert metrics["rufus/rollout/tokens_diverged/total"] == 0
        assert metrics["actor/grad_norm"] > 0
        assert metrics["rufus/endings/answered/total"] == 2 * SAMPLES
        assert metrics["rufus/rollout/turns/mean"] == (3 if kind == "search" else 2)


def test_rewards_are_those_of_what_was_said(run):
    """One task is always right; the other one in two ways: 0 or 1, and at least one of each in sixteen samples."""
    _, steps, _ = run
    for step in (1, 2):
        assert 0.5 <= steps[step]["critic/rewards/mean"] < 1.0
        assert (steps[step]["critic/rewards/min"], steps[step]["critic/rewards/max"]) == (0.0, 1.0)


def test_validation_has_its_own_budget(run):
    """One call in validation: the second one ends the episode, which costs a tenth; the others have no budget."""
    kind, steps, _ = run
    found = {key: value for key, value in steps[0].items() if "/reward/mean" in key}
    assert found, sorted(steps[0])
    for value in found.values():
        assert value == pytest.approx(-0.1) if kind == "search" else 0.5 <= value <= 1.0
