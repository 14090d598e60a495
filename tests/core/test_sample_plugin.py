"""A third party's plugin, really installed by pip into a venv of its own, selected in verl's own command line."""

import json
import os
import shlex
import shutil
import subprocess
import sys
import sysconfig
import venv
from pathlib import Path

import pytest

SAMPLE = Path(__file__).parents[1] / "sample_plugin"

BROKEN = '''
from rufus_plugins import hookimpl


class NotAReward:
    """Has no __call__."""


@hookimpl
def register_rewards():
    return {"half_done": NotAReward}
'''


@pytest.fixture(scope="module")
def python(tmp_path_factory):
    """A venv that sees this environment's packages and has the sample plugin installed."""
    place = tmp_path_factory.mktemp("third_party")
    venv.create(place / "venv", with_pip=False)
    python = place / "venv" / "bin" / "python"
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    (place / "venv" / "lib" / version / "site-packages" / "this_environment.pth").write_text(
        f"import site; site.addsitedir({sysconfig.get_path('purelib')!r})\n"
    )
    install(python, shutil.copytree(SAMPLE, place / "sample_plugin"))
    return python


def install(python, project):
    done = subprocess.run(
        [python, "-m", "pip", "install", "--quiet", "--no-deps", "--no-build-isolation", "--no-index", project],
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr


def run(python, *args, cwd=None):
    env = {**os.environ, "PYTHONPATH": "", "OMP_NUM_THREADS": "1"}
    return subprocess.run([python, *args], capture_output=True, text=True, timeout=300, cwd=cwd, env=env)


def test_the_installed_plugin_is_listed_with_its_fields(python, tmp_path):
    done = run(python, "-m", "rufus_plugins.cli", "list", "reward", "--json", cwd=tmp_path)
    part = next(p for p in json.loads(done.stdout)["parts"] if p["name"] == "letter_share")
    assert part["plugin"] == "sample" and "site-packages/rufus_sample" in part["file"]
    assert {name: field["default"] for name, field in part["fields"].items()} == {"letter": "e", "ignore_case": True}


def test_verls_command_line_selects_it_and_overrides_its_fields(python, tmp_path):
    flags = ("--config-name", "rufus", "algorithm=gspo", "reward=letter_share", "rufus.reward.letter=x")
    done = run(python, "-m", "verl.trainer.main_ppo", *flags, "--cfg", "job", "--package", "rufus.reward", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "name: letter_share\nletter: x\nignore_case: true" in done.stdout


def test_its_stage_takes_part_in_a_chain_of_ones_own(python, tmp_path):
    letters = "{stage: letters, scales: {tiny: [+tiny=rl, trainer.total_training_steps=7]}}"
    (tmp_path / "mine.yaml").write_text(
        f"name: mine\nbase: {{tiny: some/model}}\nstages:\n  - {{stage: sft}}\n  - {letters}\n"
    )
    done = run(python, "-m", "rufus_plugins.cli", "run", "mine.yaml", "--dry-run", cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "2 stages compose and would start" in done.stdout and not (tmp_path / "runs").exists()
    (command,) = (line for line in done.stdout.splitlines() if "main_ppo" in line)
    assert "stage=letters scale=tiny" in command and f"{tmp_path}/runs/mine-tiny-seed0/data/letters/rl/train" in command
    words = [word for word in shlex.split(command)[3:] if not word.startswith("hydra.")]
    job = run(python, "-m", "verl.trainer.main_ppo", *words, "--cfg", "job", cwd=tmp_path)
    assert "name: letter_share" in job.stdout and "total_training_steps: 7" in job.stdout, job.stderr


def test_it_scores_as_configured(python, tmp_path):
    program = (
        "import asyncio; from rufus_plugins import selection; from rufus_plugins.testing import sample_trajectory;"
        "reward = selection.build({'rufus': {'reward': {'name': 'letter_share', 'letter': 'b'}}}, 'reward');"
        "print(asyncio.run(reward(sample_trajectory('aBbc'))).value)"
    )
    done = run(python, "-c", program, cwd=tmp_path)
    assert done.stdout.strip() == "0.5", done.stderr


def test_a_broken_plugin_warns_until_it_is_selected_and_then_ends_the_run_before_training(python, tmp_path):
    project = shutil.copytree(SAMPLE, tmp_path / "broken")
    about = (project / "pyproject.toml").read_text().replace("rufus_sample", "rufus_broken")
    about = about.replace("rufus-sample", "rufus-broken").replace("sample = ", "half_done_plugin = ")
    (project / "pyproject.toml").write_text(about)
    (project / "rufus_sample").rename(project / "rufus_broken")
    (project / "rufus_broken" / "__init__.py").write_text(BROKEN)
    install(python, project)
    try:
        other = run(python, "-m", "rufus_plugins.cli", "list", "reward", cwd=tmp_path)
        assert other.returncode == 0 and "letter_share" in other.stdout
        assert "plugin 'half_done_plugin'" in other.stderr

        selected = run(
            python,
            *("-m", "verl.trainer.main_ppo", "--config-name", "rufus", "algorithm=gspo", "reward=half_done"),
            cwd=tmp_path,
        )
        assert selected.returncode != 0
        said = selected.stderr
        assert "plugin 'half_done_plugin': reward 'half_done'" in said, said
        assert "has no async method __call__" in said and "rufus_broken/__init__.py" in said and "mend:" in said
        assert "Started a local Ray instance" not in selected.stdout + said
    finally:
        done = run(python, "-m", "pip", "uninstall", "--quiet", "--yes", "rufus-broken")
        assert done.returncode == 0, done.stderr


@pytest.mark.e2e
def test_verl_trains_on_the_installed_plugins_reward(python, tmp_path):
    import pandas

    from rufus_plugins.recipes.tiny.model import build

    for part in build(seed=0):
        part.save_pretrained(tmp_path / "model")
    rows = [
        {
            "prompt": [{"role": "user", "content": f"Say {i}"}],
            "data_source": "toy",
            "reward_model": {"ground_truth": ""},
        }
        for i in range(8)
    ]
    pandas.DataFrame(rows).to_parquet(tmp_path / "train.parquet")
    overrides = [
        *("algorithm=gspo", "reward=letter_share", "rufus.reward.letter=a", "scale=tiny"),
        *(f"data.train_files={tmp_path}/train.parquet", f"data.val_files={tmp_path}/train.parquet"),
        *("data.train_batch_size=4", "data.max_prompt_length=64", "data.max_response_length=24"),
        *(f"actor_rollout_ref.model.path={tmp_path}/model", "actor_rollout_ref.actor.ppo_mini_batch_size=4"),
        *("actor_rollout_ref.rollout.n=4", "rufus.mask_terminations=[]", "trainer.val_before_train=False"),
        *("trainer.total_training_steps=1", "trainer.save_freq=-1", "trainer.test_freq=-1"),
        *("trainer.logger=[file]", f"trainer.default_local_dir={tmp_path}/out"),
        f"trainer.rollout_data_dir={tmp_path}/rollouts",
    ]
    env = {**os.environ, "PYTHONPATH": "", "OMP_NUM_THREADS": "1", "RAY_worker_niceness": "0"}
    command = [python, "-m", "verl.trainer.main_ppo", "--config-name", "rufus", *overrides]
    with open(tmp_path / "log", "wb") as log:
        ended = subprocess.run(command, cwd=tmp_path, env=env, stdout=log, stderr=subprocess.STDOUT, timeout=580)
    assert ended.returncode == 0, (tmp_path / "log").read_text(errors="replace")[-4000:]
    rollouts = [json.loads(line) for line in (tmp_path / "rollouts" / "1.jsonl").read_text().splitlines()]
    assert len(rollouts) == 16
    for rollout in rollouts:
        text = rollout["output"].lower()
        assert rollout["score"] == pytest.approx(text.count("a") / max(len(text), 1))
