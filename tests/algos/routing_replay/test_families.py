"""Every family: its own routes, replayed, change nothing, to the last bit; other routes change something."""

import numpy as np
import pytest
import torch
from tiny_families import FAMILIES, LEAK_WHEN_PACKED, gradients, loss_of, padded_batch, tiny_model

from rufus_plugins.algos.routing_replay.record import record
from rufus_plugins.algos.routing_replay.replay import replay

ROUTER_PARAMETERS = (
    "gate.weight",
    "router.weight",
    "router.layer.weight",
    "router.classifier",
    "gate.wg",
    "router.proj",
)


def difference(a: dict, b: dict) -> float:
    assert a.keys() == b.keys()
    return max(float((a[name] - b[name]).abs().max()) for name in a)


def rotated(routes, num_experts):
    """Other experts in every row, still valid rows."""
    return ((routes.astype(np.int64) + 1) % num_experts).astype(routes.dtype)


def forward(model, ids, mask=None, **kwargs):
    return model(input_ids=ids, attention_mask=mask, use_cache=False, **kwargs).logits


def test_there_are_at_least_25_families():
    assert len(FAMILIES) >= 25


@pytest.mark.parametrize("family", FAMILIES)
def test_own_routes_give_identical_logits_and_gradients_padded(family):
    model = tiny_model(family)
    ids, mask = padded_batch()
    native = forward(model, ids, mask)
    loss_of(native).backward()
    native_gradients = gradients(model)

    with record(model) as recorder:
        recorded = forward(model, ids, mask)
    routes = recorder.routes()
    with replay(model, routes) as pass_:
        replayed = forward(model, ids, mask)
    loss_of(replayed).backward()

    assert torch.equal(recorded, native)
    assert torch.equal(replayed, native)
    replayed_gradients = gradients(model)
    assert difference(native_gradients, replayed_gradients) == 0.0
    assert pass_.match_rate() == 1.0
    routers = [name for name in replayed_gradients if any(part in name for part in ROUTER_PARAMETERS)]
    assert routers and all(replayed_gradients[name].abs().max() > 0 for name in routers)

    with torch.no_grad(), replay(model, rotated(routes, recorder.num_experts)) as pass_:
        other = forward(model, ids, mask)
    assert (other - native)[mask.bool()].abs().max() > 1e-4
    assert pass_.match_rate() < 1.0
    with torch.no_grad():
        assert torch.equal(forward(model, ids, mask), native)  # nothing stays armed


@pytest.mark.parametrize("family", [name for name in FAMILIES if name not in LEAK_WHEN_PACKED])
def test_own_routes_give_identical_logits_and_gradients_packed(family):
    model = tiny_model(family)
    ids, mask = padded_batch()
    packed = ids[mask.bool()][None]
    positions = torch.cat([torch.arange(length) for length in (12, 7)])[None]
    native = forward(model, packed, position_ids=positions)
    loss_of(native).backward()
    native_gradients = gradients(model)
    with record(model) as recorder:
        forward(model, packed, position_ids=positions)
    with replay(model, recorder.routes()):
        replayed = forward(model, packed, position_ids=positions)
    loss_of(replayed).backward()
    assert torch.equal(replayed, native)
    assert difference(native_gradients, gradients(model)) == 0.0


@pytest.mark.parametrize("family", FAMILIES)
def test_two_outstanding_checkpointed_forwards_keep_their_own_routes(family):
    model = tiny_model(family)
    batches = [padded_batch(seed=seed) for seed in (1, 2)]
    routes = []
    for ids, mask in batches:
        with torch.no_grad(), record(model) as recorder:
            forward(model, ids, mask)
        routes.append(rotated(recorder.routes(), recorder.num_experts))  # not what the model would choose

    expected = []
    for (ids, mask), rows in zip(batches, routes, strict=True):
        with replay(model, rows):
            logits = forward(model, ids, mask)
        loss_of(logits).backward()
        expected.append((logits.detach(), gradients(model)))

    model.gradient_checkpointing_enable()
    logits = []
    for (ids, mask), rows in zip(batches, routes, strict=True):
        with replay(model, rows):
            logits.append(forward(model, ids, mask))
    for output, (expected_logits, expected_gradients) in zip(logits, expected, strict=True):
        loss_of(output).backward()  # outside the blocks, the second forward came in between
        assert torch.equal(output, expected_logits)
        assert difference(expected_gradients, gradients(model)) == 0.0
