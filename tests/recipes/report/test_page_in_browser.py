"""The page in headless Chromium, over DevTools' own protocol on a pipe: no driver is needed.

One browser for the file. Needs a Chromium: `make test` and .ci/run install Debian's chromium-headless-shell.
"""

import base64
import json
import os
import select
import shutil
import subprocess
import time

import pytest

NAMES = ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome")
DEADLINE_S = 60


class Chromium:
    """A browser with one page. `events`: everything it told, in order."""

    def __init__(self, folder):
        path = os.environ.get("CHROMIUM") or next((found for name in NAMES if (found := shutil.which(name))), None)
        if path is None:
            pytest.fail(
                "the report's page is tested in a real browser, and there is none: apt-get install "
                "chromium-headless-shell (Debian) or any Chromium, or set CHROMIUM to its path"
            )
        ours_in, theirs_out = os.pipe()
        theirs_in, ours_out = os.pipe()
        command = [
            *(path, "--headless", "--remote-debugging-pipe", "--disable-gpu", "--hide-scrollbars", "--no-first-run"),
            *("--disable-background-networking", "--disable-component-update", "--disable-dev-shm-usage"),
            # its own sandbox needs rights that a container may not give; it only sees pages of these tests
            *("--no-sandbox", f"--user-data-dir={folder}", "about:blank"),
        ]

        def wired():
            # the browser reads commands from 3 and answers on 4
            source, target = os.dup(theirs_in), os.dup(theirs_out)
            os.dup2(source, 3)
            os.dup2(target, 4)

        log = (folder / "log").open("wb")
        self.process = subprocess.Popen(
            command, preexec_fn=wired, close_fds=False, stdout=log, stderr=log, start_new_session=True
        )
        os.close(theirs_in), os.close(theirs_out)
        self._in, self._out, self._buffer, self._id = ours_in, ours_out, b"", 0
        self.events, self._session = [], None
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Network", "Log"):
            self.call(f"{domain}.enable")

    def close(self):
        self.process.kill()
        self.process.wait()
        os.close(self._in), os.close(self._out)

    def call(self, method, **params):
        self._id += 1
        message = {"id": self._id, "method": method, "params": params}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._out, json.dumps(message).encode() + b"\0")
        while True:
            told = self._read()
            if told.get("id") == self._id:
                assert "error" not in told, (method, told["error"])
                return told["result"]
            self.events.append(told)

    def _read(self):
        deadline = time.monotonic() + DEADLINE_S
        while b"\0" not in self._buffer:
            ready, _, _ = select.select([self._in], [], [], max(deadline - time.monotonic(), 0))
            assert ready, f"the browser did not answer within {DEADLINE_S} s"
            part = os.read(self._in, 1 << 20)
            assert part, "the browser ended; its log is in its user-data-dir"
            self._buffer += part
        line, _, self._buffer = self._buffer.partition(b"\0")
        return json.loads(line)

    def js(self, expression):
        told = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in told, told["exceptionDetails"]
        return told["result"].get("value")

    def show(self, path, width=1280, height=900, dark=False):
        """Loads a page anew at a width, and forgets what was told before."""
        self.call(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=width < 600
        )
        scheme = [{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}]
        self.call("Emulation.setEmulatedMedia", features=scheme)
        self.events.clear()
        self.call("Page.navigate", url=path.resolve().as_uri())
        self.loaded()

    def loaded(self):
        """Until the page that is on its way is there and drawn."""
        while not any(event["method"] == "Page.loadEventFired" for event in self.events):
            self.events.append(self._read())
        self.settle()

    def settle(self):
        self.js("new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))")

    def press(self, key, code=None):
        for kind in ("keyDown", "keyUp"):
            text = {"text": "\r"} if key == "Enter" and kind == "keyDown" else {}
            virtual = {"Enter": 13, "Tab": 9, "ArrowRight": 39, "ArrowLeft": 37, "End": 35}[key]
            self.call(
                "Input.dispatchKeyEvent", type=kind, key=key, code=code or key, windowsVirtualKeyCode=virtual, **text
            )

    def click(self, selector):
        x, y = self.js(
            f"(() => {{ const e = document.querySelector({selector!r}); e.scrollIntoView({{block: 'center'}});"
            "const b = e.getClientRects()[0]; return [b.x + b.width / 2, b.y + b.height / 2]; })()"
        )
        for kind in ("mousePressed", "mouseReleased"):
            self.call("Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left", clickCount=1)

    def move(self, selector, share):
        """The pointer to a place of an element, `share` of its width from the left."""
        x, y = self.js(
            f"(() => {{ const e = document.querySelector({selector!r}); e.scrollIntoView({{block: 'center'}});"
            f"const b = e.getBoundingClientRect(); return [b.x + b.width * {share}, b.y + b.height / 2]; }})()"
        )
        self.call("Input.dispatchMouseEvent", type="mouseMoved", x=x, y=y)

    def picture(self, path, whole=True):
        if whole:
            size = self.call("Page.getLayoutMetrics")["cssContentSize"]
            clip = {"x": 0, "y": 0, "width": size["width"], "height": min(size["height"], 12000), "scale": 1}
            told = self.call("Page.captureScreenshot", format="png", clip=clip, captureBeyondViewport=True)
        else:
            told = self.call("Page.captureScreenshot", format="png")
        path.write_bytes(base64.b64decode(told["data"]))

    def complaints(self):
        """Console messages of any kind, uncaught errors, and what breaks the page's own policy."""
        kinds = ("Runtime.consoleAPICalled", "Runtime.exceptionThrown", "Log.entryAdded")
        return [event["params"] for event in self.events if event["method"] in kinds]

    def requests(self):
        sent = [e["params"]["request"]["url"] for e in self.events if e["method"] == "Network.requestWillBeSent"]
        return [url for url in sent if not url.startswith("data:")]


@pytest.fixture(scope="session")
def browser(tmp_path_factory):
    made = Chromium(tmp_path_factory.mktemp("chromium"))
    yield made
    made.close()


@pytest.fixture(scope="module")
def page(tmp_path_factory, make):
    from rufus_plugins.recipes.report.page import write

    return write(make.usual_chain(tmp_path_factory.mktemp("runs") / "rufus_air-tiny-seed0").folder)


def test_the_page_asks_for_nothing_and_complains_of_nothing(browser, page):
    browser.show(page)
    assert browser.js("document.querySelectorAll('.rollout').length") > 10
    assert browser.complaints() == []
    assert browser.requests() == [page.resolve().as_uri()]


@pytest.mark.parametrize("width", [320, 768, 1280])
def test_no_width_scrolls_sideways_and_tables_scroll_within(browser, page, width):
    browser.show(page, width)
    browser.js("document.querySelectorAll('details').forEach((part) => (part.open = true))")
    browser.settle()
    assert browser.js("[document.documentElement.scrollWidth, document.documentElement.clientWidth]") == [width, width]
    wide = browser.js(
        "[...document.querySelectorAll('main *')].filter((e) => e.getBoundingClientRect().right > innerWidth + 0.5"
        " && !e.closest('.scroll, .chain, pre, svg')).map((e) => e.outerHTML.slice(0, 80))"
    )
    assert wide == []
    if width == 320:
        # nothing is too small to be read: charts scale their text with them
        small = browser.js(
            "[...document.querySelectorAll('.plot text')].filter((e) => e.getClientRects().length)"
            ".map((e) => e.ownerSVGElement).map((e) => 11 * e.getBoundingClientRect().width / e.viewBox.baseVal.width)"
        )
        assert len(small) > 20 and min(small) > 8.5
        assert browser.js("document.querySelector('.changes').getBoundingClientRect().right <= innerWidth"), "it fits"
        assert browser.js("document.querySelector('.guards').getBoundingClientRect().right > innerWidth"), (
            "it scrolls within"
        )


def test_stages_open_by_click_and_by_keyboard_and_links_lead_into_them(browser, page):
    browser.show(page)
    is_open = "document.getElementById('01-reasoning_rl').open"
    summary = "[id='01-reasoning_rl'] > summary"
    assert browser.js(is_open) is False
    browser.click(summary)
    assert browser.js(is_open) is True
    browser.js(f"document.querySelector({summary!r}).focus()")
    browser.press("Enter")
    assert browser.js(is_open) is False
    browser.click(".chain a[href='#01-reasoning_rl']")
    browser.js("new Promise((done) => setTimeout(done, 50))")
    assert browser.js(is_open) is True
    top = browser.js("document.getElementById('01-reasoning_rl').getBoundingClientRect().top")
    assert -2 <= top < 400
    # all that can be worked is reached by the tabulator, and shows where it is
    browser.js("document.activeElement.blur()")
    seen = set()
    for _ in range(12):
        browser.press("Tab")
        tag, outline = browser.js(
            "[document.activeElement.tagName, getComputedStyle(document.activeElement).outlineStyle]"
        )
        seen.add(tag)
        assert outline == "solid", tag
    assert {"A", "SUMMARY"} & seen


def test_charts_say_what_stands_under_the_pointer_and_under_the_arrow_keys(browser, page):
    browser.show(page)
    browser.js("document.getElementById('01-reasoning_rl').open = true")
    plot = "[id='01-reasoning_rl'] figure.chart svg.plot"
    said = f"document.querySelector({plot!r}).parentElement.querySelector('.readout').textContent"
    assert browser.js(said) == "step 30 · trained on 0.3 · generated, before the filter 0.15"
    browser.move(plot, 48 / 300)  # the left end of the axis
    assert browser.js(said) == "step 1 · trained on 0.01 · generated, before the filter 0.005"
    browser.move(plot, (48 + 243 / 2) / 300)
    assert browser.js(said) in [
        f"step {n} · trained on {n / 100:g} · generated, before the filter {n / 200:g}" for n in (15, 16)
    ]
    browser.js(f"document.querySelector({plot!r}).focus()")
    browser.press("End")
    assert browser.js(said).startswith("step 30 ")
    browser.press("ArrowLeft")
    assert browser.js(said).startswith("step 29 ")


def test_a_token_tells_its_probability_on_hover_tap_and_arrow_keys(browser, page):
    browser.show(page)
    browser.js("document.getElementById('01-reasoning_rl').open = true")
    token = "[id='01-reasoning_rl'] .tokens i[data-n='5']"
    said = f"document.querySelector({token!r}).closest('.rollout').querySelector('.token-readout').textContent"
    browser.move(token, 0.5)
    assert browser.js(said) == "token 5 · sampled · log-probability −0.5 · probability 0.607"  # exp(-0.5)
    browser.click(token.replace("'5'", "'7'"))
    assert browser.js(said) == "token 7 · tool or environment"
    browser.js(f"document.querySelector({token!r}).closest('.tokens').focus()")
    browser.press("ArrowRight")
    assert browser.js(said) == "token 8 · sampled · log-probability −0.8 · probability 0.449"  # exp(-0.8)


def test_commands_are_copied(browser, page):
    browser.show(page)
    browser.call("Browser.grantPermissions", permissions=["clipboardReadWrite", "clipboardSanitizedWrite"])
    browser.js("document.getElementById('01-reasoning_rl').open = true")
    browser.js("document.getElementById('01-reasoning_rl-command').open = true")
    button = "[id='01-reasoning_rl-command'] .copy"
    browser.click(button)
    browser.js("new Promise((done) => setTimeout(done, 50))")
    assert browser.js(f"document.querySelector({button!r}).textContent") in ("Copied", "Selected")
    copied = browser.js("navigator.clipboard.readText().catch(() => String(getSelection()))")
    assert copied.strip() == "python -m verl.trainer.main_ppo --config-name rufus stage=reasoning_rl scale=tiny"


def test_a_living_run_loads_itself_anew_and_keeps_what_is_open_and_where_one_reads(browser, page):
    """The page's own timer is called by hand, so that nobody waits for 15 s."""
    hold = "window.timers = []; window.setInterval = (what, ms) => timers.push([what, ms]);"
    held = browser.call("Page.addScriptToEvaluateOnNewDocument", source=hold)["identifier"]
    try:
        browser.show(page, 320)
        assert browser.js("timers.map((timer) => timer[1])") == [15000]
        browser.click("#pause")
        browser.js("window.same = true")
        browser.js("timers[0][0]()")
        browser.js("new Promise((done) => setTimeout(done, 100))")
        assert browser.js("window.same") is True, "a paused page stays"
        browser.click("#pause")
        browser.js("window.now = Date.now; Date.now = () => now() + 601000")
        browser.js("timers[0][0]()")
        browser.js("new Promise((done) => setTimeout(done, 100))")
        assert browser.js("window.same") is True, "so does one that nobody has written for ten minutes"
        browser.js("Date.now = now")
        browser.js("document.getElementById('01-reasoning_rl').open = true")
        browser.js("document.getElementById('03-general_agent').open = false")
        browser.js("document.querySelector('.guards').parentElement.scrollLeft = 40")
        browser.js("scrollTo(0, 900)")
        browser.events.clear()
        browser.js("void setTimeout(timers[0][0], 20)")  # after this call has its answer
        browser.loaded()
        assert browser.js("typeof same") == "undefined"
        states = "['01-reasoning_rl', '03-general_agent'].map((id) => document.getElementById(id).open)"
        assert browser.js(states) == [True, False]
        assert browser.js("[scrollY, document.querySelector('.guards').parentElement.scrollLeft]") == [900, 40]
        assert browser.js("document.getElementById('pause').textContent") == "Pause"
    finally:
        browser.call("Page.removeScriptToEvaluateOnNewDocument", identifier=held)


def colours(browser, selectors):
    """Selector -> [colour, what lies behind it], as [r, g, b]; backgrounds that let through take what is behind."""
    return browser.js(
        "(() => { const rgb = (text) => (text.match(/[\\d.]+/g) || []).map(Number);"
        "const behind = (e) => { for (; e; e = e.parentElement) { const c = rgb(getComputedStyle(e).backgroundColor);"
        "if (c.length === 3 || c[3] === 1) return c.slice(0, 3); } return [255, 255, 255]; };"
        f"return {json.dumps(selectors)}.map((s) => {{ const e = document.querySelector(s);"
        "const style = getComputedStyle(e); const svg = e instanceof SVGElement;"
        "return [s, rgb(svg ? style.fill : style.color).slice(0, 3), behind(e)]; }); })()"
    )


def contrast(one, two):
    """WCAG 2.2's contrast ratio."""

    def light(rgb):
        linear = [c / 255 / 12.92 if c / 255 <= 0.04045 else ((c / 255 + 0.055) / 1.055) ** 2.4 for c in rgb]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    high, low = sorted((light(one), light(two)), reverse=True)
    return (high + 0.05) / (low + 0.05)


def test_the_contrast_is_that_of_the_standard():
    assert contrast([0, 0, 0], [255, 255, 255]) == pytest.approx(21)
    assert contrast([118, 118, 118], [255, 255, 255]) == pytest.approx(4.54, abs=0.01)


TEXTS = [
    "body", "a", "small", ".note", ".run-facts", ".live", "button", ".chain .meta", ".state.done", ".state.running",
    ".verdict.rose", ".verdict.noise", ".guards td.fell", ".guards td.fell small", ".guards td.own", ".guards td.none",
    ".badge", ".badge.warn", ".facts", ".why", ".metrics dt", ".tok.sampled", ".tok.told", ".tok.masked", ".plot text",
    ".readout", ".chart .note", ".legend", ".token-readout", ".prompt summary", "thead th", ".open",
]  # fmt: skip


@pytest.mark.parametrize("dark", [False, True])
def test_text_is_readable_in_light_and_in_the_dark(browser, page, dark):
    browser.show(page, dark=dark)
    body = browser.js("getComputedStyle(document.body).backgroundColor")
    assert body == ("rgb(20, 23, 27)" if dark else "rgb(255, 255, 255)")
    for selector, text, behind in colours(browser, TEXTS):
        assert contrast(text, behind) >= 4.5, (selector, text, behind, contrast(text, behind))


def seen_by(rgb, deficiency):
    """Machado, Oliveira, Fernandes 2009, severity 1, on linear colours."""
    matrix = {
        "protan": [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]],
        "deutan": [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.011820, 0.042940, 0.968881]],
    }[deficiency]
    linear = [(c / 255 / 12.92 if c / 255 <= 0.04045 else ((c / 255 + 0.055) / 1.055) ** 2.4) for c in rgb]
    return [min(max(sum(m * c for m, c in zip(row, linear, strict=True)), 0), 1) for row in matrix]


@pytest.mark.parametrize("dark", [False, True])
def test_kinds_differ_for_the_colour_blind_and_without_any_colour(browser, page, dark):
    browser.show(page, dark=dark)
    kinds = [".tok.sampled", ".tok.told", ".tok.masked"]
    lines = browser.js(
        f"{json.dumps(kinds)}.map((s) => {{ const c = getComputedStyle(document.querySelector(s));"
        "return [c.borderBottomStyle, c.borderBottomColor.match(/[0-9]+/g).slice(0, 3).map(Number)]; })"
    )
    assert len({style for style, _ in lines}) == 3, "underlines differ without colour"
    for deficiency in ("protan", "deutan"):
        sampled, told, masked = (seen_by(rgb, deficiency) for _, rgb in lines)
        for one, two in ((sampled, told), (sampled, masked), (told, masked)):
            assert sum((a - b) ** 2 for a, b in zip(one, two, strict=True)) ** 0.5 > 0.1
    curves = browser.js(
        "(() => { const all = [...document.querySelectorAll('figure')];"
        "const f = all.find((f) => f.textContent.includes('Seconds per step'));"
        "return [...f.querySelectorAll('path.line[data-name]')].map((p) => getComputedStyle(p).strokeDasharray); })()"
    )
    assert len(curves) == len(set(curves)) == 4, "lines differ by their dashes"
    areas = browser.js(
        "(() => { const all = [...document.querySelectorAll('figure')];"
        "const f = all.find((f) => f.textContent.includes('Groups kept'));"
        "return [...f.querySelectorAll('path.area')].map((p) => getComputedStyle(p).fill); })()"
    )
    assert len(areas) == len(set(areas)) == 4 and all("url(" in fill for fill in areas), (
        "areas differ by their hatching"
    )


def test_hostile_rollouts_do_nothing(browser, make, tmp_path):
    from rufus_plugins.recipes.report.page import write

    chain = make.Chain(tmp_path / "run")
    folder = chain.stage(0, "coding_rl", None, "a" * 40, "b" * 40)
    evil = (
        "<script>window.hacked = 1</script></script><script>window.hacked = 2</script>--><img src=http://127.0.0.1:9/x "
        "onerror='window.hacked = 3'>\u2028\u202e\x00\ud800<svg onload='window.hacked = 4'>"
        "<style>*{display:none}</style><iframe srcdoc='<script>parent.hacked = 5</script>'></iframe>"
        "<a href='javascript:hacked=6' id=pause>x</a>"
    )
    record = make.sample(1, explanation=evil, task=evil, termination=evil, metrics={evil: evil}, group=evil)
    record["segments"][0]["parts"][0]["texts"][:4] = [evil] * 4
    record["segments"][0]["prompt"] = evil
    chain.lines(f"{folder}/samples/step-000001.jsonl", [record, make.sample(1, 1)])
    browser.show(write(chain.folder), 320)
    browser.js("document.querySelectorAll('details').forEach((part) => (part.open = true))")
    browser.settle()
    assert browser.js("[typeof hacked, document.querySelectorAll('iframe, img').length]") == ["undefined", 0]
    assert browser.js("[document.documentElement.scrollWidth, getComputedStyle(document.body).display]") == [
        320,
        "block",
    ]
    assert browser.complaints() == [] and len(browser.requests()) == 1
    assert "window.hacked = 1" in browser.js("document.querySelector('.tokens').textContent")
