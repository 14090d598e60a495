"""Conversations of the common shapes become one schema, and what does not fit is set aside with its reason."""

import json
from collections import Counter

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from rufus_plugins.recipes.data.conversations import conversation
from rufus_plugins.recipes.data.normalise import Normalise
from rufus_plugins.recipes.data.records import Raw, Refused
from rufus_plugins.recipes.data.run import execute

ARGUMENTS = '{"city": "Zürich", "days": 2}'
CALL = {"type": "function", "function": {"name": "weather", "arguments": ARGUMENTS}, "id": "call_0"}
AGENT = [
    {"role": "system", "content": "Use tools."},
    {"role": "user", "content": "Weather?"},
    {"role": "assistant", "content": "I look.", "reasoning_content": "A tool knows.", "tool_calls": [CALL]},
    {"role": "tool", "content": "sunny", "tool_call_id": "call_0", "name": "weather"},
    {"role": "assistant", "content": "Sunny."},
]
SCHEMA = [
    {
        "type": "function",
        "function": {
            "name": "weather",
            "parameters": {
                "type": "object",
                "properties": {"city": {"type": "string"}, "days": {"type": "integer"}},
            },
        },
    }
]
GLM = (
    "<think>A tool knows.</think>\nI look.\n<tool_call>weather\n"
    "<arg_key>city</arg_key>\n<arg_value>Zürich</arg_value>\n<arg_key>days</arg_key>\n<arg_value>2</arg_value>\n</tool_call>"
)
HERMES = (
    "<think>\nA tool knows.\n</think>\n\nI look.\n<tool_call>\n"
    '{"name": "weather", "arguments": {"city": "Zürich", "days": 2}}\n</tool_call>'
)
CODER = (
    "<think>A tool knows.</think>I look.\n<tool_call>\n<function=weather>\n<parameter=city>\nZürich\n</parameter>\n"
    "<parameter=days>\n2\n</parameter>\n</function>\n</tool_call>"
)


def said(text):
    return [
        {"role": "system", "content": "Use tools."},
        {"role": "user", "content": "Weather?"},
        {"role": "assistant", "content": text},
        {"role": "tool", "content": "sunny"},
        {"role": "assistant", "content": "Sunny."},
    ]


def openai(**changes):
    message = {"role": "assistant", "content": "I look.", "reasoning_content": "A tool knows."} | changes
    return {"messages": [*said("")[:2], message, {"role": "tool", "content": "sunny"}, said("")[4]]}


ALIKE = {
    "arguments as text": openai(tool_calls=[{"function": {"name": "weather", "arguments": ARGUMENTS}}]),
    "arguments as a mapping": openai(tool_calls=[{"name": "weather", "arguments": {"city": "Zürich", "days": 2}}]),
    "legacy function_call": openai(function_call={"name": "weather", "arguments": ARGUMENTS}),
    "reasoning": openai(reasoning_content=None, reasoning="A tool knows.", tool_calls=[CALL]),
    "thinking": openai(reasoning_content=None, thinking="A tool knows.", tool_calls=[CALL]),
    "parts": openai(
        reasoning_content=None,
        content=[{"type": "thinking", "thinking": "A tool knows."}, {"type": "text", "text": "I look."}],
        tool_calls=[CALL],
    ),
    "think tags beside calls in a field": openai(
        reasoning_content=None, content="<think>\nA tool knows.\n</think>\n\nI look.", tool_calls=[CALL]
    ),
    "a think tag that the prompt opened": openai(
        reasoning_content=None, content="A tool knows.\n</think>\n\nI look.", tool_calls=[CALL]
    ),
    "Hermes text": {"messages": said(HERMES)},
    "GLM text": {"messages": said(GLM), "tools": SCHEMA},
    "GLM text without schemas": {"messages": said(GLM)},
    "Qwen3-Coder text": {"messages": said(CODER), "tools": json.dumps(SCHEMA)},
    "messages as JSON text": {"messages": json.dumps(said(HERMES))},
    "results in a user message": {
        "messages": [
            *said(HERMES)[:3],
            {"role": "user", "content": "<tool_response>\nsunny\n</tool_response>"},
            said("")[4],
        ]
    },
    "ShareGPT": {
        "system": "Use tools.",
        "conversations": [
            {"from": "human", "value": "Weather?"},
            {"from": "gpt", "value": "<think>A tool knows.</think>I look."},
            {
                "from": "function_call",
                "value": json.dumps({"name": "weather", "arguments": {"city": "Zürich", "days": 2}}),
            },
            {"from": "observation", "value": "sunny"},
            {"from": "gpt", "value": "Sunny."},
        ],
    },
    "ShareGPT with Hermes calls": {
        "conversations": [
            {"from": "system", "value": "Use tools."},
            {"from": "human", "value": "Weather?"},
            {"from": "gpt", "value": HERMES},
            {"from": "tool", "value": "<tool_response>\nsunny\n</tool_response>"},
            {"from": "gpt", "value": "Sunny."},
        ]
    },
}


def read(record):
    return conversation(record, Counter())


@pytest.mark.parametrize("shape", ALIKE)
def test_one_conversation_in_many_shapes_is_one(shape):
    assert read(ALIKE[shape])[0] == AGENT


def test_a_normalised_conversation_is_its_own_normal_form():
    assert read({"messages": AGENT, "tools": json.dumps(SCHEMA)}) == (AGENT, SCHEMA)


@pytest.mark.parametrize(
    ("record", "expected"),
    [
        ({"instruction": "Add.", "input": "1 and 2", "output": "3"}, ["Add.\n\n1 and 2", "3"]),
        ({"instruction": "Add.", "input": "", "output": "3", "history": [["hi", "ho"]]}, ["hi", "ho", "Add.", "3"]),
        ({"prompt": "1+2", "completion": "3"}, ["1+2", "3"]),
        ({"question": "1+2", "answer": "3"}, ["1+2", "3"]),
        (
            {"prompt": [{"role": "user", "content": "1+2"}], "completion": [{"role": "assistant", "content": "3"}]},
            ["1+2", "3"],
        ),
    ],
)
def test_pairs_of_request_and_answer_are_conversations(record, expected):
    messages, _ = read(record)
    assert [m["content"] for m in messages] == expected
    assert [m["role"] for m in messages] == ["user", "assistant"] * (len(expected) // 2)


def test_results_follow_their_calls_by_id_and_else_in_order():
    def call(name, **more):
        return {"function": {"name": name, "arguments": "{}"}, **more}

    with_ids = [
        {"role": "user", "content": "x"},
        {"role": "assistant", "content": None, "tool_calls": [call("a", id="1"), call("b", id="2")]},
        {"role": "tool", "content": "of b", "tool_call_id": "2"},
        {"role": "tool", "content": "of a", "tool_call_id": "1"},
    ]
    messages, _ = read({"messages": with_ids})
    assert [(m["name"], m["content"]) for m in messages[2:]] == [("b", "of b"), ("a", "of a")]
    ids_on_results_alone = [
        with_ids[0],
        {"role": "assistant", "content": None, "tool_calls": [call("a"), call("b")]},
        {"role": "tool", "content": "of a", "tool_call_id": "x"},
    ]
    messages, _ = read({"messages": ids_on_results_alone})
    assert [c["id"] for c in messages[1]["tool_calls"]] == ["x", "call_0"]
    assert messages[2]["name"] == "a"


@pytest.mark.parametrize("ids", [{}, {"a": "1", "b": "2"}])
def test_results_that_say_a_name_only_go_to_the_call_of_that_name(ids):
    calls = [{"function": {"name": n, "arguments": "{}"}} | ({"id": ids[n]} if ids else {}) for n in "ab"]
    results = [{"role": "tool", "name": n, "content": f"of {n}"} for n in "ba"]
    messages, _ = read({"messages": [USER, {"role": "assistant", "content": None, "tool_calls": calls}, *results]})
    called = {c["id"]: c["function"]["name"] for c in messages[1]["tool_calls"]}
    assert [(called[m["tool_call_id"]], m["content"]) for m in messages[2:]] == [("b", "of b"), ("a", "of a")]


def test_numbers_are_ids_as_well():
    calls = [{"id": i, "function": {"name": n, "arguments": "{}"}} for i, n in enumerate("ab")]
    results = [{"role": "tool", "tool_call_id": i, "content": f"of {'ab'[i]}"} for i in (1, 0)]
    messages, _ = read({"messages": [USER, {"role": "assistant", "content": None, "tool_calls": calls}, *results]})
    assert [c["id"] for c in messages[1]["tool_calls"]] == ["0", "1"]
    assert [(m["name"], m["content"]) for m in messages[2:]] == [("b", "of b"), ("a", "of a")]


def test_fields_of_another_shape_that_parquet_filled_with_nulls_do_not_hide_ones_that_are_there():
    nulls = {"role": None, "content": None}
    turns = [{"from": "human", "value": "x", **nulls}, {"from": "gpt", "value": "y", **nulls}]
    messages, _ = read({"messages": turns})
    assert messages == [{"role": "user", "content": "x"}, {"role": "assistant", "content": "y"}]


def test_a_result_that_is_a_list_of_anything_is_its_json():
    calls = [{"function": {"name": "f", "arguments": {}}}]
    said = [USER, {"role": "assistant", "tool_calls": calls}, {"role": "tool", "content": [{"temp": 3}, 4]}]
    assert read({"messages": said})[0][2]["content"] == '[{"temp": 3}, 4]'


def test_a_system_prompt_that_is_given_twice_is_one():
    said = [{"role": "system", "content": "Be brief."}, USER, ANSWER]
    assert read({"system": " Be brief.", "messages": said})[0] == said


def test_an_override_keeps_its_meaning_under_every_name():
    for key, value, expected in (
        ("train", False, False),
        ("loss_mask", 0, False),
        ("weight", 1, True),
        ("loss", True, True),
    ):
        messages, _ = read(
            {"messages": [{"role": "user", "content": "x"}, {"role": "assistant", "content": "y", key: value}]}
        )
        assert messages[1]["train"] is expected
    untouched, _ = read({"messages": [{"role": "user", "content": "x"}, {"role": "assistant", "content": "y"}]})
    assert "train" not in untouched[1]


USER, ANSWER = {"role": "user", "content": "x"}, {"role": "assistant", "content": "y"}


@pytest.mark.parametrize(
    ("reason", "record"),
    [
        ("unknown_shape", {"text": "hello"}),
        ("unknown_shape", {}),
        ("no_messages", {"messages": []}),
        ("bad_messages", {"messages": "[{"}),
        ("bad_message", {"messages": ["hello"]}),
        ("no_assistant", {"messages": [USER]}),
        ("unknown_role", {"messages": [USER, {"role": "critic", "content": "y"}]}),
        ("unknown_role", {"messages": [USER, {"role": None, "content": "y"}]}),
        ("media", {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": "u"}]}, ANSWER]}),
        ("media", {"image": "a.png", "messages": [USER, ANSWER]}),
        ("bad_content", {"messages": [{"role": "user", "content": 3}, ANSWER]}),
        ("empty_assistant", {"messages": [USER, {"role": "assistant", "content": None}]}),
        ("empty_assistant", {"messages": [USER, {"role": "assistant", "content": " \n"}]}),
        ("orphan_tool_result", {"messages": [{"role": "tool", "content": "r"}, ANSWER]}),
        ("orphan_tool_result", {"messages": [USER, {"role": "tool", "content": "r"}, ANSWER]}),
        ("bad_arguments", openai(tool_calls=[{"function": {"name": "f", "arguments": "{oops"}}])),
        ("bad_arguments", openai(tool_calls=[{"function": {"name": "f", "arguments": [1]}}])),
        ("bad_arguments", openai(tool_calls=[{"function": {"name": "f", "arguments": '{"a": NaN}'}}])),
        ("two_systems", {"system": "A", "messages": [{"role": "system", "content": "B"}, USER, ANSWER]}),
        ("bad_content", {"system": ["A"], "messages": [USER, ANSWER]}),
        ("bad_content", {"messages": [USER, ANSWER | {"reasoning": ["because"]}]}),
        ("bad_content", {"messages": [USER, ANSWER | {"content": [{"type": "tool_use", "id": "1"}]}]}),
        ("bad_call", openai(tool_calls=[{"function": {"arguments": "{}"}}])),
        ("malformed_call", {"messages": said('<tool_call>{"name": "f", </tool_call>')}),
        ("unclosed_thinking", {"messages": [USER, {"role": "assistant", "content": "<think>and so on"}]}),
        ("two_reasonings", openai(content="<think>other</think>I look.")),
        ("bad_override", {"messages": [USER, ANSWER | {"weight": 0.5}]}),
        ("bad_override", {"messages": [USER, ANSWER | {"weight": 0, "train": True}]}),
        ("override_not_assistant", {"messages": [USER | {"train": True}, ANSWER]}),
        ("bad_tools", {"messages": [USER, ANSWER], "tools": "{oops"}),
        ("bad_tools", {"messages": [USER, ANSWER], "tools": [{"type": "function"}]}),
    ],
)
def test_what_cannot_be_a_conversation_is_refused_with_its_reason(reason, record):
    with pytest.raises(Refused) as refused:
        read(record)
    assert refused.value.reason == reason


def test_talk_about_tags_is_text():
    text = "Write <think> at the start."
    messages, _ = read({"messages": [USER, {"role": "assistant", "content": text}]})
    assert messages[1] == {"role": "assistant", "content": text}


def test_calls_in_a_form_that_nobody_reads_keep_their_results():
    notes = Counter()
    react = [USER, {"role": "assistant", "content": "Action: search[x]"}, {"role": "tool", "content": "r"}, ANSWER]
    messages, _ = conversation({"messages": react}, notes)
    assert messages == react and notes == {"results_of_calls_in_free_text": 1}


def test_records_carry_id_source_category_and_tools_and_fit_parquet(tmp_path):
    source = tmp_path / "in.jsonl"
    records = [
        {"messages": AGENT, "tools": SCHEMA, "source": "made", "category": "agent", "uuid": 7},
        {"prompt": "1+2", "completion": "3", "enable_thinking": False},
        {"messages": [{"role": "user", "content": "\ud800"}, ANSWER]},
    ]
    source.write_text("".join(json.dumps(r) + "\n" for r in records))
    manifest = execute(Normalise(), source, tmp_path / "out.parquet")
    first, second = pq.read_table(tmp_path / "out.parquet").to_pylist()
    assert (first["id"], first["data_source"], first["category"]) == ("7", "made", "agent")
    assert json.loads(first["tools"]) == SCHEMA
    assert [{k: v for k, v in m.items() if v is not None} for m in first["messages"]] == AGENT
    assert len(second["id"]) == 32 and second["enable_thinking"] is False
    assert manifest["set_aside"] == {"bad_text": 1}
    assert manifest["notes"] == {"with_reasoning": 1, "with_tool_calls": 1}


def test_nulls_that_columns_fill_in_are_no_arguments(tmp_path):
    def chat(name, **arguments):
        calls = [{"function": {"name": name, "arguments": arguments}}]
        return {"messages": [USER, {"role": "assistant", "content": "", "tool_calls": calls}]}

    records = [chat("a", city="Zürich"), chat("b", days=2, hours=None)]
    for name in ("in.parquet", "in.jsonl"):
        if name.endswith("parquet"):
            pq.write_table(pa.Table.from_pylist(records), tmp_path / name)
        else:
            (tmp_path / name).write_text("".join(json.dumps(r) + "\n" for r in records))
        execute(Normalise(), tmp_path / name, tmp_path / f"out-{name}.jsonl")
        made = [json.loads(line) for line in (tmp_path / f"out-{name}.jsonl").read_text().splitlines()]
        said = [json.loads(r["messages"][1]["tool_calls"][0]["function"]["arguments"]) for r in made]
        # in JSON a null was written by someone, in Parquet it fills a column
        assert said == [{"city": "Zürich"}, {"days": 2} if name.endswith("parquet") else {"days": 2, "hours": None}]


def test_the_same_conversation_gets_the_same_id():
    def made(record):
        tool = Normalise(category="c")
        tool.notes = Counter()
        return tool.record(Raw("here", record))

    assert made(ALIKE["Hermes text"]) == made(ALIKE["ShareGPT with Hermes calls"])
    assert made(ALIKE["Hermes text"])["category"] == "c"
