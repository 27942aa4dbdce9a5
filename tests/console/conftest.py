"""A browser for the session, and consoles of recorded sites: no cloud is asked for anything."""

import copy
import json
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, Page

from sluice.console.requests import Topic
from sluice.errors import SluiceError
from tests.browser import chromium, open_page, serving

RECORDED = Path(__file__).with_name("recorded")
ADAPTER: Any = object  # of this type recorded sites may be given in place of watched ones
SITES = ("000000000000/eu-central-1", "111111111111/us-east-1")


def recorded(name: str) -> Any:
    """What a reading said once, of a site with traffic."""
    return json.loads((RECORDED / f"{name}.json").read_text())


@dataclass(slots=True)
class RecordedSites(ADAPTER):
    """Sites that say what a test has them say: by reading, a document, an error, or what makes one of a topic."""

    names: Sequence[str] = SITES[:1]
    documents: dict[str, Any] = field(
        default_factory=lambda: {each.stem: recorded(each.stem) for each in RECORDED.glob("*.json")}
    )
    answers: dict[str, Any] = field(default_factory=dict)
    reads: Counter[str] = field(default_factory=Counter)
    asked: list[tuple[str, int, Mapping[str, Any]]] = field(default_factory=list)

    @property
    def site_labels(self) -> Sequence[Mapping[str, Any]]:
        return [{"name": name, "local": True} for name in self.names]

    def read(self, topic: Topic) -> Mapping[str, Any]:
        self.reads[str(topic)] += 1
        return _said(self.documents[topic.reading], topic)

    def ask(self, question: str, site: int, fields: Mapping[str, Any]) -> Mapping[str, Any]:
        self.asked.append((question, site, fields))
        return _said(self.answers[question], fields)

    act = ask


def _said(what: Any, asked: Any) -> Any:
    if isinstance(what, SluiceError):
        raise what
    return what(asked) if callable(what) else copy.deepcopy(what)


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    with chromium() as running:
        yield running


@pytest.fixture
def sites() -> RecordedSites:
    return RecordedSites()


@dataclass(slots=True)
class Looking:
    """Opens pages of consoles, which end with the test."""

    browser: Browser
    sites: RecordedSites
    stack: ExitStack
    address: str = ""

    def at(self, page: str = "#/overview", *, allow_actions: bool = False, **how: Any) -> Page:
        """A page of a console of the test's sites."""
        if not self.address:
            self.address = self.stack.enter_context(serving(self.sites, allow_actions=allow_actions)).address
        opened = self.stack.enter_context(open_page(self.browser, **how))
        opened.goto(self.address + page)
        return opened


@pytest.fixture
def look(browser: Browser, sites: RecordedSites) -> Iterator[Looking]:
    with ExitStack() as stack:
        yield Looking(browser, sites, stack)


Serving = Callable[..., AbstractContextManager[Any]]
