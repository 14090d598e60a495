"""Generated mathematics and science in the columns of public sets: what the builder reads where there is no network.

Answers are computed here, with exact arithmetic for mathematics and with the constants written below for science.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from fractions import Fraction

from rufus_plugins.recipes.data.records import Raw
from rufus_plugins.recipes.data.source_list import Source

MATH = Source("sample", "math", "", {"question": "problem", "answer": "answer"}, licence="Apache-2.0")
SCIENCE = Source("sample", "science", "", {"question": "question", "answer": "answer"}, licence="Apache-2.0")


def records(count: int, seed: int) -> Iterator[tuple[Source, Raw]]:
    """`count` problems of each kind, all different."""
    for source, makers in ((MATH, _MATH), (SCIENCE, _SCIENCE)):
        rng, seen, number = random.Random(f"{source.kind} {seed}"), set(), 0
        while number < count:
            question, answer = makers[number % len(makers)](rng)
            if question in seen:
                continue
            seen.add(question)
            record = {source.columns["question"]: question, source.columns["answer"]: answer}
            yield source, Raw(f"sample {source.kind} {number}", record)
            number += 1


def _linear(rng: random.Random) -> tuple[str, str]:
    a, b, c = rng.randint(2, 30), rng.randint(-40, 40), rng.randint(-99, 99)
    x = Fraction(c - b, a)
    return f"Solve ${a}x {b:+d} = {c}$ for $x$.", _latex(x)


def _roots(rng: random.Random) -> tuple[str, str]:
    r, s, k = rng.randint(-12, 12), rng.randint(-12, 12), rng.randint(1, 5)
    text = f"Let $r$ and $s$ be the roots of ${k}x^2 {-k * (r + s):+d}x {k * r * s:+d} = 0$. Find $r^2 + s^2$."
    return text, str(r * r + s * s)


def _remainder(rng: random.Random) -> tuple[str, str]:
    base, power, modulus = rng.randint(2, 19), rng.randint(20, 300), rng.randint(7, 99)
    return f"Find the remainder when ${base}^{{{power}}}$ is divided by {modulus}.", str(pow(base, power, modulus))


def _urn(rng: random.Random) -> tuple[str, str]:
    red, blue = rng.randint(2, 15), rng.randint(2, 15)
    n = red + blue
    p = Fraction(red * (red - 1) + blue * (blue - 1), n * (n - 1))
    return (
        f"An urn holds {red} red and {blue} blue balls. Two are drawn without replacement. What is the probability "
        "that they have the same colour? Give a fraction in lowest terms.",
        _latex(p),
    )


def _series(rng: random.Random) -> tuple[str, str]:
    first, step, terms = rng.randint(1, 30), rng.randint(2, 17), rng.randint(8, 60)
    total = terms * (2 * first + (terms - 1) * step) // 2
    start = f"The first term of an arithmetic sequence is {first} and its difference is {step}."
    return f"{start} Find the sum of its first {terms} terms.", str(total)


def _force(rng: random.Random) -> tuple[str, str]:
    m, a = rng.randint(2, 90), rng.randint(2, 25)
    return f"What net force gives a body of {m} kg an acceleration of {a} m/s^2?", f"{m * a} N"


def _ohm(rng: random.Random) -> tuple[str, str]:
    current, resistance = rng.randint(2, 40), rng.randint(2, 60)
    return f"A resistor of {resistance} ohm carries a current of {current} A. What is the voltage across it?", (
        f"{current * resistance} V"
    )


_MASSES = {"H": 1.008, "C": 12.011, "N": 14.007, "O": 15.999, "Na": 22.990, "S": 32.06, "Cl": 35.45, "Ca": 40.078}
_COMPOUNDS = {
    "water, H2O": "HHO", "methane, CH4": "CHHHH", "carbon dioxide, CO2": "COO", "ammonia, NH3": "NHHH",
    "sulfur dioxide, SO2": "SOO", "nitrogen dioxide, NO2": "NOO", "hydrogen sulfide, H2S": "HHS",
}  # fmt: skip


def _moles(rng: random.Random) -> tuple[str, str]:
    name = rng.choice(sorted(_COMPOUNDS))
    grams = rng.randint(5, 400)
    mass = sum(_MASSES[atom] for atom in _COMPOUNDS[name])
    return f"How many moles are in {grams} g of {name}?", f"{grams / mass:.4g} mol"


def _wave(rng: random.Random) -> tuple[str, str]:
    frequency, length = rng.randint(20, 900), rng.choice((0.2, 0.25, 0.4, 0.5, 0.8, 1.5, 2.5))
    return f"A wave has the frequency {frequency} Hz and the wavelength {length} m. How fast does it travel?", (
        f"{frequency * length:.6g} m/s"
    )


_FACTS = (
    ("Which organelle of a eukaryotic cell makes most of its ATP?", "mitochondrion"),
    ("Which gas do plants take up in photosynthesis?", "carbon dioxide"),
    ("Which element has the atomic number 79?", "gold"),
    ("Which pigment carries oxygen in human blood?", "hemoglobin"),
    ("Which subatomic particle has no electric charge and is found in the nucleus?", "neutron"),
    ("Which process turns a liquid into a gas at its surface, below the boiling point?", "evaporation"),
    ("Which nucleobase pairs with adenine in DNA?", "thymine"),
    ("Which force keeps planets in their orbits?", "gravity"),
    ("Which type of bond shares electron pairs between atoms?", "covalent bond"),
    ("Which planet of the solar system has the largest mass?", "Jupiter"),
)


def _fact(rng: random.Random) -> tuple[str, str]:
    question, answer = rng.choice(_FACTS)
    wording = rng.choice(("{}", "Science: {}", "A question of a quiz in school: {}", "Answer in a few words. {}"))
    number = rng.randint(1, 999)
    return wording.format(question) + f" (item {number})", answer


_MATH: tuple[Callable[[random.Random], tuple[str, str]], ...] = (_linear, _roots, _remainder, _urn, _series)
_SCIENCE: tuple[Callable[[random.Random], tuple[str, str]], ...] = (_force, _ohm, _moles, _wave, _fact)


def _latex(value: Fraction) -> str:
    if value.denominator == 1:
        return str(value.numerator)
    sign = "-" if value < 0 else ""
    return f"{sign}\\frac{{{abs(value.numerator)}}}{{{value.denominator}}}"
