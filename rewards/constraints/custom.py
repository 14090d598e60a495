"""IFBench `custom:`: single tasks with a form of their own."""

from __future__ import annotations

import datetime
from itertools import pairwise

import regex

from rufus_plugins.rewards.constraints.csv_table import rows
from rufus_plugins.rewards.constraints.declare import constraint
from rufus_plugins.rewards.constraints.markup import unfenced
from rufus_plugins.rewards.constraints.places import AFRICA, CAPITALS
from rufus_plugins.rewards.constraints.reading import initial, unaccented, words
from rufus_plugins.rewards.constraints.splitting import sentences

_QUESTION = regex.compile(r"^[ \t#>*_]*Question\b[ \t]*\d*[ \t]*[*_]*[.):;\-–—]*[*_]*[ \t]*(.*)$")
_OPTION = regex.compile(r"^[ \t>*_\-]*\(?([A-Ea-e])[.):][*_]*[ \t]*\S")
_KEY = regex.compile(r"^[ \t>*_(]*(?:correct\s+)?answer\b.{0,60}$", regex.I)
_MARKER = regex.compile(r"^[ \t]*(?:[-*+•>]|\d{1,3}[.):])[ \t]*")
_YEARS = range(1793, 1816)
"""Of the battles Napoleon fought: from Toulon to Waterloo."""


@constraint("custom:multiples")
def multiples(response: str) -> str | None:
    """14 21 28 35 42 49, in this order, and no other number in digits."""
    found = regex.findall(r"\d+", response)
    wanted = [str(number) for number in range(14, 51, 7)]
    return None if found == wanted else f"the numbers are not {' '.join(wanted)}"


@constraint("custom:mcq_count_length")
def mcq_count_length(response: str) -> str | None:
    """Four questions labelled "Question", each longer than the one before and with options A to E; no text besides."""
    questions: list[tuple[list[str], list[str]]] = []
    for line in response.strip().split("\n"):
        label = _QUESTION.match(line)
        option = _OPTION.match(line)
        if label:
            questions.append(([label[1]], []))
        elif not questions:
            return "text before the first question"
        elif option:
            questions[-1][1].append(option[1].lower())
        elif line.strip() and not regex.fullmatch(r"[\s*_\-#]*", line):
            if not questions[-1][1]:
                questions[-1][0].append(line.strip())
            elif not _KEY.match(line):
                return f"text after the options: {line.strip()[:80]!r}"
    if len(questions) != 4:
        return f"{len(questions)} questions, not 4"
    wrong = [index for index, (_, options) in enumerate(questions) if options != list("abcde")]
    if wrong:
        return f"question {wrong[0] + 1} does not have the options A to E"
    lengths = [len(" ".join(lines).strip(" *_")) for lines, _ in questions]
    return None if 0 < lengths[0] and all(a < b for a, b in pairwise(lengths)) else f"lengths {lengths} do not grow"


@constraint("custom:reverse_newline")
def reverse_newline(response: str) -> str | None:
    """The 54 countries of Africa, one on a line, in reverse alphabetical order by the names used."""
    names = [_MARKER.sub("", line).strip(" \t*_.,;\\") for line in response.split("\n") if line.strip()]
    keys = [(name, _place(name)) for name in names]
    known = [index for index, (_, key) in enumerate(keys) if key in AFRICA]
    if not known:
        return "no country of Africa on a line of its own"
    listed = keys[known[0] : known[-1] + 1]
    strange = [name for name, key in listed if key not in AFRICA]
    if strange:
        return f"no country of Africa: {strange[0][:80]!r}"
    missing = set(AFRICA.values()) - {AFRICA[key] for _, key in listed}
    if missing:
        return f"missing: {', '.join(sorted(missing)[:5])}"
    for (one, first), (other, second) in pairwise(listed):
        if second >= first:
            return f"{other} stands after {one}"
    return None


def _place(name: str) -> str:
    if name.endswith(")"):
        name = name.partition("(")[0]
    name = unaccented(name.replace("’", "'")).casefold()
    return " ".join(name.removeprefix("the ").replace("-", " ").replace("&", "and").split())


@constraint("custom:word_reverse")
def word_reverse(response: str) -> str | None:
    """One sentence of three words or more about the bald eagle, its words from last to first."""
    found = [word.casefold() for word in words(response)]
    if len(sentences(response)) != 1 or len(found) < 3:
        return "not one sentence"
    return (
        None if ("eagle", "bald") in pairwise(found) and ("bald", "eagle") not in pairwise(found) else "no 'eagle bald'"
    )


@constraint("custom:character_reverse")
def character_reverse(response: str) -> str | None:
    """A sentence about the bald eagle, its letters from last to first."""
    text = " ".join(response.casefold().split())
    if "elgae dlab" not in text:
        return "no 'elgae dlab'"
    return "part of it is written forwards" if "eagle" in text or "bald" in text else None


@constraint("custom:sentence_alphabet")
def sentence_alphabet(response: str) -> str | None:
    """26 sentences, whose first words start with A to Z; quotation marks before them do not matter."""
    found = sentences(response)
    if len(found) != 26:
        return f"{len(found)} sentences, not 26"
    for index, sentence in enumerate(found):
        if initial(sentence) != chr(ord("a") + index):
            return f"sentence {index + 1} does not start with {chr(ord('A') + index)}"
    return None


@constraint("custom:european_capitals_sort")
def european_capitals_sort(response: str) -> str | None:
    """The 28 capitals of Europe north of 45 degrees, separated by commas, from north to south."""
    given = [_place(part.strip(" \t\n*_.")) for part in response.strip().strip(".").split(",")]
    given = [CAPITALS.get(name, name) for name in given if name]
    wanted = list(dict.fromkeys(CAPITALS.values()))
    if given == wanted:
        return None
    for index, name in enumerate(wanted):
        if index >= len(given) or given[index] != name:
            return (
                f"place {index + 1} is {given[index][:80]!r}, not {name}"
                if index < len(given)
                else f"{name} is missing"
            )
    return f"more than {len(wanted)} names"


@constraint("custom:csv_city")
def csv_city(response: str) -> str | None:
    table, problem = _table(response, ",", ["ID", "Country", "City", "Year", "Count"], 7)
    return problem


@constraint("custom:csv_special_character")
def csv_special_character(response: str) -> str | None:
    """14 rows, and in them a quoted field with a character that is no letter, digit or blank."""
    table, problem = _table(response, ",", ["ProductID", "Category", "Brand", "Price", "Stock"], 14)
    if problem:
        return problem
    special = regex.compile(r"[^\p{L}\p{N}\s]")
    found = any(field.quoted and special.search(field.value) for row in table[1:] for field in row)
    return None if found else "no quoted field with a special character"


@constraint("custom:csv_quotes")
def csv_quotes(response: str) -> str | None:
    """3 rows, tab-delimited; each field is quoted, those of the header too."""
    table, problem = _table(response, "\t", ["StudentID", "Subject", "Grade", "Semester", "Score"], 3)
    if problem:
        return problem
    return None if all(field.quoted for row in table for field in row) else "a field is not in double quotes"


def _table(response: str, delimiter: str, header: list[str], data_rows: int) -> tuple[list, str | None]:
    table = rows(unfenced(response).strip("\n "), delimiter)
    if table is None:
        return [], "not CSV: a quote is not closed, or stands inside a field"
    if not table or [field.value for field in table[0]] != header:
        return [], f"the header is not {', '.join(header)}"
    if len(table) - 1 != data_rows:
        return [], f"{len(table) - 1} rows, not {data_rows}"
    uneven = [index for index, row in enumerate(table) if len(row) != len(header)]
    return table, f"row {uneven[0]} has {len(table[uneven[0]])} fields" if uneven else None


@constraint("custom:date_format_list")
def date_format_list(response: str) -> str | None:
    """Dates that exist, as YYYY-MM-DD, of the years in which Napoleon fought, separated by commas; nothing else."""
    for part in response.strip().split(","):
        part = part.strip()
        try:
            day = datetime.date.fromisoformat(part) if regex.fullmatch(r"[0-9]{4}-[0-9]{2}-[0-9]{2}", part) else None
        except ValueError:
            day = None
        if day is None or day.year not in _YEARS:
            return f"no date of a battle in the form YYYY-MM-DD: {part[:80]!r}"
    return None
