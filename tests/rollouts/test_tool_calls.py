"""Tool calls per model format; the values follow from the formats' definitions."""

import json
import random
from pathlib import Path

import pytest

from rufus_plugins.errors import ConfigError
from rufus_plugins.rollouts.tool_calls import FORMATS, MAX_CALLS, ParsedCall, parse
from rufus_plugins.types import CallStatus

SCHEMA = {"lookup": {"zip": "string", "days": "integer", "code": "string", "q": "string"}}
OPENAI = [
    {
        "type": "function",
        "function": {
            "name": "lookup",
            "parameters": {
                "type": "object",
                "properties": {
                    "zip": {"type": "string"},
                    "days": {"type": ["integer", "null"]},
                    "on": {"type": "boolean"},
                },
            },
        },
    }
]


def good(turn):
    return [(c.name, c.arguments) for c in turn.calls if c.status is CallStatus.OK]


def hermes(body):
    return f"<tool_call>\n{body}\n</tool_call>"


def test_a_glm_string_keeps_its_blanks_and_its_leading_zero():
    text = (
        "<tool_call>lookup\n<arg_key>code</arg_key>\n<arg_value>    return x\n</arg_value>\n"
        "<arg_key>zip</arg_key>\n<arg_value>00501</arg_value>\n<arg_key>days</arg_key>\n<arg_value>3</arg_value>\n</tool_call>"
    )
    assert good(parse("glm-4.5", text, SCHEMA)) == [("lookup", {"code": "    return x\n", "zip": "00501", "days": 3})]


def test_a_glm_string_may_hold_end_tags():
    text = (
        "<tool_call>lookup\n<arg_key>q</arg_key>\n<arg_value>a </tool_call> b</arg_value> c</arg_value>\n</tool_call>"
    )
    assert good(parse("glm-4.5", text, SCHEMA)) == [("lookup", {"q": "a </tool_call> b</arg_value> c"})]


def test_glm_markup_never_leaks_into_a_key():
    text = "<tool_call>lookup\n<arg_key>zip</arg_key></arg_key><arg_value>9</arg_value>\n</tool_call>"
    turn = parse("glm-4.5", text, SCHEMA)
    assert [c.status for c in turn.calls] == [CallStatus.MALFORMED]
    assert good(turn) == []


def test_a_broken_glm_call_does_not_swallow_the_next_one():
    text = (
        "<tool_call>lookup\n<arg_key>zip</arg_key>\n<arg_value>1\n</tool_call>\n"
        "<tool_call>lookup\n<arg_key>zip</arg_key>\n<arg_value>2</arg_value>\n</tool_call>"
    )
    turn = parse("glm-4.5", text, SCHEMA)
    assert [c.status for c in turn.calls] == [CallStatus.MALFORMED, CallStatus.OK]
    assert good(turn) == [("lookup", {"zip": "2"})]


def test_a_glm_call_without_arguments_is_a_call():
    assert good(parse("glm-4.5", "<tool_call>now\n</tool_call><|observation|>", SCHEMA)) == [("now", {})]


def test_a_glm_integer_that_is_none_is_malformed_and_says_so():
    text = "<tool_call>lookup\n<arg_key>days</arg_key>\n<arg_value>three</arg_value>\n</tool_call>"
    (call,) = parse("glm-4.5", text, SCHEMA).calls
    assert call.status is CallStatus.MALFORMED and "integer" in call.problem


def test_the_openai_function_format_gives_the_same_types():
    text = (
        "<tool_call>lookup<arg_key>days</arg_key><arg_value>3</arg_value>"
        "<arg_key>on</arg_key><arg_value>True</arg_value></tool_call>"
    )
    assert good(parse("glm-4.5", text, OPENAI)) == [("lookup", {"days": 3, "on": True})]


def test_a_hermes_string_may_hold_an_end_tag():
    text = hermes('{"name": "lookup", "arguments": {"q": "find </tool_call> here"}}')
    assert good(parse("hermes", text, SCHEMA)) == [("lookup", {"q": "find </tool_call> here"})]


def test_a_call_inside_thinking_is_no_call():
    text = (
        '<think>The format would be <tool_call>\n{"name": "lookup", "arguments": {"zip": "1"}}\n</tool_call> but I '
        "need no tool.</think>\nDone: 4"
    )
    turn = parse("hermes", text, SCHEMA)
    assert turn.calls == () and turn.content == "Done: 4"


def test_thinking_that_the_template_opened_is_thinking_too():
    turn = parse("hermes", "I could <tool_call>{} </tool_call>.</think>Done", SCHEMA)
    assert turn.calls == () and turn.content == "Done" and turn.thinking.startswith("I could")


def test_a_turn_cut_off_while_thinking_calls_nothing():
    turn = parse("hermes", "<think>" + hermes('{"name": "lookup", "arguments": {}}'), SCHEMA)
    assert turn.calls == () and turn.content == ""


def test_arguments_that_are_encoded_twice_are_decoded_once_more():
    text = hermes(json.dumps({"name": "lookup", "arguments": json.dumps({"zip": "10001"})}))
    assert good(parse("hermes", text, SCHEMA)) == [("lookup", {"zip": "10001"})]


@pytest.mark.parametrize("arguments", ["[1]", '"x"', "3", '"{broken"'])
def test_arguments_that_are_no_object_are_malformed(arguments):
    (call,) = parse("hermes", hermes('{"name": "lookup", "arguments": ' + arguments + "}"), SCHEMA).calls
    assert call.status is CallStatus.MALFORMED and isinstance(call.arguments, str)


def test_two_objects_in_one_block_are_two_calls():
    text = hermes('{"name": "lookup", "arguments": {"zip": "1"}}\n{"name": "lookup", "arguments": {"zip": "2"}}')
    assert good(parse("hermes", text, SCHEMA)) == [("lookup", {"zip": "1"}), ("lookup", {"zip": "2"})]


def test_one_bad_call_of_two_is_malformed_and_the_other_runs():
    text = (
        hermes('{"name": "lookup", "arguments": {"zip": "1"}')
        + "\n"
        + hermes('{"name": "lookup", "arguments": {"zip": "2"}}')
    )
    turn = parse("hermes", text, SCHEMA)
    assert [c.status for c in turn.calls] == [CallStatus.MALFORMED, CallStatus.OK]
    assert turn.calls[0].name == "lookup" and turn.malformed_fraction == 0.5


def test_raw_newlines_in_a_json_string_are_accepted():
    assert good(parse("hermes", hermes('{"name": "run", "arguments": {"code": "a\nb"}}'))) == [
        ("run", {"code": "a\nb"})
    ]


def test_a_cut_off_call_is_malformed():
    (call,) = parse("hermes", 'Let me see. <tool_call>\n{"name": "lookup", "argum').calls
    assert call.status is CallStatus.MALFORMED and call.name == "lookup" and "cut off" in call.problem


def test_content_around_calls_is_kept():
    turn = parse("hermes", "before " + hermes('{"name": "now"}') + " after")
    assert good(turn) == [("now", {})] and turn.content == "before  after"


def test_qwen_coder_parameters_are_typed_by_the_schema():
    text = (
        "<tool_call>\n<function=lookup>\n<parameter=code>\n  x = 1\n</parameter>\n<parameter=days>\n3\n</parameter>\n"
        "</function>\n</tool_call>"
    )
    assert good(parse("qwen3_coder", text, SCHEMA)) == [("lookup", {"code": "  x = 1", "days": 3})]


def test_llama_calls_are_the_whole_turn():
    text = (
        '<|python_tag|>{"name": "lookup", "parameters": {"zip": "1"}}; '
        '{"name": "lookup", "parameters": {"zip": "2"}}<|eom_id|>'
    )
    assert good(parse("llama3_json", text)) == [("lookup", {"zip": "1"}), ("lookup", {"zip": "2"})]
    assert parse("llama3_json", '{"answer": 4}').calls == ()


def test_mistral_calls_are_a_list_or_named():
    assert good(parse("mistral", '[TOOL_CALLS][{"name": "a", "arguments": {"q": "[TOOL_CALLS]"}}]</s>')) == [
        ("a", {"q": "[TOOL_CALLS]"})
    ]
    assert good(parse("mistral", 'ok[TOOL_CALLS]a[ARGS]{"x": 1}[TOOL_CALLS]b{"y": 2}')) == [
        ("a", {"x": 1}),
        ("b", {"y": 2}),
    ]


def test_a_malformed_call_counts_as_never_started():
    call = ParsedCall("x", "raw", CallStatus.MALFORMED, "why").as_tool_call(turn=2)
    assert (call.status, call.started, call.turn) == (CallStatus.MALFORMED, False, 2)


def test_an_unknown_format_says_which_exist():
    with pytest.raises(ConfigError, match="hermes"):
        parse("nope", "x")


@pytest.mark.parametrize("format", sorted(FORMATS))
def test_no_text_makes_a_parser_raise_or_hang(format):
    pieces = (
        "<tool_call> </tool_call> <arg_key> </arg_key> <arg_value> </arg_value> <function= > <parameter= </parameter> "
        '</function> {"name": "lookup" "arguments": } { [ ] x , ; \\ " 1e999 NaN <think> </think> [TOOL_CALLS]'
    ).split(" ") + ["\n", " ", "\ud800"]
    rng = random.Random(7)
    for _ in range(1000):
        parse(format, "".join(rng.choices(pieces, k=rng.randint(0, 30))), SCHEMA)
    parse(format, "<tool_call>" * 60_000, SCHEMA)
    parse(format, "<tool_call>{x" * 60_000, SCHEMA)
    parse(format, "<tool_call>" + "[" * 100_000, SCHEMA)
    parse(format, '{"name":' * 50_000, SCHEMA)


def test_the_real_cases_of_other_parsers():
    cases = [json.loads(line) for line in Path(__file__).with_name("tool_cases.jsonl").read_text("utf-8").splitlines()]
    assert len(cases) >= 7
    for case in cases:
        given, wanted = case["input"], case["expected"]
        turn = parse(given["format"], given["assistant_text"], given["schema"])
        calls = [{"name": n, "arguments": a} for n, a in good(turn)]
        if "calls" in wanted:
            assert calls == wanted["calls"], case["id"]
        if "executed" in wanted:
            assert calls == wanted["executed"], case["id"]
            assert turn.malformed_fraction == wanted["malformed_fraction"]
            assert turn.calls[wanted["error_for_call"]].problem
        if "calls_any_of" in wanted:
            accepted = [c for c in wanted["calls_any_of"] if isinstance(c, list)]
            assert calls in accepted or any(c.problem for c in turn.calls), case["id"]
        if "content" in wanted:
            assert turn.content == wanted["content"]


def test_a_flood_of_calls_is_read_up_to_a_bound_and_the_rest_is_reported():
    turn = parse("hermes", hermes('{"name": "now"}') * 1000)
    assert len(good(turn)) == MAX_CALLS and "more than" in turn.calls[-1].problem and len(turn.calls) == MAX_CALLS + 1


HERMES = '<tool_call>{"name": "f", "arguments": %s}</tool_call>'


@pytest.mark.parametrize(
    "arguments, problem",
    [
        ('{"x": 1, "x": 2}', "the key 'x' is given twice"),
        ('{"a": {"x": 1, "x": 1}}', "the key 'x' is given twice"),
        ('{"x": NaN}', "NaN is no number"),
        ('{"x": [-Infinity]}', "-Infinity is no number"),
        ('{"x": 1e999}', "1e999 is no number"),
        (r'{"x": "\ud83d"}', "half a surrogate pair"),
        (r'"{\"x\": NaN}"', "a string that holds no JSON object"),
    ],
)
def test_json_that_two_readers_could_take_differently_is_malformed(arguments, problem):
    [call] = parse("hermes", HERMES % arguments).calls
    assert call.status == "malformed" and problem in call.problem


def test_json_that_is_only_unusual_is_read():
    [call] = parse("hermes", HERMES % r'{"x": "\ud83d\ude00\n", "y": 1e308, "z": -0.0}').calls
    assert (call.status, call.arguments) == ("ok", {"x": "\U0001f600\n", "y": 1e308, "z": -0.0})


@pytest.mark.parametrize("after", ["", "\n", '<tool_call>{"name": "g", "arguments": {}}</tool_call>'])
def test_a_block_without_its_end_is_malformed_though_its_json_is_whole(after):
    two = '<tool_call>{"name": "f", "arguments": {}}, {"name": "h", "arguments": {}}'
    calls = parse("hermes", two + after).calls
    assert [(call.name, call.status) for call in calls[:2]] == [("f", "malformed"), ("h", "malformed")]
    assert "no </tool_call>" in calls[0].problem
    assert [(call.name, call.status) for call in calls[2:]] == ([("g", "ok")] if "g" in after else [])


def test_a_parameter_given_twice_is_malformed_in_every_format():
    glm = "<arg_key>x</arg_key><arg_value>%d</arg_value>"
    qwen = "<parameter=x>%d</parameter>"
    for name, text in (
        ("glm-4.5", f"<tool_call>f{glm % 1}{glm % 2}</tool_call>"),
        ("qwen3_coder", f"<tool_call><function=f>{qwen % 1}{qwen % 2}</function></tool_call>"),
    ):
        [call] = parse(name, text).calls
        assert call.status == "malformed" and "given twice" in call.problem


def test_numbers_in_bare_arguments_are_json_numbers():
    text = "<tool_call>f<arg_key>x</arg_key><arg_value>{}</arg_value></tool_call>"
    [call] = parse("glm-4.5", text.format("NaN"), {"f": {"x": "number"}}).calls
    assert call.status == "malformed"
    [call] = parse("glm-4.5", text.format("NaN")).calls
    assert call.arguments == {"x": "NaN"}  # without a type it is text


def test_a_flood_of_calls_in_one_block_is_cut():
    calls = parse("hermes", "<tool_call>" + '{"name": "f", "arguments": {}}' * 5000 + "</tool_call>").calls
    assert len(calls) == MAX_CALLS + 1
    assert [call.status for call in calls[-2:]] == ["ok", "malformed"]
