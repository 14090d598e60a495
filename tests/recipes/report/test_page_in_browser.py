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
            *(["--no-sandbox"] if os.getuid() == 0 else []),
            *(f"--user-data-dir={folder}", "about:blank"),
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
        self.settle()

    def settle(self):
        deadline = time.monotonic() + DEADLINE_S
        while self.js("document.readyState") != "complete" or self.js("location.href") == "about:blank":
            assert time.monotonic() < deadline, "the page did not load"
            time.sleep(0.02)
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
