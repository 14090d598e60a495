"""Stands for verl's trainers and for the evaluation in a test's child processes: with this folder on PYTHONPATH, Python
runs it before anything else. It writes what verl 0.9.1 writes, in verl's order, slowly enough to be killed in between:

- RL (trainer/ppo/v1/trainer_base.py:948-1025): the checkpoint, then the tracker (opened anew, not renamed), then the
  step's metrics. A start goes on from the tracker; at the last step it does nothing.
- SFT (trainer/sft_trainer.py:316-420, utils/checkpoint/checkpoint_handler.py:93-140): metrics and held-out loss, the
  checkpoint, the tracker (renamed). A start at the last step makes one more step.

A model is a chain of hashes of its parent, its steps and its learning rate, so that equal weights mean equal histories.
Like Ray it leaves a daemon of another session behind, and it notes daemons of earlier starts that still live.
"""

import hashlib
import json
import os
import subprocess
import sys
import time
from pathlib import Path

PLACE = os.environ.get("RUFUS_STAND_IN", "")
PAUSE_S = 0.01
END = "\nwhole\n"


def overrides(words):
    return dict(word.lstrip("+").split("=", 1) for word in words if "=" in word and not word.startswith("-"))


def weights(folder):
    text = (Path(folder) / "model.safetensors").read_text()
    if not text.endswith(END):
        raise SystemExit(f"half-written weights in {folder}")
    return text.removesuffix(END)


def save(checkpoints, step, model, state, parent):
    folder = checkpoints / f"global_step_{step}" / model
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_bytes(Path(parent, "config.json").read_bytes())
    with (folder / "model.safetensors").open("w") as file:
        for part in (state[:20], state[20:], END):
            file.write(part)
            file.flush()
            time.sleep(PAUSE_S)
    (checkpoints / f"global_step_{step}" / "data.pt").write_text(str(step))


def resumed(checkpoints, model, parent):
    """(step, state)."""
    try:
        step = int((checkpoints / "latest_checkpointed_iteration.txt").read_text())
    except FileNotFoundError:
        return 0, weights(parent)
    return step, weights(checkpoints / f"global_step_{step}" / model)


def trained(state, step, lr):
    time.sleep(PAUSE_S)
    return hashlib.sha256(f"{state} {step} {lr}".encode()).hexdigest()


def log(file, step, **data):
    file.write(json.dumps({"step": step, "data": data}).encode() + b"\n")


def rl(told):
    checkpoints, total = Path(told["trainer.default_local_dir"]), int(told["trainer.total_training_steps"])
    lr = told["actor_rollout_ref.actor.optim.lr"]
    parent = told["actor_rollout_ref.model.path"]
    step, state = resumed(checkpoints, "actor/huggingface", parent)
    with open(os.environ["VERL_FILE_LOGGER_PATH"], "wb", buffering=0) as metrics:
        while step < total:
            step += 1
            state = trained(state, step, lr)
            if step == total or step % int(told["trainer.save_freq"]) == 0:
                save(checkpoints, step, "actor/huggingface", state, parent)
                with (checkpoints / "latest_checkpointed_iteration.txt").open("w") as tracker:
                    time.sleep(PAUSE_S)
                    tracker.write(str(step))
            log(metrics, step, **{"critic/score/mean": step / total})


def sft(told):
    checkpoints, total = Path(told["trainer.default_local_dir"]), int(told["trainer.total_training_steps"])
    step, state = resumed(checkpoints, "huggingface", told["model.path"])
    with open(os.environ["VERL_FILE_LOGGER_PATH"], "wb", buffering=0) as metrics:
        while True:
            step += 1
            state = trained(state, step, told["optim.lr"])
            log(metrics, step, **{"train/loss": 3 * 0.5**step})
            due = step >= total or step % int(told["trainer.save_freq"]) == 0
            if due:
                log(metrics, step, **{"val/loss": 1.0 + 0.5**step})
                save(checkpoints, step, "huggingface", state, told["model.path"])
                part = checkpoints / "latest_checkpointed_iteration.txt.tmp"
                part.write_text(str(step))
                part.rename(checkpoints / "latest_checkpointed_iteration.txt")
            if step >= total:
                return


def measure(words):
    """Evidence that depends on the weights and the items alone."""
    told = dict(zip(words[::2], words[1::2], strict=False))
    output, checkpoint = Path(told["--output"]), Path(told["--checkpoint"])
    from rufus_plugins.recipes.chains.lineage import digest_of
    from rufus_plugins.recipes.evidence.measure import code
    from rufus_plugins.recipes.evidence.protocol import Protocol

    protocol, state = Protocol.read(Path(told["--protocol"])), weights(checkpoint)
    items = {}
    for task in protocol.tasks():
        drawn = hashlib.sha256(f"{state} {task.id}".encode()).digest()
        n = protocol.samples
        items[task.id] = {
            "scores": [float(byte > 127) for byte in drawn[:n]],
            "greedy": float(drawn[n] > 127),
            "tokens": [5] * n,
            "terminations": ["answered"] * n,
        }
    evidence = {
        "format": 1,
        "protocol": protocol.as_json(),
        "protocol_digest": protocol.digest,
        "checkpoint": {"digest": digest_of(checkpoint), "name": told.get("--name", checkpoint.name)},
        "code": code(),
        "items": items,
        "faults": {},
        "unscored": 0,
        "seconds": 0.0,
    }
    output.parent.mkdir(parents=True, exist_ok=True)
    part = output.with_name(output.name + ".part")
    part.write_text(json.dumps(evidence)[:200])
    time.sleep(PAUSE_S)
    part.write_text(json.dumps(evidence))
    part.replace(output)


def alive(pid):
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
        mine = f"RUFUS_STAND_IN={PLACE}".encode() in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except OSError:
        return False
    return mine and stat[stat.rindex(")") + 2] not in "ZX"


def leave_a_daemon():
    daemons = Path(PLACE, "daemons")
    earlier = [int(pid) for pid in daemons.read_text().split()] if daemons.exists() else []
    if old := [pid for pid in earlier if alive(pid)]:
        with Path(PLACE, "overlaps").open("a") as file:
            file.write(f"{old} still lived when {os.getpid()} started\n")
    if (child := os.fork()) == 0:
        os.setsid()
        daemon = subprocess.Popen([sys.executable, "-S", "-c", "import time; time.sleep(900)"], start_new_session=True)
        with daemons.open("a") as file:
            file.write(f"{daemon.pid}\n")
        os._exit(0)
    os.waitpid(child, 0)


def main(words):
    if words[:2] == ["-m", "verl.trainer.main_ppo"]:
        leave_a_daemon()
        return rl(overrides(words)) or 0
    if words[:2] == ["-m", "torch.distributed.run"] and "verl.trainer.sft_trainer" in words:
        leave_a_daemon()
        return sft(overrides(words)) or 0
    if words[:3] == ["-m", "rufus_plugins.recipes.evidence", "measure"]:
        return measure(words[3:]) or 0
    return None


if PLACE:
    try:
        done = main(sys.orig_argv[1:])
    except SystemExit as error:
        print(error, flush=True)
        done = 3
    except BaseException:
        import traceback

        traceback.print_exc()
        done = 4
    if done is not None:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(done)
