"""What the filter judges, over any mix of segments, faults, masked endings and rewards."""

import json
import math
from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rufus_plugins.algos.group_filter import GroupFilter, Verdict
from rufus_plugins.errors import ConfigError
from rufus_plugins.hosts.verl.group_values import rollout_values
from rufus_plugins.hosts.verl.score_tags import TAG, score_tag
from rufus_plugins.types import Fault, Termination

MASKED = frozenset({Termination.RESPONSE_LENGTH, Termination.CONTEXT_LENGTH})

rollout = st.tuples(
    st.one_of(
        st.sampled_from([0.0, 1.0, 0.8, math.nan, math.inf, -math.inf]), st.integers(-20, 20).map(lambda n: n / 10)
    ),
    st.sampled_from([None, *Termination]),
    st.integers(1, 16),
)


def tags_of(rollouts, order):
    tags = {}
    for number, (reward, ending, segments) in enumerate(rollouts):
        for segment in range(segments):
            tags[f"u_{number}_{segment}"] = {"status": "success", "response_len": 5}
        info = {"termination": ending.value} if ending else {}
        tags[f"u_{number}_{segments - 1}"][TAG] = json.dumps(score_tag(reward, {"reward_extra_info": info}, 5, 100))
    keys = sorted(tags)
    order.shuffle(keys)
    return {key: tags[key] for key in keys}


@settings(max_examples=200, deadline=None)
@given(st.lists(rollout, max_size=10), st.randoms(use_true_random=False))
def test_any_group_gets_the_verdict_of_exact_arithmetic_on_its_healthy_rollouts(rollouts, order):
    found, endings = rollout_values(tags_of(rollouts, order), "reward", MASKED, 100)
    healthy = {
        f"u_{number}": reward
        for number, (reward, ending, _) in enumerate(rollouts)
        if math.isfinite(reward)
        and (ending is None or (ending.fault is not Fault.INFRASTRUCTURE and ending not in MASKED))
    }
    assert found == healthy
    assert endings == {f"u_{number}": ending for number, (_, ending, _) in enumerate(rollouts)}
    verdict = GroupFilter(low=0.0, high=0.8).judge(list(found.values()))
    if len(healthy) < 2:
        assert verdict is Verdict.TOO_FEW
        return
    mean = sum(Fraction(str(value)) for value in healthy.values()) / len(healthy)
    expected = Verdict.BELOW if mean <= 0 else Verdict.ABOVE if mean > Fraction("0.8") else Verdict.KEPT
    assert verdict is expected


def test_a_metric_that_the_reward_does_not_give_is_named():
    tags = {"u_0_0": {TAG: json.dumps(score_tag(1.0, {"reward_extra_info": {"acc": True, "note": "text"}}))}}
    assert rollout_values(tags, "acc", MASKED, None) == ({"u_0": 1.0}, {"u_0": None})
    with pytest.raises(ConfigError, match="gives acc"):
        rollout_values(tags, "accuracy", MASKED, None)
