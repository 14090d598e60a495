"""Routing replay in verl's own FSDP2 engine, two ranks on CPU, and the switch that turns it on."""

import json
import os
import pathlib
import subprocess
import sys

import pytest
from omegaconf import OmegaConf

from rufus_plugins.errors import ConfigError
from rufus_plugins.hosts.verl import router_replay_config

SCRIPT = pathlib.Path(__file__).with_name("router_replay_engine.py")


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    from rufus_plugins.recipes.tiny.model import build

    path = tmp_path_factory.mktemp("tiny")
    made, tokenizer = build(0)
    made.save_pretrained(path)
    tokenizer.save_pretrained(path)
    return path


@pytest.fixture(scope="module")
def ranks(model, tmp_path_factory):
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node=2", "--rdzv-backend=c10d"]
    command += ["--rdzv-endpoint=127.0.0.1:0", "--local-addr=127.0.0.1", str(SCRIPT), str(model)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    folder = tmp_path_factory.mktemp("run")
    done = subprocess.run(command, capture_output=True, text=True, timeout=400, cwd=folder, env=environment)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-6000:]
    return [json.loads((folder / f"rank{rank}.json").read_text()) for rank in (0, 1)]


CASES = ["packed-static", "packed-dynamic", "padded-static", "padded-dynamic"]


@pytest.mark.parametrize("case", CASES)
def test_own_routes_change_nothing_on_two_ranks_with_checkpointing(ranks, case):
    for rank in ranks:
        result = rank[case]
        assert result["record"] == result["replay"] == 0.0
        assert result["gradients_R2"] == result["gradients_R3"] == 0.0
        assert result["other"] > 1e-3 and result["gradients_other"] > 1e-4


@pytest.mark.parametrize("case", CASES)
def test_recorded_routes_have_verls_layout(ranks, case):
    for rank in ranks:
        result = rank[case]
        assert result["lengths"] == [12, 7, 9, 15, 5, 11]  # back in the order of the batch
        assert (result["shape"], result["dtype"], result["dense_layer"]) == ([4, 2], "torch.int16", 0)


def test_an_engine_without_replay_records_nothing(ranks):
    assert not any(rank[case]["stock_has_routes"] for rank in ranks for case in CASES)


def test_switched_off_the_engine_is_verls_own(ranks):
    for rank in ranks:
        assert rank["off"] == {"log_probs": 0.0, "gradients": 0.0, "installed": False}


def test_on_gpus_the_engine_comes_before_the_stock_one():
    import verl.workers.engine.fsdp.transformer_impl as transformer_impl
    from verl.workers.engine import EngineRegistry

    stock = transformer_impl.FSDPEngineWithLMHead
    for strategy in ("fsdp", "fsdp2"):
        engines = EngineRegistry._engines["language_model"][strategy]
        assert engines["cuda"] is stock
        for vendor in ("nvidia", "amd"):
            ours = engines["cuda", vendor]
            assert issubclass(ours, stock) and ours.__name__ == "ReplayingFSDPEngineWithLMHead"


def test_metrics_come_once_per_step_over_all_ranks_and_mini_batches(ranks):
    tokens = 12 + 7 + 9 + 15 + 5 + 11
    for rank in ranks:
        metrics = rank["metrics"]
        assert metrics["first"] == []
        assert metrics["last"] == {
            "routing_replay/match_rate": [1.0],
            "routing_replay/match_rate_fresh": [1.0],
            "routing_replay/native_share": [0.0],
            # two mini-batches, two ranks, int16, 4 layers, 2 experts
            "routing_replay/bytes": [2 * 2 * tokens * 4 * 2 * 2.0],
        }
        assert metrics["norms"][0] == metrics["norms"][1] > 0


@pytest.mark.parametrize(
    "case, words",
    [
        ("missing", "no routed_experts (R3: the rollout must answer them"),
        ("missing_R2", "no routed_experts (R2: compute_log_prob records them"),
        ("empty", "the sequences [0] of this micro-batch have no routes"),
        ("short", "routed_experts has"),
        ("layers", "routed_experts is [tokens, 3, 2], this model needs [tokens, 4 decoder layers, top 2]"),
        ("offload", "does not know the checkpoint of model.enable_activation_offload"),
        ("elsewhere", "FSDPEngineWithLMHead, which would ignore it: set rufus.routing_replay=off"),
    ],
)
def test_routes_that_do_not_fit_end_the_step(ranks, case, words):
    for rank in ranks:
        assert words in rank["errors"][case]


def test_a_sequence_that_two_ranks_share_is_cut_and_joined_like_its_tokens(ranks):
    for rank in ranks:
        assert rank["ulysses"] == {"rows": True, "present": True, "recorded": True}


def test_a_lora_actor_as_its_own_reference_is_never_replayed(ranks):
    for rank in ranks:
        assert rank["lora"]["reference"] == 0.0 and not rank["lora"]["reference_has_routes"]
        assert rank["lora"]["actor"] > 1e-3


def test_rows_that_verl_filled_with_zeros_are_no_choice_of_a_top_1_model():
    from types import SimpleNamespace

    import torch

    from rufus_plugins.hosts.verl.router_replay import replaying

    engine = object.__new__(replaying(type("Stock", (), {})))
    engine._replay_mode, engine._depth, engine.use_ulysses_sp = "R3", 3, False
    engine._routers = SimpleNamespace(layers=[1, 2], top_k=1, num_experts=4)
    jagged = dict(layout=torch.jagged)
    # two sequences of 4 and 3 tokens; layer 0 is dense; the engine's array for the first one was two rows short
    first = torch.tensor([[0, 0, 3], [0, 2, 0], [0, 0, 0], [0, 0, 0]], dtype=torch.int16)[..., None]
    second = torch.tensor([[0, 1, 1], [0, 0, 1], [0, 0, 0]], dtype=torch.int16)[..., None]
    batch = {
        "routed_experts": torch.nested.as_nested_tensor([first, second], **jagged),
        "input_ids": torch.nested.as_nested_tensor([torch.arange(4), torch.arange(3)], **jagged),
        "loss_mask": torch.nested.as_nested_tensor([torch.ones(4), torch.ones(3)], **jagged),
    }
    rows, present = engine._rows_of(batch, {"pad_size": 1}, None)
    assert rows[..., 0].tolist() == [[0, 3], [2, 0], [-1, -1], [-1, -1], [1, 1], [0, 1], [-1, -1], [0, 0]]
    assert present.tolist() == [True, True, True, False, True, True, False, False]


def config(model, mode, strategy="fsdp2", rollout="transformers", **more):
    made = OmegaConf.create(
        {
            "rufus": {"routing_replay": mode},
            "algorithm": {"rollout_correction": {"bypass_mode": False}},
            "actor_rollout_ref": {
                "actor": {
                    "strategy": strategy,
                    "fsdp_config": {"strategy": strategy},
                    "megatron": {"router_replay": {"mode": "disabled"}},
                    "veomni": {"router_replay": {"mode": "disabled"}},
                },
                "rollout": {"name": rollout, "enable_rollout_routing_replay": False, "calculate_log_probs": False},
                "model": {"path": str(model), "enable_gradient_checkpointing": True},
            },
        }
    )
    OmegaConf.set_struct(made, True)
    for key, value in more.items():
        OmegaConf.update(made, key, value, force_add=True)
    return made


@pytest.mark.parametrize(
    "strategy, section",
    [("fsdp", "fsdp_config"), ("fsdp2", "fsdp_config"), ("megatron", "megatron"), ("veomni", "veomni")],
)
@pytest.mark.parametrize("mode, verl_mode, answers", [("rollout", "R3", True), ("record", "R2", False)])
def test_one_switch_sets_verls_keys_on_every_engine(model, strategy, section, mode, verl_mode, answers):
    made = config(model, mode, strategy, rollout="vllm")
    router_replay_config.apply(made)
    assert made.actor_rollout_ref.actor[section].router_replay.mode == verl_mode
    target = made.actor_rollout_ref.actor[section].router_replay._target_
    assert target == "verl.workers.config.EngineRouterReplayConfig"
    assert made.actor_rollout_ref.rollout.enable_rollout_routing_replay is answers


@pytest.mark.parametrize("mode, verl_mode", [("rollout", "R3"), ("record", "R2")])
@pytest.mark.parametrize("engine", ["dp", "megatron", "veomni"])
def test_the_switch_reaches_the_engine_config_that_verl_makes(model, engine, mode, verl_mode):
    """As the workers build it. Megatron and VeOmni themselves cannot be installed beside torch's CPU build."""
    from hydra import compose, initialize_config_module
    from verl.utils.config import omega_conf_to_dataclass

    overrides = [f"model_engine={engine}", f"rufus.routing_replay={mode}", "actor_rollout_ref.rollout.name=vllm"]
    with initialize_config_module("verl.trainer.config", version_base=None):
        made = compose("rufus", [*overrides, "algorithm=gspo", f"actor_rollout_ref.model.path={model}"])
    router_replay_config.apply(made)
    actor = omega_conf_to_dataclass(made.actor_rollout_ref.actor)
    assert actor.engine.router_replay.mode == verl_mode
    assert made.actor_rollout_ref.rollout.enable_rollout_routing_replay is (mode == "rollout")


@pytest.mark.parametrize("strategy", ["fsdp2", "megatron", "veomni"])
def test_a_dense_model_is_refused_on_every_engine(tmp_path, strategy):
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "qwen3"}))
    with pytest.raises(ConfigError, match="qwen3"):
        router_replay_config.apply(config(tmp_path, "rollout", strategy, rollout="vllm"))


@pytest.mark.parametrize("mode", ["off", None, False])
def test_off_leaves_verls_config_alone(model, mode):
    made = config(model, mode)
    before = OmegaConf.to_container(made)
    router_replay_config.apply(made)
    assert OmegaConf.to_container(made) == before


@pytest.mark.parametrize("engine, noted", [("disabled", True), ("R3", False)])
def test_routes_that_nobody_replays_are_noted(model, capsys, engine, noted):
    made = config(model, "off", "megatron", **{"actor_rollout_ref.rollout.enable_rollout_routing_replay": True})
    made.actor_rollout_ref.actor.megatron.router_replay.mode = engine
    router_replay_config.apply(made)
    assert ("the actor replays nothing" in capsys.readouterr().err) is noted


@pytest.mark.parametrize(
    "changes, words",
    [
        (dict(mode="on"), "'on': there are off, record, rollout"),
        (dict(mode=True), "True: there are off, record, rollout"),
        (dict(mode="Rollout"), "'Rollout': there are off, record, rollout"),
        (dict(mode="R3"), "'R3': there are off, record, rollout"),
        (dict(mode=["rollout"]), "['rollout']: there are off, record, rollout"),
        ({"strategy": "fsdp", "trainer.device": "cpu"}, "FSDP1 refuses CPU parameters"),
        (dict(strategy="torchtitan"), "does not exist for actor_rollout_ref.actor.strategy=torchtitan"),
        (dict(rollout="trtllm"), "rollout.name=trtllm does not answer the experts"),
        (
            {"mode": "record", "algorithm.rollout_correction.bypass_mode": True},
            "bypass_mode=True leaves out",
        ),
        (
            {"actor_rollout_ref.model.enable_activation_offload": True},
            "enable_activation_offload=False",
        ),
    ],
)
def test_a_combination_in_which_nothing_would_be_replayed_is_refused(model, changes, words):
    changes = {"mode": "rollout", **changes}
    with pytest.raises(ConfigError) as error:
        router_replay_config.apply(config(model, changes.pop("mode"), **changes))
    assert words in str(error.value)


def test_a_family_that_cannot_be_replayed_is_refused_before_the_run_starts(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "phimoe"}))
    with pytest.raises(ConfigError, match="cannot be had for phimoe"):
        router_replay_config.apply(config(tmp_path, "rollout"))


def test_mismatch_metrics_follow_their_definitions():
    import math

    import torch

    from rufus_plugins.hosts.verl.mismatch import mismatch_metrics

    rollout = torch.tensor([[-1.0, -2.0, -9.0], [-0.5, 0.0, 0.0]])
    trainer = torch.tensor([[-1.5, -1.0, -1.0], [-0.5, 0.0, 0.0]])
    mask = torch.tensor([[1, 1, 0], [1, 0, 0]])
    found = mismatch_metrics(rollout, trainer, mask)  # differences -0.5, 1.0, 0.0
    assert found["training/rollout_logp_absdiff_mean"] == pytest.approx(0.5)
    assert found["training/rollout_kl_k1"] == pytest.approx(-0.5 / 3)
    assert found["training/rollout_kl_k3"] == pytest.approx(((math.exp(-0.5) - 0.5) + (math.e - 2) + 0) / 3)
    assert mismatch_metrics(rollout, trainer, mask * 0) == {}
