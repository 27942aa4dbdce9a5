"""The broker's HTTP face: which path is what, and the protocol's status codes and headers."""

import base64
import json
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from sluice.errors import Malformed
from sluice.rendezvous.broker import OfferMetric
from sluice.rendezvous.counts.daily_log import daily_log
from sluice.rendezvous.counts.exposition import CONTENT_TYPE, exposition
from sluice.rendezvous.http_clients import ClientReply, HttpClients
from sluice.rendezvous.ports import NowMs, ProxyPools, StatisticsStore
from sluice.rendezvous.protocol.amp import armor, decode_path
from sluice.rendezvous.protocol.matching import Pool
from sluice.rendezvous.protocol.messages import (
    MAX_BODY_BYTES,
    OfferMethod,
    answer_reply,
    answer_status,
    error_reply,
    parse_answer,
    parse_poll,
)
from sluice.rendezvous.volunteers import Volunteers
from sluice.times import DAY_MS, day_of

AMP_PREFIX = "/amp/client/"
AMP_MAX_AGE_S = 15
LOGGED_DAYS = 7  # in `/metrics`
LEGACY_STATUS = {
    OfferMetric.MATCHED: 200,
    OfferMetric.DENIED: 503,
    OfferMetric.TIMED_OUT: 504,
    OfferMetric.REFUSED: 400,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpRequest:
    """An HTTP request; names of headers in lower case. `address` is where it came from, empty where nobody says."""

    method: str
    path: str
    headers: Mapping[str, str]
    body: bytes
    address: str = ""

    @classmethod
    def parse(cls, event: Mapping[str, Any]) -> "HttpRequest":
        """From the event that a function URL gives, payload format 2.0."""
        body = event.get("body") or ""
        return cls(
            method=event["requestContext"]["http"]["method"],
            path=event.get("rawPath", "/"),
            headers={name.lower(): value for name, value in event.get("headers", {}).items()},
            body=base64.b64decode(body) if event.get("isBase64Encoded") else body.encode(),
            address=event["requestContext"]["http"].get("sourceIp", ""),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpResponse:
    """An HTTP response; `metrics` are the names of what it counts as."""

    status: int
    body: str = ""
    headers: Mapping[str, str] = field(default_factory=dict)
    metrics: tuple[str, ...] = ()

    def event(self) -> dict[str, Any]:
        """As a function URL wants it. Browsers' proxies need the header on every response."""
        headers = {"Access-Control-Allow-Origin": "*", "Content-Type": "text/plain; charset=utf-8"}
        return {"statusCode": self.status, "body": self.body, "headers": headers | dict(self.headers)}


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerSite:
    """Serves one request at a time."""

    volunteers: Volunteers
    clients: HttpClients
    pools: ProxyPools
    statistics: StatisticsStore
    now_ms: NowMs
    new_id: Callable[[], str]

    def serve(self, request: HttpRequest) -> HttpResponse:
        """Blocks while a proxy or a client waits. Raises what the requests to AWS raise."""
        if request.method == "OPTIONS":
            return HttpResponse(status=200)
        if request.path.startswith(AMP_PREFIX):
            return self._amp_client(request)
        routes: Mapping[tuple[str, str], Callable[[HttpRequest], HttpResponse]] = {
            ("POST", "/proxy"): self._proxy,
            ("POST", "/answer"): self._answer,
            ("POST", "/client"): self._client,
            ("GET", "/debug"): self._debug,
            ("GET", "/metrics"): self._metrics,
            ("GET", "/prometheus"): self._prometheus,
            ("GET", "/robots.txt"): _robots,
        }
        route = routes.get((request.method, request.path))
        return route(request) if route else HttpResponse(status=404)

    def _proxy(self, request: HttpRequest) -> HttpResponse:
        try:
            poll = parse_poll(request.body)
        except Malformed:
            return HttpResponse(status=400, metrics=("PollsMalformed",))
        outcome, body = self.volunteers.poll(poll, address=request.address)
        return _json(body, outcome)

    def _answer(self, request: HttpRequest) -> HttpResponse:
        try:
            answer = parse_answer(request.body)
        except Malformed:
            return HttpResponse(status=400, metrics=("AnswersMalformed",))
        delivered = self.volunteers.answer(answer, address=request.address)
        return _json(answer_status(delivered=delivered), "AnswersDelivered" if delivered else "AnswersTooLate")

    def _client(self, request: HttpRequest) -> HttpResponse:
        if len(request.body) > MAX_BODY_BYTES:
            return HttpResponse(status=400, metrics=(OfferMetric.REFUSED,))
        body = request.body.decode("utf-8", errors="replace")
        if body.startswith("{"):
            return self._legacy_client(request, body)
        reply = self._serve_client(body, OfferMethod.HTTP)
        return _json(_body_of(reply), reply.metric)

    def _legacy_client(self, request: HttpRequest, offer: str) -> HttpResponse:
        """The form of old clients: the offer is the body, the answer is the reply, and errors are status codes."""
        nat = request.headers.get("snowflake-nat-type", "")
        reply = self._serve_client("1.0\n" + json.dumps({"offer": offer, "nat": nat}), OfferMethod.HTTP)
        body = reply.text if reply.metric is OfferMetric.MATCHED else ""
        return HttpResponse(status=LEGACY_STATUS[reply.metric], body=body, metrics=(reply.metric,))

    def _amp_client(self, request: HttpRequest) -> HttpResponse:
        if request.method != "GET":
            return HttpResponse(status=405)
        headers = {"Content-Type": "text/html", "Cache-Control": f"max-age={AMP_MAX_AGE_S}"}
        try:
            body = decode_path(request.path.removeprefix(AMP_PREFIX))
        except ValueError as error:
            return HttpResponse(status=200, body=armor(error_reply(str(error))), headers=headers)
        reply = self._serve_client(body, OfferMethod.AMP_CACHE)
        return HttpResponse(status=200, body=armor(_body_of(reply)), headers=headers, metrics=(reply.metric,))

    def _serve_client(self, body: str, method: OfferMethod) -> ClientReply:
        return self.clients.serve(body, client_id=self.new_id(), method=method)

    def _debug(self, request: HttpRequest) -> HttpResponse:  # noqa: ARG002 - every route takes the request
        now_ms = self.now_ms()
        waiting = {pool: self.pools.count(pool, now_ms=now_ms) for pool in Pool}
        lines = [f"current snowflakes available: {sum(waiting.values())}"]
        lines += [f"\t{pool} pool: {count}" for pool, count in waiting.items()]
        return HttpResponse(status=200, body="\n".join(lines) + "\n")

    def _metrics(self, request: HttpRequest) -> HttpResponse:  # noqa: ARG002 - every route takes the request
        """The log of the days that are over and had something to count, the earliest first."""
        now_ms = self.now_ms()
        days = [day_of(now_ms - ago * DAY_MS) for ago in range(LOGGED_DAYS, 0, -1)]
        counted = ((day, self.statistics.of_day(day)) for day in days)
        return HttpResponse(status=200, body="".join(daily_log(day, counts) for day, counts in counted if counts))

    def _prometheus(self, request: HttpRequest) -> HttpResponse:  # noqa: ARG002 - every route takes the request
        now_ms = self.now_ms()
        available = Counter(
            (profile.type, str(profile.nat)) for pool in Pool for profile in self.pools.profiles(pool, now_ms=now_ms)
        )
        page = exposition(self.statistics.totals(), available)
        return HttpResponse(status=200, body=page, headers={"Content-Type": CONTENT_TYPE})


def _robots(request: HttpRequest) -> HttpResponse:  # noqa: ARG001 - every route takes the request
    return HttpResponse(status=200, body="User-agent: *\nDisallow: /\n")


def _json(body: str, metric: str) -> HttpResponse:
    return HttpResponse(status=200, body=body, headers={"Content-Type": "application/json"}, metrics=(metric,))


def _body_of(reply: ClientReply) -> str:
    return answer_reply(reply.text) if reply.metric is OfferMetric.MATCHED else error_reply(reply.text)
