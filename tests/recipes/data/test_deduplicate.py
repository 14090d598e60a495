"""Clusters against a plain all-pairs computation of the Jaccard similarity."""

import json
import random

import numpy as np
import pytest

from rufus_plugins.cli import main
from rufus_plugins.errors import ConfigError
from rufus_plugins.recipes.data.alike import bands, joined
from rufus_plugins.recipes.data.deduplicate import Deduplicate
from rufus_plugins.recipes.data.run import execute


def jsonl(path, records):
    path.write_text("".join(json.dumps(r) + "\n" for r in records), encoding="utf-8")
    return path


def run(tmp_path, records, **fields):
    source, out = jsonl(tmp_path / "in.jsonl", records), tmp_path / "out.jsonl"
    tool = Deduplicate(**fields)
    tool.chunk_records = 37
    manifest = execute(tool, source, out, workers=1, overwrite=True)
    clusters = [json.loads(line) for line in (tmp_path / "out.jsonl.clusters.jsonl").read_text().splitlines()]
    return manifest, [json.loads(line) for line in out.read_text().splitlines()], clusters


def runs_of(text):
    said = text.split()
    return {tuple(said[i : i + 5]) for i in range(max(len(said) - 4, 1))}


def jaccard(a, b):
    return len(a & b) / len(a | b)


def changed(rng, text, count):
    said = text.split()
    for _ in range(count):
        said[rng.randrange(len(said))] = f"new{rng.getrandbits(40)}"
    return " ".join(said)


def prose(rng, count):
    return " ".join(f"w{rng.randrange(5000)}" for _ in range(count))


def test_exact_duplicates_keep_the_first_whatever_their_case_and_punctuation(tmp_path):
    records = [
        {"text": t, "i": i} for i, t in enumerate(["One two, three!", "four", "one TWO three", "Four.", "five", " "])
    ]
    manifest, kept, clusters = run(tmp_path, records, near=False)
    assert [r["i"] for r in kept] == [0, 1, 4, 5]
    assert manifest["set_aside"] == {"duplicate_exact": 2} and manifest["removed"] == {"exact": 2, "near": 0}
    assert [(c["cluster"], c["record"], c["kind"]) for c in clusters] == [
        (0, "in.jsonl:1", "kept"), (1, "in.jsonl:2", "kept"), (0, "in.jsonl:3", "exact"), (1, "in.jsonl:4", "exact"),
    ]  # fmt: skip


def test_near_duplicates_are_those_of_an_all_pairs_comparison(tmp_path):
    rng = random.Random(0)
    texts = []
    for _ in range(60):
        base = prose(rng, 300)
        texts.append(base)
        for _ in range(rng.randrange(3)):
            texts.append(changed(rng, base, rng.choice([1, 2, 3, 25, 60])))
    rng.shuffle(texts)
    sets = [runs_of(t) for t in texts]
    sure, never = [], []
    for i in range(len(texts)):
        for j in range(i):
            similarity = jaccard(sets[i], sets[j])
            (sure if similarity > 0.9 else never if similarity < 0.65 else []).append((j, i))
    _, kept, clusters = run(tmp_path, [{"text": t} for t in texts])
    cluster = {int(c["record"].split(":")[1]) - 1: c["cluster"] for c in clusters}
    assert sure and all(cluster[i] == cluster[j] for i, j in sure)
    assert not any(cluster.get(i, i) == cluster.get(j, j) for i, j in never)
    firsts = {min(i for i in cluster if cluster[i] == c) for c in set(cluster.values())}
    expected = [t for i, t in enumerate(texts) if i not in cluster or i in firsts]
    assert [r["text"] for r in kept] == expected
    assert {c["kind"] for c in clusters if int(c["record"].split(":")[1]) - 1 in firsts} == {"kept"}


def test_a_chain_of_near_duplicates_is_one_cluster_with_its_first_kept(tmp_path):
    rng = random.Random(1)
    words = [f"w{i}" for i in range(300)]
    chain = [" ".join(words[i * 12 : 240 + i * 12]) for i in range(5)]  # neighbours 0.90, ends 0.66 alike
    assert jaccard(runs_of(chain[0]), runs_of(chain[1])) > 0.88 and jaccard(runs_of(chain[0]), runs_of(chain[4])) < 0.7
    order = [chain[i] for i in (2, 0, 4, 1, 3)]
    manifest, kept, _ = run(tmp_path, [{"text": t} for t in [*order, prose(rng, 240)]])
    assert [r["text"] for r in kept][0] == order[0] and len(kept) == 2
    assert manifest["clusters"] == 1 and manifest["largest_cluster"] == 5


def test_only_the_named_columns_are_compared(tmp_path):
    records = [
        {"prompt": [{"role": "user", "content": "add two and two"}], "answer": "4"},
        {"prompt": [{"role": "user", "content": "Add two and two."}], "answer": "four"},
        {"prompt": [{"role": "user", "content": "add two and three"}], "answer": "5"},
    ]
    assert len(run(tmp_path, records, columns=("prompt",))[1]) == 2
    assert len(run(tmp_path, records, columns=("prompt", "answer"))[1]) == 3


def test_the_result_does_not_depend_on_the_processes(tmp_path):
    rng = random.Random(2)
    base = [prose(rng, 80) for _ in range(40)]
    records = [{"text": changed(rng, rng.choice(base), rng.randrange(2))} for _ in range(300)]
    source, made = jsonl(tmp_path / "in.jsonl", records), []
    for workers in (1, 2):
        tool = Deduplicate()
        tool.chunk_records = 60
        execute(tool, source, tmp_path / f"{workers}.jsonl", workers=workers)
        made.append(
            [(tmp_path / f"{workers}.jsonl{s}").read_bytes() for s in ("", ".rejected.jsonl", ".clusters.jsonl")]
        )
    assert made[0] == made[1]


@pytest.mark.parametrize("threshold", [0.3, 0.5, 0.8, 0.9])
def test_bands_find_a_pair_at_the_threshold_and_no_wider_band_would(threshold):
    count, rows = bands(threshold, 128)
    chance = lambda b, r: 1 - (1 - threshold**r) ** b  # noqa: E731
    assert count * rows <= 128 and chance(count, rows) >= 0.99 > chance(128 // (rows + 1), rows + 1)


def test_joining_gives_the_connected_components():
    rng = random.Random(3)
    for _ in range(50):
        size = rng.randrange(2, 40)
        pairs = [(rng.randrange(size), rng.randrange(size)) for _ in range(rng.randrange(1, 30))]
        parent = list(range(size))
        for _ in range(size):
            for a, b in pairs:
                parent[a] = parent[b] = min(parent[a], parent[b])
        first, second = (np.array(side) for side in zip(*pairs, strict=True))
        assert joined(np.arange(size), first, second).tolist() == parent


def test_the_command_line_says_what_it_did(tmp_path, capsys):
    source = jsonl(tmp_path / "in.jsonl", [{"text": "a b c d e f"}, {"text": "A, b, c, d, e, f"}])
    assert main(["data", "deduplicate", "--input", str(source), "--output", str(tmp_path / "o.jsonl")]) == 0
    assert "duplicate_exact" in capsys.readouterr().out
    with pytest.raises(ConfigError, match="between 0.1 and 1"):
        Deduplicate(threshold=8)


def test_a_record_without_any_of_the_named_columns_is_set_aside_and_not_called_unique(tmp_path):
    records = [{"prompt": "What is two and two?"}, {"question": "x"}, {"question": "x"}, {"prompt": None}]
    manifest, kept, _ = run(tmp_path, records, columns=("prompt",))
    assert kept == [records[0], records[3]] and manifest["set_aside"] == {"no_columns": 2}
