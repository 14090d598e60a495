"""IFBench `format:`: brackets, quotes, lists, lines, templates."""

from __future__ import annotations

from typing import Any

import regex

from rufus_plugins.errors import DataError
from rufus_plugins.rewards.constraints.declare import constraint, phrase
from rufus_plugins.rewards.constraints.markup import HEADING, RULE, bullets, fences, unfenced
from rufus_plugins.rewards.constraints.nesting import deepest_brackets, deepest_quotes, quoted_phrases
from rufus_plugins.rewards.constraints.reading import CLOSERS, folded, only_punctuation, words
from rufus_plugins.rewards.constraints.splitting import EMOJI, kind, sentences

_WORDLIKE = regex.compile(r"[\p{L}\p{N}]")
_LETTER = regex.compile(r"\p{L}")
_EMOJI_AT_END = regex.compile(rf"{EMOJI}[\s.!?…。！？{regex.escape(CLOSERS)}]*+\Z", regex.V1)
_EDGE = regex.compile(r"^[^\p{L}\p{N}]++|[^\p{L}\p{N}]++$")
_LETTER_OPTIONS = regex.compile(r"^\W*a\W*b\W*c\b", regex.I)
_ITALICS = regex.compile(r"<(i|em)(?:\s[^<>\n]*)?>(.*?)</\1\s*>", regex.I | regex.S)
_BLANKS = frozenset("\u180e\u200b\u2800\u3164\uffa0\u115f\u1160")
"""Characters that show as a blank and are none by their class."""
_MINOR = frozenset(
    "a an the and but or nor for so yet as at by in of off on per to up via vs with from into onto over "
    "than if when that about after before between down near once out past through under until upon "
    "without within".split()
)
"""Words that title case may leave small, except at the beginning."""
_LABELS = ("My Answer:", "My Conclusion:", "Future Outlook:")


def options(value: Any) -> list[str]:
    """ "yes/no/maybe", "I know or I don't know", "a), b), c), d)", or a list."""
    if isinstance(value, str):
        separator = r"/" if "/" in value else r"\bor\b" if regex.search(r"\bor\b", value) else ","
        value = regex.split(separator, value)
    if not isinstance(value, list | tuple) or not all(isinstance(item, str) for item in value):
        raise DataError(f"needs options in a text, not {value!r}")
    found = [" ".join(item.split()) for item in value if item.strip()]
    if not found:
        raise DataError("needs at least one option")
    return found


@constraint("format:parentheses")
def parentheses(response: str) -> str | None:
    depth = deepest_brackets(response)
    return None if depth >= 5 else f"brackets are nested {depth} deep, not 5"


@constraint("format:quotes")
def quotes(response: str) -> str | None:
    depth = deepest_quotes(response)
    return None if depth >= 3 else f"quotes are nested {depth} deep in turn, not 3"


@constraint("format:options", options=options)
def options_response(response: str, options: list[str]) -> str | None:
    """One option and nothing else. For lettered options their punctuation belongs to them ("a)"), else it is free."""
    given = " ".join(response.split())
    if _LETTER_OPTIONS.match(" ".join(options)):
        fits = given in options
    else:
        fits = folded(_EDGE.sub("", given)) in {folded(_EDGE.sub("", option)) for option in options}
    return None if fits else f"{given[:80]!r} is none of {', '.join(options)}"


@constraint("format:newline")
def newline(response: str) -> str | None:
    """Each line with words has one word; list markers and other signs do not matter."""
    lines = [[part for part in line.split() if _WORDLIKE.search(part)] for line in response.split("\n")]
    lines = [line for line in lines if line]
    if not lines:
        return "no words"
    more = [line for line in lines if len(line) > 1]
    return f"{len(more[0])} words on one line" if more else None


@constraint("format:emoji")
def emoji(response: str) -> str | None:
    """Each sentence ends with an emoji, before or after its full stop."""
    found = sentences(response)
    without = [sentence for sentence in found if not _EMOJI_AT_END.search(sentence[-200:])]
    if not found or without:
        return f"no emoji at the end of {without[0][:80]!r}" if without else "no sentences"
    return None


@constraint("format:line_indent")
def line_indent(response: str) -> str | None:
    """Each line is indented more than the one before; blank lines and the fence of a code block do not count."""
    lines = [line.expandtabs(4) for line in unfenced(response).split("\n") if line.strip()]
    indents = [len(line) - len(line.lstrip()) for line in lines]
    if len(lines) < 2:
        return "fewer than two lines"
    for index in range(1, len(indents)):
        if indents[index] <= indents[index - 1]:
            return f"line {index + 1} is indented by {indents[index]} after {indents[index - 1]}"
    return None


@constraint("format:quote_unquote")
def quote_unquote(response: str) -> str | None:
    """Unquoted words follow each quoted phrase before the next one, and after the last."""
    found = quoted_phrases(response)
    if not found:
        return "no quoted phrase"
    ends = [begin for begin, _ in found[1:]] + [len(response)]
    for (begin, end), until in zip(found, ends, strict=True):
        if not _LETTER.search(response, end, until):
            return f"nothing explains {response[begin:end][:80]}"
    return None


@constraint("format:list", sep=phrase)
def list_(response: str, sep: str) -> str | None:
    """Two items or more that are set off by the separator, at the start of a line or between blanks, and no bullets."""
    if sep not in ("-", "*", "+") and bullets(response):
        return "bullets instead of the separator"
    follows = r"(?=[ \t])" if len(sep) == 1 else ""
    marks = list(regex.finditer(rf"(?:^[ \t]*|(?<=\s)){regex.escape(sep)}{follows}", response, regex.M))
    bounds = [mark.start() for mark in marks] + [len(response)]
    items = sum(1 for mark, end in zip(marks, bounds[1:], strict=True) if _WORDLIKE.search(response, mark.end(), end))
    if marks and items == len(marks) - 1:  # the separator stands after each item
        items += bool(_WORDLIKE.search(response, 0, bounds[0]))
    return None if items >= 2 else f"{items} items with {sep!r}, at least two are needed"


@constraint("format:thesis")
def thesis(response: str) -> str | None:
    """Each section begins with `<i>...</i>` or `<em>...</em>` and goes on after it.

    Headings set sections off; without any, there is one.
    """
    text = fences(response)[0]
    sections: list[list[str]] = [[]]
    first = next((line for line in text.split("\n") if line.strip()), "")
    for line in text.split("\n"):
        if HEADING.match(line) or (line == first and _is_title(line)):
            sections.append([])
        elif line.strip() and not RULE.match(line):
            sections[-1].append(line)
    bodies = ["\n".join(section) for section in sections[1:] if section] or ["\n".join(sections[0])]
    for body in bodies:
        found = _ITALICS.match(body.lstrip(" \t\n*_>-"))
        if not found or not _WORDLIKE.search(regex.sub(r"<[^<>]*>", "", found[2])):
            return "a section does not begin with a thesis in HTML italics"
        if not _WORDLIKE.search(body, body.index(found[0]) + len(found[0])):
            return "nothing follows the thesis"
    return None


def _is_title(line: str) -> bool:
    """A short line without markup and full stop, as an unmarked title is."""
    return "<" not in line and len(line.split()) <= 10 and kind(line) == "" and line.rstrip()[-1:] not in ",;:"


@constraint("format:sub-bullets")
def sub_bullets(response: str) -> str | None:
    """Bullets with `*`, each with a `-` bullet below it before the next."""
    found = [bullet for bullet in bullets(response) if bullet.marker in "*-"]
    stars = [index for index, bullet in enumerate(found) if bullet.marker == "*"]
    if not stars:
        return "no bullets with *"
    for index in stars:
        if index + 1 >= len(found) or found[index + 1].marker != "-":
            return f"no sub-bullet with - below {found[index].text[:80]!r}"
    return None


@constraint("format:no_bullets_bullets")
def no_bullets_bullets(response: str) -> str | None:
    """Two sentences or more that end in a period, then two or more `*` bullets; what follows is free."""
    lines = response.split("\n")
    first = next((index for index, line in enumerate(lines) if bullets(line)), None)
    if first is None:
        return "no bullets"
    stars = [bullet for bullet in bullets("\n".join(lines[first:])) if bullet.marker == "*"]
    statements = sum(kind(sentence) == "." for sentence in sentences("\n".join(lines[:first])))
    if statements < 2 or len(stars) < 2:
        return f"{statements} sentences before {len(stars)} bullets with *, two of each are needed"
    return None


@constraint("format:title_case")
def title_case(response: str) -> str | None:
    """Each word starts with a capital, but short function words inside need not; not everything is in capitals."""
    found = [
        word for word in words(response) if word[0].isalpha() and not word.startswith(("http://", "https://", "www."))
    ]
    cased = [word for word in found if word.lower() != word.upper()]
    if not cased:
        return "no words with letters in two cases"
    small = [word for index, word in enumerate(found) if word.islower() and (index == 0 or folded(word) not in _MINOR)]
    if small:
        return f"not in title case: {small[0][:80]}"
    if all(word.isupper() for word in cased) and any(len(word) > 4 for word in cased):
        return "everything is in capitals"
    return None


@constraint("format:output_template")
def output_template(response: str) -> str | None:
    """The three labels in order, from the beginning, each with content of its own."""
    text = regex.sub(r"[*_#>`]+", "", response).strip()
    if not text.startswith(_LABELS[0]):
        return f"does not begin with {_LABELS[0]!r}"
    position = 0
    for number, label in enumerate(_LABELS):
        begin = text.find(label, position)
        if begin < 0:
            return f"no {label!r} in its place"
        position = begin + len(label)
        end = text.find(_LABELS[number + 1], position) if number < 2 else len(text)
        content = text[position : end if end >= 0 else len(text)].strip().lower()
        if not _WORDLIKE.search(content) or content in ("[answer]", "[conclusion]", "[outlook]"):
            return f"nothing after {label!r}"
    return None


@constraint("format:no_whitespace")
def no_whitespace(response: str) -> str | None:
    if only_punctuation(response):
        return "nothing but punctuation"
    return "contains blanks" if any(c.isspace() for c in response) or _BLANKS.intersection(response) else None
