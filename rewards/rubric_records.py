"""Reads the rubrics of a record: what `ground_truth` of the `rubrics` reward may look like.

`{"rubrics": [{"id": ID, "kwargs": {...}}, ...]}`, the list alone, or a row of IFEval or IFBench
(`{"instruction_id_list": [...], "kwargs": [...]}`); each also as JSON text. ID is

- the id of a constraint (constraints/), with its kwargs;
- `judge`, with kwargs `criterion` (what must hold, in words) and, if there is one, `reference`;
- `code`, with kwargs `source` (Python, see rubric_checker.py) and, if needed, `function`.

A rubric may have a `name`, which metrics and explanations then show. All rubrics are necessary; one that is marked
optional, or weighted, is refused.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from rufus_plugins.errors import DataError
from rufus_plugins.rewards import constraints

_NECESSARY = {"necessary": (True,), "required": (True,), "mandatory": (True,), "optional": (False,)}
_IMPORTANCE = ("weight", "weights", "points", "importance", "priority")
_KEYS = ("id", "kwargs", "name", *_NECESSARY)
_SHAPES = 'a mapping with "rubrics": [{"id", "kwargs"}, ...], or with "instruction_id_list" and "kwargs"'


@dataclass(frozen=True)
class Rubric:
    kind: str
    """constraint | code | judge"""
    name: str
    check: Callable[[str], str | None] | None = None
    """Of a constraint: None, or why it is not followed."""
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    """Of a judge or code rubric."""


def read_rubrics(ground_truth: Any) -> list[Rubric]:
    """All rubrics, checked: nothing is scored before every one of them is known to be usable. Raises `DataError`."""
    if isinstance(ground_truth, str):
        try:
            ground_truth = json.loads(ground_truth)
        except ValueError as error:
            raise DataError(
                f"rubrics: ground_truth is a text that is not JSON ({error}); it must be {_SHAPES}"
            ) from None
    entries = _entries(ground_truth)
    if not entries:
        raise DataError("rubrics: the record has no rubrics, so any answer would pass")
    return [_rubric(entry, number) for number, entry in enumerate(entries, 1)]


def _entries(ground_truth: Any) -> list[Any]:
    if isinstance(ground_truth, Mapping) and "instruction_id_list" in ground_truth:
        ids, kwargs = _plain(ground_truth["instruction_id_list"]), _plain(ground_truth.get("kwargs"))
        if not _is_list(ids) or not (kwargs is None or _is_list(kwargs)):
            raise DataError('rubrics: "instruction_id_list" and "kwargs" must be lists')
        if kwargs is None:
            kwargs = [{}] * len(ids)
        if len(kwargs) != len(ids):
            raise DataError(f"rubrics: {len(ids)} ids in instruction_id_list, but {len(kwargs)} entries in kwargs")
        return [{"id": name, "kwargs": given} for name, given in zip(ids, kwargs, strict=True)]
    found = _plain(ground_truth.get("rubrics")) if isinstance(ground_truth, Mapping) else ground_truth
    if not _is_list(found):
        raise DataError(f"rubrics: ground_truth must be {_SHAPES}; it is {_short(ground_truth)}")
    return list(found)


def _rubric(entry: Any, number: int) -> Rubric:
    if not isinstance(entry, Mapping) or not isinstance(entry.get("id"), str):
        raise DataError(f'rubric {number} must be a mapping with "id" and "kwargs"; it is {_short(entry)}')
    name = entry["id"].strip()
    _refuse_optional(entry, name, number)
    unknown = [str(key) for key in entry if key not in _KEYS]
    if unknown:
        raise DataError(f"rubric {number} ({name}): no key {unknown[0]!r}; the keys are id, kwargs, name")
    kwargs = _plain(entry.get("kwargs")) or {}
    if not isinstance(kwargs, Mapping):
        raise DataError(f"rubric {number} ({name}): kwargs must be a mapping, not {_short(kwargs)}")
    label = str(entry.get("name") or name)
    if name == "judge":
        return Rubric("judge", label, kwargs=_texts(kwargs, number, name, "criterion", "reference"))
    if name == "code":
        from rufus_plugins.rewards.rubric_checker import function_of

        given = dict(_texts(kwargs, number, name, "source", "function"))
        given["function"], given["takes_prompt"] = function_of(given["source"], given.get("function"))
        return Rubric("code", label, kwargs=given)
    if ":" not in name and name not in constraints.ids():
        raise DataError(
            f'rubric {number}: no id {name!r}. There are "judge", "code" and the ids of constraints, such as '
            f'"keywords:existence" (docs/rewards.md lists all {len(constraints.ids())})'
        )
    try:
        return Rubric("constraint", label, constraints.bound(name, kwargs))
    except DataError as error:
        raise DataError(f"rubric {number}: {error}") from None


def _refuse_optional(entry: Mapping[str, Any], name: str, number: int) -> None:
    marks = [key for key, fine in _NECESSARY.items() if entry.get(key) is not None and entry[key] not in fine]
    marks += [key for key in _IMPORTANCE if entry.get(key) is not None]
    if marks:
        raise DataError(
            f"rubric {number} ({name}) has {marks[0]}={entry[marks[0]]!r}: optional and weighted rubrics are refused, "
            "since a policy earns them by writing more, and answers grow long. Drop the rubric, or make it necessary "
            f"and drop the key {marks[0]!r}"
        )


def _texts(kwargs: Mapping[str, Any], number: int, name: str, needed: str, free: str) -> Mapping[str, str]:
    given = {str(key): value for key, value in kwargs.items() if value is not None}
    for key, value in given.items():
        if key not in (needed, free):
            raise DataError(f"rubric {number} ({name}) has no kwarg {key!r}; its kwargs: {needed}, {free}")
        if not isinstance(value, str) or not value.strip():
            raise DataError(f"rubric {number} ({name}): {key} must be a text, not {_short(value)}")
    if needed not in given:
        raise DataError(f"rubric {number} ({name}) needs the kwarg {needed!r}; its kwargs: {needed}, {free}")
    return given


def _plain(value: Any) -> Any:
    """Lists and mappings that a data set stores as JSON text or as arrays."""
    if isinstance(value, str):
        try:
            return json.loads(value)
        except ValueError:
            return value
    return value.tolist() if hasattr(value, "tolist") else value


def _is_list(value: Any) -> bool:
    return isinstance(value, Sequence) and not isinstance(value, str | bytes)


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) < 200 else text[:200] + "..."
