"""The memory estimate: parameters as transformers counts them, shares of a GPU worked out by hand."""

import json

import pytest
from omegaconf import OmegaConf

from rufus_plugins import cli
from rufus_plugins.errors import ConfigError
from rufus_plugins.hosts.verl.memory import MODELS, estimate, shape_of


@pytest.mark.parametrize(
    "name, cls",
    [("glm-4.5-air", "Glm4MoeForCausalLM"), ("qwen3-30b-a3b", "Qwen3MoeForCausalLM")],
)
def test_the_parameters_are_those_of_transformers_own_model(name, cls):
    import torch
    import transformers

    values = json.loads((MODELS / f"{name}.json").read_text())
    names = values.pop("names")
    config = transformers.AutoConfig.for_model(**values)
    with torch.device("meta"):
        model = getattr(transformers, cls)(config)
    counted = sum(parameter.numel() for parameter in model.parameters())
    assert shape_of(names[0]).parameters == pytest.approx(counted, rel=1e-3)  # norms and biases are left out
    kv = 2 * config.num_hidden_layers * config.num_key_value_heads * config.head_dim * 2
    assert shape_of(names[0]).kv_bytes(2) == kv


def config(**changes):
    """128 GPUs, Megatron: tensor 4, pipeline 2, context 4, experts 8."""
    made = OmegaConf.create(
        {
            "trainer": {"nnodes": 16, "n_gpus_per_node": 8},
            "data": {"max_prompt_length": 4096, "max_response_length": 131072, "train_batch_size": 256},
            "rufus": {"routing_replay": "rollout"},
            "actor_rollout_ref": {
                "model": {"path": "zai-org/GLM-4.5-Air"},
                "actor": {
                    "strategy": "megatron",
                    "ppo_max_token_len_per_gpu": 36864,
                    "megatron": {
                        "tensor_model_parallel_size": 4,
                        "pipeline_model_parallel_size": 2,
                        "context_parallel_size": 4,
                        "expert_model_parallel_size": 8,
                        "expert_tensor_parallel_size": 1,
                    },
                    "fsdp_config": {"model_dtype": "fp32"},
                },
                "rollout": {
                    "name": "sglang",
                    "n": 16,
                    "tensor_model_parallel_size": 4,
                    "gpu_memory_utilization": 0.7,
                    "quantization": "fp8",
                },
            },
        }
    )
    for key, value in changes.items():
        OmegaConf.update(made, key.replace("__", "."), value)
    return made


def test_megatron_shares_as_worked_out_by_hand():
    found = estimate(config())
    # 7.195 billion outside the experts over 4 x 2, 99.657 billion of experts over 8 x 2
    held = 7.19454208 / 8 + 99.65666304 / 16
    assert found.training["weights"] == pytest.approx(2 * held, rel=1e-6)
    assert found.training["gradients"] == pytest.approx(4 * held, rel=1e-6)
    # optimizer: over the 16 ranks that share the first part, the 8 that share the second
    assert found.training["optimizer"] == pytest.approx(12 * (0.89931776 / 16 + 6.22854144 / 8), rel=1e-6)
    assert found.training["logits"] == pytest.approx(36864 * 151552 * 10 / 4 / 1e9)
    # engine: 2 bytes for what fp8 leaves alone, 1 for experts, over 4
    assert found.rollout["weights"] == pytest.approx((2 * 7.19454208 + 99.65666304) / 4, rel=1e-6)
    assert found.rollout["weights"] + found.rollout["kv_cache"] == pytest.approx(0.7 * 141)
    # 46 layers x 2 x 2 heads x 128 x 2 bytes = 94,208 bytes a token: 12.7 GB for 135,168... over 2 of 8 heads
    each = 46 * 2 * 2 * 128 * 2 * 135168
    assert f"{int((0.7 * 141e9 - found.rollout['weights'] * 1e9) // each)} of them run at once" in " ".join(found.notes)
    assert "360 bytes a token recorded, 736 in verl's layout" in " ".join(found.notes)
    assert found.problems == []


def test_fsdp_shares_everything_over_all_gpus():
    found = estimate(config(actor_rollout_ref__actor__strategy="fsdp2"))
    assert found.training["weights"] == found.training["gradients"] == pytest.approx(4 * 106.85120512 / 128, rel=1e-6)
    assert found.training["optimizer"] == pytest.approx(8 * 106.85120512 / 128, rel=1e-6)


@pytest.mark.parametrize(
    "changes, said",
    [
        ({"trainer__nnodes": 4, "actor_rollout_ref__actor__megatron__expert_model_parallel_size": 1}, "training needs"),
        ({"actor_rollout_ref__rollout__tensor_model_parallel_size": 1}, "no sequence of 135,168 tokens"),
        ({"actor_rollout_ref__actor__ppo_max_token_len_per_gpu": 8192}, "does not fit into a micro-batch of 8,192"),
    ],
)
def test_what_does_not_fit_is_said_with_what_to_change(changes, said):
    assert said in " ".join(estimate(config(**changes)).problems)


@pytest.mark.parametrize("size", [3, 48])
def test_parallel_sizes_that_do_not_divide_are_refused(size):
    with pytest.raises(ConfigError, match="does not divide"):
        estimate(config(actor_rollout_ref__actor__megatron__expert_model_parallel_size=size))


def test_an_unknown_model_and_a_cpu_run_are_not_estimated():
    assert estimate(config(actor_rollout_ref__model__path="somebody/else")) is None
    assert estimate(config(trainer__device="cpu")) is None


def test_check_says_what_does_not_fit_and_fails(capsys):
    given = ["model_engine=megatron", "stage=coding_rl", "scale=air"]
    assert cli.main(["check", *given]) == 0
    assert "106.9 billion parameters, 128 GPUs of 141 GB" in capsys.readouterr().out
    assert cli.main(["check", "--gpu-memory-gb", "40", *given]) == 1
    assert "needs about" in capsys.readouterr().out
