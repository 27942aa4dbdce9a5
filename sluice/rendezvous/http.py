"""The broker's HTTP face: which path is what, and the protocol's status codes and headers."""

import base64
import json
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from sluice.errors import Malformed
from sluice.rendezvous.broker import OfferMetric
from sluice.rendezvous.counts.daily_log import daily_log
from sluice.rendezvous.counts.exposition import CONTENT_TYPE, exposition
from sluice.rendezvous.http_clients import HttpClients
from sluice.rendezvous.pacing import Pacing
from sluice.rendezvous.ports import NowMs, ProxyPools, StatisticsStore
from sluice.rendezvous.protocol.amp import armor, decode_path
from sluice.rendezvous.protocol.matching import Pool, Profile
from sluice.rendezvous.protocol.messages import (
    MAX_BODY_BYTES,
    OfferMethod,
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
        """Read the event that a function URL gives, payload format 2.0."""
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
        """Write what a function URL wants. Browsers' proxies need the header on every response."""
        headers = {"Access-Control-Allow-Origin": "*", "Content-Type": "text/plain; charset=utf-8"}
        return {"statusCode": self.status, "body": self.body, "headers": headers | dict(self.headers)}


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerSite:
    """Serves one request at a time."""

    volunteers: Volunteers
    clients: HttpClients
    pools: ProxyPools
    pacing: Pacing
    statistics: StatisticsStore
    now_ms: NowMs
    new_id: Callable[[], str]

    def serve(self, request: HttpRequest) -> HttpResponse:  # noqa: PLR0911 - one for each path
        """Answer a request; blocks while a proxy or a client waits. Raises what the requests to AWS raise."""
        if request.path.startswith(AMP_PREFIX) and request.method != "OPTIONS":
            return self.amp_client(request) if request.method == "GET" else HttpResponse(status=405)
        match request.method, request.path:
            case "OPTIONS", _:
                return HttpResponse(status=200)
            case "POST", "/proxy":
                return self.proxy(request)
            case "POST", "/answer":
                return self.answer(request)
            case "POST", "/client":
                return self.client(request)
            case "GET", "/debug":
                return self.debug()
            case "GET", "/metrics":
                return self.metrics()
            case "GET", "/prometheus":
                return self.prometheus()
            case "GET", "/robots.txt":
                return HttpResponse(status=200, body="User-agent: *\nDisallow: /\n")
        return HttpResponse(status=404)

    def proxy(self, request: HttpRequest) -> HttpResponse:
        """Hold a proxy's poll."""
        try:
            poll = parse_poll(request.body)
        except Malformed:
            return HttpResponse(status=400, metrics=("PollsMalformed",))
        metric, body = self.volunteers.poll(poll, address=request.address)
        return _json(body, metric)

    def answer(self, request: HttpRequest) -> HttpResponse:
        """Pass a proxy's answer on."""
        try:
            answer = parse_answer(request.body)
        except Malformed:
            return HttpResponse(status=400, metrics=("AnswersMalformed",))
        delivered = self.volunteers.answer(answer, address=request.address)
        return _json(answer_status(delivered=delivered), "AnswersDelivered" if delivered else "AnswersTooLate")

    def client(self, request: HttpRequest) -> HttpResponse:
        """Serve a client's offer. Old clients send it alone, and get the answer alone; errors are statuses."""
        if len(request.body) > MAX_BODY_BYTES:
            return HttpResponse(status=400, metrics=(OfferMetric.REFUSED,))
        body = request.body.decode("utf-8", errors="replace")
        legacy = body.startswith("{")
        if legacy:
            body = "1.0\n" + json.dumps({"offer": body, "nat": request.headers.get("snowflake-nat-type", "")})
        reply = self.clients.serve(body, client_id=self.new_id(), method=OfferMethod.HTTP)
        if not legacy:
            return _json(reply.body, reply.metric)
        answer = reply.text if reply.metric is OfferMetric.MATCHED else ""
        return HttpResponse(status=LEGACY_STATUS[reply.metric], body=answer, metrics=(reply.metric,))

    def amp_client(self, request: HttpRequest) -> HttpResponse:
        """Serve an offer that comes through an AMP cache, which takes nothing but pages."""
        headers = {"Content-Type": "text/html", "Cache-Control": f"max-age={AMP_MAX_AGE_S}"}
        try:
            body = decode_path(request.path.removeprefix(AMP_PREFIX))
        except ValueError as error:
            return HttpResponse(status=200, body=armor(error_reply(str(error))), headers=headers)
        reply = self.clients.serve(body, client_id=self.new_id(), method=OfferMethod.AMP_CACHE)
        return HttpResponse(status=200, body=armor(reply.body), headers=headers, metrics=(reply.metric,))

    def debug(self) -> HttpResponse:
        """Tell how many proxies wait."""
        waiting = {pool: len(self._waiting(pool)) for pool in Pool}
        lines = [f"current snowflakes available: {sum(waiting.values())}"]
        lines += [f"\t{pool} pool: {count}" for pool, count in waiting.items()]
        return HttpResponse(status=200, body="\n".join(lines) + "\n")

    def metrics(self) -> HttpResponse:
        """Tell the log of the days that are over and had something to count, the earliest first."""
        now_ms = self.now_ms()
        days = [day_of(now_ms - ago * DAY_MS) for ago in range(LOGGED_DAYS, 0, -1)]
        counted = ((day, self.statistics.of_day(day)) for day in days)
        return HttpResponse(status=200, body="".join(daily_log(day, counts) for day, counts in counted if counts))

    def prometheus(self) -> HttpResponse:
        """Tell what Prometheus reads."""
        available = Counter((profile.type, str(profile.nat)) for pool in Pool for profile in self._waiting(pool))
        page = exposition(self.statistics.totals(), available)
        return HttpResponse(status=200, body=page, headers={"Content-Type": CONTENT_TYPE})

    def _waiting(self, pool: Pool) -> Sequence[Profile]:
        return self.pools.profiles(pool, now_ms=self.now_ms(), shards=self.pacing.pace().shards)


def _json(body: str, metric: str) -> HttpResponse:
    return HttpResponse(status=200, body=body, headers={"Content-Type": "application/json"}, metrics=(metric,))
