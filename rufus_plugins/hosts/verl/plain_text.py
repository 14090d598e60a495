"""A tokenizer in which text from outside never becomes a control token.

Hugging Face tokenizers look for added tokens in the rendered text, wherever they stand: a tool that prints `<|user|>`
would open a user turn. Here every added token inside untrusted text is broken up: a mark, itself an added token of a
private copy of the tokenizer, is put behind its first character, and the mark's ids are dropped from the result. The
text stays the same, its pieces are tokenised in place, and text without added tokens is tokenised as it always was.
`split_special_tokens=True` would not do: it is one switch for the whole prompt, template included, and leaves added
tokens that are not "special" alone (`</tool_response>`, `<tool_call>`, `<think>`).
"""

from __future__ import annotations

import copy
import re
import secrets
from typing import Any

from rufus_plugins.rollouts.segment import TokensDiverged

_BLANK = " \t\r\n\u2581"  # runs of blanks are added tokens in some vocabularies: text, not control


class PlainText:
    """Stands in for the tokenizer that a Continuous Token builder is given."""

    def __init__(self, tokenizer: Any):
        from tokenizers import AddedToken

        self._tokenizer = copy.deepcopy(tokenizer)
        controls = {
            token.content: index
            for index, token in self._tokenizer.added_tokens_decoder.items()
            if len(token.content) > 1 and token.content.strip(_BLANK)
        }
        self.controls = frozenset(controls)
        self.control_ids = frozenset(controls.values())
        self._starts = _by_first(self.controls)
        firsts = "".join(map(re.escape, sorted({token[0] for token in controls})))
        self._first = re.compile(f"[{firsts}]") if controls else None
        self._heads = {token[:n] for token in self.controls for n in range(1, len(token))}
        self._tails = {token[n:] for token in self.controls for n in range(1, len(token))}
        self._longest = max(map(len, self.controls), default=1)
        # letters and digits only, so that no template, JSON writer or normaliser changes it; nobody can guess it
        self._mark = "rufusmark" + secrets.token_hex(12)
        self._tokenizer.add_tokens([AddedToken(self._mark, special=True, normalized=False)], special_tokens=True)
        self._mark_id = self._tokenizer.convert_tokens_to_ids(self._mark)
        self.encoded = 0
        """Tokens that were encoded so far, for whoever wants to know what a turn costs."""

    def __getattr__(self, name: str) -> Any:
        return getattr(self.__dict__["_tokenizer"], name)

    def __len__(self) -> int:
        return len(self._tokenizer) - 1

    def shield(self, text: str) -> str:
        """`text` so that `encode` gives no control token for it, wherever it is put."""
        text = text.encode("utf-8", "replace").decode("utf-8")  # lone surrogates are no text
        if self._first is None or not text:
            return text
        pieces, done = [], 0
        for found in self._first.finditer(text):
            at = found.start()
            if any(text.startswith(token, at) for token in self._starts[text[at]]):
                pieces += [text[done : at + 1], self._mark]
                done = at + 1
        broken = "".join([*pieces, text[done:]])
        # half a token at an end could be made whole by the template
        if any(text[-n:] in self._heads for n in range(1, min(self._longest, len(text) + 1))):
            broken += self._mark
        if any(text[:n] in self._tails for n in range(1, min(self._longest, len(text) + 1))):
            broken = self._mark + broken
        return broken

    def encode(self, text: str, add_special_tokens: bool = False) -> list[int]:
        """Ids of rendered text. Raises `TokensDiverged` if shielded text gave a control token after all."""
        ids = self._tokenizer.encode(text, add_special_tokens=add_special_tokens)
        if self._mark not in text:
            self.encoded += len(ids)
            return ids
        ids = [index for index in ids if index != self._mark_id]
        self.encoded += len(ids)
        written = sum(1 for _ in self._occurrences(text))
        given = sum(index in self.control_ids for index in ids)
        if given > written:
            raise TokensDiverged(
                f"text from outside became control tokens: {given} in the ids, {written} in the template. The "
                "tokenizer's normaliser makes them out of other characters."
            )
        return ids

    def apply_chat_template(self, messages: Any, tokenize: bool = True, **kwargs: Any) -> Any:
        kwargs.pop("return_dict", None)
        text = self._tokenizer.apply_chat_template(messages, tokenize=False, **kwargs)
        return self.encode(text) if tokenize else text

    def starts_with_control(self, text: str) -> bool:
        """Whether tokenisation restarts at the front of `text`: what stands before it does not matter then."""
        return bool(text) and any(text.startswith(token) for token in self._starts.get(text[0], ()))

    def _occurrences(self, text: str) -> Any:
        """Added tokens in rendered text, as the tokenizer finds them: leftmost, longest."""
        at = 0
        while self._first is not None and (found := self._first.search(text, at)):
            start = found.start()
            token = next((t for t in self._starts[text[start]] if text.startswith(t, start)), None)
            if token:
                yield start, token
            at = start + (len(token) if token else 1)


def _by_first(tokens: frozenset[str]) -> dict[str, list[str]]:
    """First character -> tokens, longest first."""
    found: dict[str, list[str]] = {}
    for token in sorted(tokens, key=len, reverse=True):
        found.setdefault(token[0], []).append(token)
    return found
