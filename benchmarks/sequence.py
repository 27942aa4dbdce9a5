"""Counts how many calls to AWS follow one another from an offer's arrival at the broker to the answer's send.

The deployed functions' handlers run in this process, with their own settings, against the embedded cloud: only a caller
sees which of its calls overlap, as the cloud serves one after the other.
"""

import io
import json
import os
import statistics
import time
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import redirect_stdout
from dataclasses import dataclass, field
from threading import Event, get_ident
from types import SimpleNamespace
from typing import Any, NamedTuple

from sluice.aws.clients import long_polling_sqs_client, new_id, now_ms, quick_dynamodb_client, quick_sqs_client
from sluice.peers.methods import generate_client_id
from sluice.peers.volunteer import ANSWER_VERSION, POLL_VERSION
from sluice.rendezvous.protocol.ends import End
from tests.site_access import SiteAccess
from tests.traffic import answer, draw_number, offer_body

ROUNDS = 5  # after one that creates what an environment keeps
HELD_WITHIN_S = 10.0
HELD = {"HELD_PROXIES_MIN": "100", "HELD_PROXIES_MAX": "100"}


class Call(NamedTuple):
    """A call, by `time.monotonic`."""

    began_s: float
    ended_s: float
    action: str


@dataclass(slots=True)
class Recorder:
    """Records the calls of this process. Thread-safe. `is_held` is set when a poll waits for its offer."""

    calls: list[Call] = field(default_factory=list)
    is_held: Event = field(default_factory=Event)
    _began_s: dict[int, float] = field(default_factory=dict)  # by thread

    def watch(self, client: Any) -> None:
        """Record a client's calls from now on."""
        client.meta.events.register("before-call.*", self._begin)
        client.meta.events.register("after-call.*", self._end)

    def _begin(self, model: Any, **_: Any) -> None:
        self._began_s[get_ident()] = time.monotonic()
        if model.name == "ReceiveMessage":
            self.is_held.set()

    def _end(self, model: Any, **_: Any) -> None:
        self.calls.append(Call(self._began_s[get_ident()], time.monotonic(), model.name))


def count_longest_chain(calls: Iterable[Call], *, since_s: float, until_s: float) -> int:
    """Count the calls of the longest sequence in which none begins before the one before it has ended."""
    number, free_s = 0, since_s
    for call in sorted(calls, key=lambda each: each.ended_s):
        if call.began_s >= free_s and call.ended_s <= until_s:
            number, free_s = number + 1, call.ended_s
    return number


def calls_in_sequence(site: SiteAccess) -> float:
    """Make some rendezvous with a held poll, one after the other. Returns the median of their sequences."""
    os.environ.update(site.cloud.environment(site.site))
    from functions.broker import handler as broker  # noqa: PLC0415 - reads the environment
    from functions.proxy import handler as proxy  # noqa: PLC0415 - see above

    for module, name in ((broker, "Broker"), (proxy, "Proxy")):
        os.environ.update(_read_settings(site, name) | HELD)
        module.dependencies.cache_clear()
        module.dependencies()
    recorder = Recorder()
    for client in (quick_sqs_client(), quick_dynamodb_client(), long_polling_sqs_client()):
        recorder.watch(client)
    with ThreadPoolExecutor(1) as polls, redirect_stdout(io.StringIO()):  # handlers print metrics
        return statistics.median([_rendezvous(broker, proxy, recorder, polls) for _ in range(ROUNDS + 1)][1:])


def _rendezvous(broker: Any, proxy: Any, recorder: Recorder, polls: ThreadPoolExecutor) -> int:
    recorder.calls.clear()
    recorder.is_held.clear()
    sid = new_id()
    poll = {"Sid": sid, "Version": POLL_VERSION, "NAT": "unrestricted", "AcceptedRelayPattern": "$"}
    polled = polls.submit(proxy.handler, _http_event("/proxy", poll), _CONTEXT)
    if not recorder.is_held.wait(HELD_WITHIN_S):
        raise TimeoutError(f"no poll was held: {polled.result()}")
    since_s = time.monotonic()
    broker.handler({"Records": [_build_record()]}, _CONTEXT)
    given = json.loads(polled.result()["body"])
    answered = {"Sid": sid, "Version": ANSWER_VERSION, "Answer": answer(draw_number())}
    said = json.loads(proxy.handler(_http_event("/answer", answered), _CONTEXT)["body"])
    if (given["Status"], said["Status"]) != (End.POLL_MATCHED.reply, End.ANSWER_DELIVERED.reply):
        raise RuntimeError(f"no rendezvous: {given}, {said}")
    sends = [call for call in recorder.calls if call.action == "SendMessage"]
    answer_sent = max(sends, key=lambda call: call.ended_s)
    return count_longest_chain(recorder.calls, since_s=since_s, until_s=answer_sent.ended_s)


def _read_settings(site: SiteAccess, name: str) -> dict[str, str]:
    """Read the environment variables of the deployed function with this name in its own."""
    pages = site.connection.client("lambda").get_paginator("list_functions").paginate()
    [found] = [
        function
        for page in pages
        for function in page["Functions"]
        if function.get("Environment", {}).get("Variables", {}).get("POWERTOOLS_SERVICE_NAME") == name.lower()
    ]
    return dict(found["Environment"]["Variables"])


def _http_event(path: str, body: Mapping[str, Any]) -> dict[str, Any]:
    context = {"http": {"method": "POST", "sourceIp": "127.0.0.1"}}
    return {"rawPath": path, "headers": {}, "requestContext": context, "body": json.dumps(body)}


def _build_record() -> dict[str, Any]:
    """Build an offer's record as its trigger would."""
    return {
        "messageId": new_id(),
        "receiptHandle": new_id(),
        "body": offer_body(draw_number()),
        "attributes": {"SentTimestamp": str(now_ms()), "ApproximateReceiveCount": "1"},
        "messageAttributes": {"ClientID": {"dataType": "String", "stringValue": generate_client_id()}},
        "eventSource": "aws:sqs",
        "eventSourceARN": "arn:aws:sqs:eu-central-1:000000000000:snowflake-broker",
        "awsRegion": "eu-central-1",
    }


_CONTEXT: Any = SimpleNamespace(
    function_name="f",
    memory_limit_in_mb=128,
    invoked_function_arn="arn:aws:lambda:eu-central-1:000000000000:function:f",
    aws_request_id="id",
    get_remaining_time_in_millis=lambda: 60_000,
)
