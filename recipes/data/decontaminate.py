"""`rufus data decontaminate`: sets aside what a benchmark also holds (Rufus-Air, "Decontamination").

Three passes, as the paper has them: sampled 8-gram overlap against every benchmark; then, for the benchmarks that are
named for it, all n-grams; then embedding retrieval, whose near matches are listed for a person. A record counts for the
first pass that finds it. The same screen serves SFT corpora and RL prompt sets.

Outputs name records and benchmark items by place, id and digest; a benchmark's text is in none of them.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rufus_plugins.errors import ConfigError
from rufus_plugins.recipes.data import writing
from rufus_plugins.recipes.data.contamination import COMMON, GramIndex, Item, build
from rufus_plugins.recipes.data.embedding import Embedder, Hashed, Retrieval, embedder
from rufus_plugins.recipes.data.ngrams import digest
from rufus_plugins.recipes.data.records import Raw, find, read
from rufus_plugins.recipes.data.run import Job
from rufus_plugins.recipes.data.texts import id_of, missing, question_of, turns_of
from rufus_plugins.recipes.data.tool import RecordTool, SetAside

MATCHES, REVIEW = "matches.jsonl", "review.jsonl"


@dataclass(frozen=True)
class Benchmark:
    name: str
    source: str
    columns: tuple[str, ...] = ()

    @classmethod
    def parse(cls, text: str) -> Benchmark:
        name, sign, rest = text.partition("=")
        source, _, columns = rest.partition("#")
        if not sign or not name or not source:
            raise ConfigError(
                f"--benchmarks {text!r}: write NAME=FILE, or NAME=FILE#column+column if other columns hold the question"
            )
        return cls(name, source, tuple(filter(None, columns.split("+"))))


@dataclass
class Decontaminate(RecordTool):
    """Looks every record up in the benchmarks and sets aside what it finds there."""

    benchmarks: tuple[str, ...]
    """NAME=FILE of each benchmark (JSONL, JSON, Parquet, a directory, or a hub dataset's test split), in the order of
    the first passes; NAME=FILE#column+column where the question is not in a column of the usual names."""
    exhaustive: tuple[str, ...] = ()
    """Names of the benchmarks whose n-grams are all looked for, not the sampled ones alone."""
    retrieval: tuple[str, ...] = ()
    """Names of the benchmarks for which near matches are retrieved by embeddings."""
    columns: tuple[str, ...] = ()
    """Columns of the input that are screened; default: the conversation, else every text column."""
    n: int = 8
    """Words of an n-gram (Rufus-Air: 8). In scripts without blanks a character counts as a word: take 16 there."""
    samples: int = 8
    """N-grams that are sampled of each item. Ours."""
    hits: int = 1
    """Different n-grams of one item that a record must hold; of an item with fewer, all. Ours."""
    common: int = COMMON
    """N-grams that more items of a benchmark share are its template and not looked for. Ours."""
    seed: int = 0
    """Of the sampling."""
    embedder: str = "hashed"
    """hashed, model2vec:NAME, sentence-transformers:NAME or package.module:function."""
    roles: tuple[str, ...] = ("user",)
    """Roles whose turns the retrieval looks at; a record without any of them is looked at whole."""
    review_at: float = 0.7
    """Cosine from which on a pair is listed for review. Depends on the embedder; ours is for `hashed`."""
    remove_at: float = 0.85
    """Cosine from which on a record is set aside without review. Ours, for `hashed`."""
    decisions: str | None = None
    """A reviewed `review.jsonl`: its `decision` (remove or keep) of a pair comes before `remove_at`."""
    benchmark_split: str = "test"
    """Split of benchmarks that are hub datasets."""

    keeps_rejected = False
    name = "decontaminate"
    version = 3

    def __post_init__(self) -> None:
        self._benchmarks = [Benchmark.parse(text) for text in self.benchmarks]
        names = [b.name for b in self._benchmarks]
        if not names:
            raise ConfigError("--benchmarks is empty: name at least one, NAME=FILE")
        if len(set(names)) < len(names):
            raise ConfigError(f"--benchmarks names {Counter(names).most_common(1)[0][0]!r} twice")
        for option in ("exhaustive", "retrieval"):
            unknown = [name for name in getattr(self, option) if name not in names]
            if unknown:
                raise ConfigError(f"--{option} {unknown[0]}: there is no such benchmark; there are {', '.join(names)}")
        if self.n < 2 or self.samples < 1 or self.hits < 1 or self.common < 1:
            raise ConfigError("--n must be at least 2, and --samples, --hits and --common at least 1")
        if not 0 < self.review_at <= self.remove_at:
            raise ConfigError("--review-at must be above 0 and at most --remove-at (above 1: nothing is removed by it)")
        self._verdicts: dict[int, tuple[str, str]] = {}
        """Record number -> (reason, detail)."""
        self._report: dict[str, Any] = {}

    def reads(self) -> Sequence[str]:
        files = [str(f) for b in self._benchmarks for f in find([b.source])]
        return [*files, self.decisions] if self.decisions else files

    # ---- before the first record: the benchmarks, a pass of screening, the verdicts

    def survey(self, job: Job) -> None:
        index, screening = self.screening()
        found = self._judged(index, job.map("screen", screening), job.extra(MATCHES), job.extra(REVIEW))
        self._report = found | {"benchmarks": self._items(index)}

    def screening(self) -> tuple[GramIndex, Screening]:
        """The index of the benchmarks, and the screen that any tool can run over its records."""
        items = list(self._read())
        names = [b.name for b in self._benchmarks]
        index = build(
            items, names, n=self.n, samples=self.samples, exhaustive=self.exhaustive, common=self.common, seed=self.seed
        )
        retrieval = embed = None
        if self.retrieval:
            chosen = [(i, item.text) for i, item in enumerate(items) if names[item.benchmark] in self.retrieval]
            embed = embedder(self.embedder, (text for _, text in chosen))
            retrieval = Retrieval.of(chosen, embed, self.review_at, self.roles)
        own = embed if isinstance(embed, Hashed) else None  # others are loaded anew in each worker
        return index, Screening(index, retrieval, own, self.embedder, self.columns)

    def _read(self) -> Iterator[Item]:
        self._unreadable: Counter[str] = Counter()
        for number, benchmark in enumerate(self._benchmarks):
            count = 0
            why: Counter[str] = Counter()
            for item in read(benchmark.source, self.benchmark_split):
                text = question_of(item.record, benchmark.columns) if isinstance(item, Raw) else None
                if not isinstance(item, Raw) or text is None:
                    why["no_question" if isinstance(item, Raw) else item.reason] += 1
                    continue
                own = id_of(item.record)
                count += 1
                yield Item(number, f"{item.where} (id {own})" if own else item.where, text)
            if not count:
                raise ConfigError(
                    f"benchmark {benchmark.name}: no record of {benchmark.source} has a question in a column that is "
                    f"usually called so; name its columns: {benchmark.name}={benchmark.source}#column"
                )
            self._unreadable[benchmark.name] = why.total()
            if why:  # a contamination with one of these is not found: whoever runs this must hear of it
                reasons = ", ".join(f"{reason} {number}" for reason, number in sorted(why.items()))
                print(
                    f"benchmark {benchmark.name}: {why.total()} of {why.total() + count} records of {benchmark.source} "
                    f"are not screened for ({reasons})",
                    file=sys.stderr,
                )

    def _judged(self, index: GramIndex, rows: Iterator[dict[str, Any]], matches: Path, review: Path) -> dict[str, Any]:
        """Writes both lists and gives the counts of the passes."""
        decided = self._decisions()
        first = [f"{self.n}-gram samples: {name}" for name in index.benchmarks]
        second = [f"all {self.n}-grams: {b}" for b in index.benchmarks if b in self.exhaustive]
        third = [f"retrieval: {b}" for b in index.benchmarks if b in self.retrieval]
        matched, removed = Counter(), Counter()
        with matches.open("wb") as listed, review.open("wb") as near:
            for row in rows:
                name, ways = row["number"], {}
                for item, sampled, every, whole in row["hits"]:
                    benchmark = index.benchmarks[index.item_benchmark[item]]
                    where = index.item_where[item]
                    enough = min(self.hits, int(index.sampled_of[item]) or 1)
                    if whole or sampled >= enough:
                        held = "as a whole turn" if whole else f"{sampled} of {index.sampled_of[item]} sampled n-grams"
                        ways.setdefault(first[index.item_benchmark[item]], f"{benchmark} {where}: {held}")
                    elif benchmark in self.exhaustive and every >= enough:
                        ways.setdefault(f"all {self.n}-grams: {benchmark}", f"{benchmark} {where}: {every} n-grams")
                    line = {"sampled_ngrams": sampled, "ngrams": every, "whole_turn": bool(whole)}
                    listed.write(writing.dumped({**_pair(row, benchmark, where), **line}))
                for item, score, turn in row["near"]:
                    benchmark = index.benchmarks[index.item_benchmark[item]]
                    where = index.item_where[item]
                    decision = decided.get((row["digest"], benchmark, where))
                    remove = decision == "remove" or (decision is None and score >= self.remove_at)
                    if remove:
                        ways.setdefault(f"retrieval: {benchmark}", f"{benchmark} {where}: cosine {score:.3f}")
                    line = {"score": score, "turn": turn, "decision": "remove" if remove else "keep"}
                    near.write(writing.dumped({**_pair(row, benchmark, where), **line}))
                matched.update(list(ways))
                way = next((w for w in (*first, *second, *third) if w in ways), None)
                if way is not None:
                    removed[way] += 1
                    self._verdicts[name] = (f"contaminated_{('sample', 'ngram', 'retrieval')[_pass(way)]}", ways[way])
        table = [
            {"pass": way.partition(": ")[0], "benchmark": way.partition(": ")[2], "matched": matched[way],
             "removed": removed[way]} for way in (*first, *second, *third)
        ]  # fmt: skip
        firsts, reviewed = (sum(removed[w] for w in group) for group in (first, (*second, *third)))
        return {"passes": table, "removed": {"first_passes": firsts, "review": reviewed, "all": firsts + reviewed}}

    def _decisions(self) -> dict[tuple[str, str, str], str]:
        found = {}
        for item in read(self.decisions) if self.decisions else ():
            if not isinstance(item, Raw) or item.record.get("decision") not in ("remove", "keep"):
                raise ConfigError(f"--decisions {self.decisions}: {item.where} has no decision `remove` or `keep`")
            pair = item.record
            found[pair.get("record_digest"), pair.get("benchmark"), pair.get("item")] = pair["decision"]
        return found

    def _items(self, index: GramIndex) -> list[dict[str, Any]]:
        sizes = Counter(index.item_benchmark.tolist())
        return [
            {"name": b.name, "items": sizes[i], "too_short": index.unscreened[b.name],
             "unreadable": self._unreadable[b.name]} for i, b in enumerate(self._benchmarks)
        ]  # fmt: skip

    # ---- the records

    def batch(self, raws: Sequence[Raw]) -> Iterator[Mapping[str, Any] | SetAside]:
        for raw in raws:
            verdict = self._verdicts.get(raw.number)
            if lacking := missing(raw.record, self.columns):
                verdict = ("no_columns", lacking)  # it was not screened, so nobody may take it for clean
            yield raw.record if verdict is None else SetAside(raw, *verdict)

    def finish(self, job: Job) -> Mapping[str, Any]:
        return self._report


def _pass(way: str) -> int:
    return 0 if "samples: " in way else 2 if way.startswith("retrieval: ") else 1


def _pair(row: Mapping[str, Any], benchmark: str, where: str) -> dict[str, Any]:
    return {
        "record": row["where"],
        "record_id": row["id"],
        "record_digest": row["digest"],
        "benchmark": benchmark,
        "item": where,
    }


@dataclass
class Screening(RecordTool):
    """One small row for each record that has matches; the rest leaves no trace."""

    index: GramIndex
    retrieval: Retrieval | None = None
    embed: Embedder | None = None
    embedder: str = "hashed"
    columns: tuple[str, ...] = ()

    keeps_rejected = False
    name = "screening"
    version = 2

    def start(self) -> None:
        if self.retrieval is not None and self.embed is None:
            self.embed = embedder(self.embedder)

    def batch(self, raws: Sequence[Raw]) -> Iterator[Mapping[str, Any] | SetAside]:
        records = [turns_of(raw.record, self.columns) for raw in raws]
        hits = self.index.screen(records)
        near = self.retrieval.near(records, self.embed) if self.retrieval and self.embed else [[] for _ in records]
        for raw, turns, found, close in zip(raws, records, hits, near, strict=True):
            if found or close:
                yield {
                    "number": raw.number,
                    "where": raw.where,
                    "id": id_of(raw.record),
                    "digest": digest("\n".join(text for _, text in turns)),
                    "hits": [(hit.item, hit.sampled, hit.all, hit.whole) for hit in found],
                    "near": [(n.item, n.score, n.turn) for n in close],
                }
