"""Every way in which routing replay can go wrong without a sign, or must go wrong with one."""

import copy
import functools

import numpy as np
import pytest
import torch
from test_families import difference, forward, rotated
from tiny_families import gradients, loss_of, padded_batch, tiny_model

from rufus_plugins.algos.routing_replay.record import record
from rufus_plugins.algos.routing_replay.replay import native, replay
from rufus_plugins.algos.routing_replay.routers import RoutesError, install, installed


def recorded(model, ids, mask=None):
    with torch.no_grad(), record(model) as recorder:
        logits = forward(model, ids, mask)
    return recorder.routes(), logits


def replayed(model, routes, ids, mask=None, present=None):
    with torch.no_grad(), replay(model, routes, present) as pass_:
        logits = forward(model, ids, mask)
    return logits, pass_


def test_routes_shifted_by_one_row_change_the_logits_and_the_match_rate():
    model = tiny_model("glm4_moe")
    ids, _ = padded_batch((24,))
    routes, own = recorded(model, ids)
    shifted, pass_ = replayed(model, np.roll(routes, 1, axis=0), ids)
    assert (shifted - own).abs().max() > 0.1
    assert pass_.match_rate() < 0.8


def test_slot_order_is_kept():
    # permuted slots give the same mathematical sum in another order: only the recorded order is bit-exact
    model = tiny_model("qwen3_moe")
    ids, _ = padded_batch((24,))
    routes, own = recorded(model, ids)
    flipped, pass_ = replayed(model, routes[:, :, ::-1].copy(), ids)
    assert pass_.match_rate() == 1.0
    assert 0.0 <= (flipped - own).abs().max() < 1e-4
    chosen = []
    site = installed(model).sites[0]
    with torch.no_grad(), replay(model, routes[:, :, ::-1].copy()), record_selected(site, chosen):
        forward(model, ids)
    np.testing.assert_array_equal(chosen[0], routes[:, 0, ::-1])


class record_selected:
    """Watches what the experts of a qwen3_moe router's block are given."""

    def __init__(self, site, into):
        self.site, self.into = site, into

    def __enter__(self):
        self.handle = self.site.owner.register_forward_hook(lambda m, a, out: self.into.append(out[2].numpy()))

    def __exit__(self, *exc):
        self.handle.remove()


@pytest.mark.parametrize("family", ["glm4_moe", "qwen3_moe", "deepseek_v2", "gpt_oss"])
@pytest.mark.parametrize(
    "bad_row", [[0, 0], [3, 3], [-1, -1], [8, 1], [2, 200], [-1, 4]], ids=lambda row: ",".join(map(str, row))
)
def test_rows_that_are_no_choice_go_native(family, bad_row):
    model = tiny_model(family)
    ids, mask = padded_batch()
    routes, own = recorded(model, ids, mask)
    spoiled = routes.astype(np.int16)
    spoiled[[3, 5, 20]] = bad_row
    logits, pass_ = replayed(model, spoiled, ids, mask)
    assert torch.equal(logits, own)
    same, used, everything = pass_.counts().tolist()
    layers = routes.shape[1]
    assert (same, used, everything) == ((24 - 3) * layers * 2, (24 - 3) * layers * 2, 24 * layers * 2)


def test_only_the_bad_rows_of_a_bad_layer_go_native():
    model = tiny_model("qwen3_moe")
    ids, _ = padded_batch((10,))
    routes, own = recorded(model, ids)
    other = rotated(routes, 8)
    half = routes.copy()
    half[4:, 1] = other[4:, 1]
    spoiled = other.copy()
    spoiled[:, [0, 2]] = routes[:, [0, 2]]
    spoiled[:4, 1] = 255  # rows 0-3 of layer 1 are missing: native
    wanted, _ = replayed(model, half, ids)
    got, _ = replayed(model, spoiled, ids)
    assert not torch.equal(got, own)
    assert torch.equal(got, wanted)


def test_a_top_1_model_has_no_missing_row_but_the_mask_says_which_are():
    model = tiny_model("llama4_text")
    ids, _ = padded_batch((10,))
    routes, own = recorded(model, ids)
    assert routes.shape[-1] == 1
    zeros = np.zeros_like(routes)
    all_to_expert_0, pass_ = replayed(model, zeros, ids)
    assert (all_to_expert_0 - own).abs().max() > 1e-3  # expert 0 is a choice like any other
    assert pass_.counts().tolist()[1] == 10 * routes.shape[1]
    present = np.arange(10) < 4
    zeros[:4] = routes[:4]
    logits, pass_ = replayed(model, zeros, ids, present=present)
    assert torch.equal(logits, own)
    assert pass_.counts().tolist()[1] == 4 * routes.shape[1]


@pytest.mark.parametrize("rows", [23, 25, 12, 0])
def test_short_and_long_arrays_raise(rows):
    model = tiny_model("glm4_moe")
    ids, mask = padded_batch()
    routes, _ = recorded(model, ids, mask)
    wrong = np.resize(routes, (rows, *routes.shape[1:]))
    with pytest.raises(RoutesError, match=f"24 tokens in layer 1, the routes have {rows} rows"):
        replayed(model, wrong, ids, mask)


@pytest.mark.parametrize(
    "wrong, message",
    [
        (None, "no routes"),
        (np.zeros((24, 3, 2), np.uint8), "2 MoE layers, top 2"),
        (np.zeros((24, 2, 4), np.uint8), "2 MoE layers, top 2"),
        (np.zeros((24, 2), np.uint8), "2 MoE layers, top 2"),
        (np.zeros((24, 2, 2), np.float32), "float32, not integers"),
        (np.zeros((24, 2, 2), np.complex64), "complex64, not integers"),
        (np.zeros((24, 2, 2), bool), "bool, not integers"),
        (np.full((24, 2, 2), "3"), "not integers"),
        (np.full((24, 2, 2), None), "object, not integers"),
        ([[1, 2], [3]], "no array"),
        (torch.zeros(24, 2, 2), "float32, not integers"),
    ],
)
def test_missing_and_misshapen_routes_raise(wrong, message):
    model = tiny_model("glm4_moe")
    ids, mask = padded_batch()
    with pytest.raises(RoutesError, match=message):
        replayed(model, wrong, ids, mask)


@pytest.mark.parametrize("dtype", ["uint8", "int16", "uint16", ">i2", "int32", "uint32", "<u4", "int64", "uint64"])
def test_integers_of_every_width_and_byte_order_are_the_same_routes(dtype):
    model = tiny_model("glm4_moe")
    ids, mask = padded_batch()
    routes, own = recorded(model, ids, mask)
    given = rotated(routes, 8).astype(dtype)
    given.flags.writeable = False
    expected, _ = replayed(model, rotated(routes, 8), ids, mask)
    logits, pass_ = replayed(model, given, ids, mask)
    assert torch.equal(logits, expected) and not torch.equal(logits, own)
    assert pass_.counts().tolist()[1] == routes.size
    backwards = np.ascontiguousarray(given[::-1])[::-1]  # a view with negative strides
    assert torch.equal(replayed(model, backwards, ids, mask)[0], expected)
    if np.dtype(dtype).kind == "u" and np.dtype(dtype).itemsize > 1:
        wide = torch.from_numpy(given.astype(dtype))
        assert torch.equal(replayed(model, wide, ids, mask)[0], expected)


def test_routes_that_are_all_out_of_range_replay_nothing_and_say_so():
    model = tiny_model("glm4_moe")
    ids, mask = padded_batch()
    routes, own = recorded(model, ids, mask)
    logits, pass_ = replayed(model, np.full_like(routes, 77), ids, mask)
    assert torch.equal(logits, own)
    assert pass_.counts().tolist() == [0, 0, routes.size] and np.isnan(pass_.match_rate())


def test_a_block_in_which_no_router_ran_raises():
    model = tiny_model("glm4_moe")
    with pytest.raises(RoutesError, match=r"layers \[1, 2\] did not run"), replay(model, np.zeros((4, 2, 2), np.uint8)):
        pass


def test_two_forwards_in_one_block_raise():
    model = tiny_model("glm4_moe")
    ids, mask = padded_batch()
    routes, _ = recorded(model, ids, mask)
    with pytest.raises(RoutesError, match="ran twice"), torch.no_grad(), replay(model, routes):
        forward(model, ids, mask)
        forward(model, ids, mask)


def test_a_router_that_no_longer_calls_topk_raises():
    model = tiny_model("qwen3_moe")
    ids, _ = padded_batch((5,))
    site = install(model).sites[1]
    router = site.owner

    def sorting_router(hidden):
        probabilities = torch.softmax(torch.nn.functional.linear(hidden, router.weight).float(), -1)
        values, indices = probabilities.sort(-1, descending=True)
        return probabilities, values[:, :2], indices[:, :2]

    site.original = sorting_router
    with pytest.raises(RoutesError, match="layer 1 .*chose experts 0 times"), record(model):
        forward(model, ids)
    forward(model, ids)  # unrecorded, it may do as it likes


def test_backward_after_the_block_matches_backward_inside_it_under_checkpointing():
    model = tiny_model("qwen3_moe")
    ids, mask = padded_batch()
    routes = rotated(recorded(model, ids, mask)[0], 8)
    model.gradient_checkpointing_enable()
    with replay(model, routes):
        loss_of(forward(model, ids, mask)).backward()
    inside = gradients(model)
    with replay(model, routes):
        logits = forward(model, ids, mask)
    forward(model, ids, mask)  # a native forward in between
    loss_of(logits).backward()
    assert difference(inside, gradients(model)) == 0.0


@pytest.mark.parametrize("reentrant", [False, True])
def test_both_kinds_of_checkpoint_keep_routes(reentrant):
    model = tiny_model("glm4_moe")
    ids, mask = padded_batch()
    routes = rotated(recorded(model, ids, mask)[0], 8)
    with replay(model, routes):
        loss_of(forward(model, ids, mask)).backward()
    plain = gradients(model)
    model.enable_input_require_grads()
    model.gradient_checkpointing_enable({"use_reentrant": reentrant})
    with replay(model, routes):
        logits = forward(model, ids, mask)
    loss_of(logits).backward()
    assert difference(plain, gradients(model)) == 0.0


def test_torch_checkpoint_wrappers_keep_routes():
    from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper

    model = tiny_model("qwen3_moe")
    ids, mask = padded_batch()
    routes = rotated(recorded(model, ids, mask)[0], 8)
    with replay(model, routes):
        loss_of(forward(model, ids, mask)).backward()
    plain = gradients(model)

    model = tiny_model("qwen3_moe")  # wrapped before its routers are installed, as trainers do
    for index, layer in enumerate(model.model.layers):
        model.model.layers[index] = checkpoint_wrapper(layer)
    logits = []
    for rows in (routes, recorded(model, ids, mask)[0]):
        with replay(model, rows):
            logits.append(forward(model, ids, mask))
    loss_of(logits[0]).backward()
    found = {name.replace("_checkpoint_wrapped_module.", ""): g for name, g in gradients(model).items()}
    assert difference(plain, found) == 0.0


def test_a_checkpoint_that_replay_does_not_know_raises_in_backward():
    model = tiny_model("qwen3_moe")
    ids, mask = padded_batch()
    routes, _ = recorded(model, ids, mask)
    layer = model.model.layers[1]
    stock = layer.forward
    layer.forward = functools.partial(torch.utils.checkpoint.checkpoint, stock, use_reentrant=False)
    with replay(model, routes):
        logits = forward(model, ids, mask)
    with pytest.raises(RoutesError, match="layer 1 is recomputed in backward"):
        loss_of(logits).backward()


def test_native_forwards_keep_working_under_checkpointing_after_a_replay():
    model = tiny_model("glm4_moe")
    ids, mask = padded_batch()
    routes, _ = recorded(model, ids, mask)
    loss_of(forward(model, ids, mask)).backward()
    expected = gradients(model)
    model.gradient_checkpointing_enable()
    with replay(model, rotated(routes, 8)):
        forward(model, ids, mask)
    loss_of(forward(model, ids, mask)).backward()
    assert difference(expected, gradients(model)) == 0.0


def test_recording_under_checkpointing_takes_each_row_once():
    model = tiny_model("glm4_moe")
    ids, mask = padded_batch()
    expected, _ = recorded(model, ids, mask)
    model.gradient_checkpointing_enable()
    with record(model) as recorder:
        loss_of(forward(model, ids, mask)).backward()
    np.testing.assert_array_equal(recorder.routes(), expected)


def test_a_reference_pass_is_neither_replayed_nor_recorded():
    model = tiny_model("glm4_moe")
    ids, mask = padded_batch()
    routes, own = recorded(model, ids, mask)
    with torch.no_grad(), record(model) as recorder:
        with native():
            forward(model, ids, mask)
        assert recorder.forwards == 0
    with torch.no_grad(), replay(model, rotated(routes, 8)):
        with native():
            assert torch.equal(forward(model, ids, mask), own)
        forward(model, ids, mask)


def test_a_lora_reference_in_the_actor_is_native():
    peft = pytest.importorskip("peft")
    model = tiny_model("qwen3_moe")
    ids, mask = padded_batch()
    base = forward(model, ids, mask).detach()
    lora = peft.get_peft_model(model, peft.LoraConfig(r=4, target_modules=["q_proj", "v_proj"]))
    for name, parameter in lora.named_parameters():
        if "lora_B" in name:
            torch.nn.init.normal_(parameter, std=0.5)
    routes, adapted = recorded(lora, ids, mask)
    assert (adapted - base).abs().max() > 1e-3
    logits, _ = replayed(lora, routes, ids, mask)
    assert torch.equal(logits, adapted)
    with torch.no_grad(), replay(lora, rotated(routes, 8)):
        with native(), lora.disable_adapter():
            assert torch.equal(forward(lora, ids, mask), base)
        forward(lora, ids, mask)


def test_an_error_in_the_forward_leaves_nothing_armed():
    model = tiny_model("glm4_moe")
    ids, mask = padded_batch()
    routes, own = recorded(model, ids, mask)
    with pytest.raises(ZeroDivisionError), replay(model, rotated(routes, 8)):
        raise ZeroDivisionError
    with torch.no_grad():
        assert torch.equal(forward(model, ids, mask), own)


def test_another_model_in_the_block_is_not_touched():
    actor, reference = tiny_model("glm4_moe"), tiny_model("glm4_moe", seed=5)
    ids, mask = padded_batch()
    routes, _ = recorded(actor, ids, mask)
    _, own = recorded(reference, ids, mask)
    with torch.no_grad(), replay(actor, rotated(routes, 8)):
        assert torch.equal(forward(reference, ids, mask), own)
        forward(actor, ids, mask)


def test_a_copied_model_has_its_own_routers():
    model = tiny_model("glm4_moe")
    ids, mask = padded_batch()
    routes, own = recorded(model, ids, mask)
    twin = copy.deepcopy(model)
    for parameter in twin.parameters():
        parameter.data.mul_(1.5)
    assert installed(twin) is not installed(model)
    with torch.no_grad():
        assert not torch.equal(forward(twin, ids, mask), own)
        with replay(twin, rotated(routes, 8)):
            assert torch.equal(forward(model, ids, mask), own)
            forward(twin, ids, mask)


def test_installing_changes_no_parameter_name_and_no_state():
    model = tiny_model("glm4_moe")
    before = {name: value.clone() for name, value in model.state_dict().items()}
    modules = [name for name, _ in model.named_modules()]
    install(model)
    install(model)
    after = model.state_dict()
    assert list(before) == list(after) and all(torch.equal(before[name], after[name]) for name in before)
    assert modules == [name for name, _ in model.named_modules()]


@pytest.mark.parametrize("family", ["glm4_moe", "qwen3_moe", "gpt_oss", "deepseek_v3", "ernie4_5_moe"])
def test_own_routes_are_exact_under_bf16_autocast(family):
    model = tiny_model(family)
    ids, mask = padded_batch()
    with torch.autocast("cpu", torch.bfloat16):
        native_logits = forward(model, ids, mask)
        with record(model) as recorder:
            forward(model, ids, mask)
        with replay(model, recorder.routes()):
            logits = forward(model, ids, mask)
    loss_of(native_logits).backward()
    expected = gradients(model)
    loss_of(logits).backward()
    assert torch.equal(logits, native_logits)
    assert difference(expected, gradients(model)) == 0.0


@pytest.mark.parametrize("experts", ["eager", "grouped_mm", "batched_mm"])
def test_every_implementation_of_the_experts_replays_exactly(experts):
    model = tiny_model("glm4_moe")
    model.set_experts_implementation(experts)
    ids, mask = padded_batch()
    routes, own = recorded(model, ids, mask)
    logits, _ = replayed(model, routes, ids, mask)
    assert torch.equal(logits, own)
    other, _ = replayed(model, rotated(routes, 8), ids, mask)
    assert (other - own).abs().max() > 1e-3


@pytest.mark.parametrize("family", ["glm4_moe", "qwen3_moe", "gpt_oss", "mixtral", "deepseek_v3"])
def test_decode_steps_with_a_cache_record_what_one_forward_records(family):
    model = tiny_model(family).eval()
    ids, _ = padded_batch((9, 9))
    with torch.no_grad(), record(model) as recorder:
        output = model.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=6, min_new_tokens=6)
    steps = recorder.per_sequence(2)
    assert recorder.forwards == 6 and steps.shape[:2] == (2, 9 + 6 - 1)  # the last token was never an input
    for row in range(2):
        one, _ = recorded(model, output[row : row + 1, :-1])
        assert (one == steps[row]).mean() > 0.98  # another batch shape rounds differently: ties may flip
    np.testing.assert_array_equal(
        recorder.routes()[:18], np.concatenate([steps[0, :9], steps[1, :9]])
    )  # flattened order of the prefill


def test_routes_of_sequences_recorded_alone_replay_packed():
    model = tiny_model("glm4_moe").eval()
    ids, mask = padded_batch((12, 7, 9))
    alone = [recorded(model, ids[i : i + 1, : mask[i].sum()]) for i in range(3)]
    packed = torch.cat([ids[i, : mask[i].sum()] for i in range(3)])[None]
    positions = torch.cat([torch.arange(int(n)) for n in mask.sum(1)])[None]
    with torch.no_grad(), replay(model, np.concatenate([routes for routes, _ in alone])) as pass_:
        logits = forward(model, packed, position_ids=positions)
    assert pass_.match_rate() > 0.97
    torch.testing.assert_close(logits[0], torch.cat([own[0] for _, own in alone]), atol=1e-4, rtol=1e-4)


def test_replay_brings_a_perturbed_model_closer_to_the_rollout():
    rollout, trainer = tiny_model("glm4_moe").eval(), tiny_model("glm4_moe").eval()
    generator = torch.Generator().manual_seed(3)
    for parameter in trainer.parameters():
        parameter.data.add_(0.01 * torch.randn(parameter.shape, generator=generator) * parameter.std())
    ids, _ = padded_batch((60, 60, 60, 60))
    routes, own = recorded(rollout, ids)
    picked = torch.log_softmax(own, -1)
    with torch.no_grad():
        alone = (torch.log_softmax(forward(trainer, ids), -1) - picked).abs().mean()
    logits, pass_ = replayed(trainer, routes, ids)
    assert pass_.match_rate() < 1.0
    assert (torch.log_softmax(logits, -1) - picked).abs().mean() < alone
