"""Conversations become rows of verl's SFT trainer: tokenised once, packed without leaks, weighted by category."""

import json
import os
import pickle
import subprocess
import sys
from collections import Counter
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from omegaconf import OmegaConf

from rufus_plugins.errors import ConfigError
from rufus_plugins.recipes.data import packing
from rufus_plugins.recipes.data.normalise import Normalise
from rufus_plugins.recipes.data.run import execute
from rufus_plugins.recipes.data.sft_dataset import SFTConversations
from rufus_plugins.recipes.data.tokenise import Tokenise

sys.path.insert(0, str(Path(__file__).parent))
from chat_formats import tokenizer  # noqa: E402


def chats(path, count=20):
    with path.open("w") as out:
        for n in range(count):
            turns = [{"role": "user", "content": f"{n}?"}, {"role": "assistant", "content": f"{n * n}! " * (n % 5 + 1)}]
            out.write(json.dumps({"id": str(n), "category": "ab"[n % 2], "messages": turns * (n % 3 + 1)}) + "\n")
    return path


def dataset(path, max_samples=-1, rufus=None, **config):
    given = {"pad_mode": "no_padding", "max_length": 2048, "rufus": rufus or {}, **config}
    return SFTConversations(str(path), tokenizer("chatml"), OmegaConf.create(given), max_samples=max_samples)


def expected_ids(path):
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    return [tokenizer("chatml").apply_chat_template(r["messages"], return_dict=True)["input_ids"] for r in rows]


def test_rows_are_the_templates_ids_in_the_files_order(tmp_path):
    path = chats(tmp_path / "a.jsonl")
    rows = dataset(path)
    assert [rows[i]["input_ids"].tolist() for i in range(len(rows))] == expected_ids(path)
    row = rows[3]
    assert row["position_ids"].tolist() == list(range(len(row["input_ids"])))
    assert tokenizer("chatml").decode(row["input_ids"][row["loss_mask"].bool()]) == "9! 9! 9! 9! <|im_end|>"


def test_padded_rows_have_one_length_and_a_mask(tmp_path):
    rows = dataset(chats(tmp_path / "a.jsonl"), pad_mode="right", max_length=256)
    plain = dataset(tmp_path / "a.jsonl")
    for i in range(len(rows)):
        row, n = rows[i], len(plain[i]["input_ids"])
        assert all(len(v) == 256 for v in row.values())
        assert row["attention_mask"].tolist() == [1] * n + [0] * (256 - n)
        assert row["input_ids"][:n].tolist() == plain[i]["input_ids"].tolist()
        assert int(row["loss_mask"].sum()) == int(plain[i]["loss_mask"].sum())


def test_packed_rows_hold_each_conversation_once_with_positions_of_its_own(tmp_path):
    path = chats(tmp_path / "a.jsonl")
    rows = dataset(path, rufus={"pack_to": 300})
    assert len(rows) < 20 and all(len(rows[i]["input_ids"]) <= 300 for i in range(len(rows)))
    found = []
    for i in range(len(rows)):
        row = rows[i]
        starts = [*np.flatnonzero(row["position_ids"].numpy() == 0), len(row["input_ids"])]
        for start, end in zip(starts, starts[1:], strict=False):
            assert row["position_ids"][start:end].tolist() == list(range(end - start))
            assert int(row["loss_mask"][start]) == 0
            found.append(tuple(row["input_ids"][start:end].tolist()))
    assert Counter(found) == Counter(map(tuple, expected_ids(path)))


def test_tokens_are_made_once_and_found_again_by_later_starts_and_loader_processes(tmp_path):
    path = chats(tmp_path / "a.jsonl")
    first = dataset(path)
    [made] = (tmp_path / ".rufus_tokens").glob("*.arrow")
    when = made.stat().st_mtime_ns
    again = pickle.loads(pickle.dumps(dataset(path)))
    assert made.stat().st_mtime_ns == when
    assert all(again[i]["input_ids"].equal(first[i]["input_ids"]) for i in range(len(first)))
    chats(path, 7)
    assert len(dataset(path)) == 7  # other content under the same name


def test_what_tokenise_wrote_is_read_as_it_is(tmp_path):
    path = chats(tmp_path / "a.jsonl")
    tokenizer("chatml").save_pretrained(tmp_path / "tokenizer")
    execute(Tokenise(str(tmp_path / "tokenizer")), path, tmp_path / "a.arrow")
    rows = dataset(tmp_path / "a.arrow")
    assert [rows[i]["input_ids"].tolist() for i in range(len(rows))] == expected_ids(path)
    execute(Tokenise(str(tmp_path / "tokenizer")), path, tmp_path / "a.parquet")
    table = pq.read_table(tmp_path / "a.parquet")
    assert table["input_ids"].to_pylist() == expected_ids(path)
    assert [sum(m) for m in table["loss_mask"].to_pylist()] == table["supervised_tokens"].to_pylist()
    with pytest.raises(ConfigError, match=".parquet or .arrow"):
        execute(Tokenise(str(tmp_path / "tokenizer")), path, tmp_path / "a.jsonl")


def test_workers_and_one_process_tokenise_to_the_same_bytes(tmp_path):
    path = chats(tmp_path / "a.jsonl", 60)
    tokenizer("chatml").save_pretrained(tmp_path / "tokenizer")
    for workers in (1, 2):
        tool = Tokenise(str(tmp_path / "tokenizer"))
        execute(tool, path, tmp_path / f"{workers}.arrow", workers=workers)
    assert (tmp_path / "1.arrow").read_bytes() == (tmp_path / "2.arrow").read_bytes()


@pytest.mark.slow
def test_ray_data_tokenises_and_normalises_to_the_same_bytes(tmp_path):
    import ray

    path = chats(tmp_path / "a.jsonl", 60)
    path.write_bytes(path.read_bytes() + b'{"messages": []}\n{oops\n')
    tokenizer("chatml").save_pretrained(tmp_path / "tokenizer")
    ray.init(num_cpus=2, log_to_driver=False, include_dashboard=False)
    try:
        for tool, name in ((Normalise(), "n.jsonl"), (Tokenise(str(tmp_path / "tokenizer")), "t.arrow")):
            for spread in (False, True):
                (tmp_path / str(spread)).mkdir(exist_ok=True)
                execute(tool, path, tmp_path / str(spread) / name, workers=1, ray=spread)
            for suffix in ("", ".rejected.jsonl", ".manifest.json"):
                a, b = ((tmp_path / folder / f"{name}{suffix}").read_bytes() for folder in ("False", "True"))
                assert a == b
    finally:
        ray.shutdown()


def test_conversations_that_cannot_be_used_are_set_aside_before_training(tmp_path, capsys):
    path = chats(tmp_path / "a.jsonl", 3)
    long = {"messages": [{"role": "user", "content": "x"}, {"role": "assistant", "content": "long " * 3000}]}
    empty = {"messages": [{"role": "assistant", "content": "y"}, {"role": "user", "content": "x"}]}
    path.write_text(path.read_text() + json.dumps(long) + "\n" + json.dumps(empty) + "\n{oops\n")
    assert len(dataset(path)) == 3
    said = capsys.readouterr().err
    assert "bad_json 1" in said and "nothing_supervised 1" in said and "too_long 1" in said
    cut = dataset(path, truncation="right")
    assert len(cut) == 4 and len(cut[3]["input_ids"]) == 2048


def test_verls_keys_mean_what_they_mean_in_verls_dataset(tmp_path):
    path = chats(tmp_path / "a.jsonl")
    assert len(dataset(path, max_samples=5)) == 5
    some = dataset(path, max_samples=5, shuffle=True, seed=3)
    assert [some[i]["input_ids"].tolist() for i in range(5)] != expected_ids(path)[:5]
    renamed = tmp_path / "b.jsonl"
    renamed.write_text(path.read_text().replace('"messages"', '"chat"'))
    assert len(dataset(renamed, messages_key="chat")) == 20


def test_weights_repeat_and_thin_out_categories(tmp_path):
    path = chats(tmp_path / "a.jsonl")
    rows = dataset(path, rufus={"category_weights": {"a": 2.5, "b": 0.0}})
    assert 20 <= len(rows) <= 30  # ten conversations of a, each two or three times
    starts = Counter(
        tokenizer("chatml").decode(rows[i]["input_ids"]).split("user\n")[1].split("?")[0] for i in range(len(rows))
    )
    assert set(starts) == {str(n) for n in range(0, 20, 2)} and set(starts.values()) <= {2, 3}


@pytest.mark.parametrize(
    ("rufus", "config", "message"),
    [
        ({"pack": 300}, {}, "no 'pack'"),
        ({"pack_to": "300x"}, {}, "pack_to"),
        ({"pack_to": 300}, {"pad_mode": "right"}, "no_padding"),
        ({"mask": "all"}, {}, "no mask 'all'"),
        ({"category_weights": {"z": 1.0}}, {}, "No conversation is of category 'z'"),
        ({"category_weights": {"a": -1.0}}, {}, "at least 0"),
        ({}, {"pad_mode": "left"}, "pad_mode"),
        ({}, {"truncation": "left"}, "truncation"),
        ({}, {"max_length": 3}, "no conversation can be trained on"),
    ],
)
def test_settings_that_cannot_work_are_said_before_training(tmp_path, rufus, config, message):
    with pytest.raises(ConfigError, match=message):
        dataset(chats(tmp_path / "a.jsonl"), rufus=rufus, **config)


def test_a_file_of_other_columns_is_no_file_of_tokens(tmp_path):
    execute(Normalise(), chats(tmp_path / "a.jsonl"), tmp_path / "n.arrow")
    with pytest.raises(ConfigError, match="input_ids"):
        dataset(tmp_path / "n.arrow")
    (tmp_path / "x.arrow").write_bytes(b"no arrow")
    with pytest.raises(ConfigError, match="Arrow"):
        dataset(tmp_path / "x.arrow")


@settings(max_examples=50, deadline=None, derandomize=True)
@given(st.lists(st.integers(1, 100), max_size=200), st.integers(0, 3))
def test_packs_hold_everything_once_and_never_too_much(lengths, seed):
    rows = packing.packs(lengths, 100, seed)
    assert sorted(p for row in rows for p in row) == list(range(len(lengths)))
    sums = [sum(lengths[p] for p in row) for row in rows]
    assert all(s <= 100 for s in sums)
    assert sum(s <= 50 for s in sums) <= 1  # two rows that are half empty would have been one
    assert rows == packing.packs(lengths, 100, seed)


@pytest.mark.slow
def test_packed_conversations_do_not_see_each_other_in_verls_engine(tmp_path):
    from rufus_plugins.recipes.tiny import model

    model.save(tmp_path / "model", seed=0)
    chats(tmp_path / "a.jsonl", 14)
    script = Path(__file__).with_name("packed_engine.py")
    command = (sys.executable, "-m", "torch.distributed.run", "--standalone", "--nnodes=1", "--nproc-per-node=1")
    run = subprocess.run(
        [*command, str(script), str(tmp_path / "model"), str(tmp_path / "a.jsonl")],
        cwd=tmp_path,
        env={**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"},
        capture_output=True,
        text=True,
        timeout=400,
    )
    assert run.returncode == 0, run.stderr[-4000:]
    result = json.loads((tmp_path / "result.json").read_text())
    assert result["conversations"] == 14 and result["rows"] <= 7
    assert result["largest"] < 1e-5, result
    assert result["leaking"] > 1e-3, "positions that do not restart must change the numbers, else this shows nothing"
    assert result["losses"][0] == pytest.approx(result["losses"][1], rel=1e-5)
    assert result["gradients"] < 1e-4 * result["gradient_norm"]
    assert "use_remove_padding=true" in result["refusal"]
