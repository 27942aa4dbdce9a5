"""Who doesn't get in: another origin, another host's name, no token; and who may only look."""

import http.client
import json
import stat
import webbrowser
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import SimpleNamespace
from urllib.parse import urlsplit

import pytest
from playwright.sync_api import expect

from sluice.console.security import HEADERS
from sluice.console.server import ConsoleServer, open_in_browser
from tests.browser import open_page, serving
from tests.console.conftest import Looking, RecordedSites


@pytest.fixture
def served(sites: RecordedSites) -> Iterator[ConsoleServer]:
    with serving(sites) as running:
        yield running


def answer(
    served: ConsoleServer,
    path: str = "",
    *,
    headers: Mapping[str, str] | None = None,
    method: str = "GET",
    body: str = "",
) -> http.client.HTTPResponse:
    """What is answered to a path below the token, or to a whole one."""
    place = urlsplit(served.address)
    connection = http.client.HTTPConnection(place.hostname or "", place.port, timeout=10)
    connection.request(method, path if path.startswith("/") else place.path + path, body, headers or {})
    return connection.getresponse()


def origin(served: ConsoleServer) -> str:
    return served.address.rsplit("/", 2)[0]


def test_who_has_the_address_gets_the_page_and_a_policy_that_lets_only_its_own_files_run(served: ConsoleServer) -> None:
    said = answer(served)
    assert said.status == 200
    assert b"<main" in said.read()
    assert {name: said.headers[name] for name in HEADERS} == HEADERS
    assert "unsafe" not in said.headers["content-security-policy"]


@pytest.mark.parametrize(
    "path", ["/", "/watched", "/no-token/watched", "//", "/%00/", "/no-token/events?topic=overview@0"]
)
def test_without_the_token_nothing_is_there(served: ConsoleServer, sites: RecordedSites, path: str) -> None:
    said = answer(served, path)
    assert (said.status, said.read()) == (404, b"no such page\n")
    assert said.headers["content-security-policy"] == HEADERS["content-security-policy"]
    assert not sites.reads


@pytest.mark.parametrize(
    "host", ["evil.example", "evil.example:80", "127.0.0.1", "127.0.0.1:1", "", "localhost.evil.example"]
)
def test_another_hosts_name_is_refused_as_one_that_is_pointed_at_loopback_would_be(
    served: ConsoleServer, host: str
) -> None:
    said = answer(served, "watched", headers={"Host": host})
    assert (said.status, said.read()) == (421, b"another host's name\n")


@pytest.mark.parametrize("elsewhere", ["http://evil.example", "null", "https://127.0.0.1", "http://127.0.0.1:1"])
def test_another_origin_is_refused_whatever_it_knows(served: ConsoleServer, elsewhere: str) -> None:
    for path, method in (("watched", "GET"), ("actions/purge", "POST"), ("questions/filter", "POST")):
        said = answer(served, path, method=method, headers={"Origin": elsewhere})
        assert (said.status, said.read()) == (403, b"another origin\n")


@pytest.mark.parametrize("relation", ["cross-site", "same-site"])
def test_what_a_browser_says_comes_from_elsewhere_is_refused_also_without_an_origin(
    served: ConsoleServer, relation: str
) -> None:
    assert answer(served, "watched", headers={"Sec-Fetch-Site": relation}).status == 403


def test_a_link_from_elsewhere_opens_the_page_and_frames_and_loads_nothing(served: ConsoleServer) -> None:
    opened = {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate", "Sec-Fetch-Dest": "document"}
    assert answer(served, headers=opened).status == 200
    for told in ({"Sec-Fetch-Dest": "iframe"}, {"Sec-Fetch-Dest": "script", "Sec-Fetch-Mode": "no-cors"}):
        assert answer(served, headers=opened | told).status == 403
    assert answer(served, "actions/purge", method="POST", headers=opened).status == 403


def test_the_browser_is_called_with_a_file_that_is_nobody_elses_and_leads_to_the_address(
    look: Looking, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a program is called with the machine's other users see."""
    called: list[str] = []
    monkeypatch.setattr(webbrowser, "get", lambda: SimpleNamespace(open=called.append))
    page = look.at("")
    open_in_browser(look.address)
    [url] = called
    assert "127.0.0.1" not in url
    assert stat.S_IMODE(Path(url.removeprefix("file://")).parent.stat().st_mode) == 0o700
    page.goto(url)
    page.wait_for_url(f"{look.address}**")
    expect(page.get_by_role("heading", level=1)).to_have_text("Overview")


def test_a_change_without_an_origin_is_refused(served: ConsoleServer) -> None:
    said = answer(served, "actions/purge", method="POST", body="{}")
    assert (said.status, said.read()) == (403, b"no origin\n")


def test_an_action_is_refused_where_the_console_only_shows(served: ConsoleServer, sites: RecordedSites) -> None:
    said = answer(served, "actions/purge", method="POST", body='{"site": 0}', headers={"Origin": origin(served)})
    assert said.status == 403
    assert json.loads(said.read()) == {"error": "the console is read-only: start it with --allow-actions"}
    assert not sites.asked


def test_only_loopback_is_listened_on(served: ConsoleServer) -> None:
    assert served.listening_socket.getsockname()[0] == "127.0.0.1"


def test_another_pages_script_gets_nothing_of_the_console(look: Looking) -> None:
    """Also one that knows the address: a browser keeps the answer from it, and the console gives none."""
    page = look.at()
    with open_page(look.browser, may_complain=True) as other:
        other.goto("about:blank")
        got = other.evaluate(
            """async (address) => {
                try { return (await fetch(address + 'watched')).status } catch (error) { return String(error) }
            }""",
            look.address,
        )
    assert got == "TypeError: Failed to fetch"
    assert page.get_by_role("heading", level=1).inner_text() == "Overview"


def test_text_can_become_no_markup_by_any_mistake_of_a_script(look: Looking) -> None:
    page = look.at(may_complain=True)
    for mistake in (
        "document.body.innerHTML = '<p>x'",
        "document.write('x')",
        "document.body.insertAdjacentHTML('x', 'x')",
    ):
        script = f"() => {{ try {{ {mistake}; return 'done' }} catch (error) {{ return error.name }} }}"
        assert page.evaluate(script) == "TypeError"
