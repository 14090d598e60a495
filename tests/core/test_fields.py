"""Config values against the types that a part declares."""

import enum
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import pytest

from rufus_plugins.fields import Unfit, fitted, type_name


class Colour(enum.Enum):
    RED = "red"


@dataclass
class Part:
    count: int = 1
    share: float = 0.5
    on: bool = False
    text: str = ""
    maybe: float | None = None
    pair: tuple[int, float] = (1, 1.0)
    many: tuple[str, ...] = ()
    names: frozenset[str] = frozenset()
    list_of: list[int] = field(default_factory=list)
    sequence: Sequence[float] = ()
    table: Mapping[str, float] = field(default_factory=dict)
    place: Path = Path(".")
    colour: Colour = Colour.RED
    mode: Literal["a", "b"] = "a"
    free: object = None


@pytest.mark.parametrize(
    "key, value, becomes",
    [
        ("count", 3, 3),
        ("share", 2, 2.0),
        ("on", True, True),
        ("text", "x", "x"),
        ("maybe", None, None),
        ("maybe", 1, 1.0),
        ("pair", [1, 2], (1, 2.0)),
        ("many", ["a", "b"], ("a", "b")),
        ("names", ["a", "a"], frozenset({"a"})),
        ("list_of", [1], [1]),
        ("sequence", [1], [1.0]),
        ("table", {"a": 1}, {"a": 1.0}),
        ("place", "/x", Path("/x")),
        ("colour", "red", Colour.RED),
        ("colour", "RED", Colour.RED),
        ("mode", "b", "b"),
        ("free", {"any": 1}, {"any": 1}),
    ],
)
def test_a_fitting_value_becomes_what_the_field_declares(key, value, becomes):
    (given,) = fitted(Part, {key: value}).values()
    assert given == becomes and type(given) is type(becomes)


@pytest.mark.parametrize(
    "key, value, needed",
    [
        ("count", 1.5, "int is needed, not float"),
        ("count", True, "int is needed, not bool"),
        ("count", None, "int is needed, not NoneType"),
        ("share", "0.5", "float is needed, not str"),
        ("share", False, "float is needed, not bool"),
        ("share", float("nan"), "not nan"),
        ("maybe", float("nan"), "float | None is needed"),
        ("on", 1, "bool is needed, not int"),
        ("text", 1, "str is needed, not int"),
        ("maybe", "x", "float | None is needed"),
        ("pair", [1], "2 items are needed"),
        ("many", "ab", "a list is needed"),
        ("many", [1], "str is needed"),
        ("table", [1], "a mapping is needed"),
        ("colour", "blue", "one of 'red' is needed"),
        ("mode", "c", "one of 'a', 'b' is needed"),
    ],
)
def test_a_value_that_does_not_fit_is_refused_with_what_is_needed(key, value, needed):
    with pytest.raises(Unfit) as error:
        fitted(Part, {key: value})
    assert str(error.value).startswith(f"{key}={value!r}: ") and needed in str(error.value)


def test_types_only_a_type_checker_knows_are_left_to_the_part():
    @dataclass
    class Part:
        x: "NoSuchType" = 1  # noqa: F821

    assert fitted(Part, {"x": "anything"}) == {"x": "anything"}


def test_a_function_is_checked_by_its_parameters():
    def factory(limit: int = 1): ...

    assert fitted(factory, {"limit": 2}) == {"limit": 2}
    with pytest.raises(Unfit, match="int is needed"):
        fitted(factory, {"limit": "2"})


def test_type_names_read_as_written():
    assert [type_name(Part, key) for key in ("count", "maybe", "many", "missing")] == [
        "int",
        "float | None",
        "tuple[str, ...]",
        "",
    ]
