"""Decontamination and deduplication when killed, and on a gigabyte under a limit of memory."""

import json
import os
import random
import resource
import signal
import subprocess
import sys
import time

import pytest

QUESTION = (
    "Seven ferrymen carry lanterns over the northern strait each winter night until the harbour freezes; how many?"
)


def corpus(path, size):
    """Chat records of `size` bytes in all: every 50th holds the question, every 20th is nearly the one 10 before it."""
    rng = random.Random(0)
    letters = "bdfgklmnprstvaeiou"
    vocabulary = ["".join(rng.choice(letters) for _ in range(rng.randint(3, 9))) for _ in range(20_000)]
    sentences = [" ".join(rng.choices(vocabulary, k=20)) for _ in range(20_000)]
    written = number = 0
    recent = []
    with path.open("w") as out:
        while written < size:
            said = rng.choices(sentences, k=12)
            if number % 20 == 10 and len(recent) == 10:
                said = [*recent[0][:-1], f"{recent[0][-1]} indeed"]
            recent = [*recent[-9:], said]
            asked = QUESTION if number % 50 == 49 else said[0]
            turns = [{"role": "user", "content": asked}, {"role": "assistant", "content": ". ".join(said)}]
            line = json.dumps({"id": number, "messages": turns}) + "\n"
            out.write(line)
            written += len(line)
            number += 1
    return number


def command(tool, source, output, *more):
    base = [sys.executable, "-m", "rufus_plugins.cli", "data", tool, "--input", str(source), "--output", str(output)]
    return [*base, *more]


def options(tool, folder):
    bench = folder / "bench.jsonl"
    bench.write_text(json.dumps({"question": QUESTION}) + "\n")
    return ["--benchmarks", f"b={bench}", "--exhaustive", "b"] if tool == "decontaminate" else []


@pytest.mark.parametrize("tool", ["decontaminate", "deduplicate"])
def test_a_killed_run_goes_on_and_gives_the_same_bytes(tmp_path, tool):
    source = tmp_path / "in.jsonl"
    count = corpus(source, 12 << 20)
    more = [*options(tool, tmp_path), "--workers", "1"]
    straight, killed = tmp_path / "straight.jsonl", tmp_path / "killed.jsonl"
    subprocess.run(command(tool, source, straight, *more), check=True, capture_output=True, timeout=300)
    process = subprocess.Popen(command(tool, source, killed, *more), stdout=subprocess.DEVNULL, start_new_session=True)
    try:
        limit = time.monotonic() + 120
        while len(list(tmp_path.glob("killed.jsonl.partial/*/*.done"))) < 2 and time.monotonic() < limit:
            time.sleep(0.002)
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    assert not killed.exists()
    subprocess.run(command(tool, source, killed, *more), check=True, capture_output=True, timeout=300)
    names = [p.name.removeprefix("straight") for p in tmp_path.glob("straight.jsonl*")]
    assert len(names) >= 4
    for name in names:
        one, two = ((tmp_path / f"{which}{name}").read_bytes() for which in ("straight", "killed"))
        assert one == two, name
    kept = straight.read_text().count("\n")
    if tool == "decontaminate":
        assert count - kept == count // 50
    else:  # those whose original is 10 before them, and nothing else
        assert count - kept == len(range(10, count, 20))


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("tool", ["decontaminate", "deduplicate"])
def test_a_gigabyte_needs_less_than_two(tmp_path, tool):
    source, output = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    count = corpus(source, 1 << 30)
    limit = 2 << 30
    # two workers and the process that leads them, each of which could not have more than its third
    subprocess.run(
        command(tool, source, output, *options(tool, tmp_path), "--workers", "2"),
        check=True,
        capture_output=True,
        env=os.environ | {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"},
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_DATA, (limit // 3, limit // 3)),
        timeout=3000,
    )
    manifest = json.loads((tmp_path / "out.jsonl.manifest.json").read_text())
    gone = count // 50 if tool == "decontaminate" else len(range(10, count, 20))
    assert manifest["counts"] == {"read": count, "written": count - gone, "set_aside": gone}
