"""Decontamination against datatrove's: what each finds of planted contaminations, and how fast.

    python -m bench.decontaminate [--quick]

Both read the same chat corpus as JSONL on disk, look for the same benchmarks with 8-grams, and write what they keep and
what they drop, in one process. Ours runs its sampled and its exhaustive pass; datatrove has one, exhaustive, over the
turns joined. Its index is made by its own `compute_hashes` (its indexer class needs lighteval and a hub); its English
words come from spaCy, which is its default. A second figure has its fastest tokenizer, which splits at blanks.

Planted, in equal parts: verbatim; case and punctuation changed; split over two and over three user turns; paraphrased
(other word order, sentence frame and words, same facts), which n-grams are not made to find and the retrieval is.
Also there: questions of the same templates about other facts, which are no contamination.

Bars: recall verbatim >= .99, split >= .95, changed not less than datatrove's, paraphrases listed >= .90, and 3 times
datatrove's documents per second. Needs: pip install 'rufus-plugins[data,peers]'.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import sys
import tempfile
import time
from pathlib import Path
from types import SimpleNamespace

BAR = {"verbatim": 0.99, "split2": 0.95, "split3": 0.95, "paraphrase": 0.90}
BAR_SPEED = 3.0
N = 8
BENCHMARKS = ("math", "knowledge", "reading")
KINDS = ("verbatim", "changed", "split2", "split3", "paraphrase")

NAMES = (
    "Amaro Bettina Caspian Delphine Evander Fenella Gideon Hesper Isolde Jorah Kestrel Leopold Mirabel Nestor".split()
)
GOODS = "kettles lanterns saddles barrels violins mirrors candles anvils quilts compasses ladders basins".split()
PLACES = "harbour citadel orchard monastery quarry lighthouse windmill tannery granary ferry".split()
DAYS = "Monday Tuesday Wednesday Thursday Friday Saturday Sunday".split()
METALS = "copper silver bronze nickel tin zinc cobalt".split()
REASONS = "drought flood festival strike harvest eclipse".split()


def facts(rng: random.Random) -> dict[str, object]:
    return {
        "a": rng.choice(NAMES), "b": rng.choice(NAMES), "g": rng.choice(GOODS), "h": rng.choice(GOODS),
        "p": rng.choice(PLACES), "q": rng.choice(PLACES), "d": rng.choice(DAYS), "m": rng.choice(METALS),
        "r": rng.choice(REASONS), "x": rng.randint(12, 997), "y": rng.randint(12, 997), "z": rng.randint(3, 99),
        "k": word(rng, 9), "l": word(rng, 9),
    }  # fmt: skip


FRAMES = (
    (
        "{a} of {k} carried {x} {g} from the {p} to the {q} before the {r}, where {b} bought {y} "
        "of them for {z} {m} coins "
        "apiece; how many {m} coins did {a} take home on {d}?",
        "On {d}, how many coins of {m} were taken home by {a} of {k}, who before the {r} had "
        "brought {x} {g} to the {q} from "
        "the {p} and sold {y} to {b}, each for {z}?",
    ),
    (
        "During the {r} at {k}, the {p} stored {x} {g} and {y} {h}, but every {d} {b} removed {z} "
        "{h}. After how many weeks "
        "did {a} find more {g} than {h} left inside?",
        "{a} looks inside the {p} at {k} and wants more {g} than {h}: after how many weeks is that "
        "so, if it held {y} {h} and "
        "{x} {g} during the {r}, and {b} takes {z} {h} out each {d}?",
    ),
    (
        "Which {m} instrument, first described by {a} of {k} near the {q}, lets {b} weigh {x} {g} "
        "against {y} {h} without a "
        "{l} scale, and why did the {r} delay it?",
        "{b} can weigh {y} {h} against {x} {g} with no {l} scale thanks to which instrument of "
        "{m}, described near the {q} "
        "first by {a} of {k}, and how was it delayed by the {r}?",
    ),
)


def word(rng: random.Random, letters: int) -> str:
    return "".join(rng.choice("bdfgklmnprstv" if i % 2 == 0 else "aeiou") for i in range(rng.randint(4, letters)))


class Prose:
    def __init__(self, rng: random.Random, size: int = 20_000):
        self.words = [word(rng, 10) for _ in range(size)]
        self.weights = [1 / (i + 3) for i in range(size)]
        self.rng = rng

    def __call__(self, count: int) -> str:
        said = self.rng.choices(self.words, self.weights, k=count)
        for at in range(0, count, 13):
            said[at] = said[at].capitalize()
            said[at - 1] += self.rng.choice((".", ".", ",", "?", ";"))
        return " ".join(said)


def changed(text: str, rng: random.Random) -> str:
    made = "".join(c.swapcase() if rng.random() < 0.3 else c for c in text)
    for old, new in ((",", " \u2014"), (";", "!"), ("?", "..."), (" the ", "  THE\n"), (".", " /"), ("of", "\u200bof")):
        made = made.replace(old, new)
    return made.replace("e", "\u00e9", 2)


def chat(*turns: str) -> dict:
    roles = ("user", "assistant")
    return {"messages": [{"role": roles[i % 2], "content": text} for i, text in enumerate(turns)]}


def planted(kind: str, frame: int, given: dict, rng: random.Random, prose: Prose) -> dict:
    text = FRAMES[frame][kind == "paraphrase"].format(**given)
    if kind == "verbatim":
        return chat(f"{prose(rng.randint(0, 80))} {text}", prose(120))
    if kind == "changed":
        return chat(f"{prose(20)} {changed(text, rng)}", prose(120))
    if kind == "paraphrase":
        return chat(text, prose(120))
    said = text.split()
    cuts = sorted(rng.sample(range(4, len(said) - 4), int(kind[-1]) - 1))
    turns: list[str] = []
    for first, last in zip([0, *cuts], [*cuts, len(said)], strict=True):
        turns += [" ".join(said[first:last]), prose(40)]
    return chat(*turns)


def corpus(folder: Path, documents: int, per_kind: int, seed: int = 0) -> dict[str, set[str]]:
    """Writes the benchmarks and the corpus; gives kind -> ids of its records."""
    rng = random.Random(seed)
    prose = Prose(rng)
    items = [(i % len(FRAMES), facts(rng)) for i in range(per_kind * len(KINDS))]
    for number, name in enumerate(BENCHMARKS):
        mine = [FRAMES[f][0].format(**given) for i, (f, given) in enumerate(items) if i % 3 == number]
        (folder / f"{name}.jsonl").write_text("".join(json.dumps({"question": q}) + "\n" for q in mine))
    kinds: dict[str, set[str]] = {kind: set() for kind in (*KINDS, "template", "clean")}
    records = []
    for i, (frame, given) in enumerate(items):
        records.append((KINDS[i // per_kind], planted(KINDS[i // per_kind], frame, given, rng, prose)))
    for i in range(per_kind):
        records.append(("template", chat(FRAMES[i % len(FRAMES)][0].format(**facts(rng)), prose(120))))
    while len(records) < documents:
        records.append(("clean", chat(prose(rng.randint(30, 120)), prose(rng.randint(80, 300)))))
    rng.shuffle(records)
    with (folder / "corpus.jsonl").open("w") as out:
        for number, (kind, record) in enumerate(records):
            kinds[kind].add(f"d{number}")
            text = "\n".join(m["content"] for m in record["messages"])
            out.write(json.dumps({"id": f"d{number}", **record, "joined": text}) + "\n")
    return kinds


def ours(folder: Path, retrieval: bool) -> tuple[set[str], set[str], float]:
    """Ids that are removed, ids that are listed for review, seconds."""
    from rufus_plugins.recipes.data.decontaminate import Decontaminate
    from rufus_plugins.recipes.data.run import execute

    output = folder / f"ours{retrieval}.jsonl"
    tool = Decontaminate(
        tuple(f"{name}={folder / name}.jsonl" for name in BENCHMARKS),
        exhaustive=() if retrieval else BENCHMARKS,
        retrieval=BENCHMARKS if retrieval else (),
        columns=("messages",),
        n=N,
    )
    began = time.perf_counter()
    execute(tool, folder / "corpus.jsonl", output, workers=1)
    took = time.perf_counter() - began
    kept = ids(output)
    listed = {json.loads(line)["record_id"] for line in open(f"{output}.review.jsonl")} if retrieval else set()
    return ids(folder / "corpus.jsonl") - kept, listed, took


def peer(folder: Path, language: str) -> tuple[set[str], float]:
    """Ids that datatrove drops, and seconds."""
    import numpy as np
    import xxhash
    from datatrove.executor import LocalPipelineExecutor
    from datatrove.pipeline.decont.n_grams import NGramsDecontConfig, NGramsDecontFilter, NGramsDecontIndexer
    from datatrove.pipeline.readers import JsonlReader
    from datatrove.pipeline.writers import JsonlWriter
    from datatrove.utils.hashes import xxhash as its_hashes
    from datatrove.utils.hashing import create_hash_func
    from datatrove.utils.word_tokenizers import load_word_tokenizer
    from loguru import logger

    logger.remove()
    # it is made for xxhash < 4, which hashed text as UTF-8; newer ones take bytes only
    its_hashes.xxhash64 = lambda text: xxhash.xxh64_intdigest(text.encode())
    config = NGramsDecontConfig(n_grams=N)
    index = SimpleNamespace(
        config=config, tokenizer=load_word_tokenizer(language), hash_func=create_hash_func(config.hash_config)
    )
    out = folder / f"datatrove_{language}"
    (out / "index").mkdir(parents=True)
    for name in BENCHMARKS:
        hashes = set()
        for line in open(folder / f"{name}.jsonl"):
            hashes.update(NGramsDecontIndexer.compute_hashes(index, json.loads(line)["question"]))
        made = np.array(sorted(hashes), dtype=config.hash_config.np_descr)
        made.tofile(out / "index" / f"{name}.index.hashes")
    step = NGramsDecontFilter(
        str(out / "index"),
        config,
        exclusion_writer=JsonlWriter(str(out / "dropped"), "${rank}.jsonl", compression=None),
        language=language,
    )
    pipeline = [
        JsonlReader(str(folder), text_key="joined", glob_pattern="corpus.jsonl"),
        step,
        JsonlWriter(str(out / "kept"), "${rank}.jsonl", compression=None),
    ]
    step.filter(SimpleNamespace(text="warm " * 20, metadata={}))  # the tokenizer loads in its first document
    began = time.perf_counter()
    silence = open(os.devnull, "w")  # stays open: its logger keeps the stream that it finds here
    with contextlib.redirect_stderr(silence), contextlib.redirect_stdout(silence):
        LocalPipelineExecutor(pipeline, logging_dir=str(out / "logs"), tasks=1, workers=1).run()
    took = time.perf_counter() - began
    return ids(folder / "corpus.jsonl") - ids(out / "kept" / "00000.jsonl"), took


def ids(path: Path) -> set[str]:
    with path.open() as lines:
        return {json.loads(line)["id"] for line in lines}


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.decontaminate", description=__doc__)
    parser.add_argument("--quick", action="store_true")
    options = parser.parse_args(argv)
    try:
        import datatrove  # noqa: F401
        import spacy  # noqa: F401
    except ImportError as error:
        parser.exit(2, f"{error}: pip install 'rufus-plugins[data,peers]'\n")
    documents, per_kind = (4_000, 120) if options.quick else (30_000, 600)
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        kinds = corpus(folder, documents, per_kind)
        size = (folder / "corpus.jsonl").stat().st_size / 2e6
        removed, _, took = ours(folder, retrieval=False)
        _, listed, took_retrieval = ours(folder, retrieval=True)
        dropped, peer_took = peer(folder, "eng_Latn")
        _, fast_took = peer(folder, "grt_Beng")
    print(f"{documents} documents, {size:.0f} MB of text, {per_kind} planted of each kind, one process\n")
    print(f"{'':24}{'ours n-grams':>14}{'datatrove':>12}{'listed by retrieval':>22}")
    recall = {}
    for kind, members in kinds.items():
        shares = [len(members & found) / len(members) for found in (removed, dropped, listed | removed)]
        recall[kind] = shares
        label = kind if kind in KINDS else f"{kind} (not planted)"
        print(f"{label:24}{shares[0]:14.3f}{shares[1]:12.3f}{shares[2]:22.3f}")
    rates = [documents / t for t in (took, peer_took, fast_took, took_retrieval)]
    print(
        f"\ndocuments/s: ours {rates[0]:.0f}, datatrove {rates[1]:.0f} (split at blanks: {rates[2]:.0f}), ours with "
        f"retrieval {rates[3]:.0f}"
    )
    ratio = rates[0] / rates[1]
    good = all(recall[kind][2 if kind == "paraphrase" else 0] >= bar for kind, bar in BAR.items())
    good &= all(recall[kind][0] >= recall[kind][1] for kind in ("verbatim", "changed", "split2", "split3"))
    good &= ratio >= BAR_SPEED
    result = {
        "bench": "decontaminate", "ours": round(rates[0], 1), "peer": round(rates[1], 1), "ratio": round(ratio, 2),
        "bar": BAR_SPEED, "recall": {k: [round(v, 4) for v in recall[k][:2]] for k in recall},
        "paraphrases_listed": round(recall["paraphrase"][2], 4), "ok": bool(good),
    }  # fmt: skip
    print(json.dumps(result))
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
