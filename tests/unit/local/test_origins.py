"""Whom a server on loopback refuses, as a browser tells it; `tests/harsh/test_local_access.py` tries the servers."""

from http import HTTPStatus

import pytest

from sluice.local.origins import check_origin

PORT = 8000
LINK = {"sec-fetch-site": "cross-site", "sec-fetch-mode": "navigate", "sec-fetch-dest": "document"}


@pytest.mark.parametrize("own_port", [None, PORT])
@pytest.mark.parametrize("host", ["127.0.0.1:8000", "localhost:8000"])
def test_a_program_of_this_machine_is_admitted(own_port: int | None, host: str) -> None:
    assert check_origin("POST", {"host": host}, own_port=own_port) is None


@pytest.mark.parametrize("own_port", [None, PORT])
@pytest.mark.parametrize(
    "host", [None, "", ":8000", "evil.example", "evil.example:8000", "localhost.evil.example:8000"]
)
def test_another_name_is_refused_as_one_that_is_pointed_at_loopback_would_be(
    own_port: int | None, host: str | None
) -> None:
    headers = {} if host is None else {"host": host}
    refusal = check_origin("GET", headers, own_port=own_port)
    assert refusal is not None
    assert refusal[0] == HTTPStatus.MISDIRECTED_REQUEST


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "127.0.0.1:8001", "127.0.0.1:8000x"])
def test_another_port_of_loopback_is_refused_where_pages_are(host: str) -> None:
    assert check_origin("GET", {"host": host}) is None
    assert check_origin("GET", {"host": host}, own_port=PORT) is not None


@pytest.mark.parametrize("origin", ["http://127.0.0.1:8000", "null", "http://evil.example", "http://127.0.0.1:8001"])
def test_pages_are_refused_but_a_servers_own(origin: str) -> None:
    headers = {"host": "127.0.0.1:8000", "origin": origin}
    assert check_origin("POST", headers) == (HTTPStatus.FORBIDDEN, "another origin")
    assert (check_origin("POST", headers, own_port=PORT) is None) is (origin == "http://127.0.0.1:8000")


def test_a_link_from_elsewhere_opens_a_page_and_nothing_else() -> None:
    headers = {"host": "127.0.0.1:8000", **LINK}
    assert check_origin("GET", headers, own_port=PORT) is None
    for method, told, own_port in (
        ("GET", {}, None),
        ("POST", {}, PORT),
        ("GET", {"sec-fetch-dest": "iframe"}, PORT),
        ("GET", {"sec-fetch-mode": "no-cors"}, PORT),
    ):
        assert check_origin(method, headers | told, own_port=own_port) is not None
