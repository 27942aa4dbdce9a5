"""Measures splitting: send requests per message, and CPU per message by number of sessions.

`python -m benchmarks.splitting [--json]`. Requests are counted at the splitter's port, with batches as a busy queue's
trigger provides them. CPU time includes everything between a batch's arrival and its sending: parsing, matching,
copying, regrouping. Each session selects one tenant's messages, in one of several common forms. Ten sessions with jq
programs are a figure of their own, and so is the cost of a hostile session beside ten honest ones.
"""

import json
import random
import resource
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Executor, Future
from contextlib import closing
from dataclasses import dataclass
from typing import Annotated, Any

import typer
from rich.console import Console

from benchmarks import hostile_sessions
from benchmarks.report import Figure, report
from sluice.message import Message
from sluice.splitting.filters.texts import FilterInput
from sluice.splitting.filters.values import Filter, Share
from sluice.splitting.jq_runner import JqRunner
from sluice.splitting.routing.router import Meter, Router
from sluice.splitting.settings import SplitConfig
from sluice.splitting.splitter import Routes, SessionCircuitBreaker, split

# Per message, in addition to the producer and the consumer. Mirrord receives, sends and deletes messages one by one; a
# busy queue's trigger receives and deletes ten at a time.
MIRRORD_REQUESTS = 3.0
TRIGGER_REQUESTS = 0.2
BATCH = 1_000  # the trigger's, with profile `throughput`
BODY = "x" * 1024
MESSAGES = 10_000
ROUNDS = 5
FEW, MANY = 3, 30  # sessions when requests are counted
FEW_TENANTS, MANY_TENANTS = 10, 100  # so a session has a tenth or a hundredth of the messages
SESSIONS = (1, 30, 1_000)  # when CPU is measured
TENANTS = 10_000  # of which 1,000 sessions select a tenth together
JQ_SESSIONS, JQ_MESSAGES, JQ_BODY_BYTES = 10, 200, 10_000
BATCH_S = 60.0  # a batch's time limit, longer than a function's
SEED = 3
QUEUE = SplitConfig(queue_id="q", source="q", main="main")


@dataclass(slots=True)
class CountingQueues:
    """Accepts all messages, and counts the requests."""

    requests: int = 0

    def send_batch(self, name: str, entries: Sequence[dict[str, Any]]) -> Mapping[str, str]:  # noqa: ARG002 - the port's
        """Accept all entries."""
        self.requests += 1
        return {}


class InPlace(Executor):
    """Runs each task at once in the caller's thread, so that its CPU is counted there."""

    def submit(self, fn: Any, /, *args: Any, **kwargs: Any) -> "Future[Any]":
        """Run the task, and return a finished future."""
        future: Future[Any] = Future()
        future.set_result(fn(*args, **kwargs))
        return future


@dataclass(frozen=True, slots=True)
class Measured:
    """The results for one number of sessions."""

    sends_per_message: float
    cpu_us_per_message: float


def main(
    *, as_json: Annotated[bool, typer.Option("--json", help="Print the figures as JSON on the last line, too.")] = False
) -> None:
    """Run all measurements."""
    with Console(stderr=True).status("splitting"):
        few = measure(FEW, tenants=FEW_TENANTS).sends_per_message
        many = measure(MANY, tenants=MANY_TENANTS).sends_per_message
        measured = {number: measure(number, tenants=TENANTS) for number in SESSIONS}
    figures = {
        "sends_per_message": Figure(
            name=f"send requests per message, {FEW} sessions",
            value=few,
            limit=0.11,
        ),
        "requests_per_message": Figure(
            name="all requests per message, with receiving and deleting",
            value=few + TRIGGER_REQUESTS,
            ratio=(few + TRIGGER_REQUESTS) / MIRRORD_REQUESTS,
            compared_to=f"mirrord's {MIRRORD_REQUESTS:g}",
        ),
        f"sends_per_message_{MANY}": Figure(
            name=f"send requests per message, {MANY} sessions with few messages each", value=many
        ),
    }
    for number in SESSIONS:
        name = f"CPU per message, µs, {number:,} sessions"
        figures[f"cpu_us_per_message_{number}"] = Figure(name=name, value=measured[number].cpu_us_per_message)
    series = {"cpu_us_per_message": {str(number): f"cpu_us_per_message_{number}" for number in SESSIONS}}
    ratio = measured[SESSIONS[-1]].cpu_us_per_message / measured[SESSIONS[0]].cpu_us_per_message
    figures["ratio_1000_to_1"] = Figure(name="CPU time with 1,000 sessions, relative to one", value=ratio, limit=5)
    name = f"messages of {JQ_BODY_BYTES:,} bytes per CPU second, {JQ_SESSIONS} sessions with jq"
    figures["jq_messages_per_cpu_s"] = Figure(name=name, value=jq_messages_per_cpu_s())
    figures |= hostile_sessions.figures()
    title = f"Splitting: {MESSAGES:,} messages of {len(BODY)} bytes in batches of {BATCH:,}: profile throughput"
    report(title, figures, as_json=as_json, series=series)


def jq_messages_per_cpu_s() -> float:
    """Measure routing by jq programs, including their process and its start."""
    filters = [Filter(jq=f".Body | fromjson | .n == {number}") for number in range(JQ_SESSIONS)]
    shares = [
        Share(session_id=str(number), key=str(number), started_at_ms=number, filter=filter_)
        for number, filter_ in enumerate(filters)
    ]
    body = json.dumps({"n": JQ_SESSIONS, "text": "x" * JQ_BODY_BYTES})
    before = _cpu_s()
    with closing(JqRunner()) as decide:
        router = Router.build(shares, decide=decide)
        for number in range(JQ_MESSAGES):
            meter = Meter(clock=time.monotonic, until=time.monotonic() + BATCH_S, budget_s=BATCH_S)
            found = router.find_recipients(
                FilterInput.from_message(Message(message_id=str(number), body=body)), gone=set(), meter=meter
            )
            assert found.stealing is None
            assert not found.faults
    return JQ_MESSAGES / (_cpu_s() - before)


def _cpu_s() -> float:
    """Return the CPU seconds of this process and of its ended children."""
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(each.ru_utime + each.ru_stime for each in used)


def measure(number: int, *, tenants: int, batch: int = BATCH) -> Measured:
    """Return the fastest of several rounds, because others use the machine too, with batches of this size."""
    shares = [_share(each) for each in range(number)]
    routes = Routes(
        router=Router.build(shares, decide=lambda _, __: None),
        queues={share.session_id: f"session-{share.session_id}" for share in shares},
    )
    batches = list(_batches(tenants, batch))
    fastest, requests = float("inf"), 0
    for _ in range(ROUNDS):
        queues = CountingQueues()
        started = time.process_time()
        for records in batches:
            messages = [Message.from_lambda(record) for record in records]
            split(
                messages,
                QUEUE,
                routes,
                send=queues.send_batch,
                executor=InPlace(),
                metadata=lambda _: {},
                circuit_breaker=SessionCircuitBreaker(clock_s=time.monotonic, cancel=lambda _, __: None),
                began_s=time.monotonic(),
            )
        fastest, requests = min(fastest, time.process_time() - started), queues.requests
    return Measured(requests / MESSAGES, fastest / MESSAGES * 1e6)


def _share(tenant: int) -> Share:
    """Build a session that selects one tenant's messages."""
    ways = (
        (("tenant", f"^{tenant}$"),),
        (("baggage", f".*tenant={tenant},.*"),),
        (("tenant", f"^({tenant}|test-{tenant})$"), ("level", "^(info|debug)$")),
    )
    wanted = Filter(attributes=ways[tenant % len(ways)])
    return Share(session_id=str(tenant), key=str(tenant), started_at_ms=tenant, filter=wanted)


def _batches(tenants: int, batch: int) -> Iterator[list[dict[str, Any]]]:
    draw = random.Random(SEED)
    for start in range(0, MESSAGES, batch):
        yield [_record(start + place, draw.randrange(tenants)) for place in range(batch)]


def _record(number: int, tenant: int) -> dict[str, Any]:
    """Build a record in Lambda's form."""
    attributes = {
        "tenant": str(tenant),
        "baggage": f"trace=4bf92f3577b34da6,tenant={tenant},region=eu",
        "level": "info",
        "content-type": "application/json",
        "version": "3",
    }
    return {
        "messageId": f"{number:032x}",
        "receiptHandle": "handle",
        "body": BODY,
        "attributes": {"SentTimestamp": "1", "ApproximateReceiveCount": "1"},
        "messageAttributes": {name: {"dataType": "String", "stringValue": value} for name, value in attributes.items()},
    }


if __name__ == "__main__":
    typer.run(main)
