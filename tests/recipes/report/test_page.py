"""What the page shows, read back out of its HTML and compared with figures worked out by hand."""

import json
import re
from html.parser import HTMLParser
from pathlib import Path

import pytest

from rufus_plugins.recipes import report as recipe
from rufus_plugins.recipes.report.charts import nice_ticks
from rufus_plugins.recipes.report.findings import findings, guards, mean_reward
from rufus_plugins.recipes.report.page import page, write
from rufus_plugins.recipes.report.run_folder import load
from rufus_plugins.recipes.report.text import visible

VOID = {"meta", "link", "br", "path", "rect", "circle", "line"}


class Element:
    def __init__(self, tag, attributes, parent):
        self.tag, self.attributes, self.parent, self.children = tag, dict(attributes), parent, []

    @property
    def text(self):
        return "".join(child if isinstance(child, str) else child.text for child in self.children)

    def all(self, tag=None, **wanted):
        for child in self.children:
            if not isinstance(child, str):
                classes = child.attributes.get("class", "").split()
                named = {k.replace("_", "-"): v for k, v in wanted.items() if k != "cls"}
                if (
                    (tag is None or child.tag == tag)
                    and ("cls" not in wanted or wanted["cls"] in classes)
                    and all(child.attributes.get(k) == v for k, v in named.items())
                ):
                    yield child
                yield from child.all(tag, **wanted)

    def one(self, tag=None, **wanted):
        found = list(self.all(tag, **wanted))
        assert len(found) == 1, (tag, wanted, len(found))
        return found[0]


class Tree(HTMLParser):
    """Raises where an end tag does not fit: hostile text would show here first."""

    def __init__(self):
        super().__init__(convert_charrefs=True)
        self.root = self.at = Element("root", [], None)

    def handle_starttag(self, tag, attributes):
        made = Element(tag, attributes, self.at)
        self.at.children.append(made)
        if tag not in VOID:
            self.at = made

    def handle_startendtag(self, tag, attributes):
        self.at.children.append(Element(tag, attributes, self.at))

    def handle_endtag(self, tag):
        if tag in VOID:
            return
        assert self.at.tag == tag, f"</{tag}> closes <{self.at.tag}>"
        self.at = self.at.parent

    def handle_data(self, data):
        self.at.children.append(data)


def parse(text):
    tree = Tree()
    tree.feed(text)
    tree.close()
    assert tree.at is tree.root
    return tree.root


@pytest.fixture
def root(usual):
    return parse(write(usual.folder).read_text(encoding="utf-8"))


def charts(stage):
    return {figure.one("figcaption").text: figure for figure in stage.all("figure")}


def series(figure):
    """Name -> {step: value} of what stands under the pointer."""
    shared = figure.one("svg", cls="plot").attributes["data-x"]
    found = {}
    for path in figure.all("path"):
        if "data-name" in path.attributes:
            steps = path.attributes.get("data-x", shared).split(",")
            values = path.attributes["data-y"].split(",")
            found[path.attributes["data-name"]] = {int(s): float(v) for s, v in zip(steps, values, strict=True) if v}
    return found


def test_before_and_after_show_the_figures_and_what_they_mean(root):
    rows = [[cell.text for cell in row.children] for row in root.one(id="changes").all("tr")]
    text = " | ".join(" ".join(row) for row in rows)
    first = rows.index(next(row for row in rows if row[0].startswith("reasoning_rl")))
    assert "best constant answer: 0.125" in rows[first][0] and "20 items, 4 samples each" in rows[first][0]
    # 1 of 4 before and 3 of 4 after, for every item: means, pass@1; any of 4 passes in both; greedy from 0 to 1
    assert rows[first + 1][:3] == ["mean reward", "0.250", "0.750"] and "+0.500[+0.500, +0.500]" in rows[first + 1][3]
    assert rows[first + 2][:3] == ["pass@1", "0.250", "0.750"] and "▲ rose" in rows[first + 2][3]
    assert rows[first + 3][:3] == ["pass@4", "1.000", "1.000"] and "≈ within noise" in rows[first + 3][3]
    assert rows[first + 4][:3] == ["greedy", "0.000", "1.000"] and "+1.000" in rows[first + 4][3]
    second = rows.index(next(row for row in rows if row[0].startswith("coding_rl ")))
    assert rows[second + 1][:3] == ["mean reward", "0.500", "0.500"] and "within noise" in rows[second + 1][3]
    assert "coding_rl@lower-lr" in text and "its end was not measured" in text


def test_the_interval_of_a_mean_of_twenty_coin_flips_is_about_what_theory_says(usual):
    """Gains are +1/4 and -1/4 in equal numbers: the bootstrap's mean has the deviation 0.25 / sqrt(20)."""
    [change] = [f.change for f in findings(load(usual.folder)) if f.stage.name == "coding_rl" and f.change]
    expected = 1.96 * 0.25 / 20**0.5
    assert change.mean.gain.high == pytest.approx(expected, abs=0.02)
    assert change.mean.gain.low == pytest.approx(-expected, abs=0.02)


def test_forgetting_shows_in_the_guards(root):
    table = root.one("table", cls="guards")
    head = [cell.text for cell in table.one("thead").all("th")]
    assert [re.sub(r"[a-e]{7}$", "", name) for name in head[1:]] == ["base", "sft", "reasoning_rl", "coding_rl"]
    first, second = list(table.one("tbody").all("tr"))
    cells = list(first.all("td"))
    assert [cell.text for cell in cells[:3]] == ["0.000", "0.250", "0.750"] and cells[3].text.startswith("0.500")
    assert "own" in cells[2].attributes["class"] and "fell" in cells[3].attributes["class"]
    assert "▼ −0.250" in cells[3].text and "fell since its own stage" in cells[3].text
    assert [cell.text[:5] for cell in second.all("td")] == ["–", "–", "0.500", "0.500"]


def test_measurements_under_different_protocols_are_not_compared(make, tmp_path):
    chain = make.Chain(tmp_path)
    chain.stage(0, "reasoning_rl", None, "a" * 40, "b" * 40)
    chain.measured(make.protocol("reasoning_rl", max_tokens=64), "a" * 40, lambda n: 1)
    chain.measured(make.protocol("reasoning_rl", max_tokens=96), "b" * 40, lambda n: 4)
    [finding] = findings(load(chain.folder))
    assert finding.change is None and finding.refused
    root = parse(page(load(chain.folder)))
    told = root.one(id="changes").one("td", cls="refused").text
    assert "not compared" in told and "max_tokens: 64, 96" in told
    assert "rose" not in root.one(id="changes").one("tbody").text
    rows = guards(load(chain.folder))
    assert len(rows) == 2 and "max_tokens" in rows[1].unlike
    assert "differs in max_tokens" in root.one(id="guards").text


def test_a_branch_is_compared_with_its_own_start_and_drawn_in_its_own_lane(usual, make):
    second = make.protocol("coding_rl")
    usual.measured(second, "e" * 40, lambda n: 4)
    run = load(usual.folder)
    found = {f.stage.label: f.change for f in findings(run)}
    assert found["coding_rl@lower-lr"].mean.gain.value == 0.5 and found["coding_rl"].mean.gain.value == 0.0
    root = parse(page(run))
    names = [row.all("a") for row in root.one("ol").all("li")]
    assert [link.text for links in names for link in links] == [
        "00 sft", "01 reasoning_rl", "02 coding_rl", "02 coding_rl@lower-lr", "03 general_agent",
    ]  # fmt: skip
    picture = root.one("svg", cls="gutter")
    nodes = [(float(c.attributes["cx"]), float(c.attributes["cy"])) for c in picture.all("circle")]
    assert len({x for x, _ in nodes}) == 2 and nodes[4][0] > nodes[3][0] == nodes[5][0]
    assert len(list(picture.all("path", cls="edge"))) == 5
    said = picture.attributes["aria-label"]
    assert "coding_rl@lower-lr, done, from reasoning_rl" in said and "general_agent, running, from coding_rl" in said


def test_curves_hold_the_logged_numbers(root):
    stage = charts(root.one("details", id="01-reasoning_rl"))
    reward = series(stage["Reward"])
    assert reward["trained on"] == {step: pytest.approx(step / 100) for step in range(1, 31)}
    assert reward["generated, before the filter"][30] == 0.15
    assert series(stage["Response length"])["longest"][1] == 61
    assert series(stage["Truncated rollouts"])["generated"][4] == 0.25
    assert series(stage["Route match"])["under the weights that sampled"][7] == 1
    assert series(stage["KL"])["policy moved within the step"][30] == pytest.approx(0.03)
    assert series(stage["Gradient norm"])["norm"][2] == 0.5
    assert series(stage["Seconds per step"])["generation"][9] == 4
    kept = series(stage["Groups kept and dropped"])
    assert {name: values[1] for name, values in kept.items()} == {
        "kept": 0.6, "below band": 0.2, "above band": 0.1, "zero variance": 0.1,
    }  # fmt: skip
    endings = series(stage["How rollouts ended"])
    assert {name: values[30] for name, values in endings.items()} == {
        "answered": 0.9, "max turns": 0.06, "response length": 0.04,
    }  # fmt: skip
    band = series(stage["Curriculum band"])
    assert {name: values[5] for name, values in band.items()} == {"below": 0.25, "inside": 0.5, "above": 0.25}


def test_without_a_history_the_band_comes_from_the_filters_counts(root):
    """Below 2, above 1, kept 6 of each step; groups without variance are on no side."""
    band = series(charts(root.one("details", id="02-coding_rl"))["Curriculum band"])
    assert {name: values[5] for name, values in band.items()} == {
        "below": pytest.approx(2 / 9, abs=1e-3), "inside": pytest.approx(6 / 9, abs=1e-3),
        "above": pytest.approx(1 / 9, abs=1e-3),
    }  # fmt: skip


def test_lines_are_drawn_where_their_numbers_are(root):
    """The last point of the reward, 0.3, lies on the uppermost line of the grid, its tick."""
    figure = charts(root.one("details", id="01-reasoning_rl"))["Reward"]
    path = next(p for p in figure.all("path") if p.attributes.get("data-name") == "trained on").attributes["d"]
    points = [tuple(map(float, p.split())) for p in re.split("[ML]", path)[1:]]
    grid = {}
    for label in figure.one("svg", cls="plot").all("text"):
        if label.attributes.get("text-anchor") == "end" and "." in label.text:
            grid[float(label.text)] = float(label.attributes["y"]) - 3.5
    assert points[-1][1] == pytest.approx(grid[0.3], abs=0.1)
    assert points[9][1] == pytest.approx(grid[0.1], abs=0.1)  # step 10
    assert (
        len({round(b[0] - a[0], 1) for a, b in zip(points, points[1:], strict=False)}) <= 3
    )  # steps are equally far apart


@pytest.mark.parametrize("low, high", [(0, 1), (0.99, 1), (-3e-9, 2e-9), (5, 5), (0, 0), (1e6, 3.2e6), (-7, -6.5)])
def test_ticks_are_few_and_reach_around_the_numbers(low, high):
    ticks = nice_ticks(low, high)
    assert ticks[0] <= low and ticks[-1] >= high and 3 <= len(ticks) <= 7


def test_sft_shows_both_losses_the_picked_step_and_the_mixture_in_both_views(root):
    stage = root.one("details", id="00-sft")
    loss = charts(stage)["Loss"]
    assert series(loss)["training"][3] == 1.0 and series(loss)["held-out"] == {10: 0.4, 20: 0.2, 30: 0.1333}
    mark = loss.one("line", cls="mark")
    assert loss.one("text", cls="mark-name").text == "picked: step 20"
    points = re.split(
        "[ML]", next(p for p in loss.all("path") if p.attributes.get("data-name") == "held-out").attributes["d"]
    )
    assert float(points[2].split()[0]) == pytest.approx(float(mark.attributes["x1"]), abs=0.1)
    rows = [[cell.text for cell in row.children] for row in stage.one("table", cls="mixture").one("tbody").all("tr")]
    assert rows == [["math", "75.0% (30)", "75.0% (3000)"], ["agent", "25.0% (10)", "25.0% (1000)"]]


def test_what_verl_logs_is_what_the_curves_know(empty):
    """Six lines of a real run of the demo: every chart that such a run has numbers for is there."""
    lines = (Path(__file__).parent / "verl_rl_metrics.jsonl").read_text()
    folder = empty.stage(0, "coding_rl", None, "a", "b")
    empty.write(f"{folder}/metrics/rl-000.jsonl", lines)
    stage = parse(page(load(empty.folder))).one("details", id="00-coding_rl")
    told = [json.loads(line) for line in lines.splitlines()]
    assert {"Reward", "Response length", "Truncated rollouts", "KL", "Gradient norm", "Seconds per step", "Entropy",
            "Groups kept and dropped", "How rollouts ended", "Curriculum band"} <= set(charts(stage))  # fmt: skip
    reward = series(charts(stage)["Reward"])["trained on"]
    assert reward == {line["step"]: pytest.approx(line["data"]["critic/score/mean"], rel=1e-3) for line in told}
    assert "Not logged in this stage: route match" in stage.text


def test_samples_show_tokens_by_kind_with_log_probabilities_and_why_they_scored(root):
    stage = root.one("details", id="01-reasoning_rl")
    steps = list(stage.all("details", cls="step"))
    assert [next(s.all("summary")).text for s in steps] == ["step 30", "step 20", "step 10", "step 1"]
    best, *_, masked = list(steps[0].all("article"))
    assert "score 1" in best.text and "best of the step" in best.text and "the price 3" in best.text
    kinds = {kind: "".join(e.text for e in best.all("span", cls=kind)) for kind in ("sampled", "told", "masked")}
    assert kinds == {"sampled": "Let me see.<tool_call>lookup</tool_call> So: 3", "told": "apple costs 3", "masked": ""}
    tokens = {int(i.attributes["data-n"]): i for i in best.all("i")}
    assert tokens[6].attributes["data-p"] == "-0.6" and "data-p" not in tokens[7].attributes
    assert "left out of the loss" in masked.text and "response_length" in masked.text
    assert "".join(e.text for e in masked.all("span", cls="masked")).startswith("Let me see.")


def test_a_stage_says_how_much_data_it_had_and_what_a_constant_answer_earns(root):
    notes = [note.text for note in root.one("details", id="01-reasoning_rl").all("p", cls="note")]
    assert "Data: sft 320 · rl 640 · heldout 20 · best constant answer 0.125" in notes


def test_the_head_says_with_what_the_run_was_asked_for(make, tmp_path):
    own = {"sft": ["engine.seed=3"], "rlhf": "no list"}
    chain = make.Chain(tmp_path, overrides=["trainer.total_training_steps=9"], own=own)
    head = parse(page(load(chain.folder))).one("p", cls="run-facts").text
    assert "with trainer.total_training_steps=9 sft:engine.seed=3 ·" in head
    assert "code 0.1.0 abcdef123456" in head and "created 2026-01-02" in head


def test_commands_and_configs_are_there_to_copy(root):
    stage = root.one("details", id="02-coding_rl")
    command = stage.one("details", id="02-coding_rl-command")
    assert command.one("pre").text == "python -m verl.trainer.main_ppo --config-name rufus stage=coding_rl scale=tiny\n"
    assert command.one("button").text == "Copy" and "open" not in command.attributes
    assert "reward: {name: coding_rl}" in stage.one("details", id="02-coding_rl-config").text


HOSTILE = [
    "<script>parent.hacked = 1</script>", "</script><img src=x onerror=alert(1)>", "--><b>bold</b><!--", "]]>",
    "&lt;b&gt;", '" onmouseover="alert(1)" x="', "' autofocus onfocus='alert(1)", "line\u2028separator\u2029end",
    "\u202eright to left\u202c", "nul\x00bell\x07escape\x1b[31mred", "half \ud800 pair \udfff", "<!--", "\ufffe\uffff",
    "</pre></article></details></main>", "<style>*{display:none}</style>", "<svg/onload=alert(1)>",
    "javascript:alert(1)", "{{7*7}}${7*7}", "\r\n\r",
]  # fmt: skip


def test_hostile_text_stays_text_wherever_it_comes_from(empty, make, tmp_path):
    folder = empty.stage(0, "coding_rl", None, "a", "b")
    everywhere = "".join(HOSTILE)
    told = json.loads((empty.folder / folder / "stage.json").read_text())
    empty.write(f"{folder}/stage.json", told | {"name": everywhere, "branch": everywhere, "error": everywhere,
                                                "parent": {"stage": everywhere, "digest": everywhere}})  # fmt: skip
    empty.write(f"{folder}/command.txt", everywhere.encode("utf-8", "replace").decode())
    names = (f"val-core/{everywhere}/mean@4", f"rufus/endings/{everywhere.replace('/', '')}/total")
    empty.lines(f"{folder}/metrics/m.jsonl", [{"step": 1, "data": dict.fromkeys(names, 1.0)}])
    record = make.sample(1)
    part = record["segments"][0]["parts"][0]
    part |= {"texts": [*HOSTILE], "kinds": ("smt" * 9)[: len(HOSTILE)], "logprobs": [-1.0] * len(HOSTILE)}
    record |= {"explanation": everywhere, "metrics": {everywhere: everywhere}, "termination": everywhere,
               "task": everywhere, "group": everywhere, "data_source": everywhere}  # fmt: skip
    record["segments"][0]["prompt"] = everywhere
    empty.lines(f"{folder}/samples/step-000001.jsonl", [record])
    empty.event(everywhere, everywhere, everywhere)
    of = make.protocol(
        everywhere.encode("utf-8", "replace").decode(), "coding_rl", baseline={"kind": everywhere, "share": 0.5}
    )
    for digest in ("a", "b"):
        empty.measured(of, digest, lambda n: 1)
    text = write(empty.folder).read_text(encoding="utf-8")  # which half a surrogate pair would have prevented
    root = parse(text)
    ours = re.findall(r"<([a-z]\w*)", "".join(p.read_text() for p in Path(recipe.__file__).parent.glob("*.py")))
    assert {element.tag for element in root.all()} <= {*ours, "b"}
    assert not [e for e in root.all("b") if e.text == "bold"]
    assert len(list(root.all("script"))) == len(list(root.all("style"))) == 1 and not list(root.all("img"))
    assert not [k for element in root.all() for k in element.attributes if k.startswith("on") or k == "autofocus"]
    for element in root.all():
        for name in ("href", "src"):
            assert element.attributes.get(name, "#").startswith(("#", "data:,")), element.attributes
    shown = "".join(i.text for i in root.one("div", cls="tokens").all("i"))
    assert shown == "".join(visible(piece) for piece in HOSTILE)
    for sign in ("␀", "␇", "␛[31m", "⟨U+202E⟩", "⟨U+2028⟩", "⟨U+D800⟩", "⟨U+FFFE⟩"):
        assert sign in shown
    assert not re.search("[\x00-\x08\x0b-\x1f\u2028-\u202e\ud800-\udfff]", text)


def test_what_is_long_is_cut_and_says_so(empty, make):
    folder = empty.stage(0, "coding_rl", None, "a", "b")
    long = make.sample(1, explanation="x" * 1_000_000)
    long["segments"][0]["parts"][0] |= {
        "texts": ["y" * 1_000_000, *["z"] * 50_000], "kinds": "s" * 50_001, "logprobs": [-0.5] * 50_001,
    }  # fmt: skip
    long["segments"][0]["prompt"] = "p" * 1_000_000
    empty.lines(f"{folder}/samples/step-000001.jsonl", [long, make.sample(1, 1)])
    text = write(empty.folder).read_text()
    assert len(text) < 300_000
    for words in ("990000 characters left out", "998000 characters left out", "48801 tokens left out"):
        assert words in text, words


def test_a_long_stage_makes_no_larger_page(empty, make):
    """240 points a curve and 4 steps of rollouts; eight such stages leave room in 5 MB for 2.4 MB of rollouts."""
    folder = empty.stage(0, "coding_rl", None, "a", "b")
    empty.rl(folder, steps=5000, every=100)
    text = page(load(empty.folder))
    assert len(text) < (5e6 - 2.4e6) / 8
    stage = parse(text).one("details", id="00-coding_rl")
    reward = series(charts(stage)["Reward"])["trained on"]
    assert len(reward) <= 240 and max(reward) == 5000
    # 21 steps in each of 238 buckets, 2 in the last; the bucket before is that of steps 4978 to 4998
    assert len(reward) == 239 and reward[5000] == pytest.approx((49.99 + 50) / 2, abs=0.006)
    assert reward[4998] == pytest.approx(49.88, abs=0.006)
    shown = [next(step.all("summary")).text for step in stage.all("details", cls="step")]
    assert shown[0] == "step 5000" and shown[-1] == "step 1" and len(shown) == 4
    assert "51 steps were kept, 4 are shown" in stage.text
    assert "Each point is the mean of 21 steps" in stage.text


def test_mean_reward_counts_items_alike_and_leaves_unscored_samples_out():
    items = {"a": {"scores": [1.0, 0.0, None]}, "b": {"scores": [1.0]}, "c": {"scores": [None]}}
    assert mean_reward({"items": items}) == 0.75
    assert str(mean_reward({"items": {}})) == "nan"
