"""Comparisons: right where the truth is known, refused where the conditions differ."""

import dataclasses
import itertools
import json

import numpy as np
import pytest

from rufus_plugins.errors import ConfigError
from rufus_plugins.recipes.evidence.__main__ import main
from rufus_plugins.recipes.evidence.compare import compare, pass_at, pooled
from rufus_plugins.recipes.evidence.intervals import interval
from rufus_plugins.recipes.evidence.protocol import Protocol


def protocol(**changed):
    given = {
        "name": "sums",
        "stage": "reasoning_rl",
        "file": "/somewhere/heldout.parquet",
        "heldout": {"file name": "heldout.parquet", "sha256": "a" * 64, "rows": 3, "items": 3},
        "reward": {"name": "math_answer", "fields": {"timeout_s": 5.0}},
        "rules": {"max_turns": 4},
        "max_tokens": 48,
        "context": 96,
        "samples": 2,
    }
    return Protocol(**{**given, **changed})


def evidence(items, own=None, checkpoint="one", **more):
    """`items`: id -> (scores, greedy)."""
    own = own or protocol(samples=len(next(iter(items.values()))[0]))
    return {
        "format": 1,
        "protocol": own.as_json(),
        "protocol_digest": own.digest,
        "checkpoint": {"digest": checkpoint, "name": checkpoint},
        "code": {"version": "1", "digest": "c"},
        "items": {i: {"scores": scores, "greedy": greedy} for i, (scores, greedy) in items.items()},
        "faults": {},
        "unscored": 0,
        "seconds": 1.0,
        **more,
    }


def test_pass_at_k_is_the_share_of_k_subsets_with_a_pass():
    for n in range(1, 8):
        for passed, k in itertools.product(range(n + 1), range(1, n + 1)):
            samples = [1] * passed + [0] * (n - passed)
            subsets = list(itertools.combinations(samples, k))
            assert pass_at(n, passed, k) == pytest.approx(sum(map(any, subsets)) / len(subsets))
    with pytest.raises(ConfigError, match=r"pass@5 cannot be estimated from 4 samples"):
        pass_at(4, 1, 5)


def test_figures_worked_out_by_hand():
    before = evidence({"a": ([0.0, 1.0, 0.0, 0.0], 0.0), "b": ([0.5, 0.5, 0.5, 0.5], 1.0)})
    after = evidence({"a": ([1.0, 1.0, 0.0, 0.0], 1.0), "b": ([1.0, 0.5, 0.5, 0.5], 1.0)}, checkpoint="two")
    change = compare(before, after, k=2)
    assert (change.mean.before, change.mean.after) == (0.375, (0.5 + 0.625) / 2)
    assert (change.pass_at_1.before, change.pass_at_1.after) == (0.125, (0.5 + 0.25) / 2)
    # a: 1 of 4 passes, 3 of the 6 pairs hold it; 2 of 4: 5 of 6. b: none; 1 of 4
    assert change.pass_at_k.before == pytest.approx(0.25) and change.pass_at_k.after == pytest.approx((5 / 6 + 0.5) / 2)
    assert (change.greedy.before, change.greedy.after) == (0.5, 1.0)
    assert compare(before, after).k == 4
    assert change.as_json()["metrics"]["pass@2"]["before"] == pytest.approx(0.25)


def test_a_score_is_a_pass_from_the_threshold_of_its_protocol_on():
    own = protocol(samples=2, passes_at=0.0)
    items = {"a": ([-1.5, 0.0], -0.1), "b": ([-1.0, -2.0], 3.0)}
    assert compare(evidence(items, own), evidence(items, own)).pass_at_1.before == 0.25


def test_the_words_say_rose_fell_and_within_noise():
    low = evidence({f"i{n}": ([0.0, float(n % 2)], 0.0) for n in range(40)})
    high = evidence({f"i{n}": ([1.0, float(n % 2)], 1.0) for n in range(40)}, checkpoint="two")
    same = evidence({f"i{n}": ([float(n % 3 == 0), float(n % 2)], 0.0) for n in range(40)}, checkpoint="three")
    mixed = evidence({f"i{n}": ([float(n % 3 == 1), float(n % 2)], 0.0) for n in range(40)}, checkpoint="four")
    assert compare(low, high).words == "rose by +.500 [+.500, +.500]"
    assert compare(high, low).words == "fell by .500 [-.500, -.500]"
    assert compare(low, high).greedy.words == "rose by +1.000 [+1.000, +1.000]"
    assert compare(same, mixed).words.startswith("within noise: ")
    few = {
        name: dict(e, items={k: e["items"][k] for k in list(e["items"])[:3]}) for name, e in (("a", low), ("b", high))
    }
    assert compare(few["a"], few["b"]).mean.verdict == "too few items"


def test_the_interval_is_that_of_all_resamples_there_are():
    """Six items have 6**6 resamples; their quantiles need no chance."""
    before = [0.0, 0.25, 0.5, 0.5, 0.75, 0.25]
    after = [0.5, 0.25, 0.75, 0.25, 1.0, 0.75]
    change = compare(
        evidence({f"{i}": ([b], b) for i, b in enumerate(before)}),
        evidence({f"{i}": ([a], a) for i, a in enumerate(after)}, checkpoint="two"),
    )
    gains = [a - b for a, b in zip(after, before, strict=True)]
    means = sorted(sum(drawn) / 6 for drawn in itertools.product(gains, repeat=6))
    assert change.mean.gain.value == pytest.approx(sum(gains) / 6)
    assert change.mean.gain.low == pytest.approx(means[round(0.025 * len(means))], abs=0.005)
    assert change.mean.gain.high == pytest.approx(means[round(0.975 * len(means))], abs=0.005)


def test_the_interval_covers_a_known_truth_19_times_of_20():
    """Items differ in difficulty, samples are drawn; the truth is the expected gain over the population of items."""
    rng = np.random.default_rng(5)
    covered, runs = 0, 250
    for run in range(runs):
        p = rng.beta(1, 2, size=60)
        q = p + (1 - p) * 0.2  # the expected gain is .2 E(1 - p) = .2 * 2/3
        gains = rng.binomial(4, q) / 4 - rng.binomial(4, p) / 4
        found = interval([gains], seed=run, resamples=1000)
        covered += found.low <= 0.2 * 2 / 3 <= found.high
    # 250 trials at .95 stay within four standard errors; percentile intervals of 60 items are a little narrow
    assert 0.95 - 4 * 0.0138 < covered / runs < 0.95 + 4 * 0.0138


def test_a_pooled_interval_covers_the_truth_of_its_seeds_and_is_narrower_than_one_seeds():
    rng = np.random.default_rng(9)
    covered, runs, truths = 0, 250, (0.0, 0.1, 0.2)
    for run in range(runs):
        strata = [rng.normal(truth, 0.3, size=50) for truth in truths]
        found = interval(strata, seed=run, resamples=1000)
        covered += found.low <= 0.1 <= found.high
    assert 0.95 - 4 * 0.0138 < covered / runs < 0.95 + 4 * 0.0138
    one, all_ = interval(strata[:1]), interval(strata)
    # the spread between seeds is no part of it: items are resampled within each
    assert (all_.high - all_.low) == pytest.approx((one.high - one.low) / 3**0.5, rel=0.25)


def test_other_conditions_are_refused_and_the_fields_named():
    items = {"a": ([1.0, 0.0], 1.0)}
    other = protocol(
        max_tokens=64, rules={"max_turns": 5}, reward={"name": "math_answer", "fields": {"timeout_s": 9.0}}
    )
    with pytest.raises(ConfigError) as refused:
        compare(evidence(items), evidence(items, other))
    said = str(refused.value)
    assert "max_tokens: 48, 64" in said and "rules.max_turns: 4, 5" in said
    assert "reward.fields.timeout_s: 5.0, 9.0" in said and "seed" not in said


def test_a_path_is_no_condition_and_the_content_of_its_file_is():
    one, two = protocol(), protocol(file="/elsewhere/heldout.parquet", paths={"environment.corpus": "/x"})
    assert one.digest == two.digest
    assert protocol(files={"environment.corpus": "b"}).digest != one.digest


def test_items_of_one_side_only_are_refused():
    with pytest.raises(ConfigError, match="1 items were measured on one side only, for example 'b'"):
        compare(evidence({"a": ([1.0], 1.0), "b": ([1.0], 1.0)}), evidence({"a": ([1.0], 1.0)}))


def test_evidence_changed_by_hand_and_of_another_format_is_refused():
    good = evidence({"a": ([1.0], 1.0)})
    changed = good | {"protocol": good["protocol"] | {"max_tokens": 4000}}
    with pytest.raises(ConfigError, match="changed after it was measured"):
        compare(changed, good)
    with pytest.raises(ConfigError, match="format 7; this version reads 1"):
        compare(good | {"format": 7}, good)
    with pytest.raises(ConfigError, match="no evidence file"):
        compare({"format": 1}, good)


def test_an_attempt_without_a_score_counts_nowhere_and_is_said():
    before = evidence({"a": ([None, 1.0], None), "b": ([0.0, 0.0], 0.0), "c": ([0.0, 0.0], 1.0)}, unscored=2)
    after = evidence({"a": ([1.0, 1.0], 1.0), "b": ([None] * 2, 1.0), "c": ([0.0, 1.0], 1.0)}, unscored=2)
    change = compare(before, after)
    assert (change.mean.before, change.mean.after, change.mean.items) == (0.5, 0.75, 2)
    assert (change.greedy.before, change.greedy.after, change.greedy.items) == (0.5, 1.0, 2)
    assert any("2 attempts got no score" in note for note in change.notes)
    assert change.pass_at_1.items == 2
    # of a only one sample has a score: nothing can be said of two
    assert (change.pass_at_k.before, change.pass_at_k.after, change.pass_at_k.items) == (0.0, 1.0, 1)


def test_seeds_are_pooled_over_their_own_held_out_sets_and_other_conditions_are_refused():
    def of(seed, low, high, **changed):
        heldout = {"file name": "heldout.parquet", "sha256": str(seed) * 64, "rows": 20, "items": 20}
        own = protocol(seed=seed, heldout=heldout, files={"environment.corpus": str(seed)}, **changed)
        names = [f"{seed}-{n}" for n in range(20)]
        rates = ((low, "one"), (high, "two"))
        return tuple(evidence({i: ([r, r], r) for i in names}, own, checkpoint=f"{name}{seed}") for r, name in rates)

    change = pooled([of(0, 0.0, 1.0), of(1, 0.0, 0.5)])
    assert change.mean.gain.value == pytest.approx(0.75) and change.mean.items == 40
    assert [one.mean.gain.value for one in change.by_seed] == [1.0, 0.5]
    assert change.words == "rose by +.750 [+.750, +.750]"
    with pytest.raises(ConfigError, match="max_tokens: 48, 99"):
        pooled([of(0, 0.0, 1.0), of(1, 0.0, 1.0, max_tokens=99)])
    with pytest.raises(ConfigError, match="each seed counts once"):
        pooled([of(0, 0.0, 1.0), of(0, 0.0, 1.0)])


def test_the_command_prints_figures_and_refuses_in_words(tmp_path, capsys):
    items = {f"i{n}": ([0.0, float(n % 2)], 0.0) for n in range(20)}
    better = {name: ([1.0, 1.0], 1.0) for name in items}
    own = protocol(baseline={"answer": "4", "share": 0.05, "kind": "answer"})
    files = [tmp_path / f"{n}.json" for n in range(3)]
    files[0].write_text(json.dumps(evidence(items, own)))
    files[1].write_text(json.dumps(evidence(better, own, checkpoint="two")))
    files[2].write_text(json.dumps(evidence(items, dataclasses.replace(own, seed=4))))
    assert main(["compare", *map(str, files[:2])]) == 0
    said = capsys.readouterr().out
    assert "mean reward  0.250 -> 1.000  rose by +.750 [" in said and "best constant answer: 0.050" in said
    assert main(["compare", str(files[0]), str(files[2])]) == 1
    assert "seed: 0, 4" in capsys.readouterr().err
