"""GSPO against a float64 reference written from the paper, through verl's own actor loss (`ppo_loss`)."""

import json
import math
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

LOW, HIGH = 3e-4, 4e-4


def reference(old, new, advantages, masks):
    """Loss and d(loss)/d(new) by the paper, token by token in Python floats.

    Loss: -mean over trained sequences of min(s A, clip(s) A), s = exp(mean over trained tokens of new - old).
    Gradient of the token form: -A s / |y| / N on each trained token unless the clip is active.
    """
    trained = [i for i, mask in enumerate(masks) if any(mask)]
    loss, gradient = 0.0, [[0.0] * len(row) for row in new]
    for i in trained:
        tokens = [t for t, m in enumerate(masks[i]) if m]
        ratio = math.exp(sum(new[i][t] - old[i][t] for t in tokens) / len(tokens))
        advantage = advantages[i]
        clipped = min(max(ratio, 1 - LOW), 1 + HIGH)
        loss -= min(ratio * advantage, clipped * advantage) / len(trained)
        if ratio * advantage <= clipped * advantage:
            for t in tokens:
                gradient[i][t] = -advantage * ratio / len(tokens) / len(trained)
    return loss, [g for row in gradient for g in row]


def actor_config(mode):
    from verl.workers.config import FSDPActorConfig
    from verl.workers.config.actor import PolicyLossConfig

    return FSDPActorConfig(
        strategy="fsdp2",
        rollout_n=1,
        ppo_micro_batch_size_per_gpu=1,
        clip_ratio_low=LOW,
        clip_ratio_high=HIGH,
        loss_agg_mode="seq-mean-token-mean",
        policy_loss=PolicyLossConfig(loss_mode=mode),
    )


class OneRank:
    """What sequence_count asks of an engine, without a process group."""

    def get_data_parallel_group(self):
        return None


def nested(rows, dtype=torch.float32):
    return torch.nested.as_nested_tensor([torch.tensor(row, dtype=dtype) for row in rows], layout=torch.jagged)


def host_loss(
    mode,
    old,
    new,
    advantages,
    masks,
    micro_batches=None,
    divisor="trained",
    dtype=torch.float32,
    engine=None,
    ranks=1,
    all_tokens=None,
):
    """(loss, gradient per response token) of one mini-batch through verl's ppo_loss, micro-batch by micro-batch.

    divisor: "trained" counts as hosts/verl/sequence_count.py does, "stock" counts all rows as verl does.
    engine, ranks, all_tokens: of a rank of several; the arguments are then the rank's own rows.
    """
    from tensordict import TensorDict
    from verl.utils import tensordict_utils as tu
    from verl.workers.utils.losses import ppo_loss

    from rufus_plugins.hosts.verl.sequence_count import with_trained_sequences

    rows = len(new)
    config = actor_config(mode)
    whole = TensorDict({"response_mask": nested(masks, torch.int64)}, batch_size=rows)
    tu.assign_non_tensor(whole, global_batch_size=rows * ranks)
    loss_function = ppo_loss
    if divisor == "trained":
        loss_function = with_trained_sequences(engine or OneRank(), whole, ppo_loss)
    total, gradient = 0.0, [None] * rows
    for micro in micro_batches or [list(range(rows))]:
        leaves = [torch.tensor(new[i], dtype=dtype, requires_grad=True) for i in micro]
        # verl's log_probs run over prompt + response, shifted by one: a prompt of one token
        flat = torch.cat([torch.cat([leaf, leaf.new_zeros(1)]) for leaf in leaves])
        data = TensorDict(
            {
                "prompts": nested([[7]] * len(micro), torch.int64),
                "responses": nested([[7] * len(new[i]) for i in micro], torch.int64),
                "response_mask": nested([masks[i] for i in micro], torch.int64),
                "old_log_probs": nested([old[i] for i in micro], dtype),
                "advantages": nested([[advantages[i]] * len(new[i]) for i in micro], dtype),
            },
            batch_size=len(micro),
        )
        tu.assign_non_tensor(
            data,
            dp_size=ranks,
            batch_num_tokens=all_tokens or sum(map(sum, masks)),
            global_batch_size=tu.get_non_tensor_data(whole, "global_batch_size", None),
        )
        loss, _ = loss_function(config=config, model_output={"log_probs": flat}, data=data)
        loss.backward()
        total += loss.item()
        for i, leaf in zip(micro, leaves, strict=True):
            gradient[i] = leaf.grad
    return total, torch.cat(gradient)


@pytest.fixture(scope="module")
def exact():
    """Ours, under the name a run selects it by."""
    from verl.trainer.ppo.core_algos import POLICY_LOSS_REGISTRY

    from rufus_plugins.algos.losses.gspo_exact import gspo_exact

    POLICY_LOSS_REGISTRY.setdefault("gspo_exact", gspo_exact)
    return "gspo_exact"


@pytest.fixture(scope="module", params=["stock", "ours"])
def mode(request, exact):
    return "gspo" if request.param == "stock" else exact


def check(mode, old, new, advantages, masks, rtol=2e-5, **kwargs):
    loss, gradient = host_loss(mode, old, new, advantages, masks, **kwargs)
    expected_loss, expected_gradient = reference(old, new, advantages, masks)
    assert loss == pytest.approx(expected_loss, rel=rtol, abs=1e-6)
    np.testing.assert_allclose(gradient.numpy(), expected_gradient, rtol=1e-4, atol=1e-7)


def test_a_hand_worked_sequence(mode):
    # log-ratio of the two trained tokens: (0.0002 + 0.0004) / 2 = 0.0003; s = 1.00030004; the tool token is not read
    old, new = [[-1.0, -5.0, -2.0]], [[-0.9998, -9.0, -1.9996]]
    loss, gradient = host_loss(mode, old, new, [2.0], [[1, 0, 1]], dtype=torch.float64)
    assert loss == pytest.approx(-2 * 1.000300045, abs=1e-9)
    assert gradient.tolist() == pytest.approx([-1.000300045, 0, -1.000300045], abs=1e-9)


def test_a_clipped_sequence_has_the_clipped_loss_and_no_gradient(mode):
    loss, gradient = host_loss(mode, [[-1.0, -1.0]], [[-0.9, -0.9]], [1.0], [[1, 1]])
    assert loss == pytest.approx(-1.0004)
    assert gradient.tolist() == [0, 0]


def test_tool_tokens_one_token_sequences_and_masked_sequences(mode):
    check(
        mode,
        old=[[-1.0, -3.0, -1.0, -0.5], [-2.0], [-1.0, -1.0], [-0.3, -0.3, -0.3]],
        new=[[-1.0001, -9.0, -0.9999, -0.5002], [-1.9999], [-3.0, -3.0], [-0.3, -0.30001, -0.2999]],
        advantages=[1.0, -0.5, 7.0, 0.25],
        masks=[[1, 0, 1, 1], [1], [0, 0], [1, 1, 0]],
    )


def test_the_hosts_own_count_lets_masked_sequences_shrink_the_loss():
    """Why hosts/verl/sequence_count.py exists: one masked row halves verl's loss of the other."""
    arguments = [[-1.0], [-1.0]], [[-1.0], [-1.0]], [1.0, 1.0], [[1], [0]]
    assert reference(*arguments)[0] == -1.0
    assert host_loss("gspo", *arguments, divisor="stock")[0] == pytest.approx(-0.5)
    assert host_loss("gspo", *arguments)[0] == pytest.approx(-1.0)


def test_a_mini_batch_without_any_trained_token_has_loss_zero(mode):
    loss, gradient = host_loss(mode, [[-1.0]], [[-1.0]], [1.0], [[0]])
    assert loss == 0.0 and gradient.tolist() == [0.0]


row = st.integers(1, 6).flatmap(
    lambda n: st.tuples(
        st.lists(st.floats(-8, 0, width=32), min_size=n, max_size=n),
        st.lists(st.floats(-0.002, 0.002), min_size=n, max_size=n),
        st.sampled_from([-2.0, -0.5, 0.0, 0.25, 3.0]),
        st.lists(st.integers(0, 1), min_size=n, max_size=n),
    )
)


@settings(max_examples=60, deadline=None)
@given(st.lists(row, min_size=1, max_size=6), st.data())
def test_any_batch_agrees_with_the_reference_however_it_is_split(mode, rows, data):
    old = [r[0] for r in rows]
    new = [[a + d for a, d in zip(r[0], r[1], strict=True)] for r in rows]
    order = data.draw(st.permutations(range(len(rows))))
    cuts = sorted(data.draw(st.sets(st.integers(1, len(rows)))) | {0, len(rows)})
    micro = [order[a:b] for a, b in zip(cuts, cuts[1:], strict=False)]
    check(mode, old, new, [r[2] for r in rows], [r[3] for r in rows], micro_batches=micro, dtype=torch.float64)


@pytest.mark.slow
@pytest.mark.parametrize("loss", ["gspo", "gspo_exact"])
def test_two_ranks_agree_with_one(loss, tmp_path):
    """Two gloo processes with half of the rows each, their gradients averaged as FSDP does."""
    rows = {
        "old": [[-1.0, -3.0, -1.0], [-2.0], [-1.0, -1.0], [-0.3, -0.3, -0.3]],
        "new": [[-1.0001, -9.0, -0.9999], [-1.9999], [-3.0, -3.0], [-0.3, -0.30001, -0.2999]],
        "advantages": [1.0, -0.5, 7.0, 0.25],
        "masks": [[1, 0, 1], [1], [0, 0], [1, 1, 0]],  # one rank trains two sequences, the other one
    }
    script = Path(__file__).with_name("gspo_rank.py")
    store = tmp_path / "store"
    processes = [
        subprocess.Popen(
            [sys.executable, script, loss, str(rank), str(store), json.dumps(rows)], stdout=subprocess.PIPE
        )
        for rank in range(2)
    ]
    outputs = [json.loads(process.communicate(timeout=180)[0].splitlines()[-1]) for process in processes]
    expected_loss, expected_gradient = reference(**rows)
    assert sum(output["loss"] for output in outputs) / 2 == pytest.approx(expected_loss, rel=1e-6)
    gradient = [g / 2 for output in outputs for g in output["gradient"]]
    np.testing.assert_allclose(gradient, expected_gradient, rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize("log_ratio", [-60.0, -12.0, 9.0, 12.0, 19.0])
@pytest.mark.parametrize("advantage", [1.0, -1.0])
def test_extreme_ratios_keep_the_papers_loss_and_gradient(exact, log_ratio, advantage):
    check(exact, [[-70.0], [-1.0]], [[-70.0 + log_ratio], [-1.0]], [advantage, 1.0], [[1], [1]])


def test_the_stock_loss_stops_pushing_back_at_extreme_ratios():
    old, new, advantages, masks = [[-15.0]], [[-3.0]], [-1.0], [[1]]
    expected_loss, expected_gradient = reference(old, new, advantages, masks)
    loss, gradient = host_loss("gspo", old, new, advantages, masks)
    assert expected_loss == pytest.approx(math.exp(12)) and expected_gradient[0] == pytest.approx(math.exp(12))
    assert loss == pytest.approx(math.exp(10)) and gradient[0] == 0.0


def test_beyond_the_bound_the_gradient_is_bounded_and_not_zero(exact):
    loss, gradient = host_loss(exact, [[-90.0]], [[-1.0]], [-1.0], [[1]])
    assert loss == pytest.approx(math.exp(20)) and gradient[0] == pytest.approx(math.exp(20))


@pytest.mark.parametrize("value", [-math.inf, math.nan])
def test_a_masked_token_is_never_read_where_the_stock_loss_turns_into_nan(exact, value):
    arguments = [[-1.0, value], [-1.0, -1.0]], [[-1.0, value], [-1.0, -1.0]], [1.0, -1.0], [[1, 0], [1, 1]]
    loss, gradient = host_loss(exact, *arguments)
    assert loss == pytest.approx(0.0) and torch.isfinite(gradient).all()
    assert math.isnan(host_loss("gspo", *arguments)[0])


def test_trained_sequences_counts_nested_and_padded_masks_alike():
    from rufus_plugins.hosts.verl.sequence_count import trained_sequences

    rows = [[0, 1, 0], [0], [1], [0, 0], [1, 1]]
    padded = torch.tensor([r + [0] * (3 - len(r)) for r in rows])
    assert trained_sequences(nested(rows, torch.int64)) == trained_sequences(padded) == 3


def test_verls_engines_count_the_trained_sequences():
    from verl.workers.engine.base import BaseEngine
    from verl.workers.engine.fsdp import FSDPEngineWithLMHead

    assert FSDPEngineWithLMHead.train_batch is BaseEngine.train_batch
    assert BaseEngine.train_batch.__code__.co_filename.endswith("sequence_count.py")
