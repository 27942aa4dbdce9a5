"""The broker's HTTP interface: routes, the protocol's status codes and headers, and offers over HTTP.

Proxies and clients use different URLs, of different functions. A client's request stays open until its answer arrives,
at most about five seconds. So a few offers per second without answers occupy all executions of the function.
"""

import base64
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec.structs import replace

from sluice.errors import CallFailed, Malformed, OfferRefused
from sluice.rendezvous.broker import Matchmaker, RendezvousDependencies
from sluice.rendezvous.counts.pages import CONTENT_TYPE, NATS, write_daily_log, write_prometheus_page
from sluice.rendezvous.mailbox import Mailbox
from sluice.rendezvous.protocol.addresses import find_forwarded_address
from sluice.rendezvous.protocol.amp import armor_reply, decode_path
from sluice.rendezvous.protocol.ends import End
from sluice.rendezvous.protocol.matching import PATIENCE_MS, OfferMethod, OfferRecord, OpenOffer, Pool, Profile
from sluice.rendezvous.protocol.messages import (
    MAX_BODY_BYTES,
    Bridge,
    decode_utf8,
    dump_json,
    parse_answer,
    parse_offer,
    parse_poll,
    write_answer_reply,
    write_error_reply,
)
from sluice.rendezvous.volunteers import Volunteers
from sluice.times import DAY_MS, format_day

if TYPE_CHECKING:  # These imports are only for type hints: the adapters are passed in as arguments.
    from sluice.aws.rendezvous.statistics_store import DynamoStatisticsStore

AMP_PREFIX = "/amp/client/"
ROBOTS = "/robots.txt"
ROUTES = frozenset({"/proxy", "/answer", "/client", "/debug", "/metrics", "/prometheus", ROBOTS})
# Proxies in browsers need the first header on every response. The second header is for compatibility with Snowflake.
CORS = {"Access-Control-Allow-Origin": "*", "Access-Control-Allow-Headers": "Origin, X-Session-ID"}
AMP_MAX_AGE_S = 15
LOGGED_DAYS = 7  # `/metrics` shows this number of days.
DELIVERY_MS = 1_000  # The last accepted answer may take this time to arrive.
# Pages of statistics are cached, because anybody can request them at any rate and each page takes several queries.
PAGE_KEPT_MS = 10_000


class HttpRequest(msgspec.Struct, frozen=True, kw_only=True):
    """An HTTP request. Header names are in lower case. `address` is the sender's address, empty if unknown."""

    method: str
    path: str
    headers: Mapping[str, str]
    body: bytes
    address: str = ""

    @classmethod
    def parse(cls, event: Mapping[str, Any]) -> "HttpRequest":
        """Parse a request from the event of a Lambda function URL, in payload format 2.0."""
        body = event.get("body") or ""
        return cls(
            method=event["requestContext"]["http"]["method"],
            path=event.get("rawPath", "/"),
            headers={name.lower(): value for name, value in event.get("headers", {}).items()},
            body=base64.b64decode(body) if event.get("isBase64Encoded") else body.encode(),
            address=event["requestContext"]["http"].get("sourceIp", ""),
        )


class HttpResponse(msgspec.Struct, frozen=True, kw_only=True):
    """An HTTP response. `metrics` are the names of the metrics that the response increments."""

    status: int
    body: str = ""
    headers: Mapping[str, str] = msgspec.field(default_factory=dict)
    metrics: tuple[str, ...] = ()

    def event(self) -> dict[str, Any]:
        """Return the response in the format of a Lambda function URL."""
        headers = CORS | {"Content-Type": "text/plain; charset=utf-8"} | dict(self.headers)
        return {"statusCode": self.status, "body": self.body, "headers": headers}


def match_route(path: str) -> str | None:
    """Return the route of a path; the route of an AMP path excludes the data. Returns None for an unknown path."""
    if path.startswith(AMP_PREFIX):
        return AMP_PREFIX
    return path if path in ROUTES else None


Handler = Callable[[HttpRequest], HttpResponse]


class HttpSite(msgspec.Struct, frozen=True, kw_only=True):
    """Serves the routes of a subclass, one request at a time."""

    site: RendezvousDependencies

    def get_handlers(self) -> Mapping[str | None, Handler]:
        """Return the handlers of requests by route."""
        raise NotImplementedError

    def serve(self, request: HttpRequest) -> HttpResponse:
        """Answer a request. Blocks while a proxy waits for an offer or a client for an answer. Raises AWS's errors.

        As in Snowflake, the HTTP method doesn't matter on any path: `GET /client` is an offer without a body.
        """
        if request.method == "OPTIONS":
            return HttpResponse(status=200)
        if request.path == ROBOTS:
            response = HttpResponse(status=200, body="User-agent: *\nDisallow: /\n")
        else:
            handler = self.get_handlers().get(match_route(request.path))
            response = HttpResponse(status=404) if handler is None else handler(request)
        return replace(response, body="") if request.method == "HEAD" else response


class ProxySite(HttpSite, frozen=True, kw_only=True):
    """Serves proxies and statistics, behind `trusted_hops` reverse proxies that append to the request's headers."""

    volunteers: Volunteers
    statistics: "DynamoStatisticsStore"
    trusted_hops: int = 0
    _pages: dict[str, tuple[int, HttpResponse]] = msgspec.field(default_factory=dict)  # times and responses, by path

    def get_handlers(self) -> Mapping[str | None, Handler]:
        """Return the handlers of proxies' requests and of statistics, by route."""
        return {
            "/proxy": self.serve_poll,
            "/answer": self.serve_answer,
            "/debug": self.serve_page,
            "/metrics": self.serve_page,
            "/prometheus": self.serve_page,
        }

    def serve_poll(self, request: HttpRequest) -> HttpResponse:
        """Serve a proxy's poll, which may stay open for about ten seconds."""
        try:
            poll = parse_poll(request.body)
        except Malformed:
            return HttpResponse(status=400, metrics=("PollsMalformed",))
        end, body = self.volunteers.poll(poll, address=self._get_client_address(request))
        return _build_json_response(body, end)

    def serve_answer(self, request: HttpRequest) -> HttpResponse:
        """Forward a proxy's answer to its client."""
        try:
            answer = parse_answer(request.body)
        except Malformed:
            return HttpResponse(status=400, metrics=("AnswersMalformed",))
        end = self.volunteers.answer(answer, address=self._get_client_address(request))
        return _build_json_response(dump_json({"Status": end.reply}), end)

    def _get_client_address(self, request: HttpRequest) -> str:
        hops = self.trusted_hops
        return (hops and find_forwarded_address(request.headers, hops=hops)) or request.address

    def serve_page(self, request: HttpRequest) -> HttpResponse:
        """Return a page of statistics, which may be cached for `PAGE_KEPT_MS`."""
        now_ms, path = self.site.now_ms(), request.path
        if path not in self._pages or now_ms - self._pages[path][0] >= PAGE_KEPT_MS:
            pages = {
                "/debug": self.build_debug_page,
                "/metrics": self.build_metrics_page,
                "/prometheus": self.build_prometheus_page,
            }
            self._pages[path] = now_ms, pages[path]()
        return self._pages[path][1]

    def build_debug_page(self) -> HttpResponse:
        """Return the page with the numbers of waiting proxies by type and by NAT."""
        return HttpResponse(status=200, body=write_debug_page(self._list_waiting_proxies()))

    def _list_waiting_proxies(self) -> list[Profile]:
        site, now_ms, shards = self.site, self.site.now_ms(), self.site.pacing.count_shards()
        return [profile for pool in Pool for profile in site.pools.read_profiles(pool, now_ms=now_ms, shards=shards)]

    def build_metrics_page(self) -> HttpResponse:
        """Return the daily logs of the past days that have counts, in order."""
        now_ms = self.site.now_ms()
        days = [format_day(now_ms - ago * DAY_MS) for ago in range(LOGGED_DAYS, 0, -1)]
        counted = ((day, self.statistics.read_day(day)) for day in days)
        return HttpResponse(status=200, body="".join(write_daily_log(day, counts) for day, counts in counted if counts))

    def build_prometheus_page(self) -> HttpResponse:
        """Return the page of counts for Prometheus."""
        available = Counter((profile.type, str(profile.nat)) for profile in self._list_waiting_proxies())
        page = write_prometheus_page(self.statistics.read_totals(), available)
        return HttpResponse(status=200, body=page, headers={"Content-Type": CONTENT_TYPE})


class ClientSite(HttpSite, frozen=True, kw_only=True):
    """Serves clients' offers, over HTTP or through AMP caches."""

    mailbox: Mailbox
    bridges: Mapping[bytes, Bridge]

    def get_handlers(self) -> Mapping[str | None, Handler]:
        """Return the handlers of clients' requests by route."""
        return {"/client": self.serve_client, AMP_PREFIX: self.serve_amp_client}

    def serve_client(self, request: HttpRequest) -> HttpResponse:
        """Serve a client's offer. Old clients send a bare description, and get a bare answer or an HTTP status."""
        if len(request.body) > MAX_BODY_BYTES:
            return HttpResponse(status=400, metrics=(End.OFFER_REFUSED,))
        body = decode_utf8(request.body)
        is_legacy = body.startswith("{")
        if is_legacy:
            body = "1.0\n" + dump_json({"offer": body, "nat": request.headers.get("snowflake-nat-type", "")})
        end, reply = self._serve_offer(body, OfferMethod.HTTP)
        if not is_legacy:
            return _build_json_response(_build_reply(end, reply), end)
        return HttpResponse(status=end.status, body=reply if end is End.OFFER_MATCHED else "", metrics=(end,))

    def serve_amp_client(self, request: HttpRequest) -> HttpResponse:
        """Serve a client's offer through an AMP cache, which transports only AMP pages."""
        headers = {"Content-Type": "text/html", "Cache-Control": f"max-age={AMP_MAX_AGE_S}"}
        try:
            body = decode_path(request.path.removeprefix(AMP_PREFIX))
        except ValueError as error:
            return HttpResponse(status=200, body=armor_reply(write_error_reply(str(error))), headers=headers)
        end, reply = self._serve_offer(body, OfferMethod.AMP_CACHE)
        return HttpResponse(status=200, body=armor_reply(_build_reply(end, reply)), headers=headers, metrics=(end,))

    def _serve_offer(self, body: str, method: OfferMethod) -> tuple[End, str]:
        """Find a proxy and wait five seconds for its answer. Returns the end, and the answer or the error text."""
        site, sent_at_ms = self.site, self.site.now_ms()
        try:
            offer = parse_offer(body, bridges=self.bridges)
        except OfferRefused as refused:
            return End.OFFER_REFUSED, refused.reply
        received = OfferRecord(client_id=site.new_id(), sent_at_ms=sent_at_ms, method=method)
        record = site.complete_record(received, offer)
        site.offers.record(record)
        reply_to = self.mailbox.get_url()
        opened = site.build_open_offer(record, offer, reply_to=reply_to, answers_until_ms=sent_at_ms + PATIENCE_MS)
        end, answer = self._wait_for_answer(opened)
        if end is not End.OFFER_MATCHED:
            with suppress(CallFailed):  # If this call fails, the sweeper stores the end later.
                site.offers.end(record, end, now_ms=site.now_ms())
        return end, answer

    def _wait_for_answer(self, offer: OpenOffer) -> tuple[End, str]:
        """Match the offer and wait for the proxy's answer. Returns the end, and the answer or the error text."""
        client_id, matchmaker, message = offer.record.client_id, Matchmaker(self.site), None
        proxy = matchmaker.next_candidate(offer.record.nat)
        if not matchmaker.match(offer, proxy) and matchmaker.wait([offer]) == [False]:
            message = self.mailbox.receive_for(client_id, until_ms=offer.waits_until_ms)
            if message is None and self.site.waiting.take(offer):
                return End.OFFER_DENIED, End.OFFER_DENIED.reply
        message = message or self.mailbox.receive_for(client_id, until_ms=offer.answers_until_ms + DELIVERY_MS)
        if message is None:
            return End.OFFER_TIMED_OUT, End.OFFER_TIMED_OUT.reply
        return End.OFFER_MATCHED, message["answer"]


def write_debug_page(waiting: Iterable[Profile]) -> str:
    """Write the page of waiting proxies in Snowflake's format, by type and by NAT. Unused types are omitted."""
    waiting = list(waiting)
    types, nats = Counter(profile.type for profile in waiting), Counter(profile.nat for profile in waiting)
    unknown = types.pop("unknown", 0)
    lines = [f"current snowflakes available: {len(waiting)}"]
    lines += [f"\t{type_} proxies: {count}" for type_, count in sorted(types.items())]
    lines += [f"\tunknown proxies: {unknown}", "NAT Types available:"]
    lines += [f"\t{nat}: {nats[nat]}" for nat in NATS]
    return "\n".join(lines)


def _build_json_response(body: str, metric: str) -> HttpResponse:
    return HttpResponse(status=200, body=body, headers={"Content-Type": "application/json"}, metrics=(metric,))


def _build_reply(end: End, text: str) -> str:
    return write_answer_reply(text) if end is End.OFFER_MATCHED else write_error_reply(text)
