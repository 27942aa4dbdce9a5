"""Whatever is asked the console answers, or says why not, and goes on: without a traceback in its user's terminal."""

import json
import socket
from collections.abc import Iterator
from urllib.parse import urlsplit

import pytest

from sluice.console.server import ConsoleServer
from tests.browser import serving
from tests.console.conftest import RecordedSites
from tests.console.test_refusals import answer, origin

BOMB = "[" * 100_000  # deeper than anybody reads
UNSAYABLE = {"a number that is none": float("nan")}, {"an object": object()}


@pytest.fixture
def served(sites: RecordedSites, capfd: pytest.CaptureFixture[str]) -> Iterator[ConsoleServer]:
    with serving(sites) as running:
        yield running
    assert capfd.readouterr().err == ""


def asked(served: ConsoleServer, body: str) -> tuple[int, dict[str, object]]:
    said = answer(served, "questions/dead-letters", method="POST", body=body, headers={"Origin": origin(served)})
    return said.status, json.loads(said.read())


@pytest.mark.parametrize(
    "body",
    ["", "[]", '{"site": 1e999}', '{"site": "0"}', '{"site": true}', '{"site": 0, "fields": ["ab"]}', BOMB],
    ids=["nothing", "a list", "an endless number", "a text", "a truth", "fields that are a list", "a bomb"],
)
def test_what_is_no_form_is_refused_with_the_reason(served: ConsoleServer, sites: RecordedSites, body: str) -> None:
    status, said = asked(served, body)
    assert status == 400
    assert str(said["error"]).startswith("not a form: ")
    assert not sites.asked


@pytest.mark.parametrize("document", UNSAYABLE, ids=lambda each: next(iter(each)))
def test_an_answer_that_cant_be_written_is_told_as_our_fault(
    served: ConsoleServer, sites: RecordedSites, document: dict[str, object]
) -> None:
    sites.answers["dead-letters"] = lambda _: document
    status, said = asked(served, '{"site": 0}')
    assert (status, list(said)) == (500, ["error"])


@pytest.mark.parametrize("document", UNSAYABLE, ids=lambda each: next(iter(each)))
def test_a_reading_that_cant_be_written_says_so_and_the_next_one_is_read(
    served: ConsoleServer, sites: RecordedSites, document: dict[str, object]
) -> None:
    sites.documents["log"] = lambda _: document
    said = answer(served, "events?topic=log@0")
    assert said.readline() == b": follows\n"
    assert said.readline() == b"\n"
    first = json.loads(said.readline().removeprefix(b"data: "))
    assert list(first) == ["topic", "error"]
    sites.documents["log"] = {"lines": []}
    assert said.readline() == b"\n"
    assert json.loads(said.readline().removeprefix(b"data: "))["document"] == {"lines": []}


def test_who_leaves_amid_a_question_is_no_error(served: ConsoleServer) -> None:
    place = urlsplit(served.address)
    head = f"POST {place.path}questions/dead-letters HTTP/1.1\r\nHost: {place.netloc}\r\nOrigin: {origin(served)}\r\n"
    with socket.create_connection((place.hostname, place.port)) as leaving:
        leaving.sendall(f'{head}Content-Length: 99\r\n\r\n{{"site"'.encode())
    assert answer(served, "watched").status == 200


@pytest.mark.parametrize("path", ["../server.py", "%2e%2e/server.py", "..%2fserver.py", "%00", "pages", "a" * 5_000])
def test_nothing_but_its_files_is_given(served: ConsoleServer, path: str) -> None:
    assert answer(served, path).status == 404
