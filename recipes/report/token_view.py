"""Sample rollouts with the colour of every token: sampled, put in by the environment, or left out of the loss."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from rufus_plugins.recipes.report import samples
from rufus_plugins.recipes.report.run_folder import StageRun, json_lines, mapping, number, whole
from rufus_plugins.recipes.report.text import cut, esc, figure

STEPS = 4
"""Steps that are shown: the last one and others spread evenly before it. Ours."""
PER_STEP = 6
"""Rollouts of a step. Ours."""
TOKENS = 1200
"""Tokens shown of one part of a segment. Ours."""
TEXT = 2000
"""Characters shown of one token, and of a value; 5 times as many of a prompt and an explanation. Ours."""
KINDS = {
    samples.SAMPLED: ("sampled", "sampled by the model, trained on"),
    samples.TOLD: ("told", "put in by a tool or the environment"),
    samples.MASKED: ("masked", "sampled, but left out of the loss"),
}
LEGEND = (
    '<p class="token-legend"><span class="tok sampled">sampled</span> by the model and trained on \u00b7 '
    '<span class="tok told">tool</span> or environment, never trained on \u00b7 '
    '<span class="tok masked">masked</span>: sampled, but left out of the loss. Hover, tap or use the arrow keys for '
    "a token\u2019s log-probability.</p>"
)


def sample_view(stage: StageRun, budget: int) -> str:
    """The rollouts of a stage that were kept, within `budget` characters of HTML; "" where none was."""
    files = stage.files("samples/*.jsonl")
    if not files:
        return ""
    chosen = spread(files, STEPS)
    parts, spent, left_out = [], 0, 0
    for n, path in enumerate(reversed(chosen)):
        cards = []
        for record in list(_records(path))[:PER_STEP]:
            card = rollout_card(record)
            if spent + len(card) > budget:
                left_out += 1
                continue
            spent += len(card)
            cards.append(card)
        if cards:
            where = f"{stage.anchor}-samples-{n}"
            parts.append(
                f'<details id="{where}" class="step"{" open" if n == 0 else ""}><summary>{esc(_said(path))}</summary>'
                f"{''.join(cards)}</details>"
            )
    if not parts:
        return '<p class="note">The sample files hold no rollout that can be read.</p>'
    note = f"{len(files)} steps were kept, {len(chosen)} are shown." if len(files) > len(chosen) else ""
    if left_out:
        note += (
            f" {left_out} rollouts are left out to keep the page small; they are in {esc(stage.folder.name)}/samples."
        )
    return LEGEND + "".join(parts) + (f'<p class="note">{note.strip()}</p>' if note else "")


def spread(items: Sequence[Any], count: int) -> list[Any]:
    """`count` of them at most, evenly, the first and the last among them."""
    if len(items) <= count:
        return list(items)
    return [items[round(i * (len(items) - 1) / (count - 1))] for i in range(count)]


def _said(path: Any) -> str:
    digits = path.stem.rpartition("-")[2]
    return f"step {int(digits)}" if digits.isdecimal() else path.stem


def _records(path: Any) -> Iterator[Mapping[str, Any]]:
    for record in json_lines(path):
        if isinstance(record, Mapping) and record.get("format") == samples.FORMAT:
            yield record


def rollout_card(record: Mapping[str, Any]) -> str:
    score, advantage = number(record.get("score")), number(record.get("advantage"))
    badges = [f'<b class="score">{"no score" if score is None else f"score {figure(score)}"}</b>']
    if record.get("chosen") in ("best", "worst"):
        badges.append(f'<span class="badge">{esc(record["chosen"])} of the step</span>')
    badges.append(f'<span class="badge">{esc(_brief(record.get("termination") or "ending unknown"))}</span>')
    if record.get("left_out"):
        badges.append('<span class="badge warn">\u2298 left out of the loss</span>')
    facts = [("task", record.get("task")), ("source", record.get("data_source"))]
    facts += [("group", record.get("group")), ("rollout", record.get("rollout"))]
    facts += [("advantage", None if advantage is None else figure(advantage))]
    said = " \u00b7 ".join(f"{name} {_isolated(_brief(value))}" for name, value in facts if value is not None)
    why = _why(record)
    segments = record.get("segments")
    segments = [s for s in segments if isinstance(s, Mapping)] if isinstance(segments, list) else []
    body = "".join(_segment(segment, n, len(segments)) for n, segment in enumerate(segments, start=1))
    return (
        f'<article class="rollout"><header>{" ".join(badges)}<div class="facts">{said}</div></header>{why}{body}'
        '<output class="token-readout" aria-live="polite">\u00a0</output></article>'
    )


def _why(record: Mapping[str, Any]) -> str:
    """Why it scored: the reward's own words, and its numbers."""
    parts = []
    if explanation := str(record.get("explanation") or ""):
        parts.append(f'<pre class="explanation" dir="auto">{_long(explanation, 5 * TEXT)}</pre>')
    if metrics := mapping(record.get("metrics")):
        rows = "".join(
            f"<div><dt>{_isolated(_brief(name))}</dt><dd>{_isolated(_brief(_shown(value)))}</dd></div>"
            for name, value in list(metrics.items())[:40]
        )
        parts.append(f'<dl class="metrics">{rows}</dl>')
    if not parts:
        return '<p class="note">The reward gave no explanation.</p>'
    return f'<div class="why"><span class="why-title">Why this score</span>{"".join(parts)}</div>'


def _segment(segment: Mapping[str, Any], n: int, count: int) -> str:
    prompt, told = str(segment.get("prompt") or ""), whole(segment.get("prompt_tokens"))
    response = whole(segment.get("response_tokens"))
    title = f"Context {n} of {count}: prompt" if count > 1 else "Prompt"
    size = f" ({told} tokens)" if told is not None else ""
    parts = segment.get("parts")
    body, end = [], 0
    for part in parts if isinstance(parts, list) else []:
        first = whole(mapping(part).get("first")) or 0
        if end and first > end:
            body.append(f'<span class="cut">[\u2026 {first - end} tokens left out \u2026]</span>')
        html, length = tokens(mapping(part))
        body.append(html)
        end = first + length
    label = f"Response, {response} tokens" if response is not None else "Response"
    return (
        f'<details class="prompt"><summary>{esc(title + size)}</summary>'
        f'<pre dir="auto">{_long(prompt, 5 * TEXT)}</pre></details>'
        f'<div class="tokens" tabindex="0" role="group" aria-label="{esc(label)}" dir="auto">{"".join(body)}</div>'
    )


def tokens(part: Mapping[str, Any]) -> tuple[str, int]:
    """HTML of a run of tokens, and how many there are. One element per token, one around those of one kind."""
    texts, kinds, logprobs = part.get("texts"), str(part.get("kinds") or ""), part.get("logprobs")
    texts = [str(text) for text in texts] if isinstance(texts, list) else []
    logprobs = logprobs if isinstance(logprobs, list) else []
    first = whole(part.get("first")) or 0
    half = TOKENS // 2
    shown = range(len(texts))
    rows = [*shown] if len(texts) <= TOKENS else [*shown[:half], *shown[-half:]]
    found: list[str] = []
    open_kind = None
    for place, i in enumerate(rows):
        if place and i != rows[place - 1] + 1:
            found.append("</span>" if open_kind else "")
            open_kind = None
            found.append(f'<span class="cut">[\u2026 {i - rows[place - 1] - 1} tokens left out \u2026]</span>')
        kind = KINDS.get(kinds[i : i + 1], KINDS[samples.TOLD])[0]
        if kind != open_kind:
            found.append(f'{"</span>" if open_kind else ""}<span class="tok {kind}">')
            open_kind = kind
        logprob = number(logprobs[i]) if i < len(logprobs) and kind != "told" else None
        data = "" if logprob is None else f' data-p="{logprob:.3g}"'
        found.append(f'<i data-n="{first + i}"{data}>{_long(texts[i], TEXT)}</i>')
    return "".join([*found, "</span>" if open_kind else ""]), len(texts)


def _long(text: str, limit: int) -> str:
    shown, missing = cut(text, limit)
    note = f'<span class="cut">[\u2026 {missing} characters left out \u2026]</span>' if missing else ""
    return esc(shown) + note


def _brief(value: Any) -> str:
    shown, missing = cut(str(value), 200)
    return shown + ("\u2026" if missing else "")


def _isolated(value: str) -> str:
    """Text that runs from right to left stays among itself."""
    return f"<bdi>{esc(value)}</bdi>"


def _shown(value: Any) -> Any:
    told = number(value)
    return value if told is None or isinstance(value, bool) else figure(told)
