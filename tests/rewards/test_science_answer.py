"""Science answers, units and text normalisation; values from unit definitions and by hand."""

import asyncio

import pytest

from rufus_plugins.errors import ConfigError, DataError
from rufus_plugins.rewards.science_answer import ScienceAnswer
from rufus_plugins.rewards.text_match import contains, exact_match, normalise
from rufus_plugins.rewards.units import parse_quantity, parse_unit, quantities_in
from rufus_plugins.types import Task, Trajectory


def score(gold, response, **config):
    trajectory = Trajectory(Task("1", "gpqa", [], gold), messages=[{"role": "assistant", "content": response}])
    return asyncio.run(ScienceAnswer(**config)(trajectory)).value


@pytest.mark.parametrize(
    "gold, answer, same",
    [
        ("B", "(B)", 1), ("B", "B. 3 m/s", 1), ("B", "A, B, C, D", 0), ("B", "Because", 0), ("B", "\\text{B}", 1),
        ("(B)", "Option B", 1), ("B", "**B**", 1),
        ("mitochondria", "(B) mitochondria", 1), ("mitochondria", "B. mitochondria", 1),
        ("(B) mitochondria", "(C) mitochondria", 0), ("E. coli", "E. coli", 1), ("mitochondria", "(B) ribosomes", 0),
        ("0.5", "\\boxed{\\frac{1}{2}}", 1), ("1/2", "0.5", 1), ("0.75 kg", "\\dfrac{3}{4}\\ \\text{kg}", 1),
        ("1.5 m", "1 1/2 m", 1), ("-0.25", "-1/4", 1), ("0.5", "1/3", 0), ("0.5", "1/2/2", 0), ("5", "5/0", 0),
        ("9.8 m/s^2", "9.81 m/s²", 1), ("9.8 m/s^2", "9.8 m/s", 0), ("5 m", "500 cm", 1), ("5 m", "5 s", 0),
        ("5 m", "5", 1),
        ("0.25", "25%", 1), ("6.02e23", "6.02 × 10^23", 1), ("300 K", "26.85 °C", 1), ("100 °C", "212 °F", 1),
        ("1 atm", "101.3 kPa", 1), ("2 eV", "3.204e-19 J", 1), ("10", "11", 0), ("-5", "5", 0), ("1.5", "15", 0),
        ("hypertension", "hypotension", 0), ("hypertension", "Hypertention", 1),
        ("photosynthesis", "Photosynthesis.", 1),
        ("sulfate", "sulfite", 0), ("2-methylbutane", "3-methylbutane", 0), ("colour", "color", 1),
        ("the reaction is exothermic", "the reaction is endothermic", 0), ("DNA polymerase", "DNA polymerases", 1),
        ("increases", "decreases", 0), ("sodium chloride", "sodium  chlorde", 1),
        ("unsaturated fat", "saturated fat", 0),
        ("it is stable", "it is not stable", 0), ("electro-magnetic induction", "electromagnetic induction", 1),
        ("cis-2-butene", "trans-2-butene", 0), ("A inhibits B", "B inhibits A", 0),
        ("nitrogen and oxygen", "oxygen and nitrogen", 1), ("iron(III) oxide", "iron(II) oxide", 0),
        ("alpha decay", "beta decay", 0), ("anode", "cathode", 0), ("left", "right", 0),
    ],
)  # fmt: skip
def test_form_is_forgiven_and_content_is_not(gold, answer, same):
    assert score(gold, f"Therefore: \\boxed{{{answer}}}") == same


def test_any_of_several_golds_counts():
    assert score(["H2O", "water"], "Answer: water") == 1 and score(["H2O", "water"], "Answer: ice") == 0


def test_the_tolerance_is_a_field():
    assert score("10", "10.4") == 0 and score("10", "10.4", relative_tolerance=0.05) == 1


def test_a_response_without_an_answer_scores_0():
    assert score("B", "<think>B") == 0 and score("B", "") == 0
    assert score("blue whale", "I could say blue whale, I could say cow.\nIt remains open for many reasons.") == 0


@pytest.mark.parametrize("gold", [None, "", [], ["a", ""], {"a": 1}])
def test_a_record_without_gold_strings_is_set_aside(gold):
    with pytest.raises(DataError, match="science_answer"):
        score(gold, "x")


def test_a_threshold_out_of_range_is_refused():
    with pytest.raises(ConfigError):
        ScienceAnswer(threshold=0)


@pytest.mark.parametrize(
    "unit, same",
    [("km/h", "m/s"), ("J", "N m"), ("W", "J/s"), ("Pa", "N/m^2"), ("V", "J/C"), ("mol/L", "M"), ("kg m^2 s^-2", "J"),
     ("meters per second", "m/s"), ("square meters", "m^2"), ("C/s", "A"), ("kWh", "J"), ("J/(mol K)", "J mol^-1 K^-1"),
     ("\\frac{m}{s}", "m/s"), ("Ω", "V/A"), ("mmHg", "Pa")],
)  # fmt: skip
def test_units_of_the_same_dimension_are_known_as_such(unit, same):
    if unit == "kWh":  # two symbols without a sign between them are no unit here
        assert parse_unit(unit) is None
        return
    assert parse_unit(unit)[0] == parse_unit(same)[0] != ()


@pytest.mark.parametrize(
    "text, value, factor",
    [("5 km", 5, 1000), ("1,200 kJ", 1200, 1000), ("3.2e-5 mol/L", 3.2e-5, 1000), ("1.013 × 10⁵ Pa", 101300, 1),
     ("$5", 5, 1), ("12.5\\%", 12.5, 0.01), ("2.5 hours", 2.5, 3600), ("x = 4 \\mathrm{mm}", 4, 0.001),
     ("5 ms", 5, 0.001),
     ("-3 \\times 10^{-2} A", -0.03, 1), ("100 km/h", 100, 1000 / 3600), ("7", 7, 1)],
)  # fmt: skip
def test_quantities_are_read_with_their_unit(text, value, factor):
    found = parse_quantity(text)
    assert found.value == pytest.approx(value) and found.factor == pytest.approx(factor)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "apples",
        "3 apples",
        "1e999",
        "5 m and 3 s",
        "$5 $6",
        "m",
        "9**9",
        "5 m^m",
        "1e99999999",
        "1/0",
        "\\frac{1}{0}",
        "3/4/2024",
    ],
)
def test_what_is_no_quantity_is_none(text):
    assert parse_quantity(text) is None


def test_quantities_in_a_text_carry_the_units_that_follow_them():
    found = quantities_in("We get v = 3.5 m/s and 12 kg, so 1,200 J at 25 °C; step 2 gives 7. H2O is no number.")
    assert [(q.value, dict(q.dimensions or ())) for q in found] == [
        (3.5, {"L": 1, "T": -1}), (12, {"M": 1}), (1200, {"L": 2, "M": 1, "T": -2}), (25, {"K": 1}), (2, {}), (7, {}),
    ]  # fmt: skip


def test_normalisation_keeps_what_carries_meaning():
    assert normalise(" The  “Eiffel Tower”. ") == "eiffel tower"
    assert normalise("1,000,000") == "1000000" and normalise(".5") == ".5" and normalise("C++") == "c++"
    assert not exact_match("-5", "5") and not exact_match("The The", "a") and not exact_match("1.5", "15")
    assert exact_match("naïve café", "NAÏVE CAFÉ") and not exact_match("", "")


def test_containment_is_of_whole_words():
    assert contains("It rose to 1,200 in May.", "1200") and not contains("a thousand cats", "cat")
