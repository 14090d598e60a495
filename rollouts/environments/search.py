"""Search, pages and an isolated Python: the environment of the Search Agent (Rufus-Air) and of Axion's RL.

    environment=search reward=search_answer rufus.environment.backend_config.path=CORPUS

Tools: `search(query)`, `open(page, offset)`, `python(code)`. At most 100 calls when training, 200 when evaluating
(Rufus-Air); calls beyond that are answered with an error, and a turn that then calls again ends `tool_budget`.

Whose fault a failure is. A page that cannot be had is the web's: the model reads why. A search that fails after its
tries (BackendFailed) is ours: the model reads that it may search again, but `max_failures` in a row, or one after which
no search worked when the episode ends, make the rollout `environment_lost`. So no answer is scored 0 for lack of a
search engine.
"""

from __future__ import annotations

import asyncio
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from rufus_plugins.errors import ConfigError, InfrastructureError, SandboxUnavailable
from rufus_plugins.rollouts.environments.search_addresses import AddressRules, Refused
from rufus_plugins.rollouts.environments.search_backends import Backend, BackendFailed, Document, backend
from rufus_plugins.rollouts.environments.search_blocklist import Blocklist, blocklist, of_task
from rufus_plugins.rollouts.environments.search_fetch import FetchRules, PageFailed
from rufus_plugins.rollouts.environments.search_pages import PageRules, read_page
from rufus_plugins.rollouts.environments.search_summary import Summariser, summariser
from rufus_plugins.rollouts.tools import FunctionTool, Tool, Toolbox, ToolResult, cut, tool_message
from rufus_plugins.rollouts.validation import for_task, for_validation
from rufus_plugins.types import CallStatus, Message, StepResult, Task, Termination

_NEVER_S = 86_400.0
"""The tools have deadlines of their own; one of the toolbox would turn our slowness into the model's failure."""
_KEPT_PAGES, _KEPT_RESULTS = 8, 400


@dataclass
class Search:
    """Tools search, open and python over a local corpus, a retrieval server or the web."""

    backend: str = "corpus"
    """corpus, retrieval, searxng, serper, or package.module:Class (search_backends.py)."""
    backend_config: dict[str, Any] = field(default_factory=dict)
    """Fields of the backend; `corpus` needs `path`."""
    max_tool_calls: int = 100
    validation: dict[str, Any] = field(default_factory=lambda: {"max_tool_calls": 200})
    """Fields that differ in validation: the budget, and perhaps the backend."""
    results: int = 10
    """Per search. Ours, as all below."""
    result_chars: int = 1000
    """Of one result's text."""
    web: bool | None = None
    """Whether pages are fetched from the web; null: where the backend's results are pages of the web."""
    page_chars: int = 8000
    """Of a page that one call shows."""
    page_links: bool = False
    """Whether the addresses behind links are shown."""
    max_page_bytes: int = 5 << 20
    page_timeout_s: float = 30.0
    max_redirects: int = 5
    user_agent: str = FetchRules.user_agent
    ports: list[int] = field(default_factory=lambda: [80, 443])
    allowed_addresses: list[str] = field(default_factory=list)
    """Hosts, addresses or networks (with :PORT if one port is meant) that may be opened though they are not public."""
    blocked: list[str] = field(default_factory=list)
    """Sites, pages, doc:ID and title:TEXT that the solver must not see; `task.extra["blocked"]` adds to it."""
    blocked_file: str = ""
    """A file of such entries, one a line."""
    summariser: dict[str, Any] | None = None
    """{base_url, model, ...}: a model that summarises pages longer than `summarise_over` characters."""
    summarise_over: int = 20_000
    python_tool: bool = True
    python_timeout_s: float = 30.0
    python_memory_mb: int = 1024
    python_chars: int = 20_000
    """Of one program's output; the middle is left out."""
    max_failures: int = 3
    """Failed searches in a row that end the rollout as `environment_lost`."""

    def __post_init__(self) -> None:
        for name in ("results", "result_chars", "page_chars", "max_page_bytes", "page_timeout_s", "summarise_over"):
            self._positive(name)
        for name in ("python_timeout_s", "python_memory_mb", "python_chars", "max_failures"):
            self._positive(name)
        if self.max_tool_calls < 0 or self.max_redirects < 0:
            raise ConfigError("rufus.environment: max_tool_calls and max_redirects are 0 or more")
        self._backend: Backend = backend(self.backend, self.backend_config)
        self._rules = PageRules(
            FetchRules(
                AddressRules(self.ports, self.allowed_addresses),
                self.page_timeout_s,
                self.max_page_bytes,
                self.max_redirects,
                self.user_agent,
            ),
            links=self.page_links,
        )
        self._blocked: list[Blocklist] = [blocklist(self.blocked, self.blocked_file)]
        self._summariser: Summariser | None = summariser(self.summariser)
        if self.validation:
            for_validation(self)  # a wrong field is told now
        self.tools: Sequence[Mapping[str, Any]] = ()
        self._episode: _Episode | None = None

    async def start(self, task: Task) -> Sequence[Message]:
        chosen = for_task(self, task)
        self._episode = _Episode(chosen, task)
        if chosen.needs_jail:
            await _jail()
        self.tools = self._episode.box.schemas
        return task.prompt

    async def step(self, message: Message) -> StepResult:
        return await self._episode.step(message)

    async def finish(self) -> Mapping[str, Any]:
        """`evidence`: what the model was shown before it answered, for `search_answer`'s audit."""
        return {"evidence": self._episode.evidence()}

    async def close(self) -> None:
        self._episode = None

    @property
    def fetches(self) -> bool:
        return self._backend.web if self.web is None else self.web

    @property
    def needs_jail(self) -> bool:
        return self.python_tool or self.fetches

    def _positive(self, name: str) -> None:
        if getattr(self, name) <= 0:
            raise ConfigError(f"rufus.environment.{name}={getattr(self, name)}: a positive number")


class _Episode:
    """What one episode has seen and spent."""

    def __init__(self, config: Search, task: Task):
        self.config, self.task = config, task
        self._blocked = [*config._blocked, of_task(task.extra.get("blocked") or ())]
        self._calls = self._failures = 0
        self._failure = ""
        self._results: list[Document] = []
        """Of the last search, for `open("3")`."""
        self._whole: dict[str, Document] = {}
        self._pages: dict[str, Document] = {}
        self._evidence: list[dict[str, str]] = []
        self._counts: Counter[str] = Counter()
        tools: list[Tool] = [FunctionTool(self.search), FunctionTool(self.open)]
        if config.python_tool:
            tools.append(FunctionTool(self.python))
        longest = max(config.results * (config.result_chars + 2500), 2 * config.page_chars, config.python_chars) + 5000
        self.box = Toolbox(tools, _NEVER_S, longest)

    async def step(self, message: Message) -> StepResult:
        calls = list(message.get("tool_calls") or ())
        if not calls:
            return StepResult(done=True)
        budget = self.config.max_tool_calls
        spent, left = self._calls >= budget, max(budget - self._calls, 0)
        self._calls += min(left, len(calls))
        self._counts.clear()
        replies = await self.box.answer({**message, "tool_calls": calls[:left]})
        text = f"Error: the budget of {budget} tool calls is spent. Give your final answer."
        for call in calls[left:]:
            replies.append(tool_message(call["id"], call["function"]["name"], text, CallStatus.ERROR, False))
        ending = Termination.TOOL_BUDGET if spent else None
        return StepResult(replies, done=spent, termination=ending, metrics=dict(self._counts))

    def evidence(self) -> list[dict[str, str]]:
        """Raises `InfrastructureError` if the episode ended without a search engine."""
        if self._failures:
            raise self._lost(f"the last {self._failures} searches failed")
        return self._evidence

    # ---- tools

    async def search(self, query: str) -> ToolResult:
        """Searches and returns the best results: title, address and an excerpt each.

        query: What to look for, in plain words.
        """
        if not query.strip():
            return ToolResult("the query is empty", CallStatus.ERROR, False)
        if len(query) > 2000:
            return ToolResult("the query is too long; use at most 2000 characters", CallStatus.ERROR, False)
        self._counts["searches"] += 1
        query = query.encode("utf-8", "replace").decode("utf-8")
        try:
            found = await self.config._backend.search(query, self.config.results, self._visible)
        except (InfrastructureError, ConfigError):
            raise
        except Exception as error:
            return self._failed(error)
        self._failures, self._results = 0, found
        for document in found:
            if document.whole:
                self._whole[document.ref] = document
        while len(self._whole) > _KEPT_RESULTS:
            del self._whole[next(iter(self._whole))]
        if not found:
            return ToolResult("No results. Try other words.")
        return self._shown("search", "\n\n".join(self._line(i, document) for i, document in enumerate(found, 1)))

    async def open(self, page: str, offset: int | None = None) -> ToolResult:
        """Opens a page and returns its text; a long page comes in parts.

        page: The address of the page, or the number of a result of your last search.
        offset: The character at which the part to read begins.
        """
        if offset is not None and offset < 0:
            return ToolResult("offset is 0 or more", CallStatus.ERROR, False)
        ref = page.strip().strip("[]<>\"'").rstrip(".")
        if ref.isdecimal():
            if not 1 <= int(ref[:9]) <= len(self._results):
                return ToolResult("your last search has no result of that number", CallStatus.ERROR, False)
            ref = self._results[int(ref) - 1].ref
        self._counts["pages"] += 1
        try:
            document = await self._document(ref)
        except (Refused, PageFailed) as error:
            self._counts["pages_failed"] += 1
            return ToolResult(str(error), CallStatus.ERROR)
        except BackendFailed as error:
            return self._failed(error)
        text = document.text
        if offset is not None and offset >= len(text):
            return ToolResult(f"the page has {len(text)} characters", CallStatus.ERROR)
        if self.config._summariser is not None and offset is None and len(text) > self.config.summarise_over:
            summary = await self.config._summariser.summary(document, self.task)
            self._counts["summaries" if summary else "summaries_failed"] += 1
            if summary:
                note = f"[summary of a page of {len(text)} characters; give an offset, from 0, to read the page itself]"
                return self._shown("open", f"{_head(document)}\n\n{summary}\n\n{note}")
        start = offset or 0
        end = min(start + self.config.page_chars, len(text))
        note = ""
        if start or end < len(text):
            note = f"\n\n[characters {start} to {end} of {len(text)}"
            note += f"; open it again with offset={end} to go on]" if end < len(text) else "]"
        return self._shown("open", f"{_head(document)}\n\n{text[start:end]}{note}")

    async def python(self, code: str) -> ToolResult:
        """Runs a Python program and returns what it prints. Each program starts afresh, without network or files.

        code: The program; print what you want to see.
        """
        from rufus_plugins.rollouts.sandboxes.zygote import Limits, shared

        self._counts["programs"] += 1
        limits = Limits(wall_s=self.config.python_timeout_s, memory_mb=self.config.python_memory_mb, output_kb=256)
        outcome = await shared().run(code, b"", limits)
        text = outcome.stdout.decode("utf-8", "replace").rstrip()
        wrong = outcome.stderr.decode("utf-8", "replace").strip()
        if outcome.timed_out:
            wrong = f"{wrong}\n[killed after {self.config.python_timeout_s:g} s]".strip()
        elif outcome.status != "exited":
            wrong = f"{wrong}\n[killed: too much {outcome.status}]".strip()
        elif outcome.exit_code is None:
            wrong = f"{wrong}\n[killed by signal {outcome.signal}]".strip()
        failed = outcome.status != "exited" or outcome.exit_code != 0
        shown = cut("\n".join(part for part in (text, wrong) if part), self.config.python_chars)
        if failed:
            return ToolResult(shown or f"exit code {outcome.exit_code}", CallStatus.ERROR)
        return self._shown(
            "python", shown or "[no output; print what you want to see]", re.sub(r"[^\w\s.+%-]", " ", code)
        )

    # ---- what the tools share

    async def _document(self, ref: str) -> Document:
        """Raises `Refused`, `PageFailed`, `BackendFailed`."""
        if self._address_blocked(ref):
            raise self._unavailable()
        document = self._whole.get(ref) or self._pages.get(ref)
        if document is None:
            document = await self.config._backend.document(ref)
        if document is None:
            if ref.startswith("doc:") or not self.config.fetches:
                raise PageFailed("there is no such page here; open what your searches find")
            document = await read_page(ref, self.config._rules, self._address_blocked)
        if not self._visible(document):
            raise self._unavailable()
        self._pages[ref] = document
        while len(self._pages) > _KEPT_PAGES:
            del self._pages[next(iter(self._pages))]
        return document

    def _address_blocked(self, url: str) -> bool:
        return any(blocked.blocks(url) for blocked in self._blocked)

    def _visible(self, document: Document) -> bool:
        hidden = any(blocked.hides(document) for blocked in self._blocked)
        self._counts["blocked"] += hidden
        return not hidden

    @staticmethod
    def _unavailable() -> Refused:
        return Refused("this page is not available in this task")

    def _line(self, number: int, document: Document) -> str:
        text = cut_end(" ".join(document.text.split()), self.config.result_chars)
        return f"{number}. {document.title}\n{document.ref}\n{text}".rstrip()

    def _shown(self, tool: str, text: str, said: str = "") -> ToolResult:
        """A result that counts as evidence. `said`: the model's own words, which are none when they come back."""
        self._evidence.append({"tool": tool, "text": text} | ({"said": said} if said else {}))
        return ToolResult(text)

    def _failed(self, error: Exception) -> ToolResult:
        self._failures += 1
        self._counts["search_failures"] += 1
        self._failure = f"{type(error).__name__}: {error}" if not isinstance(error, BackendFailed) else str(error)
        if self._failures >= self.config.max_failures:
            raise self._lost(f"{self._failures} searches in a row failed")
        return ToolResult("the search service failed just now; try again", CallStatus.ERROR)

    def _lost(self, what: str) -> InfrastructureError:
        message = f"search backend {self.config.backend!r}: {what}; the last one: {self._failure}"
        return InfrastructureError(message, Termination.ENVIRONMENT_LOST)


def cut_end(text: str, limit: int) -> str:
    return text if len(text) <= limit else text[:limit].rstrip() + " …"


def _head(document: Document) -> str:
    return f"{document.title}\n{document.ref}"


async def _jail() -> None:
    """Raises `SandboxUnavailable` now, not in the middle of an episode."""
    from rufus_plugins.rollouts.sandboxes.zygote import available

    found, why = await asyncio.to_thread(available)
    if not found:
        raise SandboxUnavailable(
            f"environment=search runs programs and reads pages in a sandbox, and there is none: {why}"
        )
