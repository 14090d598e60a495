"""Numbers with units: `9.8 m/s^2`, `3.2e-5 mol/L`, `25 \\text{ °C}`, `1,200 kJ`.

A quantity is a number in SI base units with the exponents of its dimensions, so that 500 cm is 5 m and 5 m is not 5 s.
Own table, the units that science answers use; an unknown word is no unit.
"""

from __future__ import annotations

import functools
import math
import re
from dataclasses import dataclass

Dimensions = tuple[tuple[str, int], ...]

_PREFIXES = {
    "Y": 1e24, "Z": 1e21, "E": 1e18, "P": 1e15, "T": 1e12, "G": 1e9, "M": 1e6, "k": 1e3, "h": 1e2, "d": 1e-1,
    "c": 1e-2, "m": 1e-3, "u": 1e-6, "n": 1e-9, "p": 1e-12, "f": 1e-15, "a": 1e-18,
}  # fmt: skip
_LONG_PREFIXES = {
    "tera": 1e12, "giga": 1e9, "mega": 1e6, "kilo": 1e3, "hecto": 1e2, "deci": 1e-1, "centi": 1e-2, "milli": 1e-3,
    "micro": 1e-6, "nano": 1e-9, "pico": 1e-12, "femto": 1e-15,
}  # fmt: skip


def _table() -> tuple[dict[str, tuple[float, dict[str, int], bool]], dict[str, tuple[float, dict[str, int]]]]:
    """Symbols (factor, dimensions, takes prefixes) and names (factor, dimensions)."""
    symbols: dict[str, tuple[float, dict[str, int], bool]] = {}
    names: dict[str, tuple[float, dict[str, int]]] = {}

    def add(symbol: str, factor: float, dims: str, name: str = "", prefix: bool = False) -> None:
        exponents = {m[0]: int(m[1:] or 1) for m in dims.split()}
        for s in filter(None, symbol.split()):
            symbols[s] = (factor, exponents, prefix)
        for n in filter(None, name.split(",")):
            names[n] = (factor, exponents)

    # L length, M mass, T time, I current, K temperature, N amount, J luminous intensity, A angle, B bits,
    # C, E, P, Y, R dollars, euros, pounds, yen, rupees
    add("m", 1, "L", "meter,metre", True)
    add("g", 1e-3, "M", "gram,gramme", True)
    add("s", 1, "T", "second,sec", True)
    add("A", 1, "I", "ampere,amp", True)
    add("K", 1, "K", "kelvin", True)
    add("mol", 1, "N", "mole", True)
    add("cd", 1, "J", "candela")
    add("rad", 1, "A", "radian", True)
    add("°", math.pi / 180, "A", "degree,deg")
    add("sr", 1, "A2", "steradian")
    add("Hz", 1, "T-1", "hertz", True)
    add("Bq", 1, "T-1", "becquerel", True)
    add("N", 1, "L M T-2", "newton", True)
    add("Pa", 1, "L-1 M T-2", "pascal", True)
    add("J", 1, "L2 M T-2", "joule", True)
    add("W", 1, "L2 M T-3", "watt", True)
    add("C", 1, "I T", "coulomb", True)
    add("V", 1, "L2 M T-3 I-1", "volt", True)
    add("F", 1, "L-2 M-1 T4 I2", "farad", True)
    add("Ω", 1, "L2 M T-3 I-2", "ohm", True)
    add("S", 1, "L-2 M-1 T3 I2", "siemens", True)
    add("Wb", 1, "L2 M T-2 I-1", "weber", True)
    add("T", 1, "M T-2 I-1", "tesla", True)
    add("H", 1, "L2 M T-2 I-2", "henry,henries", True)
    add("Gy", 1, "L2 T-2", "gray", True)
    add("Sv", 1, "L2 T-2", "sievert", True)
    add("L l", 1e-3, "L3", "liter,litre", True)
    add("M", 1e3, "N L-3", "molar", True)
    add("eV", 1.602176634e-19, "L2 M T-2", "electronvolt,electron-volt", True)
    add("cal", 4.184, "L2 M T-2", "calorie", True)
    add("Cal", 4184, "L2 M T-2")
    add("Da u amu", 1.66053906660e-27, "M", "dalton", True)
    add("t", 1e3, "M", "tonne,ton")
    add("min", 60, "T", "minute")
    add("h hr", 3600, "T", "hour")
    add("d", 86400, "T", "day")
    add("wk", 604800, "T", "week")
    add("yr y", 31557600, "T", "year")
    add("month", 2629800, "T", "month")
    add("atm", 101325, "L-1 M T-2", "atmosphere")
    add("bar", 1e5, "L-1 M T-2", "", True)
    add("Torr torr mmHg", 133.322387415, "L-1 M T-2")
    add("psi", 6894.757293168, "L-1 M T-2")
    add("Å", 1e-10, "L", "angstrom,ångström")
    add("ly", 9.4607304725808e15, "L")
    add("pc", 3.0856775814913673e16, "L", "parsec", True)
    add("au AU", 1.495978707e11, "L")
    add("in", 0.0254, "L", "inch,inche")
    add("ft", 0.3048, "L", "foot,feet")
    add("yd", 0.9144, "L", "yard")
    add("mi", 1609.344, "L", "mile")
    add("lb lbs", 0.45359237, "M", "pound")
    add("oz", 0.028349523125, "M", "ounce")
    add("gal", 3.785411784e-3, "L3", "gallon")
    add("mph", 0.44704, "L T-1")
    add("kph kmh", 1 / 3.6, "L T-1")
    add("ha", 1e4, "L2", "hectare")
    add("acre", 4046.8564224, "L2", "acre")
    add("bit", 1, "B", "bit", True)
    add("B", 8, "B", "byte", True)
    add("% pct", 0.01, "", "percent,per cent")
    add("ppm", 1e-6, "")
    add("ppb", 1e-9, "")
    add("$ USD", 1, "C", "dollar")
    add("cent ¢", 0.01, "C", "cent")
    add("€ EUR", 1, "E", "euro")
    add("£ GBP", 1, "P")
    add("¥ JPY", 1, "Y", "yen")
    add("₹ INR", 1, "R", "rupee")
    add("rev", 2 * math.pi, "A", "revolution")
    add("rpm", 2 * math.pi / 60, "A T-1")
    return symbols, names


_SYMBOLS, _NAMES = _table()
_TEMPERATURES = {"°c": (1.0, 273.15), "degc": (1.0, 273.15), "celsius": (1.0, 273.15), "degreescelsius": (1.0, 273.15),
                 "degreecelsius": (1.0, 273.15), "°f": (5 / 9, 459.67 * 5 / 9), "degf": (5 / 9, 459.67 * 5 / 9),
                 "fahrenheit": (5 / 9, 459.67 * 5 / 9), "degreesfahrenheit": (5 / 9, 459.67 * 5 / 9)}  # fmt: skip
_SUPER = str.maketrans("⁰¹²³⁴⁵⁶⁷⁸⁹⁻", "0123456789-")
_NUMBER = re.compile(
    r"([-+]?(?:\d{1,3}(?:(?:,|\{,\}|\\,)\d{3})+(?!\d)|\d+)?(?:\.\d+)?)"
    r"(?:\s*[eE]([-+]?\d+)(?![\w])|\s*(?:\\times|\\cdot|×|x|\*|·)\s*10\s*(?:\^|\*\*)?\s*\{?\s*([-+]?\d+)\s*\}?)?"
)


_FRACTION = re.compile(
    r"(?P<sign>[-+]?)\s*(?:(?P<whole>\d+)?\s*\\[dt]?frac\s*\{\s*(?P<up>[\d.]+)\s*\}\s*\{\s*(?P<down>[\d.]+)\s*\}"
    r"|(?:(?P<whole2>\d+)\s+)?(?P<up2>\d+)\s*/\s*(?P<down2>\d+)(?![\w/.]))"
)
"""`\\frac{3}{4}`, `3/4`, and both behind a whole number."""


@dataclass(frozen=True)
class Quantity:
    value: float
    """As written, without the unit."""
    dimensions: Dimensions | None = None
    """None: no unit was written; (): a pure ratio, such as percent."""
    factor: float = 1.0
    offset: float = 0.0
    """SI value = value * factor + offset."""

    def close_to(self, other: Quantity, rel: float, abs_tol: float = 0.0) -> bool:
        """Whether `other`, in this quantity's unit, is within the tolerance (`abs_tol` is in this unit).

        Where one side has no unit, it is taken to be in the other's; a percentage may also be meant as a ratio.
        """
        candidates = []
        if self.dimensions is None or other.dimensions is None or self.dimensions == other.dimensions:
            candidates.append(other.value)
        if self.dimensions == other.dimensions or {self.dimensions, other.dimensions} == {None, ()}:
            candidates.append((other.value * other.factor + other.offset - self.offset) / self.factor)
            if self.dimensions is not None and other.dimensions is not None:
                candidates = candidates[1:]
        return any(math.isclose(self.value, c, rel_tol=rel, abs_tol=abs_tol) for c in candidates)


def plain(text: str) -> str:
    """LaTeX around numbers and units, and unicode variants, in one plain form."""
    text = text.replace("\u2212", "-").replace("\u2013", "-").replace("\u00b5", "u").replace("\u03bc", "u")
    text = text.replace("\\mu", "u").replace("\u2126", "Ω").replace("\\Omega", "Ω").replace("\u212b", "Å")
    text = re.sub(r"\^\s*\{?\s*\\circ\s*\}?|\\degree|\\circ", "°", text)
    text = re.sub(r"\\(?:text|mathrm|textrm|rm|mbox|operatorname|unit|si)\s*\{([^{}]*)\}", r" \1 ", text)
    text = re.sub("[⁻⁰¹²³⁴-⁹]+", lambda m: "^" + m.group().translate(_SUPER), text)
    text = text.replace("\\$", "$").replace("\\%", "%").replace("~", " ")
    text = re.sub(r"\\(?:[,;:!]|quad|qquad| )", " ", text)
    return text.strip()


def parse_quantity(text: str) -> Quantity | None:
    """The quantity that the whole text is; None if it is anything else."""
    text = plain(text).strip(" .$") if not plain(text).startswith("$") else "$" + plain(text).strip(" .$")
    text = re.sub(r"^(?:[A-Za-z]\w{0,3}\s*=|\\approx|≈|~|about|approximately|approx\.?|around)\s*", "", text)
    money = ""
    if text[:1] in ("$", "€", "£"):
        money, text = text[0], text[1:].strip()
    match = _FRACTION.match(text)
    if match:
        value = _fraction(match)
    else:
        match = _NUMBER.match(text)
        if not match or not re.search(r"\d", match.group(1) or ""):
            return None
        value = _value(match)
    if not math.isfinite(value):
        return None
    unit = (money or text[match.end() :]).strip()
    if money and text[match.end() :].strip():
        return None
    if not unit:
        return Quantity(value)
    found = parse_unit(unit)
    return Quantity(value, *found) if found else None


def _fraction(match: re.Match[str]) -> float:
    up, down = match["up"] or match["up2"], match["down"] or match["down2"]
    try:
        if not float(down):
            return math.nan
        float(up)
    except ValueError:  # two points
        return math.nan
    value = float(match["whole"] or match["whole2"] or 0) + float(up) / float(down)
    return -value if match["sign"] == "-" else value


def _value(match: re.Match[str]) -> float:
    digits = re.sub(r",|\{,\}|\\,", "", match.group(1))
    exponent = match.group(2) or match.group(3)
    if exponent is not None and len(exponent) > 6:
        return math.inf
    try:
        return float(digits + (f"e{int(exponent)}" if exponent else ""))
    except ValueError:
        return math.nan


def quantities_in(text: str) -> list[Quantity]:
    """Every number in a text, each with the unit that follows it, if one does."""
    text = plain(text)
    found = []
    for match in _NUMBER.finditer(text):
        if not re.search(r"\d", match.group(1) or "") or (match.start() and text[match.start() - 1].isalnum()):
            continue
        value = _value(match)
        if not math.isfinite(value):
            continue
        found.append(Quantity(value))
        words = re.match(r"\s*((?:[^\s,;()=]+\s*){1,3})", text[match.end() : match.end() + 40])
        for size in (3, 2, 1):
            parts = words.group(1).split() if words else []
            unit = " ".join(parts[:size]).rstrip(".:$!?*")
            if len(parts) >= size and unit and (known := parse_unit(unit)):
                found[-1] = Quantity(value, *known)
                break
    return found


@functools.lru_cache(maxsize=4096)
def parse_unit(text: str) -> tuple[Dimensions, float, float] | None:
    """(dimensions, factor, offset) of a unit; None if the text is no unit."""
    bare = text.replace(" ", "").casefold()
    if bare in _TEMPERATURES:
        factor, offset = _TEMPERATURES[bare]
        return (("K", 1),), factor, offset
    text = re.sub(r"\bper\b", "/", text).replace("\\cdot", "*").replace("·", "*").replace("\u22c5", "*")
    frac = re.fullmatch(r"\\d?frac\s*\{([^{}]*)\}\s*\{([^{}]*)\}", text)
    if frac:
        text = f"{frac[1]}/({frac[2]})"
    text = re.sub(r"\bsquared\b", "^2", re.sub(r"\bcubed\b", "^3", text))
    text = re.sub(r"\b(square|sq\.?)\s+([A-Za-z]+)", r"\2^2", re.sub(r"\b(cubic|cu\.?)\s+([A-Za-z]+)", r"\2^3", text))
    if len(text) > 60 or text.count("(") != text.count(")"):
        return None
    factor, dims = 1.0, {}
    sign, in_group = 1, False
    for token in re.findall(r"[/*()]|[^\s/*()]+", text):
        if token == "/":
            sign = -1
        elif token == "(":
            in_group = True
        elif token == ")":
            sign, in_group = 1, False
        elif token == "*":
            pass
        else:
            part = _factor_of(token)
            if part is None:
                return None
            scale, exponents, power = part
            factor *= scale ** (power * sign)
            for key, n in exponents.items():
                dims[key] = dims.get(key, 0) + n * power * sign
            if not in_group:
                sign = 1
    return tuple(sorted((k, n) for k, n in dims.items() if n)), factor, 0.0


def _factor_of(token: str) -> tuple[float, dict[str, int], int] | None:
    match = re.fullmatch(r"([^\d^{}+-]+)(?:\^?\{?([-+]?\d)\}?)?", token)
    if not match:
        return None
    word, power = match[1], int(match[2] or 1)
    known = _SYMBOLS.get(word)
    if known:
        return known[0], known[1], power
    prefix = _PREFIXES.get(word[:1])
    known = _SYMBOLS.get(word[1:])
    if prefix and known and known[2]:
        return prefix * known[0], known[1], power
    name = word.casefold()
    for form in (name, name.removesuffix("s"), name.removesuffix("es")):
        if form in _NAMES:
            return *_NAMES[form], power
        for long, factor in _LONG_PREFIXES.items():
            if form.startswith(long) and form.removeprefix(long) in _NAMES:
                scale, dims = _NAMES[form.removeprefix(long)]
                return scale * factor, dims, power
    return None
