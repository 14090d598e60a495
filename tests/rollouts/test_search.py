"""The search environment: whole episodes, tools, budgets, what is hidden, and whose fault a failure is."""

import asyncio
import importlib.util
import json
import sys
from pathlib import Path

import pytest

from rufus_plugins.errors import ConfigError, DataError, InfrastructureError
from rufus_plugins.recipes.search_agent.corpus import prepare
from rufus_plugins.rewards.search_answer import SearchAnswer
from rufus_plugins.rollouts.environments.search import Search
from rufus_plugins.rollouts.environments.search_backends import Document
from rufus_plugins.rollouts.environments.search_blocklist import Blocklist, of_task
from rufus_plugins.rollouts.episode import Episode, Limits
from rufus_plugins.rollouts.rules import EpisodeRules
from rufus_plugins.testing import check_environment
from rufus_plugins.types import CallStatus, Task, Termination

_spec = importlib.util.spec_from_file_location("endings", Path(__file__).with_name("test_segment_endings.py"))
endings = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(endings)
sys.path.insert(0, str(Path(__file__).parent))
from search_servers import Server, in_turn, page, redirect  # noqa: E402

QUESTION = ({"role": "user", "content": "Who is the mayor of Brod?"},)
LONG = "".join(f"Sentence number {i} of the long page. " for i in range(1000))


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    folder = tmp_path_factory.mktemp("search")
    documents = [
        {"id": "brod", "title": "Brod", "text": "Brod is a town. Its mayor is Ana Kovac.", "url": "https://wiki.example/Brod"},
        {"id": "zeta", "title": "Zeta", "text": "Zeta is a town. Its mayor is Ivo Ban.", "url": "https://wiki.example/Zeta"},
        {"id": "copy", "title": "A copy of Brod", "text": "Brod has the mayor Ana Kovac.", "url": "https://mirror.example/1"},
        {"id": "long", "title": "Long", "text": LONG},
    ]  # fmt: skip
    (folder / "d.jsonl").write_text("".join(json.dumps(d) + "\n" for d in documents))
    prepare(str(folder / "d.jsonl"), folder / "index")
    return str(folder / "index")


def over(corpus, **config):
    return Search(backend_config={"path": corpus}, **config)


def task(ground_truth="Ana Kovac", **extra):
    return Task("t", "search", QUESTION, ground_truth, extra)


def call(name, **arguments):
    return f"<tool_call>{json.dumps({'name': name, 'arguments': arguments})}</tool_call>"


def play(environment, *lines, asked=None, **rules):
    asked = asked or task()
    script, letters, room = endings.Script(*lines), endings.Letters(), Limits(400_000, 300_000)
    return asyncio.run(Episode(asked, environment, script, letters, EpisodeRules(**rules), room).run()).trajectory


def calls(environment, *asked, extra=None, over_turns=True):
    """The replies to (name, arguments), each in a turn of its own."""

    async def go():
        replies = []
        try:
            await environment.start(task(**(extra or {})))
            for i, (name, arguments) in enumerate(asked):
                function = {"name": name, "arguments": arguments}
                message = {"role": "assistant", "content": "", "tool_calls": [{"id": str(i), "function": function}]}
                replies += (await environment.step(message)).messages
            return replies, await environment.finish()
        finally:
            await environment.close()

    return asyncio.run(go())


def said(environment, *asked, **more):
    return [reply["content"] for reply in calls(environment, *asked, **more)[0]]


def statuses(environment, *asked, **more):
    return [reply["status"] for reply in calls(environment, *asked, **more)[0]]


# ---- a whole episode


def test_an_episode_over_the_corpus_earns_its_reward_by_a_judge_behind_a_server(corpus):
    verdict = {"choices": [{"message": {"content": '{"reason": "same", "score": 1}'}, "finish_reason": "stop"}]}
    trajectory = play(
        over(corpus),
        call("search", query="mayor of Brod"),
        call("open", page="1"),
        "<think>hm</think>Answer: Ana Kovac",
    )
    assert trajectory.termination is Termination.ANSWERED
    assert [c.status for c in trajectory.tool_calls] == [CallStatus.OK] * 2
    with Server({"/v1/chat/completions": page(verdict, Content_Type="application/json")}) as server:
        score = asyncio.run(SearchAnswer({"base_url": f"{server.url}/v1", "model": "judge"})(trajectory))
        asked = json.loads(server.requests[0][2])["messages"][-1]["content"]
    assert "Who is the mayor of Brod?" in asked and "Ana Kovac" in asked
    assert score.value == 1.0 and score.metrics["evidence"] is True and score.metrics["incidental"] is False
    assert trajectory.metrics["searches"] == 1 and trajectory.metrics["pages"] == 1


def test_it_keeps_the_contract_of_environments(corpus):
    results = check_environment(lambda: over(corpus), task(), ["Answer: nobody"])
    assert results[0].done


@pytest.mark.parametrize(
    ("lines", "evidence"),
    [
        ([call("search", query="Brod mayor"), call("search", query="x")], True),
        ([call("search", query="Zeta Ivo Ban"), call("search", query="Ana Kovac of nowhere at all zzz")], True),
        ([*[call("search", query="Zeta")] * 2, call("search", query="Ana Kovac", x=1)], False),
        ([call("python", code="print('Ana Kovac')"), call("python", code="print('Ana Kovac')")], False),
        ([call("python", code="print('ANA' + chr(32) + 'kovac')"), call("python", code="print(1)")], True),
        ([call("open", page="Ana Kovac"), call("search", query="Zeta"), call("python", code="print(1)")], False),
    ],
)  # fmt: skip
def test_the_audit_knows_what_the_answer_rests_on(corpus, lines, evidence):
    """The model's own words that come back (an echoed query, a printed literal, an error) are no evidence."""
    environment = over(corpus, results=1) if not evidence else over(corpus)
    trajectory = play(environment, *lines, "Answer: Ana Kovac")
    score = asyncio.run(SearchAnswer("rule")(trajectory))
    assert score.metrics["evidence"] is evidence
    assert score.value == 1.0 and score.metrics["incidental"] is not evidence


def test_gold_alternatives_may_be_json_text_as_parquet_holds_them(corpus):
    lines = call("search", query="Brod"), call("search", query="Zeta"), "Answer: Kovac"
    for gold in ('["Ana Kovac", "Kovac"]', ["Ana Kovac", "Kovac"]):
        trajectory = play(over(corpus), *lines, asked=task(gold))
        assert asyncio.run(SearchAnswer("rule")(trajectory)).value == 1.0


# ---- tools


def test_results_have_numbers_by_which_they_open(corpus):
    results, first, byurl, byid = said(
        over(corpus), ("search", {"query": "mayor Brod"}), ("open", {"page": "[1]"}),
        ("open", {"page": "https://wiki.example/Zeta"}), ("open", {"page": "doc:long"}),
    )  # fmt: skip
    assert results.startswith("1. Brod\nhttps://wiki.example/Brod\nBrod is a town.") and "\n\n2. " in results
    assert first == "Brod\nhttps://wiki.example/Brod\n\nBrod is a town. Its mayor is Ana Kovac."
    assert "Ivo Ban" in byurl and byid.startswith("Long\ndoc:long\n\nSentence number 0")


def test_a_long_page_comes_in_parts_that_join_without_a_gap(corpus):
    environment, parts, offset = over(corpus, page_chars=10_000), [], 0
    total = len(LONG.strip())
    while offset < total:
        [text] = said(environment, ("open", {"page": "doc:long", "offset": offset}))
        body, _, note = text.partition("\n\n")[2].rpartition("\n\n[")
        parts.append(body)
        assert f"characters {offset} to {offset + len(body)} of {len(LONG)}" in note
        offset += len(body)
    assert "".join(parts).strip() == LONG.strip() and "to go on" not in note
    wrong = said(
        environment, ("open", {"page": "doc:long", "offset": -1}), ("open", {"page": "doc:long", "offset": 10**9})
    )
    assert wrong == ["Error: offset is 0 or more", f"Error: the page has {len(LONG)} characters"]


@pytest.mark.parametrize(
    ("name", "arguments", "says"),
    [
        ("search", {"query": ""}, "the query is empty"),
        ("search", {"query": "x" * 3000}, "too long"),
        ("search", {}, "'query' is missing"),
        ("search", {"query": ["a"]}, "query="),
        ("open", {"page": "7"}, "no result of that number"),
        ("open", {"page": "9" * 5000}, "no result of that number"),
        ("open", {"page": "https://wiki.example/nowhere"}, "no such page here"),
        ("open", {"page": "doc:nobody"}, "no such page here"),
        ("open", {"page": "file:///etc/passwd"}, "no such page here"),
        ("open", {"page": ""}, "no such page here"),
        ("browse", {}, "no tool 'browse'; tools: search, open, python"),
        ("python", {"code": "1/0"}, "ZeroDivisionError"),
        ("python", {"code": "import socket; socket.socket()"}, "Error"),
        ("python", {"code": "open('/etc/shadow')"}, "Error"),
        ("python", {"code": "while True: pass"}, "killed after 0.5 s"),
        ("python", {"code": "raise SystemExit(3)"}, "exit code 3"),
    ],
)
def test_what_a_call_does_wrong_is_a_result_and_no_success(corpus, name, arguments, says):
    environment = over(corpus, python_timeout_s=0.5)
    [reply] = calls(environment, (name, arguments))[0]
    assert says in reply["content"] and reply["status"] is CallStatus.ERROR


def test_python_is_fresh_each_time_and_its_output_is_cut(corpus):
    replies = said(
        over(corpus, python_chars=100), ("python", {"code": "x = 5\nopen('f', 'w').write('1')\nprint(x)"}),
        ("python", {"code": "import os\nprint('x' in globals(), os.path.exists('f'))"}),
        ("python", {"code": "print('y' * 10000)"}), ("python", {"code": "pass"}),
    )  # fmt: skip
    assert replies[:2] == ["5", "False False"] and "characters left out" in replies[2] and len(replies[2]) < 200
    assert "no output" in replies[3]
    without = over(corpus, python_tool=False)
    calls(without)
    assert [tool["function"]["name"] for tool in without.tools] == ["search", "open"]


# ---- budgets


def test_a_turn_that_calls_with_the_budget_spent_ends_tool_budget_and_costs_a_tenth(corpus):
    lines = [call("search", query="a") * 2, call("search", query="b") * 2, call("search", query="c")]
    trajectory = play(over(corpus, max_tool_calls=3), *lines)
    assert trajectory.termination is Termination.TOOL_BUDGET
    assert [c.status for c in trajectory.tool_calls] == [CallStatus.OK] * 3 + [CallStatus.ERROR] * 2
    assert [c.started for c in trajectory.tool_calls] == [True] * 3 + [False] * 2
    assert trajectory.messages[-1]["content"] == "Error: the budget of 3 tool calls is spent. Give your final answer."
    assert asyncio.run(SearchAnswer("rule")(trajectory)).value == -0.1


def test_an_answer_after_the_last_call_counts(corpus):
    trajectory = play(over(corpus, max_tool_calls=2), call("search", query="Brod") * 3, "Answer: Ana Kovac")
    assert trajectory.termination is Termination.ANSWERED
    assert asyncio.run(SearchAnswer("rule")(trajectory)).value == 1.0


def test_the_budgets_are_the_recipes_100_and_200(corpus):
    for validate, budget in ((False, 100), (True, 200)):
        lines = [call("search", query="a") * 60] * 4 + [call("search", query="a")]
        trajectory = play(over(corpus, results=1), *lines, asked=task(validate=validate))
        assert sum(c.status is CallStatus.OK for c in trajectory.tool_calls) == budget
        assert trajectory.termination is Termination.TOOL_BUDGET


def test_validation_may_use_another_backend(corpus):
    with Server({"/api": page({"result": [[{"document": {"contents": "T\nfrom the server"}}]]})}) as server:
        validation = {"backend": "retrieval", "backend_config": {"url": f"{server.url}/api"}, "results": 3}
        environment = over(corpus, validation=validation)
        [text] = said(environment, ("search", {"query": "Brod"}), extra={"validate": True})
        assert "from the server" in text and json.loads(server.requests[0][2])["topk"] == 3
        [text] = said(over(corpus, validation=validation), ("search", {"query": "Brod"}))
        assert "from the server" not in text and len(server.requests) == 1


@pytest.mark.parametrize(
    ("config", "says"),
    [
        ({"validation": {"resluts": 3}}, "Did you mean results"),
        ({"validation": {"results": "x"}}, "validation.results='x'"),
        ({"validation": {"backend": "nobody"}}, "no such backend"),
        ({"results": 0}, "results=0"),
        ({"max_tool_calls": -1}, "0 or more"),
        ({"blocked": ["not a site"]}, "'not a site' is no site"),
        ({"blocked_file": "/no/such/file"}, "blocked_file=/no/such/file"),
        ({"allowed_addresses": ["http://x"]}, "allowed_addresses"),
        ({"summariser": {"model": "m"}}, "summariser needs base_url"),
        ({"summariser": {"base_url": "http://x/v1", "model": "m", "typo": 1}}, "no rufus.environment.summariser.typo"),
    ],
)
def test_a_wrong_setup_is_told_before_anything_runs(corpus, config, says):
    with pytest.raises(ConfigError, match=says):
        over(corpus, **config)


def test_without_a_corpus_the_message_says_how_to_build_one():
    with pytest.raises(ConfigError, match="rufus prepare search_corpus"):
        Search()


# ---- what the solver must not see


def test_blocked_documents_are_neither_found_nor_opened(corpus, tmp_path):
    (tmp_path / "blocked.txt").write_text("# the source\nwiki.example/Brod\n\n")
    for config, extra in (
        ({"blocked": ["mirror.example", "wiki.example/brod/"]}, {}),
        ({"blocked": ["mirror.example"], "blocked_file": str(tmp_path / "blocked.txt")}, {}),
        ({}, {"blocked": ["doc:copy", "title:BROD"]}),
        ({"blocked": ["doc:copy"]}, {"blocked": '["https://www.wiki.example/Brod"]'}),
    ):
        found, opened, byid, mirror, other = said(
            over(corpus, **config), ("search", {"query": "mayor Brod Ana Kovac"}),
            ("open", {"page": "http://wiki.example/Brod"}),
            ("open", {"page": "doc:brod"}), ("open", {"page": "doc:copy"}), ("open", {"page": "wiki.example/Zeta"}),
            extra=extra,
        )  # fmt: skip
        assert "Kovac" not in found and "Zeta" in found
        assert opened == byid == mirror == "Error: this page is not available in this task"
        assert "Ivo Ban" in other


@pytest.mark.parametrize(
    ("entry", "address", "blocked"),
    [
        ("example.com", "https://example.com/", True),
        ("example.com", "http://WWW.Example.COM:8080/a?b#c", True),
        ("example.com", "https://deep.sub.example.com/x", True),
        ("example.com", "https://user@example.com./x", True),
        ("example.com", "https://notexample.com/", False),
        ("example.com", "https://example.com.other.net/", False),
        ("example.com", "https://example.community/", False),
        ("example.com", "https://web.archive.org/web/2020/https://www.example.com/a", True),
        ("example.com", "https://web.archive.org/web/2020/example.com", True),
        ("example.com", "https://r.jina.ai/http://example.com/a", True),
        ("example.com", "https://cache.net/?url=https%3A%2F%2Fexample.com%2Fa", True),
        ("example.com", "https://cache.net/?url=https%253A%252F%252Fexample.com", True),
        ("example.com", "https://www-example-com.translate.goog/a", True),
        ("example.com", "https://blog.net/about-example.community", False),
        ("example.com/a/b", "https://example.com/a/b", True),
        ("example.com/a/b", "https://example.com/A/%62/?q#x", True),
        ("example.com/a/b", "https://example.com//a//b/c", True),
        ("example.com/a/b", "https://example.com/a/bc", False),
        ("example.com/a/b", "https://example.com/a/./b", True),
        ("example.com/a/b", "https://example.com/x/../a/b?q", True),
        ("example.com/a/b", "https://example.com/a/x/%2e%2E/b/c", True),
        ("example.com/a/b", "https://cache.net/?url=https%3A%2F%2Fexample.com%2Fx%2F..%2Fa%2Fb", True),
        ("example.com/a/b", "https://example.com/a/b;v=1", True),
        ("example.com/a/b", "https://example.com/a/b/../c", True),  # who knows which of the two it is
        ("example.com/a/b", "https://example.com/a/../b", False),
        ("example.com/w?title=T", "https://example.com/w?title=T&action=raw", True),
        ("example.com/w?title=T", "https://example.com/w?title=Tea", False),
        ("example.com/a/b", "https://example.com/a", False),
        ("example.com/a/b", "https://web.archive.org/web/1/http://example.com/a/b", True),
        ("example.com/a/b", "https://web.archive.org/web/1/http://example.com/a/c", False),
        ("https://bücher.example/", "https://xn--bcher-kva.example/x", True),
        ("xn--bcher-kva.example", "https://BÜCHER.example/x", True),
    ],
)
def test_blocked_addresses_are_known_in_every_form(entry, address, blocked):
    assert Blocklist([entry]).blocks(address) is blocked
    assert Blocklist([entry, "doc:x"]).hides(Document("t", address)) is blocked


@pytest.mark.parametrize("value", ["not json", '{"a": 1}', 5, [5], ["no site"]])
def test_a_blocklist_of_a_task_that_cannot_be_read_is_a_bad_record(value):
    with pytest.raises(DataError, match="blocked"):
        of_task(value)


# ---- pages of the web


def web(server, **config):
    search = {"backend": "searxng", "backend_config": {"url": f"{server.url}/search"}}
    return Search(**search, allowed_addresses=[f"127.0.0.1:{server.port}"], **config)


def test_pages_of_the_web_are_fetched_and_a_blocked_one_is_not_even_behind_a_redirect():
    pages = {
        "/search": lambda handler: page({"results": [
            {"url": f"http://127.0.0.1:{handler.server.server_port}{path}", "title": path}
            for path in ("/good", "/bad", "/to-bad")
        ]})(handler),
        "/good": page("<title>Good</title><p>The mayor is Ana Kovac, as everybody knows here.</p>"),
        "/bad": page("<p>the construction data</p>"),
        "/to-bad": redirect("/bad"),
    }  # fmt: skip
    with Server(pages) as server:
        environment = web(server, blocked=[f"[::1]:{server.port}"])
        replies = said(
            environment, ("search", {"query": "x"}), ("open", {"page": "1"}), ("open", {"page": "2"}),
            ("open", {"page": f"{server.url}/bad"}), ("open", {"page": f"{server.url}/good"}),
            ("open", {"page": "http://localhost/"}), ("open", {"page": f"{server.url}/missing"}),
            extra={"blocked": ["127.0.0.1/bad"]},
        )  # fmt: skip
        assert "/good" in replies[0] and "1. /good" in replies[0] and "2. /to-bad" in replies[0]
        assert "Ana Kovac, as everybody knows" in replies[1] and replies[4] == replies[1]
        assert replies[2] == replies[3] == "Error: this page is not available in this task"
        assert replies[5] == "Error: this is no public address" and "HTTP 404" in replies[6]
        paths = [path.partition("?")[0] for _, path, _ in server.requests]
        assert paths == ["/search", "/good", "/to-bad", "/missing"]  # opened once, and /bad never


def test_a_long_page_is_summarised_where_a_summariser_is_configured():
    summary = {"choices": [{"message": {"content": "<think>.</think>In short: a page."}, "finish_reason": "stop"}]}
    pages = {"/long": page("<article>" + "".join(f"<p>Paragraph {i} with its words.</p>" for i in range(300)))}
    answers = in_turn(page(summary), page(b"no", status=400))
    with Server({**pages, "/v1/chat/completions": answers}) as server:
        environment = web(
            server, summarise_over=1000, summariser={"base_url": f"{server.url}/v1", "model": "m", "attempts": 1}
        )
        long = f"{server.url}/long"
        short, raw, failed = said(
            environment, ("open", {"page": long}), ("open", {"page": long, "offset": 0}), ("open", {"page": long})
        )
        asked = json.loads(next(body for _, path, body in server.requests if path.startswith("/v1")))
    assert "In short: a page." in short and "Paragraph 7 " not in short and "think" not in short
    assert "Paragraph 7 " in raw and "Paragraph 7 " in failed  # a summary that fails costs only itself
    assert "Who is the mayor of Brod?" in asked["messages"][0]["content"]
    assert "Paragraph 299 " in asked["messages"][0]["content"]


# ---- whose fault


GOOD = page({"result": [[{"document": {"contents": "Brod\nIts mayor is Ana Kovac."}}]]})
BAD = page(b"broken", status=500)


def failing(server, **config):
    return Search(backend="retrieval", backend_config={"url": f"{server.url}/api", "attempts": 1}, **config)


def test_a_search_that_fails_once_is_an_observation_and_the_rollout_counts():
    with Server({"/api": in_turn(BAD, GOOD)}) as server:
        lines = call("search", query="a"), call("search", query="b"), call("open", page="1"), "Answer: Ana Kovac"
        trajectory = play(failing(server), *lines)
    assert trajectory.termination is Termination.ANSWERED and trajectory.metrics["search_failures"] == 1
    assert trajectory.tool_calls[0].status is CallStatus.ERROR
    assert trajectory.messages[1]["content"] == "Error: the search service failed just now; try again"
    assert asyncio.run(SearchAnswer("rule")(trajectory)).value == 1.0


@pytest.mark.parametrize(
    "lines",
    [
        [call("search", query="a")] * 3,
        [call("search", query="a") * 3],
        [call("search", query="a"), "I do not know."],
        [call("search", query="a"), call("python", code="print(1)"), "Answer: nobody"],
    ],
    ids=["three in a row", "in one turn", "then it gives up", "then it does something else"],
)
def test_a_search_engine_that_stays_away_is_never_a_0(lines):
    with Server({"/api": BAD}) as server:
        trajectory = play(failing(server), *lines)
        assert trajectory.termination is Termination.ENVIRONMENT_LOST
        with pytest.raises(InfrastructureError):
            asyncio.run(SearchAnswer("rule")(trajectory))


def test_a_backend_that_breaks_in_itself_is_our_failure_too(corpus):
    environment = over(corpus, max_failures=1)
    environment._backend = type("Broken", (), {"web": False, "search": lambda self, *args: 1 / 0})()
    assert play(environment, call("search", query="a")).termination is Termination.ENVIRONMENT_LOST


def test_many_episodes_share_one_index_and_keep_their_own_state(corpus):
    environments = [over(corpus, max_tool_calls=i) for i in range(1, 5)]
    assert len({id(environment._backend) for environment in environments}) == 1

    async def one(environment, i):
        script = endings.Script(*[call("search", query="Brod")] * 6)
        return await Episode(task(), environment, script, endings.Letters(), EpisodeRules(), Limits(10**6, 10**6)).run()

    async def all_at_once():
        return await asyncio.gather(*(one(environment, i) for i, environment in enumerate(environments)))

    counts = [rollout.trajectory.metrics["searches"] for rollout in asyncio.run(all_at_once())]
    assert counts == [1, 2, 3, 4]
