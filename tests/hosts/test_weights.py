import pytest
import torch

from rufus_plugins.hosts.verl.transformers_rollout.weights import WeightLoader
from rufus_plugins.recipes.tiny.model import build


@pytest.fixture
def pair():
    sender, _ = build(seed=1)
    receiver, _ = build(seed=2)
    return sender, receiver


def unfused(model):
    """As verl sends them: its own function, on the trainer's state dict."""
    from verl.workers.engine.fsdp.utils import unfuse_moe_params

    return list(unfuse_moe_params(iter(model.state_dict().items()), "glm4_moe"))


def test_unfused_experts_and_router_biases_arrive_where_they_belong(pair):
    sender, receiver = pair
    weights = unfused(sender)
    assert any(".experts.7.up_proj.weight" in name for name, _ in weights)
    loader = WeightLoader(receiver)
    loader.load(weights[:30])
    loader.load(weights[30:])
    loader.finish()
    for name, value in sender.state_dict().items():
        assert torch.equal(receiver.state_dict()[name], value), name


def test_a_parameter_that_was_not_sent_is_an_error(pair):
    sender, receiver = pair
    loader = WeightLoader(receiver)
    loader.load([w for w in unfused(sender) if not w[0].endswith("layers.2.mlp.experts.3.down_proj.weight")])
    with pytest.raises(ValueError, match="layers.2.mlp.experts.down_proj"):
        loader.finish()


def test_an_unknown_name_and_a_wrong_shape_are_errors(pair):
    _, receiver = pair
    with pytest.raises(KeyError, match="no parameter 'model.nothing.weight'"):
        WeightLoader(receiver).load([("model.nothing.weight", torch.zeros(1))])
    with pytest.raises(ValueError, match="lm_head.weight"):
        WeightLoader(receiver).load([("lm_head.weight", torch.zeros(2, 2))])
