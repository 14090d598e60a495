"""One plain form for the many ways to write the same LaTeX. Text in, text out; nothing is evaluated."""

from __future__ import annotations

import math
import re
import unicodedata

_UNICODE = {
    "\u2212": "-", "\u2013": "-", "\u2014": "-", "\u00d7": r"\times ", "\u00b7": r"\cdot ", "\u22c5": r"\cdot ",
    "\u00f7": "/",
    "\u03c0": r"\pi ", "\u221e": r"\infty ", "\u2264": r"\le ", "\u2265": r"\ge ", "\u2260": r"\ne ",
    "\u222a": r"\cup ",
    "\u2229": r"\cap ", "\u2208": r"\in ", "\u00b0": r"^\circ ", "\u2205": r"\emptyset ", "\u00b1": r"\pm ",
    "\u211d": r"\mathbb{R}",
    "\u2248": r"\approx ", "\u2026": r"\ldots ", "\u00bd": r"\frac{1}{2}", "\u2153": r"\frac{1}{3}",
    "\u2154": r"\frac{2}{3}",
    "\u00bc": r"\frac{1}{4}", "\u00be": r"\frac{3}{4}", "\u03b8": r"\theta ", "\u03b1": r"\alpha ",
    "\u03b2": r"\beta ",
    "\u00a0": " ", "\u2009": " ", "\u202f": " ", "\u200b": "", "\uff0c": ",", "\uff1a": ":", "\uff08": "(",
    "\uff09": ")",
    "\u2032": "'", "\u2019": "'", "\u2033": "''", "\u00ba": r"^\circ ", "\uffe5": "¥", "\u2234": "",
}  # fmt: skip
_SUPER = str.maketrans("⁰¹²³⁴⁵⁶⁷⁸⁹⁻⁺", "0123456789-+")
_SUB = str.maketrans("₀₁₂₃₄₅₆₇₈₉", "0123456789")
_DROPPED = re.compile(
    r"\\(?:left|right|bigl|bigr|Bigl|Bigr|biggl|biggr|Biggl|Biggr|big|Big|bigg|Bigg|displaystyle|textstyle|limits|"
    r"large|Large|LARGE|huge|Huge|small|normalsize|bf|rm|it|sf|tt|nolimits|mathstrut|strut|hfill|phantom\{\})"
    r"(?![A-Za-z])"
)
_COLOUR = re.compile(r"\\(?:text)?color\s*(?:\[[^\[\]{}]*\]\s*)?\{[^{}]*\}")
"""`\\color{red}{x}`, `{\\color{red} x}`, `\\textcolor{red}{x}`: what stays is x or {x}."""
_SPACES = re.compile(r"\\[,;:!>]|\\(?:quad|qquad|thinspace|space)(?![A-Za-z])|\\ |~")
_RENAMED = {
    r"\dfrac": r"\frac", r"\tfrac": r"\frac", r"\cfrac": r"\frac", r"\leq": r"\le", r"\geq": r"\ge",
    r"\leqslant": r"\le",
    r"\geqslant": r"\ge", r"\neq": r"\ne", r"\lt": "<", r"\gt": ">", r"\dots": r"\ldots", r"\cdots": r"\ldots",
    r"\dotsc": r"\ldots", r"\varnothing": r"\emptyset", r"\lbrace": r"\{", r"\rbrace": r"\}", r"\lbrack": "[",
    r"\rbrack": "]", r"\langle": "(", r"\rangle": ")", r"\lvert": "|", r"\rvert": "|", r"\vert": "|",
    r"\degree": r"^\circ",
    r"\ast": r"\cdot", r"\land": r"\text{and}", r"\lor": r"\text{or}", r"\wedge": r"\text{and}",
    r"\vee": r"\text{or}",
    r"\R": r"\mathbb{R}", r"\euro": "€", r"\pounds": "£", r"\varphi": r"\phi", r"\arctan": r"\arctan",
    r"\colon": ":", r"\backslash": r"\setminus", r"\setminus": r"\setminus", r"\dotsb": r"\ldots",
}  # fmt: skip
_COMMAND = re.compile(r"\\[A-Za-z]+")
_TEXTS = re.compile(
    r"\\(?:text|textrm|textnormal|mathrm|textbf|textit|mathbf|mathit|mathsf|mathtt|textsf|texttt|mbox|hbox|"
    r"operatorname\*?|rm|bf|boldsymbol|bm|emph|underline)\s*\{"
)
_FUNCTIONS = {"sin", "cos", "tan", "cot", "sec", "csc", "log", "ln", "lg", "exp", "gcd", "lcm", "max", "min", "det",
              "arg",
              "arcsin", "arccos", "arctan", "sinh", "cosh", "tanh", "deg", "dim", "mod", "lim"}  # fmt: skip


_CLOCK = re.compile(
    r"(?<![\d:])(\d{1,2}:\d\d)[\s~\\,]*(?:\\text\{)?\s*([ap])\s*\.?\s*m(?![A-Za-z])\.?\s*\}?", re.IGNORECASE
)
_ONE_CELL = re.compile(
    r"\\begin\{(array|aligned|gathered|split)\}(?:\{[^{}]*\})?((?:(?!\\\\|\\begin|&).)*)\\end\{\1\}", re.DOTALL
)
"""A layout around one value."""
_COUNTED = re.compile(r"([-+]?\d[\d.,/]*)\s+([A-Za-z]+(?: [A-Za-z]{3,})?)")
"""`\\text{12 apples}`: a number and what it counts."""


def canonical(text: str) -> str:
    """The plain form. `\\text{...}` stays for words and units, and is opened for single letters and functions."""
    for old, new in _UNICODE.items():
        if old in text:
            text = text.replace(old, new)
    text = re.sub("[\u00bc-\u00be\u2150-\u215e]", _vulgar, text)
    text = re.sub(r"\s+", " ", text)
    text = re.sub("[⁰¹²³⁴⁵⁶⁷⁸⁹⁻⁺]+", lambda m: "^{" + m.group().translate(_SUPER) + "}", text)
    text = re.sub("[₀₁₂₃₄₅₆₇₈₉]+", lambda m: "_{" + m.group().translate(_SUB) + "}", text)
    text = re.sub(r"\u221a\s*(\w+|\([^()]*\))", lambda m: r"\sqrt{" + m.group(1).strip("()") + "}", text)
    text = re.sub("([\u221b\u221c])\\s*(\\w+|\\([^()]*\\))", _higher_root, text)
    text = _opened(_COLOUR.sub(" ", text))
    text = text.replace(r"\$", "\x01")
    if text.count("$") != 1 or not re.search(r"\$\s*\d", text):  # otherwise it is a currency sign, not a delimiter
        text = text.replace("$", " ")
    text = text.replace("\x01", "$")
    text = _CLOCK.sub(lambda m: rf"{m[1]} \text{{{m[2].casefold()}m}}", text)
    text = _ONE_CELL.sub(r"\2", text)
    text = re.sub(r"\\\\(?:\[[^\]]*\])?", "\x00", text)  # row breaks survive the clean-up of spaces
    text = re.sub(r"(?<=\d)(?:\{,\}|\\,|,\\!|,\\;|\\!,|\\;|\\ |~)(?=\d{3}(?!\d))", "", text)
    text = re.sub(r"(?<=\d)\{\.\}(?=\d)", ".", text)
    text = re.sub(r"^([-+]?\d{1,3})((?:'\d{3})+|(?:_\d{3})+)(?![\d'_])$", lambda m: re.sub("['_]", "", m[0]), text)
    text = re.sub(r"\\q?quad\s*\(?\s*[^(),=]*\\neq?(?![A-Za-z])[^(),]*\)?\s*$", "", text)  # where it holds
    text = _DROPPED.sub(" ", text)
    text = _SPACES.sub(" ", text)
    text = _COMMAND.sub(lambda m: _RENAMED.get(m.group(), m.group()), text)
    text = re.sub(r"^\s*\\(?:therefore|implies|Rightarrow)(?![A-Za-z])", "", text)
    text = re.sub(r"(?<!\\)\*\*", "^", text)
    text = _bare_functions(text)
    text = re.sub(r"\\log\s*_\s*(?:\{\s*e\s*\}|e(?![A-Za-z]))", r"\\ln ", text)
    text = re.sub(r"\\lg(?![A-Za-z])", r"\\log_{10} ", text)
    text = re.sub(r"\\(vec|hat|bar|overline|mathbb|overrightarrow)\s+([A-Za-z0-9])", r"\\\1{\2}", text)
    text = re.sub(r"\{\s*([^{}]+?)\s*\\choose\s*([^{}]+?)\s*\}|^(\w+)\s*\\choose\s*(\w+)$", _chosen, text)
    text = _COMBINATION.sub(_chosen, text)
    text = re.sub(r"\\dbinom|\\tbinom", r"\\binom", text)
    text = _UNIT_FRACTION.sub(r" \\text{\1/\2\3}", text)
    text = re.sub(r"\^\s*\{\s*\\circ\s*\}|\^\s*\\circ|\\circ(?![A-Za-z])", r"^\\circ ", text)
    text = re.sub(r"\\frac\s*(\d)\s*(\d)", r"\\frac{\1}{\2}", text)
    text = re.sub(r"\\frac\s*(\d)\s*\{", r"\\frac{\1}{", text)
    text = re.sub(r"(\\frac\s*\{[^{}]*\})\s*(\d)", r"\1{\2}", text)
    text = re.sub(r"\\sqrt\s*(\d)", r"\\sqrt{\1}", text)
    text = re.sub(r"\\(?:arc|a)?(sin|cos|tan)h?\^\{-1\}", lambda m: r"\arc" + m.group(1), text)
    text = re.sub(r"\\frac\s*\{", r"\\frac{", text)
    text = re.sub(r"\}\s+\{", "}{", text)
    text = re.sub(r"\\text\{\s*inf(?:inity)?\s*\}|(?<![A-Za-z\\])inf(?:inity)?(?![A-Za-z])", r"\\infty ", text)
    text = re.sub(r"^([\d.]+) ?(?:to|\\text\{ ?to ?\}) ?([\d.]+)$", r"\1:\2", text)
    text = _SCALE.sub(_scaled, text)
    text = _DEGREES.sub(_sexagesimal, text)
    text = text.replace("\x00", r"\\")
    text = re.sub(r"\s+", " ", text).strip()
    text = re.sub(r"[,;]?\s*(?:\\text\{[^{}]*\}\s*)?\(?\s*[a-zA-Z]\s*\\in\s*\\mathbb\{[ZN]\}\s*\)?\s*$", "", text)
    return _trimmed(text)


_COMBINATION = re.compile(r"(?:\{\})?_\s*\{?(\d+)\}?\s*C\s*_\s*\{?(\d+)\}?|(?<![A-Za-z\\])C_\{?(\d+)\}?\^\{?(\d+)\}?")
"""`{}_{10}C_3` and `C_{10}^3`."""
_UNIT_FRACTION = re.compile(
    r"\s*\\frac\s*\{\s*\\text\{([^{}]*)\}\s*\}\s*\{\s*\\text\{([^{}]*)\}\s*(\^\s*\{?\d\}?)?\s*\}"
)
_DEGREES = re.compile(r"(\d+)\s*\^\\circ\s*(\d{1,2})\s*(?:'(?!')|\^\s*\{?\\prime\}?)(?:\s*(\d{1,2})\s*(?:''|\"))?")
_FUNCTION_WORDS = re.compile(
    r"(\\text\{[^{}]*\})|(?<![\\A-Za-z_])(sin|cos|tan|cot|sec|csc|arcsin|arccos|arctan|log|ln|exp|pi|sqrt)(?![A-Za-z])"
)


_POWERS = {"thousand": 3, "million": 6, "billion": 9, "trillion": 12}
_SCALE = re.compile(
    r"(?<=\d)\s*(?:(\\text\{)\s*(thousand|million|billion|trillion)\b|(thousand|million|billion|trillion)\b)\s*(\})?"
)
"""`2.5\\text{ million}` is a number, `2.5 \\text{ million dollars}` one with a unit."""


def _scaled(match: re.Match[str]) -> str:
    unit_follows = match[1] and not match[4]
    return rf"\times 10^{{{_POWERS[match[2] or match[3]]}}}" + (r" \text{" if unit_follows else "")


def _vulgar(match: re.Match[str]) -> str:
    """`\u215c` as `\\frac{3}{8}`."""
    top, _, bottom = unicodedata.normalize("NFKC", match[0]).partition("\u2044")
    return rf"\frac{{{top}}}{{{bottom}}}" if bottom else match[0]


def _higher_root(match: re.Match[str]) -> str:
    return rf"\sqrt[{3 if match[1] == chr(0x221B) else 4}]{{{match[2].strip('()')}}}"


def _chosen(match: re.Match[str]) -> str:
    top, bottom = (group for group in match.groups() if group is not None)
    if top.isdigit() and bottom.isdigit() and int(top) < int(bottom):
        return match[0]  # a constant C_1 squared
    return rf"\binom{{{top}}}{{{bottom}}}"


def _sexagesimal(match: re.Match[str]) -> str:
    """Degrees, minutes and seconds as a fraction of degrees."""
    seconds = 3600 * int(match[1]) + 60 * int(match[2]) + int(match[3] or 0)
    return rf"\frac{{{seconds}}}{{3600}}^\circ "


def _bare_functions(text: str) -> str:
    """`log_2(5)` and `sqrt(2)` without their backslashes, as plain text has them."""
    text = re.sub(r"(?<![\\A-Za-z])sqrt\s*\(([^()]*)\)", r"\\sqrt{\1}", text)
    return _FUNCTION_WORDS.sub(lambda m: m[1] or rf"\{m[2]} ", text)


def _trimmed(text: str) -> str:
    """Without what surrounds an answer: full stops, markdown, one pair of braces."""
    previous = None
    while text != previous:
        previous = text
        text = text.strip().strip("`").rstrip(";").strip().removesuffix(r"\\").strip()
        if text.endswith((".", ",")) and not text.endswith(("..", r"\.")):
            text = text[:-1]
        if text.startswith("**") and text.endswith("**") and len(text) > 4:
            text = text[2:-2]
        if text.startswith("{") and _closing(text, 0) == len(text) - 1:
            text = text[1:-1]
    return text


_UNIT_LETTERS = frozenset("mgsLlhAVNJWKCF")
_MEASURED = re.compile(r"\d[\s~}\\,;:]*$")


def _opened(text: str) -> str:
    """`\\text`, `\\mathrm` and the like: kept as `\\text{words}`, opened where they hold a letter, a number, math."""
    out: list[str] = []
    at = 0
    while match := _TEXTS.search(text, at):
        end = _closing(text, match.end() - 1)
        if end is None:
            break
        inside = text[match.end() : end]
        out.append(text[at : match.start()])
        bare = inside.strip()
        if bare in ("min", "sec", "deg") and _MEASURED.search(text[: match.start()]):
            out.append(rf" \text{{{bare}}}")
        elif bare in _FUNCTIONS:
            out.append(rf"\{bare} ")
        elif bare in _UNIT_LETTERS and match.group().startswith(r"\mathrm") and _MEASURED.search(text[: match.start()]):
            out.append(rf" \text{{{bare}}}")
        elif len(bare) == 1 and match.group().startswith(
            (r"\mathrm", r"\mathbf", r"\mathit", r"\bold", r"\bm", r"\oper")
        ):
            out.append(bare)
        elif re.fullmatch(r"[\d\s.,+\-*/^()=%]+", bare) or _COMMAND.search(bare):
            out.append(_opened(inside))
        elif re.fullmatch(r"[\d\s.,+\-/%]*\d\s*(?:\b(?:and|or)\b[\d\s.,+\-/%]*\d\s*)+", bare):
            out.append(re.sub(r"\b(?:and|or)\b", ",", bare))  # `\text{5 or 6}`
        elif counted := _COUNTED.fullmatch(bare):
            out.append(rf"{counted[1]} \text{{{counted[2]}}}")
        else:
            out.append(rf"\text{{{inside}}}")
        at = end + 1
    return "".join(out) + text[at:]


def _closing(text: str, start: int) -> int | None:
    depth = 0
    i = start
    while i < len(text):
        if text[i] == "\\":
            i += 2
            continue
        depth += (text[i] == "{") - (text[i] == "}")
        if depth == 0:
            return i
        i += 1
    return None


def split_top(text: str, separators: str = ",;") -> list[str]:
    """The parts between separators that stand outside all brackets."""
    parts, depth, start, i = [], 0, 0, 0
    while i < len(text):
        c = text[i]
        if c == "\\":
            if text[i + 1 : i + 2] in ("{", "}"):
                depth += 1 if text[i + 1] == "{" else -1
            i += 2
            continue
        if c in "([{":
            depth += 1
        elif c in ")]}":
            depth -= 1
        elif depth <= 0 and c in separators:
            parts.append(text[start:i])
            start = i + 1
        i += 1
    parts.append(text[start:])
    return [p.strip() for p in parts]


MAX_BITS = 200_000
"""Integers above this are not computed. Ours: far above any answer, far below what takes a noticeable time."""


def too_large(text: str) -> bool:
    """Whether evaluating the numbers in a canonical text would make an integer of more than `MAX_BITS` bits.

    A power tower is a few characters long and hangs every parser that folds constants. The estimate only reads
    digits, powers, products, sums, fractions and factorials; whatever else stands there counts as 1.
    """
    if "^" not in text and "!" not in text:
        return False
    return _Magnitude(text).huge()


class _Magnitude:
    def __init__(self, text: str):
        self.tokens = re.findall(
            r"\d+(?:\.\d+)?|\\[A-Za-z]+|[-+*/^!(){}\[\]]|\S", text.replace(r"\{", "(").replace(r"\}", ")")
        )
        self.at = 0
        self.found = False
        self.depth = 0

    def huge(self) -> bool:
        while self.at < len(self.tokens) and not self.found:
            self.sum("")
            self.at += 1
        return self.found

    def sum(self, closer: str) -> float:
        self.depth += 1
        if self.depth > 100:
            self.found = True
        total = 0.0
        product = 1.0
        while self.at < len(self.tokens) and not self.found:
            token = self.tokens[self.at]
            if token in (")", "}", "]"):
                break
            if token in "+-,;=":
                total, product = total + product, 1.0
                self.at += 1
            elif token in ("*", "/", "|", "&"):
                self.at += 1
            else:
                product = min(product * max(1.0, self.power()), 1e300)
        self.depth -= 1
        return total + product

    def power(self) -> float:
        base = self.atom()
        while self.at < len(self.tokens) and not self.found and self.tokens[self.at] in ("!", "^"):
            sign = self.tokens[self.at]
            self.at += 1
            if sign == "!":
                self.found |= base > 20_000
                base = min(math.gamma(min(base, 150.0) + 1), 1e300)
                continue
            while self.at < len(self.tokens) and self.tokens[self.at] in "+-":
                self.at += 1
            exponent = self.power()
            bits = exponent * math.log2(max(base, 1.0))
            self.found |= bits > MAX_BITS or exponent > 1e9
            base = 2.0 ** min(bits, 990.0)
        return base

    def atom(self) -> float:
        if self.at >= len(self.tokens):
            return 1.0
        token = self.tokens[self.at]
        self.at += 1
        if token[0].isdigit():
            return min(float(token), 1e300) if len(token) < 300 else 1e300
        if token in ("(", "{", "["):
            value = self.sum(token)
            self.at += 1
            return value
        if token in (r"\frac", r"\binom"):
            top = self.atom()
            self.atom()
            return top
        return 1.0
