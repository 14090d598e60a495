"""Puzzles, generated here by reasoning-gym from a seed: the same seed gives the same puzzles.

`reward_model.ground_truth` is `{"dataset", "entry"}`, as the reward `puzzle` reads it. An entry keeps only what scoring
needs; one whose own answer does not get the full score is set aside, where its scorer can be called here safely (the
answer is reasoning-gym's own).
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from rufus_plugins.errors import ConfigError
from rufus_plugins.recipes.data.records import Raw, Refused, Unreadable
from rufus_plugins.recipes.data.source_list import Source
from rufus_plugins.recipes.data.stage_rows import Row

DATASETS = (
    "base_conversion", "binary_alternation", "bitwise_arithmetic", "caesar_cipher", "calendar_arithmetic", "count_bits",
    "countdown", "course_schedule", "family_relationships", "futoshiki", "game_of_life", "graph_color",
    "group_anagrams", "jugs", "knights_knaves", "largest_island", "letter_counting", "maze",
    "mini_sudoku", "n_queens", "number_sorting", "palindrome_generation", "propositional_logic",
    "rotate_matrix", "rotten_oranges", "self_reference", "shortest_path", "spiral_matrix", "string_manipulation",
    "sudoku", "syllogism", "tower_of_hanoi", "word_sorting", "zebra_puzzles",
)  # fmt: skip
"""Boards, grids, logic and strings; those that need no download and have a scorer. Left out are isomorphic_strings,
ransom_note and word_ladder: the same seed gives them other puzzles in another process (reasoning-gym 0.1.25). Ours."""
TAG = "\n\nGive the final answer between <answer> and </answer>."
SOURCE = Source("reasoning_gym", "puzzle", "", {})


def records(count: int, seed: int, datasets: tuple[str, ...] = DATASETS) -> Iterator[tuple[Source, Raw | Unreadable]]:
    """`count` puzzles, spread evenly over the datasets. Deterministic."""
    if not count:
        return
    try:
        import reasoning_gym
    except ImportError as error:
        raise ConfigError("puzzles need reasoning-gym: pip install 'rufus-plugins[puzzles]'") from error
    for at, name in enumerate(datasets):
        size = count // len(datasets) + (at < count % len(datasets))
        if not size:
            continue
        made = reasoning_gym.create_dataset(name, size=size, seed=seed)
        for number in range(size):
            where = f"{name} {seed}/{number}"
            try:
                entry = made[number]
            except Exception as error:  # a generator that finds no puzzle within its tries raises what it likes
                yield SOURCE, Unreadable(where, "not_generated", f"{type(error).__name__}: {error}")
                continue
            try:
                own = float(made.score_answer(entry["answer"], entry)) if isinstance(entry["answer"], str) else None
            except Exception as error:
                yield SOURCE, Unreadable(where, "scorer_fails", f"on its own answer: {type(error).__name__}: {error}")
                continue
            yield SOURCE, Raw(where, {"dataset": name, "entry": dict(entry), "own_score": own})


def row(item: Raw) -> Row:
    record = item.record
    entry, name = record["entry"], record["dataset"]
    if record["own_score"] is None and entry.get("answer") is None:
        # several answers are right and the scorer looks at the metadata alone (countdown, n_queens ...)
        pass
    elif record["own_score"] is None or record["own_score"] < 1.0:
        raise Refused("own_answer_fails", f"reasoning-gym scores its own answer {record['own_score']}")
    kept = {"question": "", "answer": entry.get("answer"), "metadata": entry.get("metadata", {})}
    truth = {"dataset": name, "entry": _plain(kept)}
    return Row(
        [{"role": "user", "content": entry["question"].strip() + TAG}],
        truth,
        f"puzzle/{name}",
        entry["question"],
        {"id": item.where.replace(" ", "/"), "where": item.where},
    )


def _plain(value: Any) -> Any:
    """As JSON keeps it: what the reward will see is what is checked here."""
    try:
        return json.loads(json.dumps(value, default=_as_json))
    except (TypeError, ValueError) as error:
        raise Refused("bad_ground_truth", f"the entry cannot be written as JSON: {error}") from error


def _as_json(value: Any) -> Any:
    if hasattr(value, "tolist"):
        return value.tolist()
    if isinstance(value, (set, frozenset)):
        return sorted(value)
    if hasattr(value, "isoformat"):
        return value.isoformat()
    raise TypeError(f"{type(value).__name__} is no JSON")
