"""Families that cannot be replayed are refused by name; new ones come by a plugin."""

import pathlib
import re

import pytest
import torch
from tiny_families import BASE, tiny_model
from tiny_families import FAMILIES as TESTED
from transformers import AutoModelForCausalLM, PhimoeConfig, Qwen3Config, Qwen3MoeConfig

from rufus_plugins import hookimpl, plugins
from rufus_plugins.algos.routing_replay.families import FAMILIES, REFUSED, TopKRouter, adapter_of
from rufus_plugins.algos.routing_replay.record import record
from rufus_plugins.algos.routing_replay.replay import replay
from rufus_plugins.errors import ConfigError


def test_phimoe_is_refused_by_name():
    model = AutoModelForCausalLM.from_config(PhimoeConfig(**{**BASE, "num_local_experts": 4}))
    with (
        pytest.raises(ConfigError, match="cannot be had for phimoe: its sparsemixer.*routing_replay=off"),
        record(model),
    ):
        pass


@pytest.mark.parametrize("name", REFUSED)
def test_every_refused_family_has_a_reason_and_no_adapter(name):
    class Config:
        model_type = name

    assert name not in FAMILIES
    with pytest.raises(ConfigError, match=f"cannot be had for {name}: "):
        adapter_of(Config)


def test_an_unknown_family_is_refused_with_what_is_known():
    class Config:
        model_type = "brand_new_moe"

    with pytest.raises(ConfigError, match="knows no model family 'brand_new_moe'.*glm4_moe.*register_router_adapters"):
        adapter_of(Config)


def test_a_dense_model_is_refused():
    model = AutoModelForCausalLM.from_config(Qwen3Config(**BASE))
    with pytest.raises(ConfigError, match="knows no model family 'qwen3'"), record(model):
        pass


def test_a_moe_family_without_moe_layers_is_refused():
    model = AutoModelForCausalLM.from_config(Qwen3MoeConfig(**BASE, num_experts=4, mlp_only_layers=[0, 1, 2]))
    with pytest.raises(ConfigError, match="has no router that the adapter"), replay(model, None):
        pass


@pytest.mark.parametrize(
    "name, owner",
    [
        ("qwen3_5_moe", "Qwen3_5MoeTopKRouter"),
        ("llama4", "Llama4Router"),
        ("gemma4", "Gemma4TextRouter"),
        ("aria", "AriaExperts"),
        ("glm4v_moe_text", "Glm4vMoeTextMoE"),
    ],
)
def test_a_multimodal_model_has_the_adapter_of_its_text_model(name, owner):
    from transformers import AutoConfig

    assert adapter_of(AutoConfig.for_model(name)).owner == owner


class NewMoeConfig(Qwen3MoeConfig):
    model_type = "new_moe"


class Plugin:
    @staticmethod
    @hookimpl
    def register_router_adapters():
        return {"new_moe": lambda: TopKRouter("Qwen3MoeTopKRouter")}


def test_a_plugin_adds_a_family(monkeypatch):
    import importlib.metadata

    class Entry:
        name, value, group = "new_family", "new_family:Plugin", plugins.GROUP

        @staticmethod
        def load():
            return Plugin

    found = plugins.load([*importlib.metadata.entry_points(group=plugins.GROUP), Entry])
    assert not [failure for failure in found.failures if failure.plugin == "new_family"]
    monkeypatch.setattr(plugins, "registry", lambda: found)
    model = tiny_model("qwen3_moe").eval()
    model.config.model_type = "new_moe"
    ids = torch.arange(3, 12)[None]
    with torch.no_grad(), record(model) as recorder:
        own = model(ids, use_cache=False).logits
    with torch.no_grad(), replay(model, recorder.routes()):
        assert torch.equal(model(ids, use_cache=False).logits, own)


def test_every_moe_family_of_transformers_is_exact_in_the_tests_or_refused_by_name():
    """Found in the sources, so that a family of a new transformers version does not go unseen."""
    import transformers

    routers = re.compile(r"^class \w*(?:Expert|Router|TopK|MoE|Moe|MOE)\w*\(nn\.Module", re.M)
    sources = (pathlib.Path(transformers.__file__).parent / "models").glob("*/modeling_*.py")
    found = {source.parent.name for source in sources if routers.search(source.read_text())}
    known = {name.removesuffix("_thinker") for name in FAMILIES}
    assert len(found) > 45 and found <= known | REFUSED.keys(), found - known - REFUSED.keys()
    assert {name.removesuffix("_text") for name in TESTED} == FAMILIES.keys()


def test_a_class_of_the_same_name_that_is_built_otherwise_is_refused():
    model = tiny_model("qwen3_moe")
    del model.model.layers[1].mlp.gate.top_k
    with pytest.raises(ConfigError, match=r"model.layers.1.mlp.gate of .* is built otherwise .*top_k"), record(model):
        pass


def test_every_built_in_family_is_a_registered_part():
    parts = plugins.registry().parts["router_adapter"]
    assert FAMILIES.keys() <= parts.keys()
    assert all(parts[name].doc for name in FAMILIES)
