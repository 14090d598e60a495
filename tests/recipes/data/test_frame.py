"""The frame of the data tools: every record accounted for, kills survived, one output however it is run."""

import dataclasses
import gzip
import importlib
import json
import os
import signal
import subprocess
import sys
import textwrap
import time
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from rufus_plugins import cli
from rufus_plugins.errors import ConfigError
from rufus_plugins.recipes import data
from rufus_plugins.recipes.data.record_files import file_chunks
from rufus_plugins.recipes.data.records import Chunk, Raw, Refused, read
from rufus_plugins.recipes.data.run import execute
from rufus_plugins.recipes.data.tool import RecordTool, field_docs


@dataclass
class Double(RecordTool):
    """Doubles n."""

    by: int = 2
    """The factor."""

    chunk_records = 10

    def record(self, raw):
        n = raw.record["n"]
        if n == 13:
            raise Refused("unlucky", "thirteen")
        self.notes["even"] += n % 2 == 0
        return {"n": n * self.by, "number": raw.number}


def jsonl(path, *records):
    lines = (r if isinstance(r, bytes) else json.dumps(r).encode() + b"\n" for r in records)
    path.write_bytes(b"".join(lines))
    return path


def lines(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_every_record_is_written_or_set_aside_with_place_and_reason(tmp_path):
    source = jsonl(
        tmp_path / "in.jsonl", {"n": 1}, b"\n", {"n": 13}, b'{"n": "\xff"}\n', b"{]\n", b"[1]\n", {"m": 2}, {"n": 4},
        b'{"n": 5'
    )  # fmt: skip
    manifest = execute(Double(), source, tmp_path / "out.jsonl")
    assert lines(tmp_path / "out.jsonl") == [{"n": 2, "number": 0}, {"n": 8, "number": 7}]
    rejected = lines(tmp_path / "out.jsonl.rejected.jsonl")
    assert sorted((r["where"], r["reason"]) for r in rejected) == [
        ("in.jsonl:3", "unlucky"),
        ("in.jsonl:4", "not_utf8"),
        ("in.jsonl:5", "bad_json"),
        ("in.jsonl:6", "no_object"),
        ("in.jsonl:7", "tool_error"),
        ("in.jsonl:9", "cut_off"),
    ]
    assert json.loads(next(r for r in rejected if r["reason"] == "unlucky")["record"]) == {"n": 13}
    assert manifest["counts"] == {"read": 8, "written": 2, "set_aside": 6}
    assert manifest["notes"] == {"even": 1}
    assert json.loads((tmp_path / "out.jsonl.manifest.json").read_text()) == manifest
    assert not (tmp_path / "out.jsonl.partial").exists()


SLOW_TOOL = """
import sys, time
from dataclasses import dataclass
from rufus_plugins.recipes.data.run import execute
from rufus_plugins.recipes.data.tool import RecordTool

@dataclass
class Slow(RecordTool):
    pause: float = 0.0
    chunk_records = 5
    def start(self): self.pause = float(sys.argv[3])
    def record(self, raw):
        time.sleep(self.pause)
        return raw.record

if __name__ == "__main__":
    execute(Slow(), sys.argv[1], sys.argv[2], workers=int(sys.argv[4]))
"""


@pytest.mark.parametrize("workers", ["1", "2"])
def test_a_killed_run_goes_on_and_its_output_is_the_same(tmp_path, workers):
    source = jsonl(tmp_path / "in.jsonl", *({"n": n} for n in range(200)))
    program = tmp_path / "slow.py"
    program.write_text(textwrap.dedent(SLOW_TOOL))
    out = tmp_path / "out.jsonl"
    command = [sys.executable, str(program), str(source), str(out)]
    running = subprocess.Popen([*command, "0.02", workers])
    shards = tmp_path / "out.jsonl.partial" / "records"
    deadline = time.monotonic() + 60
    while len(list(shards.glob("*.done"))) < 3 and time.monotonic() < deadline:
        time.sleep(0.01)
    os.kill(running.pid, signal.SIGKILL)
    running.wait()
    kept = sorted(shards.glob("*.done"))
    assert 3 <= len(kept) < 40 and not out.exists()
    when = kept[0].stat().st_mtime_ns
    kept[0].touch(exist_ok=True)
    os.utime(kept[0], ns=(when, when))
    subprocess.run([*command, "0", workers], check=True)
    reference = tmp_path / "reference.jsonl"
    subprocess.run([*command[:3], str(reference), "0", "1"], check=True)
    for suffix in ("", ".rejected.jsonl", ".manifest.json"):
        mine, whole = (p.with_name(p.name + suffix).read_bytes() for p in (out, reference))
        assert mine == whole


def test_work_with_other_options_or_input_is_not_continued(tmp_path, capsys):
    source = jsonl(tmp_path / "in.jsonl", *({"n": n} for n in range(3)))
    out = tmp_path / "out.jsonl"

    class Fails(Double):
        name = "double"

        def finish(self, job):
            raise KeyboardInterrupt

    for by in (2, 3):
        with pytest.raises(KeyboardInterrupt):
            execute(Fails(by=by), source, out)
    assert "other input or options" in capsys.readouterr().err
    execute(Double(by=3), source, out)
    assert [r["n"] for r in lines(out)] == [0, 3, 6]


def test_a_whole_output_is_kept_and_another_one_needs_overwrite(tmp_path):
    source = jsonl(tmp_path / "in.jsonl", {"n": 1})
    out = tmp_path / "out.jsonl"
    first = execute(Double(), source, out)
    assert execute(Double(), source, out) == first | {"already_there": True}
    with pytest.raises(ConfigError, match="--overwrite"):
        execute(Double(by=5), source, out)
    execute(Double(by=5), source, out, overwrite=True)
    assert lines(out) == [{"n": 5, "number": 0}]
    out.write_text("edited by hand")
    with pytest.raises(ConfigError, match="--overwrite"):
        execute(Double(by=5), source, out)


@pytest.mark.parametrize("renames", [0, 1, 2])
def test_a_run_killed_between_its_renames_is_finished_by_the_next(tmp_path, monkeypatch, renames):
    source = jsonl(tmp_path / "in.jsonl", {"n": 1}, {"n": 13})
    whole = tmp_path / "whole.jsonl"
    execute(Double(), source, whole)
    out = tmp_path / "out.jsonl"
    left = iter(range(renames))
    stock = Path.replace

    def replace(self, target):
        if Path(target).parent == tmp_path and next(left, None) is None:
            raise KeyboardInterrupt
        return stock(self, target)

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(Path, "replace", replace)
        execute(Double(), source, out)
    execute(Double(), source, out)
    for suffix in ("", ".rejected.jsonl", ".manifest.json"):
        assert out.with_name(out.name + suffix).read_bytes() == whole.with_name(whole.name + suffix).read_bytes()
    assert not (tmp_path / "out.jsonl.partial").exists()


def test_two_runs_on_one_output_are_refused(tmp_path):
    source = jsonl(tmp_path / "in.jsonl", {"n": 1})

    class Nested(Double):
        name = "double"

        def finish(self, job):
            with pytest.raises(ConfigError, match="Another process"):
                execute(Double(), source, tmp_path / "out.jsonl")
            return {"tried": True}

    assert execute(Nested(), source, tmp_path / "out.jsonl")["tried"]


@pytest.mark.parametrize("kind", ["gz", "zst", "array", "parquet", "saved", "directory"])
def test_every_kind_of_input_gives_the_same_records(tmp_path, kind):
    records = [{"n": n, "text": "ü" * n} for n in range(30)]
    text = "".join(json.dumps(r, ensure_ascii=False) + "\n" for r in records).encode()
    path = tmp_path / f"in.{kind}"
    if kind == "gz":
        path.write_bytes(gzip.compress(text))
    elif kind == "zst":
        with pa.OSFile(str(path), "wb") as file, pa.CompressedOutputStream(file, "zstd") as stream:
            stream.write(text)
    elif kind == "array":
        path.write_text(json.dumps(records, indent=2, ensure_ascii=False))
    elif kind == "parquet":
        pq.write_table(pa.Table.from_pylist(records), path, row_group_size=7)
    elif kind == "saved":
        import datasets

        datasets.Dataset.from_list(records).save_to_disk(path, num_shards=2)
    else:
        path.mkdir()
        (path / "b.jsonl").write_bytes(text[text.index(b"\n") + 1 :])
        (path / "a.jsonl").write_bytes(text[: text.index(b"\n") + 1])
    assert [item.record for item in read(str(path))] == records
    execute(Double(), path, tmp_path / "out.jsonl")
    assert [r["number"] for r in lines(tmp_path / "out.jsonl")] == [n for n in range(30) if n != 13]


def test_a_hub_dataset_is_read_at_one_commit(tmp_path, monkeypatch):
    from types import SimpleNamespace

    import datasets
    import huggingface_hub

    asked = []

    def load_dataset(*names, **more):
        asked.append((names, more))
        return [{"n": n} for n in range(25)]

    monkeypatch.setattr(datasets, "load_dataset", load_dataset)
    info = lambda self, name, timeout: SimpleNamespace(sha="abc123")  # noqa: E731
    monkeypatch.setattr(huggingface_hub.HfApi, "dataset_info", info)
    manifest = execute(Double(), "owner/name", tmp_path / "out.jsonl", split="test")
    assert manifest["inputs"] == [{"hub": "owner/name", "split": "test", "subset": None, "revision": "abc123"}]
    assert asked == [(("owner/name", None), {"split": "test", "revision": "abc123", "streaming": True})]
    assert [r["number"] for r in lines(tmp_path / "out.jsonl")] == [n for n in range(25) if n != 13]


def test_parquet_output_unites_columns_and_keeps_order(tmp_path):
    source = jsonl(tmp_path / "in.jsonl", *({"n": n} for n in range(25)))

    class Widens(Double):
        def record(self, raw):
            n = raw.record["n"]
            return {"n": n} | ({"late": [str(n)]} if n > 20 else {})

    execute(Widens(), source, tmp_path / "out.parquet")
    rows = pq.read_table(tmp_path / "out.parquet").to_pylist()
    assert rows == [{"n": n, "late": [str(n)] if n > 20 else None} for n in range(25)]


def test_a_record_above_the_limit_is_skipped_without_being_held(tmp_path, monkeypatch):
    monkeypatch.setattr("rufus_plugins.recipes.data.records.LARGEST_RECORD", 1000)
    source = jsonl(tmp_path / "in.jsonl", {"n": 1}, {"n": 2, "x": "y" * 5000}, {"n": 3})
    execute(Double(), source, tmp_path / "out.jsonl")
    assert lines(tmp_path / "out.jsonl") == [{"n": 2, "number": 0}, {"n": 6, "number": 2}]
    assert [(r["where"], r["reason"]) for r in lines(tmp_path / "out.jsonl.rejected.jsonl")] == [
        ("in.jsonl:2", "too_large")
    ]


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.jsonl", b"", "is empty"),
        ("a.jsonl", b"\xff\xfe{\x00", "UTF-16"),
        ("a.jsonl.gz", gzip.compress(b'{"n": 1}\n' * 9999)[:-20], "cut off or damaged"),
        ("a.parquet", b"PAR1 and then nothing", "cut off"),
        ("a.json", b'[{"n": 1}, {"n": ', "cut off"),
        ("a.json", b'[{"n": 1}', "middle of its array"),
        ("a.jsonl", b"words\nwords\n", "not one line"),
    ],
)
def test_a_file_that_is_damaged_as_a_whole_stops_the_tool_and_nothing_is_published(tmp_path, name, content, message):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(ConfigError, match=message):
        execute(Double(), tmp_path / name, tmp_path / "out.jsonl")
    assert not list(tmp_path.glob("out.jsonl")) and not list(tmp_path.glob("*.manifest.json"))


def test_chunk_numbers_are_lines_over_all_files(tmp_path):
    path = jsonl(tmp_path / "in.jsonl", *({"n": n} for n in range(7)))
    chunks = list(file_chunks(path, "in", 100, chunk_records=3))
    assert [(c.first, c.number, c.size) for c in chunks] == [(1, 100, 3), (4, 103, 3), (7, 106, 1)]
    assert next(chunks[1].items()) == Raw("in:4", {"n": 3}, 103)
    assert [c.size for c in file_chunks(path, "in", chunk_bytes=18)] == [2, 2, 2, 1]


def test_an_oversized_arrow_row_is_set_aside_alone(monkeypatch):
    monkeypatch.setattr("rufus_plugins.recipes.data.records.LARGEST_RECORD", 1000)
    batch = pa.RecordBatch.from_pylist([{"t": "a"}, {"t": "b" * 2000}, {"t": "c"}])
    first, large, last = Chunk("f", 0, 0, 3, batch).items()
    assert (first.record, large.reason, last.record) == ({"t": "a"}, "too_large", {"t": "c"})


def test_the_command_offers_the_fields_with_their_documentation(tmp_path, monkeypatch, capsys):
    monkeypatch.setitem(data.TOOLS, "double", ("tests_double:Double", "doubles"))
    monkeypatch.setitem(sys.modules, "tests_double", sys.modules[__name__])
    assert field_docs(Double) == {"by": "The factor."}
    with pytest.raises(SystemExit):
        cli.main(["data", "double", "--help"])
    assert "The factor. (default 2)" in capsys.readouterr().out
    source = jsonl(tmp_path / "in.jsonl", {"n": 7}, {"n": 13})
    out = tmp_path / "out.jsonl"
    assert cli.main(["data", "double", "--input", str(source), "--output", str(out), "--by", "3"]) == 0
    assert lines(out)[0]["n"] == 21
    assert "set aside: unlucky" in capsys.readouterr().out
    assert cli.main(["data"]) == 0
    assert "doubles" in capsys.readouterr().out
    assert cli.main(["data", "dubble"]) == 1
    assert "Did you mean double?" in capsys.readouterr().err


@pytest.mark.parametrize("tool", data.TOOLS)
def test_every_option_of_a_tool_is_explained(tool):
    module, _, name = data.TOOLS[tool][0].partition(":")
    cls = getattr(importlib.import_module(module), name)
    options = {field.name for field in dataclasses.fields(cls) if field.init}
    assert options - set(field_docs(cls)) == set()


@dataclass
class Fills(RecordTool):
    """Finds the disk full."""

    name = "fills"

    def survey(self, job):
        with open("/dev/full", "w") as full:
            full.write("x")


def test_a_full_disk_is_said_in_one_line(tmp_path, monkeypatch, capsys):
    monkeypatch.setitem(data.TOOLS, "fills", ("tests_fills:Fills", "fills"))
    monkeypatch.setitem(sys.modules, "tests_fills", sys.modules[__name__])
    source = jsonl(tmp_path / "in.jsonl", {"n": 7})
    assert cli.main(["data", "fills", "--input", str(source), "--output", str(tmp_path / "out.jsonl")]) == 1
    said = capsys.readouterr().err
    assert "rufus data: No space left on device: make room and give the same command again" in said
