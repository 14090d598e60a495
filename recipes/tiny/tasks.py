"""A generated family of small stdin/stdout programming problems: what the tiny model learns.

A problem is a *combination* of parts (`ints/prod/mod 7`), worded in one of several paraphrases. Three kinds:
two integers, a list of integers, a word. Combinations are split, never wordings: no combination of the
held-out split is ever seen in SFT or RL. Every problem has `TESTS` tests whose expected outputs are not all
equal, so a program that prints a constant passes none.

Sizes (about 1,700 combinations, split 40/40/20) and wordings are ours.
"""

from __future__ import annotations

import functools
import hashlib
import itertools
import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from types import CodeType

TESTS = 5
SPLITS = {"sft": 0.4, "rl": 0.4}
"""Shares of the combinations; the rest is held out."""

Option = tuple[str, str, tuple[str, ...]]
"""Name, Python expression, wordings."""

PAIRS: tuple[Option, ...] = (
    ("sum", "a + b", ("a plus b", "the sum of a and b")),
    ("diff", "a - b", ("a minus b", "the difference of a and b")),
    ("prod", "a * b", ("a times b", "the product of a and b")),
    ("max", "max(a, b)", ("the larger of a and b", "the maximum of a and b")),
    ("min", "min(a, b)", ("the smaller of a and b", "the minimum of a and b")),
    ("gap", "abs(a - b)", ("the distance of a and b", "the gap between a and b")),
    ("square_a", "a * a + b", ("a squared plus b", "the square of a plus b")),
    ("square_b", "a + b * b", ("a plus b squared", "a plus the square of b")),
    ("twice_a", "2 * a + b", ("twice a plus b", "the double of a plus b")),
    ("twice_b", "a + 2 * b", ("a plus twice b", "a plus the double of b")),
)
AFTER: tuple[Option, ...] = tuple(
    (f"{name} {k}", code.format(k=k), tuple(word.format(k=k) for word in words))
    for name, code, words in (
        ("plus", "v + {k}", ("then add {k}", "increased by {k}")),
        ("minus", "v - {k}", ("then subtract {k}", "decreased by {k}")),
        ("times", "v * {k}", ("then multiply by {k}", "taken {k} times")),
        ("mod", "v % {k}", ("modulo {k}", "then the remainder by {k}")),
        ("div", "v // {k}", ("then divide by {k}", "floor divided by {k}")),
        ("floor", "max(v, {k})", ("but at least {k}", "and no less than {k}")),
        ("cap", "min(v, {k})", ("but at most {k}", "and no more than {k}")),
    )
    for k in range(2, 10)
)
FILTERS: tuple[Option, ...] = (
    ("even", "v % 2 == 0", ("even numbers", "numbers that are even")),
    ("odd", "v % 2 == 1", ("odd numbers", "numbers that are odd")),
    ("positive", "v > 0", ("positive numbers", "numbers above zero")),
    ("negative", "v < 0", ("negative numbers", "numbers below zero")),
    *((f"above {k}", f"v > {k}", (f"numbers above {k}", f"numbers larger than {k}")) for k in (2, 3, 5)),
    *((f"below {k}", f"v < {k}", (f"numbers below {k}", f"numbers smaller than {k}")) for k in (2, 3, 5)),
)
MAPS: tuple[Option, ...] = (
    ("square", "v * v", ("square them", "multiply each by itself")),
    ("negate", "-v", ("negate them", "flip each sign")),
    ("abs", "abs(v)", ("drop the signs", "take absolute values")),
    *((f"times {k}", f"v * {k}", (f"multiply each by {k}", f"scale them by {k}")) for k in (2, 3, 5)),
    *((f"plus {k}", f"v + {k}", (f"add {k} to each", f"raise them by {k}")) for k in (4, 6, 7)),
)
REDUCES: tuple[Option, ...] = (
    ("sum", "sum(y)", ("the sum", "the total")),
    ("max", "max(y)", ("the maximum", "the largest")),
    ("min", "min(y)", ("the minimum", "the smallest")),
    ("first", "y[0]", ("the first", "the first one")),
    ("last", "y[-1]", ("the last", "the last one")),
    ("range", "max(y) - min(y)", ("the range", "the maximum minus the minimum")),
)
STEPS: tuple[Option, ...] = (
    ("reverse", "s[::-1]", ("reverse it", "turn it around")),
    ("upper", "s.upper()", ("make it upper case", "put it in capitals")),
    ("tail", "s[1:]", ("drop the first letter", "remove its first letter")),
    ("init", "s[:-1]", ("drop the last letter", "remove its last letter")),
    ("twice", "s + s", ("double it", "repeat it twice")),
    ("skip", "s[::2]", ("keep every second letter", "take every other letter")),
    ("head3", "s[:3]", ("keep the first 3 letters", "cut it to 3 letters")),
    ("last3", "s[-3:]", ("keep the last 3 letters", "take its final 3 letters")),
    ("sort", '"".join(sorted(s))', ("sort its letters", "order the letters")),
)
ENDS: tuple[Option, ...] = (
    ("text", "s", ("Print it.", "Print the result.")),
    ("length", "len(s)", ("Print its length.", "Print how long it is.")),
    ("initial", "s[0]", ("Print its first letter.", "Print the letter in front.")),
    ("final", "s[-1]", ("Print its last letter.", "Print the letter at the end.")),
    ("bang", 's + "!"', ("Print it with a ! at the end.", "Print it followed by !.")),
    ("star", '"*" + s', ("Print it with a * in front.", "Print it after a *.")),
    ("dashes", '"-".join(s)', ("Print it with - between letters.", "Print its letters joined by -.")),
    ("biggest", "max(s)", ("Print its largest letter.", "Print the largest of its letters.")),
)

KINDS: dict[str, tuple[tuple[Option, ...], ...]] = {
    "ints": (PAIRS, AFTER),
    "list": (FILTERS, MAPS, REDUCES),
    "word": (STEPS, STEPS, ENDS),
}
_OPENINGS = {
    "ints": ("Read two integers a and b.", "Given integers a and b on one line."),
    "list": ("Read a list of integers.", "Given integers on one line."),
    "word": ("Read a word.", "Given one word."),
}


@dataclass(frozen=True)
class Problem:
    """One combination of parts in one wording."""

    combination: str
    statement: str
    program: str
    """The reference solution."""
    faulty: str
    """What the careless teacher writes: the same mistake in every problem of a kind. Equals `program` where the
    mistake changes nothing."""
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]

    @property
    def kind(self) -> str:
        return self.combination.split("/")[0]

    @property
    def tests(self) -> dict[str, list[str]]:
        """In the PRIME/Eurus format, for `reward_model.ground_truth`."""
        return {"inputs": list(self.inputs), "outputs": list(self.outputs)}


def combinations() -> list[tuple[str, tuple[Option, ...]]]:
    """Every `(kind, parts)`, in a fixed order. A word's two steps always differ."""
    found = []
    for kind, groups in KINDS.items():
        for parts in itertools.product(*groups):
            if kind == "word" and parts[0] == parts[1]:
                continue
            found.append((kind, parts))
    return found


def name(kind: str, parts: Sequence[Option]) -> str:
    return "/".join([kind, *(part[0] for part in parts)])


@functools.cache
def splits(seed: int) -> dict[str, list[tuple[str, tuple[Option, ...]]]]:
    """Disjoint sets of combinations; another seed splits otherwise. Every part occurs in SFT and in RL, so only
    combinations are new in the held-out set. Combinations without usable tests are left out."""
    usable = [(kind, parts) for kind, parts in combinations() if _tests(kind, parts)]
    everything = _parts_of(usable)
    for attempt in itertools.count():
        random.Random(f"split {seed} {attempt}").shuffle(usable)
        first = round(SPLITS["sft"] * len(usable))
        second = first + round(SPLITS["rl"] * len(usable))
        sft, rl = usable[:first], usable[first:second]
        if _parts_of(sft) == _parts_of(rl) == everything:
            return {"sft": sft, "rl": rl, "heldout": usable[second:]}
    raise AssertionError("unreachable")


def problem(kind: str, parts: tuple[Option, ...], rng: random.Random) -> Problem:
    """The combination in a wording drawn from `rng`. Its tests depend on the combination alone."""
    tests = _tests(kind, parts)
    if tests is None:
        raise ValueError(f"{name(kind, parts)} has no usable tests")
    program, faulty = _program(kind, [p[1] for p in parts]), _program(kind, _mistake(kind, parts))
    inputs, outputs = tests
    if tuple(run(faulty, kind, text) for text in inputs) == outputs:
        faulty = program
    return Problem(name(kind, parts), _statement(kind, parts, rng), program, faulty, inputs, outputs)


def demonstrations(seed: int, rows: int, faulty_share: float) -> list[tuple[Problem, str]]:
    """`(problem, program)` pairs over the SFT split; the teacher errs in `faulty_share` of them."""
    rng = random.Random(f"demonstrations {seed}")
    pool = splits(seed)["sft"]
    order: list[tuple[str, tuple[Option, ...]]] = []
    while len(order) < rows:
        order += rng.sample(pool, len(pool))
    pairs = []
    for kind, parts in order[:rows]:
        drawn = problem(kind, parts, rng)
        pairs.append((drawn, drawn.faulty if rng.random() < faulty_share else drawn.program))
    return pairs


def problems(seed: int, split: str) -> list[Problem]:
    """One problem, in one wording, per combination of the split."""
    rng = random.Random(f"{split} {seed}")
    return [problem(kind, parts, rng) for kind, parts in splits(seed)[split]]


def fenced(program: str) -> str:
    """The answer a model should give: one fenced block and nothing after it."""
    return f"```python\n{program}\n```"


def run(program: str, kind: str, text: str) -> str:
    """What a program *of this module* prints for one input. Only ever called on programs made here."""
    printed: list[str] = []
    scope = {"input": lambda: text, "print": lambda value: printed.append(str(value))}
    exec(_compiled(program, kind), scope)
    return "\n".join(printed)


@functools.lru_cache(maxsize=4096)
def _compiled(program: str, kind: str) -> CodeType:
    return compile(program, f"<{kind}>", "exec")


def corpus() -> list[str]:
    """Texts on which the tokenizer is trained: every combination's program, every wording."""
    rng = random.Random("corpus")
    texts = []
    for kind, parts in combinations():
        texts.append(_statement(kind, parts, rng))
        texts.append(fenced(_program(kind, [p[1] for p in parts])))
    return texts


def _parts_of(split: Iterable[tuple[str, tuple[Option, ...]]]) -> set[tuple[str, int, str]]:
    return {(kind, place, part[0]) for kind, parts in split for place, part in enumerate(parts)}


def _statement(kind: str, parts: Sequence[Option], rng: random.Random) -> str:
    words = [rng.choice(part[2]) for part in parts]
    opening = rng.choice(_OPENINGS[kind])
    if kind == "ints":
        return f"{opening} Print {words[0]}, {words[1]}."
    if kind == "list":
        return f"{opening} Keep the {words[0]}, {words[1]}. Print {words[2]}."
    return f"{opening} First {words[0]}, then {words[1]}. {words[2]}"


def _program(kind: str, code: Sequence[str]) -> str:
    if kind == "ints":
        return f"a, b = map(int, input().split())\nv = {code[0]}\nprint({code[1]})"
    if kind == "list":
        return f"x = map(int, input().split())\ny = [{code[1]} for v in x if {code[0]}]\nprint({code[2]})"
    return f"s = input()\ns = {code[0]}\ns = {code[1]}\nprint({code[2]})"


def _mistake(kind: str, parts: Sequence[Option]) -> list[str]:
    """The code parts with the kind's own mistake: forgets the last step, the change of the numbers, the second step."""
    code = [part[1] for part in parts]
    if kind == "ints":
        code[1] = "v"
    elif kind == "list":
        code[1] = "v"
    else:
        code[1] = "s"
    return code


_WORDS = "apple bread chair dance eagle flame grape house island jungle kettle lemon mango night ocean piano".split()


@functools.cache
def _tests(kind: str, parts: tuple[Option, ...]) -> tuple[tuple[str, ...], tuple[str, ...]] | None:
    """`TESTS` inputs and outputs that depend on the combination alone; None if no such set was found."""
    rng = random.Random(hashlib.sha256(name(kind, parts).encode()).digest())
    program = _program(kind, [p[1] for p in parts])
    inputs: list[str] = []
    outputs: list[str] = []
    for _ in range(400):
        text = _input(kind, rng)
        try:
            output = run(program, kind, text)
        except (ValueError, IndexError):  # the filter kept nothing: max() of an empty list, y[0]
            continue
        if text in inputs or not output:
            continue
        if len(inputs) == TESTS - 1 and set(outputs) == {output}:
            continue
        inputs.append(text)
        outputs.append(output)
        if len(inputs) == TESTS:
            return tuple(inputs), tuple(outputs)
    return None


def _input(kind: str, rng: random.Random) -> str:
    if kind == "ints":
        return f"{rng.randint(-9, 30)} {rng.randint(-9, 30)}"
    if kind == "list":
        return " ".join(str(rng.randint(-9, 12)) for _ in range(rng.randint(4, 7)))
    return rng.choice(_WORDS)
