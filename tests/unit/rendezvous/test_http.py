"""The broker's HTTP face: paths, status codes, headers, and both forms of a client's request."""

import base64
import html.parser
import json
import re
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from functions.http import find_cause
from sluice.errors import CallFailed
from sluice.rendezvous.http import PAGE_KEPT_MS, ClientSite, HttpRequest, HttpResponse, ProxySite, write_debug_page
from sluice.rendezvous.protocol.amp import armor_reply, decode_path
from sluice.rendezvous.protocol.ends import End
from sluice.rendezvous.protocol.matching import ANSWERING_MS, HOLD_MS, PATIENCE_MS, Nat, Profile
from sluice.rendezvous.protocol.messages import Poll
from sluice.rendezvous.volunteers import hash_sid
from tests.fakes import Clock, FakeStatisticsStore
from tests.unit.rendezvous.test_broker import BRIDGES, DESCRIPTION
from tests.unit.rendezvous.test_broker import World as BrokerWorld
from tests.unit.rendezvous.test_volunteers import World as ProxyWorld

POLL = json.dumps({"Sid": "s", "Version": "1.3", "NAT": "unrestricted", "AcceptedRelayPattern": "$"}).encode()
ANSWER_TEXT = json.dumps({"type": "answer", "sdp": "a=candidate:1"})
CORS = {"Access-Control-Allow-Origin": "*", "Access-Control-Allow-Headers": "Origin, X-Session-ID"}
PAGES = ["/debug", "/metrics", "/prometheus", "/robots.txt"]
CLIENT = b"1.0\n" + json.dumps({"offer": DESCRIPTION, "nat": "unknown"}).encode()


@dataclass
class World(ProxyWorld):
    """The two functions with an HTTP face: proxies' and clients'."""

    statistics: FakeStatisticsStore = field(default_factory=FakeStatisticsStore)

    def proxies(self) -> ProxySite:
        statistics: Any = self.statistics
        return ProxySite(site=self.dependencies(), volunteers=self.volunteers, statistics=statistics)

    def clients(self) -> ClientSite:
        return ClientSite(site=self.dependencies(), mailbox=self.mailbox, bridges=BRIDGES)

    def request(self, method: str, path: str, body: bytes = b"", headers: dict[str, str] | None = None) -> HttpResponse:
        site = self.clients() if path.startswith(("/client", "/amp")) else self.proxies()
        return site.serve(HttpRequest(method=method, path=path, headers=headers or {}, body=body))

    def parse_waiting_proxy(self) -> None:
        """A proxy that another environment holds, which answers as soon as it has the offer."""
        proxy = BrokerWorld.beside(self).proxy("p")
        send = self.queues.send

        def answer(url: str, body: str, **more: Any) -> None:
            send(url, body, **more)
            if url == proxy.mailbox:
                self.answered(proxy.sid)

        self.queues.send = answer  # type: ignore[method-assign]  # the other environment, at once

    def answered(self, sid: str) -> None:
        """The answer of a proxy with this Sid, as it is stored, which another environment takes."""
        match = self.offers.answer(sid, token="t", now_ms=self.clock.ms)
        assert match is not None
        self.queues.send(match.reply_to, json.dumps({"for": match.record.client_id, "answer": ANSWER_TEXT}))

    def silent_proxy(self) -> None:
        BrokerWorld.beside(self).proxy("p")

    def poll_comes(self) -> None:
        """To another environment, which holds none."""
        other = ProxyWorld(self.clock, self.pools, self.offers, self.waiting, self.pace, self.queues, held_min=0)
        assert other.poll()[0] is End.POLL_MATCHED


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
    world.parse_waiting_proxy()
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


def test_a_client_without_a_proxy_waits_for_a_poll_as_long_as_that_could_be_answered() -> None:
    world = World()
    response = world.request("POST", "/client", CLIENT)
    assert json.loads(response.body) == {"error": "no snowflake proxies currently available"}
    assert world.clock.ms - Clock.ms == PATIENCE_MS - ANSWERING_MS
    assert world.waiting.offers == {}


def test_a_client_that_waits_gets_the_answer_of_a_proxy_that_polls() -> None:
    world = World()

    def poll_and_answer() -> None:
        world.poll_comes()
        world.answered(hash_sid("s"))

    world.meanwhile(poll_and_answer)
    response = world.request("POST", "/client", CLIENT)
    assert (response.status, json.loads(response.body)) == (200, {"answer": ANSWER_TEXT})


def test_a_client_whose_offer_a_poll_took_isnt_told_that_there_is_no_proxy() -> None:
    world = World()
    world.meanwhile(world.poll_comes)
    response = world.request("POST", "/client", CLIENT)
    assert json.loads(response.body) == {"error": "timed out waiting for answer!"}


def test_an_answer_that_was_taken_in_the_last_moment_still_comes() -> None:
    world = World()
    proxy = BrokerWorld.beside(world).proxy("p")

    def answer_late() -> None:
        world.clock.ms += PATIENCE_MS - 1
        world.answered(proxy.sid)

    world.meanwhile(answer_late)
    assert json.loads(world.request("POST", "/client", CLIENT).body) == {"answer": ANSWER_TEXT}


def test_an_offer_over_http_is_counted_as_demand() -> None:
    world = World()
    world.silent_proxy()
    world.request("POST", "/client", CLIENT)
    world.pacing.flush_counts()
    [minute], [hour] = world.pace.minutes.values(), world.pace.hours.values()
    assert (minute.numbers, hour.numbers) == ({"unrestricted_offers": 1}, {"offers": 1})


def test_a_clients_body_over_the_limit_is_a_400() -> None:
    assert World().request("POST", "/client", b"x" * 100_001).status == 400


def test_the_legacy_form_gets_the_bare_answer() -> None:
    world = World()
    world.parse_waiting_proxy()
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
    assert unarmor(armor_reply(text)) == text


def test_armor_has_no_long_words_and_no_large_elements() -> None:
    page = armor_reply("x" * 200_000)
    assert unarmor(page) == "x" * 200_000
    assert max(len(word) for word in re.findall(r"<pre>([^<]*)</pre>", page)[0].split()) <= 32


def test_a_page_ends_and_is_parted_as_snowflakes_are() -> None:
    """Snowflake's encoder closes an element before 32 KiB, and writes no line end after the page."""
    words = armor_reply("x" * (992 * 32 * 3 // 4))
    assert words.endswith("</pre>\n</body>\n</html>")
    assert [len(element.split()) for element in re.findall(r"<pre>([^<]*)</pre>", words)] == [992, 1]


def amp_path(body: bytes, padding: str = "0padding/more") -> str:
    return f"/amp/client/{padding}/" + base64.urlsafe_b64encode(body).decode().rstrip("=")


def test_an_amp_client_gets_its_answer_in_a_page_that_may_be_cached_for_a_moment() -> None:
    world = World()
    world.parse_waiting_proxy()
    response = world.request("GET", amp_path(CLIENT))
    assert json.loads(unarmor(response.body)) == {"answer": ANSWER_TEXT}
    assert response.event()["headers"] == CORS | {"Content-Type": "text/html", "Cache-Control": "max-age=15"}


@pytest.mark.parametrize(
    "path", ["", "0", "1/aGk", "/aGk", "0/a*b", "0/aGk\n", "x0/aGk", "0/é", "0/aGk=", "0/aG+", "0/a"]
)
def test_a_bad_amp_path_is_told_so(path: str) -> None:
    with pytest.raises(ValueError, match="cannot decode URL path"):
        decode_path(path)
    response = World().request("GET", "/amp/client/" + path)
    assert (response.status, json.loads(unarmor(response.body))) == (200, {"error": "cannot decode URL path"})


def test_the_example_of_the_format_decodes() -> None:
    assert decode_path("0lgWHcwhXFjUm/VGhpcyBpcyBwYXRoLWVuY29kZWQgZGF0YS4") == "This is path-encoded data."
    assert "0VGhpcyB3YXMgZW5jb2RlZCB3aXRoIEF\nNUCBhcm1vci4=\n" in armor_reply("This was encoded with AMP armor.")


def test_every_response_may_be_read_by_a_browsers_proxy() -> None:
    world = World()
    for method, path in (("OPTIONS", "/proxy"), ("GET", "/nothing"), ("POST", "/proxy"), ("GET", "/robots.txt")):
        assert world.request(method, path).event()["headers"].items() >= CORS.items()
    assert world.request("OPTIONS", "/answer").status == 200


def test_debug_counts_those_who_wait() -> None:
    world = World()
    world.silent_proxy()
    body = world.request("GET", "/debug").body
    assert body.startswith("current snowflakes available: 1\n")
    world.clock.ms += HOLD_MS
    assert world.request("GET", "/debug").body.startswith("current snowflakes available: 0\n")


def test_debug_is_written_as_snowflakes_broker_writes_it() -> None:
    waiting = [
        Profile(type=type_, nat=nat)
        for type_, nat in (
            ("webext", Nat.RESTRICTED),
            ("standalone", Nat.UNRESTRICTED),
            ("standalone", Nat.UNKNOWN),
            ("unknown", Nat.UNRESTRICTED),
        )
    ]
    assert write_debug_page(waiting) == (
        "current snowflakes available: 4\n"
        "\tstandalone proxies: 2\n\twebext proxies: 1\n\tunknown proxies: 1\n"
        "NAT Types available:\n\trestricted: 1\n\tunrestricted: 2\n\tunknown: 1"
        "\n\topen: 0\n\tmoderate: 0\n\tstrict: 0"
    )
    assert write_debug_page([]) == (
        "current snowflakes available: 0\n\tunknown proxies: 0\n"
        "NAT Types available:\n\trestricted: 0\n\tunrestricted: 0\n\tunknown: 0"
        "\n\topen: 0\n\tmoderate: 0\n\tstrict: 0"
    )


@pytest.mark.parametrize("path", ["/", "/proxy/", "/Proxy", "//proxy", "/amp/client", "/amp", "/debug/", "/ip", ""])
def test_an_unknown_path_is_a_404(path: str) -> None:
    assert World().request("GET", path).status == 404


@pytest.mark.parametrize(
    ("path", "of_clients"),
    [("/client", False), ("/amp/client/0/aGk", False), *((path, True) for path in ("/proxy", "/answer", *PAGES[:3]))],
)
def test_clients_and_proxies_have_nothing_at_each_others_url(path: str, of_clients: bool) -> None:
    """An offer is held for seconds: at the proxies' URL, few would take the executions that polls and answers need."""
    world = World()
    site = world.clients() if of_clients else world.proxies()
    assert site.serve(HttpRequest(method="POST", path=path, headers={}, body=CLIENT)).status == 404


@pytest.mark.parametrize("path", PAGES[:3])
def test_a_page_of_statistics_is_made_once_in_ten_seconds_however_often_it_is_asked_for(path: str) -> None:
    world = World()
    proxies, request = world.proxies(), HttpRequest(method="GET", path=path, headers={}, body=b"")

    def reads() -> int:
        proxies.serve(request)
        return world.pools.questions + world.statistics.reads

    once = reads()
    for _ in range(3):
        world.clock.ms += PAGE_KEPT_MS // 4
        assert reads() == once > 0
    world.clock.ms += PAGE_KEPT_MS // 4
    assert reads() == 2 * once


@pytest.mark.parametrize("path", PAGES)
def test_head_is_get_without_the_body(path: str) -> None:
    world = World()
    got, head = world.request("GET", path), world.request("HEAD", path)
    assert (head.status, head.body, head.event()["headers"]) == (200, "", got.event()["headers"])


@pytest.mark.parametrize("method", ["GET", "POST", "PUT", "DELETE", "PATCH", "SNOW"])
def test_no_method_is_refused(method: str) -> None:
    world = World()
    assert world.request(method, "/client").body == '{"error":"unsupported message version"}'
    assert world.request(method, "/proxy").status == 400
    assert json.loads(world.request(method, "/proxy", POLL).body)["Status"] == "no match"
    assert world.request(method, "/answer").status == 400
    assert unarmor(world.request(method, "/amp/client/0").body) == '{"error":"cannot decode URL path"}'
    assert world.request(method, "/robots.txt").body == "User-agent: *\nDisallow: /\n"


FORWARDED = {"forwarded": "for=1.1.1.1, for=9.9.9.9, for=8.8.8.8"}


@pytest.mark.parametrize(("hops", "address"), [(0, "203.0.113.7"), (1, "8.8.8.8"), (2, "9.9.9.9"), (4, "203.0.113.7")])
def test_a_proxys_address_is_what_the_trusted_hops_appended(hops: int, address: str) -> None:
    site, seen = replace(World().proxies(), trusted_hops=hops), list[str]()

    def poll(_: Poll, *, address: str) -> tuple[End, str]:
        seen.append(address)
        return End.POLL_IDLE, ""

    volunteers = SimpleNamespace(poll=poll)
    request = HttpRequest(method="POST", path="/proxy", headers=FORWARDED, body=POLL, address="203.0.113.7")
    replace(site, volunteers=volunteers).serve(request)
    replace(site, volunteers=volunteers).serve(replace(request, headers={}))
    assert seen == [address, "203.0.113.7"]


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


def test_a_log_has_no_errors_text_and_none_of_what_it_came_from() -> None:
    failed = CallFailed("SendMessage", "InvalidMessageContents", ANSWER_TEXT)
    failed.__cause__ = ValueError(ANSWER_TEXT)
    assert find_cause(failed) == ["CallFailed SendMessage InvalidMessageContents", "ValueError"]
    with pytest.raises(KeyError) as raised:
        dict[str, str]()[ANSWER_TEXT]
    kind, *places = find_cause(raised.value)
    assert kind == "KeyError"
    assert places == [f"{__file__}:{raised.tb.tb_lineno}"]
