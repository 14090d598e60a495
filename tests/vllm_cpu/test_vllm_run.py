"""verl's own command with its own vLLM rollout, unmodified, on CPU: bf16 vLLM, fp32 trainer, with and without replay.

Run in the environment that setup.sh makes: DIR/bin/python -m pytest -m slow tests/vllm_cpu
"""

import json
import os
import pathlib
import subprocess
import sys

import pytest

pytestmark = pytest.mark.slow
HERE = pathlib.Path(__file__).parent
REWARDS = HERE.parent / "hosts" / "run_reward.py"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    import pyarrow as pa
    import pyarrow.parquet as pq

    path = tmp_path_factory.mktemp("vllm_run")
    subprocess.run([sys.executable, HERE / "trained_tiny.py", path / "model"], check=True, timeout=600)
    rows = [
        {
            "data_source": "coin",
            "prompt": [{"role": "user", "content": f"Print {i}."}],
            "reward_model": {"style": "rule", "ground_truth": str(i)},
            "extra_info": {"index": i},
        }
        for i in range(64)
    ]
    pq.write_table(pa.Table.from_pylist(rows), path / "train.parquet")
    return path


def run(folder, mode, steps=2):
    metrics, log = folder / f"{mode}.jsonl", folder / f"{mode}.log"
    rollout = "actor_rollout_ref.rollout"
    command = [
        sys.executable,
        *("-m", "verl.trainer.main_ppo", "--config-name", "rufus", "algorithm=gspo", "scale=tiny"),
        f"rufus.routing_replay={mode}",
        "rufus.mask_terminations=[]",
        f"actor_rollout_ref.model.path={folder / 'model'}",
        f"data.train_files={folder / 'train.parquet'}",
        f"data.val_files={folder / 'train.parquet'}",
        *("data.train_batch_size=4", "data.max_prompt_length=64", "data.max_response_length=64", "data.seed=1"),
        *("data.dataloader_num_workers=0", "+data.apply_chat_template_kwargs.enable_thinking=false"),
        *(f"{rollout}.name=vllm", f"{rollout}.dtype=bfloat16", f"{rollout}.n=4", f"{rollout}.temperature=1.0"),
        # vLLM refuses to sleep on CPU, and would take half of the memory for its cache
        *(f"+{rollout}.enable_sleep_mode=False", f"{rollout}.free_cache_engine=False", f"{rollout}.enforce_eager=True"),
        f"+{rollout}.engine_kwargs.vllm.kv_cache_memory_bytes={2**27}",
        *(f"{rollout}.calculate_log_probs=true", f"{rollout}.max_model_len=256", f"{rollout}.max_num_seqs=16"),
        *("actor_rollout_ref.actor.ppo_mini_batch_size=4", "actor_rollout_ref.actor.optim.lr=1e-5"),
        f"reward.custom_reward_function.path={REWARDS}",
        "reward.custom_reward_function.name=coin",
        *("trainer.total_epochs=9", "trainer.val_before_train=false", "trainer.test_freq=-1"),
        *("trainer.save_freq=-1", "trainer.resume_mode=disable", "trainer.logger=[console,file]"),
        f"trainer.total_training_steps={steps}",
        f"trainer.default_local_dir={folder / mode}",
    ]
    environment = {
        **os.environ,
        "TORCH_COMPILE_DISABLE": "1",
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
        "OMP_NUM_THREADS": "1",
        "HF_HUB_OFFLINE": "1",
        "RAY_ADDRESS": "local",
        "RAY_USAGE_STATS_ENABLED": "0",
        "VERL_FILE_LOGGER_PATH": str(metrics),
    }
    with log.open("w") as stream:
        done = subprocess.run(
            command, stdout=stream, stderr=subprocess.STDOUT, env=environment, timeout=900, cwd=folder
        )
    found = [json.loads(line)["data"] for line in metrics.read_text().splitlines()] if metrics.exists() else []
    steps_found = [step for step in found if "actor/grad_norm" in step]
    assert done.returncode == 0 and len(steps_found) == steps, log.read_text(errors="replace")[-6000:]
    return steps_found


def test_replay_brings_the_trainer_closer_to_verls_own_vllm_rollout(folder):
    native, replayed = run(folder, "off"), run(folder, "rollout")
    for name, steps in (("off", native), ("rollout", replayed)):
        for step in steps:
            shown = ("logp_absdiff", "kl_k3", "grad_norm", "routing_replay")
            print(name, {key: round(value, 6) for key, value in step.items() if any(part in key for part in shown)})
    mean = {
        name: sum(step["training/rollout_logp_absdiff_mean"] for step in steps) / len(steps)
        for name, steps in (("off", native), ("rollout", replayed))
    }
    assert all(step["actor/routing_replay/match_rate"] < 0.998 for step in replayed)
    assert mean["rollout"] <= 0.6 * mean["off"]
