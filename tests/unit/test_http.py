"""The broker's HTTP face: paths, status codes, headers, and both forms of a client's request."""

import base64
import html.parser
import json
import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sluice.rendezvous.broker import Matchmaker
from sluice.rendezvous.http import BrokerSite, HttpRequest, HttpResponse
from sluice.rendezvous.http_clients import HttpClients
from sluice.rendezvous.protocol.amp import armor, decode_path
from sluice.rendezvous.protocol.matching import PATIENCE_MS, Pool
from tests.fakes import FakeStatisticsStore
from tests.unit.test_broker import BRIDGES, DESCRIPTION
from tests.unit.test_broker import World as BrokerWorld
from tests.unit.test_volunteers import World as ProxyWorld

POLL = json.dumps({"Sid": "s", "Version": "1.3", "NAT": "unrestricted", "AcceptedRelayPattern": "$"}).encode()
ANSWER_TEXT = json.dumps({"type": "answer", "sdp": "a=candidate:1"})
CLIENT = b"1.0\n" + json.dumps({"offer": DESCRIPTION, "nat": "unknown"}).encode()


class World(ProxyWorld):
    """The proxy function with its HTTP face."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.statistics = FakeStatisticsStore()

    def site(self) -> BrokerSite:
        clients = HttpClients(
            offers=self.offers,
            matchmaker=lambda: Matchmaker(
                offers=self.offers,
                pools=self.pools,
                queues=self.queues,
                now_ms=self.clock,
                random=lambda: 0.5,
            ),
            mailbox=self.mailbox,
            bridges=BRIDGES,
            now_ms=self.clock,
            recorder=self.recorder,
        )
        return BrokerSite(
            volunteers=self.volunteers,
            clients=clients,
            pools=self.pools,
            statistics=self.statistics,
            now_ms=self.clock,
            new_id=self.new_id,
        )

    def request(self, method: str, path: str, body: bytes = b"", headers: dict[str, str] | None = None) -> HttpResponse:
        return self.site().serve(HttpRequest(method=method, path=path, headers=headers or {}, body=body))

    def waiting_proxy(self) -> None:
        """A proxy that another environment holds, which answers as soon as it has the offer."""
        broker = BrokerWorld(self.clock, self.pools)
        broker.queues = self.queues
        proxy = broker.proxy("p")
        send = self.queues.send

        def answer(url: str, body: str, **more: Any) -> None:
            send(url, body, **more)
            if url == proxy.mailbox:
                offer = self.offers.answer(proxy.sid)
                assert offer is not None
                send(offer.reply_to, json.dumps({"for": offer.client_id, "answer": ANSWER_TEXT}))

        self.queues.send = answer  # type: ignore[method-assign]  # the other environment, at once

    def silent_proxy(self) -> None:
        broker = BrokerWorld(self.clock, self.pools)
        broker.queues = self.queues
        broker.proxy("p")


def test_a_poll_without_a_client_is_a_200_with_every_key() -> None:
    response = World().request("POST", "/proxy", POLL)
    assert (response.status, json.loads(response.body)["Status"]) == (200, "no match")


@pytest.mark.parametrize("path", ["/proxy", "/answer"])
@pytest.mark.parametrize("body", [b"", b"{", b"x" * 100_001])
def test_a_malformed_body_is_a_400_with_an_empty_body(path: str, body: bytes) -> None:
    response = World().request("POST", path, body)
    assert (response.status, response.body) == (400, "")


def test_an_answer_that_nobody_waits_for_is_gone() -> None:
    body = json.dumps({"Version": "1.3", "Sid": "s", "Answer": ANSWER_TEXT}).encode()
    response = World().request("POST", "/answer", body)
    assert (response.status, json.loads(response.body)) == (200, {"Status": "client gone"})


def test_a_client_gets_its_answer() -> None:
    world = World()
    world.waiting_proxy()
    response = world.request("POST", "/client", CLIENT)
    assert (response.status, json.loads(response.body)) == (200, {"answer": ANSWER_TEXT})


@pytest.mark.parametrize(
    ("body", "error"),
    [(CLIENT, "no snowflake proxies currently available"), (b"2.0\n{}", "unsupported message version")],
)
def test_a_protocol_error_is_a_200(body: bytes, error: str) -> None:
    response = World().request("POST", "/client", body)
    assert (response.status, json.loads(response.body)) == (200, {"error": error})


def test_a_client_whose_proxy_says_nothing_waits_five_seconds() -> None:
    world = World()
    world.silent_proxy()
    started_ms = world.clock.ms
    response = world.request("POST", "/client", CLIENT)
    assert json.loads(response.body) == {"error": "timed out waiting for answer!"}
    assert PATIENCE_MS <= world.clock.ms - started_ms <= PATIENCE_MS + 1_000


def test_a_clients_body_over_the_limit_is_a_400() -> None:
    assert World().request("POST", "/client", b"x" * 100_001).status == 400


def test_the_legacy_form_gets_the_bare_answer() -> None:
    world = World()
    world.waiting_proxy()
    response = world.request("POST", "/client", DESCRIPTION.encode(), {"snowflake-nat-type": "restricted"})
    assert (response.status, response.body) == (200, ANSWER_TEXT)


def test_the_legacy_forms_errors_are_status_codes() -> None:
    world = World()
    assert world.request("POST", "/client", DESCRIPTION.encode()).status == 503
    assert world.request("POST", "/client", b"{}").status == 400
    world.silent_proxy()
    assert world.request("POST", "/client", DESCRIPTION.encode()).status == 504


class Pre(html.parser.HTMLParser):
    """Reads a page as a client does: the text of its `pre` elements."""

    def __init__(self) -> None:
        super().__init__()
        self.inside = False
        self.texts: list[str] = []

    def handle_starttag(self, tag: str, attrs: object) -> None:
        if tag == "pre":
            self.inside = True
            self.texts.append("")

    def handle_endtag(self, tag: str) -> None:
        if tag == "pre":
            self.inside = False

    def handle_data(self, data: str) -> None:
        if self.inside:
            self.texts[-1] += data


def unarmor(page: str) -> str:
    pre = Pre()
    pre.feed(page)
    assert all(len(text) <= 64 * 1024 for text in pre.texts)
    encoded = "".join("".join(pre.texts).split())
    assert encoded[0] == "0"
    return base64.b64decode(encoded[1:]).decode()


@given(st.text())
def test_armor_carries_any_text(text: str) -> None:
    assert unarmor(armor(text)) == text


def test_armor_has_no_long_words_and_no_large_elements() -> None:
    page = armor("x" * 200_000)
    assert unarmor(page) == "x" * 200_000
    assert max(len(word) for word in re.findall(r"<pre>([^<]*)</pre>", page)[0].split()) <= 32


def amp_path(body: bytes, padding: str = "0padding/more") -> str:
    return f"/amp/client/{padding}/" + base64.urlsafe_b64encode(body).decode().rstrip("=")


def test_an_amp_client_gets_its_answer_in_a_page_that_may_be_cached_for_a_moment() -> None:
    world = World()
    world.waiting_proxy()
    response = world.request("GET", amp_path(CLIENT))
    assert json.loads(unarmor(response.body)) == {"answer": ANSWER_TEXT}
    assert response.event()["headers"] == {
        "Access-Control-Allow-Origin": "*", "Content-Type": "text/html", "Cache-Control": "max-age=15",
    }  # fmt: skip


@pytest.mark.parametrize("path", ["", "0", "1/aGk", "/aGk", "0/a*b", "0/aGk\n", "x0/aGk", "0/é"])
def test_a_bad_amp_path_is_told_so(path: str) -> None:
    with pytest.raises(ValueError, match="cannot decode URL path"):
        decode_path(path)
    response = World().request("GET", "/amp/client/" + path)
    assert (response.status, json.loads(unarmor(response.body))) == (200, {"error": "cannot decode URL path"})


def test_the_example_of_the_format_decodes() -> None:
    assert decode_path("0lgWHcwhXFjUm/VGhpcyBpcyBwYXRoLWVuY29kZWQgZGF0YS4") == "This is path-encoded data."
    assert "0VGhpcyB3YXMgZW5jb2RlZCB3aXRoIEF\nNUCBhcm1vci4=\n" in armor("This was encoded with AMP armor.")


def test_every_response_may_be_read_by_a_browsers_proxy() -> None:
    world = World()
    for method, path in (("OPTIONS", "/proxy"), ("GET", "/nothing"), ("POST", "/proxy"), ("GET", "/robots.txt")):
        assert world.request(method, path).event()["headers"]["Access-Control-Allow-Origin"] == "*"
    assert world.request("OPTIONS", "/answer").status == 200


def test_debug_counts_those_who_wait() -> None:
    world = World()
    world.silent_proxy()
    body = world.request("GET", "/debug").body
    assert body.startswith("current snowflakes available: 1\n")
    assert world.pools.count(Pool.UNRESTRICTED, now_ms=world.clock.ms) == 1


def test_an_unknown_path_is_a_404() -> None:
    assert World().request("GET", "/proxy").status == 404


@pytest.mark.parametrize("encoded", [True, False])
def test_a_function_urls_event_is_read_whether_its_body_is_encoded_or_not(encoded: bool) -> None:
    event = {
        "rawPath": "/client",
        "headers": {"Snowflake-NAT-Type": "restricted"},
        "requestContext": {"http": {"method": "POST"}},
        "body": base64.b64encode(b"hi").decode() if encoded else "hi",
        "isBase64Encoded": encoded,
    }
    request = HttpRequest.parse(event)
    assert (request.method, request.path, request.body) == ("POST", "/client", b"hi")
    assert request.headers == {"snowflake-nat-type": "restricted"}
