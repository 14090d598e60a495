"""Functions as tools: schemas, arguments, results, deadlines; and an environment made of them."""

import asyncio
import enum
import importlib
import time
from typing import Any, Literal

import pytest

from rufus_plugins.errors import ConfigError, InfrastructureError
from rufus_plugins.rollouts.environments.functions import Functions
from rufus_plugins.rollouts.tools import FunctionTool, Toolbox, ToolResult, load, schema_of, tool_message
from rufus_plugins.testing import check_environment
from rufus_plugins.types import CallStatus, Task, Termination

TASK = Task("t", "test", ({"role": "user", "content": "go"},))


class Colour(enum.Enum):
    RED = "red"


def paint(what: str, colour: Colour, layers: int = 1, dry: bool | None = None, tags: list[str] = ()) -> str:
    """Paints a thing.

    It takes a while.

    Args:
        what: the thing
        layers (int): how many
    """
    return f"{what} {colour.value} {layers} {dry} {list(tags)}"


async def lost(n: int):
    if n:
        raise InfrastructureError("gone", Termination.SANDBOX_LOST)
    raise ValueError("no")


def slow() -> str:
    time.sleep(0.3)
    return "late"


def anything(value: Any = None, mode: Literal["a", "b"] = "a"):
    return {"value": value, "mode": mode, "é": 1}


def messages(*calls):
    return {
        "role": "assistant",
        "content": "",
        "tool_calls": [
            {"id": f"c{i}", "type": "function", "function": {"name": name, "arguments": arguments}}
            for i, (name, arguments) in enumerate(calls)
        ],
    }


def answer(functions, *calls, **box):
    async def go():
        toolbox = Toolbox([FunctionTool(f) for f in functions], **box)
        await toolbox.open(TASK)
        try:
            return await toolbox.answer(messages(*calls))
        finally:
            await toolbox.close()

    return asyncio.run(go())


def test_a_functions_schema_is_its_signature_and_docstring():
    assert schema_of(paint)["function"] == {
        "name": "paint",
        "description": "Paints a thing.",
        "parameters": {
            "type": "object",
            "properties": {
                "what": {"type": "string", "description": "the thing"},
                "colour": {"type": "string", "enum": ["red"]},
                "layers": {"type": "integer", "description": "how many"},
                "dry": {"type": "boolean"},
                "tags": {"type": "array", "items": {"type": "string"}},
            },
            "required": ["what", "colour"],
        },
    }
    assert schema_of(anything)["function"]["parameters"]["properties"]["mode"] == {"type": "string", "enum": ["a", "b"]}


@pytest.mark.parametrize("function", [lambda *words: "", lambda x, **rest: ""])
def test_a_parameter_without_a_name_is_refused(function):
    with pytest.raises(ConfigError, match="no name that a model could give"):
        schema_of(function, "f")


def test_a_type_that_json_cannot_give_is_refused():
    def bad(x: bytes): ...

    with pytest.raises(ConfigError, match="'bad', parameter 'x'"):
        schema_of(bad)


def test_calls_are_answered_in_order_and_values_fit_their_types():
    [one, two] = answer(
        [paint, anything], ("paint", {"what": "door", "colour": "red", "tags": ["x"]}), ("anything", {})
    )
    assert one["content"] == "door red 1 None ['x']" and one["tool_call_id"] == "c0" and one["status"] == "ok"
    assert two["content"] == '{"value": null, "mode": "a", "é": 1}'


@pytest.mark.parametrize(
    ("call", "said", "started"),
    [
        (("nothing", {}), "there is no tool 'nothing'; tools: paint, lost", False),
        (("paint", {"what": "door"}), "'colour' is missing", False),
        (("paint", {"what": "door", "colour": "red", "size": 1}), "no parameter 'size'", False),
        (("paint", {"what": "door", "colour": "blue"}), "colour='blue'", False),
        (("lost", {"n": 0}), "ValueError: no", True),
    ],
)
def test_what_a_call_does_wrong_is_a_result_that_the_model_reads(call, said, started):
    [reply] = answer([paint, lost], call)
    assert said in reply["content"] and reply["content"].startswith("Error: ")
    assert reply["status"] is CallStatus.ERROR and reply["started"] is started


def test_a_lost_machine_is_no_result():
    with pytest.raises(InfrastructureError):
        answer([lost], ("lost", {"n": 1}))


def test_a_call_has_a_deadline_and_a_result_a_length():
    [reply] = answer([slow], ("slow", {}), timeout_s=0.05)
    assert "no result within 0.05 s" in reply["content"] and reply["started"] is True
    [reply] = answer([anything], ("anything", {"value": "x" * 1000}), max_chars=100)
    assert len(reply["content"]) < 160 and "characters left out" in reply["content"]


def test_two_tools_of_one_name_are_refused():
    with pytest.raises(ConfigError, match="two tools"):
        Toolbox([FunctionTool(paint), FunctionTool(paint)])


def test_every_tool_is_closed_also_when_one_fails():
    closed = []

    class Closing:
        def __init__(self, name, fails):
            self.schema, self.fails = {"function": {"name": name}}, fails

        async def open(self, task): ...
        async def call(self, arguments):
            return ToolResult("")

        async def close(self):
            closed.append(self.schema["function"]["name"])
            if self.fails:
                raise RuntimeError(self.fails)

    async def go():
        box = Toolbox([Closing("a", ""), Closing("b", "b fails"), Closing("c", "")])
        await box.open(TASK)
        await box.close()

    with pytest.raises(RuntimeError, match="b fails"):
        asyncio.run(go())
    assert closed == ["c", "b", "a"]


def test_functions_load_by_path_and_wrong_paths_say_so():
    assert load("json:dumps") is importlib.import_module("json").dumps
    for path in ("json", "json:", "no_such_module:f", "json:nothing", "json:__doc__"):
        with pytest.raises(ConfigError):
            load(path)


def test_the_environment_of_functions_keeps_the_contract():
    results = check_environment(
        Functions,
        TASK,
        [messages(("dedent", {"text": "  a"}), ("nothing", {})), "done"],
        {"functions": ["textwrap:dedent"]},
    )
    assert len(results) == 2 and results[1].done
    assert [m["role"] for m in results[0].messages] == ["tool", "tool"]


def test_an_environment_without_tools_says_how_to_get_some():
    with pytest.raises(ConfigError, match="rufus.environment.functions"):
        asyncio.run(Functions().start(TASK))


def test_half_a_surrogate_pair_in_a_tools_answer_becomes_a_question_mark():
    assert tool_message("c", "t", "a\ud83db \U0001f600", CallStatus.OK)["content"] == "a?b \U0001f600"
