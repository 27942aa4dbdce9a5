"""Measures the costs of 100,000 bindings: of adding one, of applying the change, and of memory.

`python -m benchmarks.bindings [--json]`; `benchmarks.federation` includes these figures. CPU time is that of an
environment that already has the bindings. It includes the AWS client, whose requests this process answers. Memory is
the peak of a new environment that has read a snapshot, with all its libraries.
"""

import io
import json
import os
import subprocess
import sys
import time
from base64 import b64decode, b64encode
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from types import SimpleNamespace
from typing import Annotated, Any

import typer
from botocore import xform_name
from botocore.awsrequest import AWSResponse
from botocore.compat import HTTPHeaders
from botocore.session import Session
from msgspec.structs import replace

from benchmarks.report import Figure, report
from sluice.aws.change_logs import DynamoChangeLog
from sluice.aws.clients import new_id
from sluice.federation.exchange_store import ExchangeStore, add_binding, remove_binding
from sluice.federation.matching.bindings import (
    Binding,
    CachedReplica,
    Destination,
    RoutingTable,
    SiteBindings,
    encode_page,
)
from sluice.federation.matching.exchanges import Exchange, ExchangeType
from sluice.federation.matching.typed_values import TypedValue
from tests.bindings import bound
from tests.simulation.models.dynamodb import DynamoDb

NUMBER = 100_000
QUEUES = 1_000  # the most bindings of one kind when matching is measured
BINDS = 100  # bindings added, and then removed
MOST_MS = 20.0
MOST_MB = 120.0
CREDENTIALS = {
    "AWS_DEFAULT_REGION": "eu-central-1",
    "AWS_ACCESS_KEY_ID": "test",
    "AWS_SECRET_ACCESS_KEY": "test",
}


def _topic(number: int) -> Binding:
    """Return a binding for one object's messages, in one of several common forms."""
    ways = (f"eu.orders.{number}.created", f"*.orders.{number}.#", f"#.{number}.created", f"eu.*.{number}.*")
    return Binding(exchange="topic", queue=queue_of(number), key=ways[number % len(ways)])


def _direct(number: int) -> Binding:
    return Binding(exchange="direct", queue=queue_of(number), key=f"eu.orders.{number}.created")


def _headers(number: int) -> Binding:
    ways: tuple[dict[str, TypedValue], ...] = (
        {"x-match": "all", "order": number, "event": "created"},
        {"x-match": "any", "order": number, "replaces": number},
    )
    arguments = ways[number % len(ways)]
    return Binding(exchange="headers", queue=queue_of(number), key=str(number), arguments=arguments)


def queue_of(number: int) -> str:
    """Return the name of a binding's queue."""
    return f"queue-{number % QUEUES}"


BOUND: Mapping[ExchangeType, Callable[[int], Binding]] = {
    ExchangeType.DIRECT: _direct,
    ExchangeType.TOPIC: _topic,
    ExchangeType.HEADERS: _headers,
}


def main(
    *, as_json: Annotated[bool, typer.Option("--json", help="Print the figures as JSON on the last line, too.")] = False
) -> None:
    """Measure every kind of exchange; the most expensive one is compared with the limits."""
    report(f"{NUMBER:,} bindings", figures(), as_json=as_json)


def figures() -> dict[str, Figure]:
    """Run all measurements and return the figures."""
    binds, reloads, cold, tables, writers = [dict[str, float]() for _ in range(5)]
    with TemporaryDirectory() as folder:
        for kind in BOUND:
            stored = Path(folder) / kind
            stored.write_bytes(snapshot_of(kind))
            binds[kind], reloads[kind] = _changes_ms(kind, stored.read_bytes())
            tables[kind], cold[kind] = _of_environment("exchange", stored)
            writers[kind], _ = _of_environment("links", stored)
    return {
        "bind_cpu_ms_100k": _worst("CPU of a bind, ms", binds, limit=MOST_MS),
        "reload_cpu_ms_100k": _worst("CPU to take it in, ms", reloads, limit=MOST_MS),
        "cold_cpu_ms_100k": _worst("CPU to compile all at a cold start, ms", cold),
        "table_mb_100k": _worst("the exchange function's memory, MB", tables, limit=MOST_MB),
        "links_mb_100k": _worst("the links function's memory, MB", writers),
    }


def _worst(name: str, by_kind: Mapping[str, float], *, limit: float | None = None) -> Figure:
    kind = max(by_kind, key=by_kind.__getitem__)
    return Figure(name=f"{name}, {kind}", value=by_kind[kind], limit=limit)


def snapshot_of(kind: ExchangeType) -> bytes:
    """Build the stored form of an exchange with all bindings. The exchange has the name of its type."""
    bindings = [_own(kind, number) for number in range(NUMBER)]
    queues = [_destination(each.queue) for each in bindings]
    site = SiteBindings(bound(exchanges=[Exchange(name=kind.value, type=kind)], queues=queues, bindings=bindings))
    return b"".join(map(encode_page, site.pages()))


def _own(kind: ExchangeType, number: int) -> Binding:
    """Give a binding a queue of its own, which is the most expensive distribution over queues."""
    return replace(BOUND[kind](number), queue=f"queue-{number}")


def _destination(queue: str) -> Destination:
    return Destination(queue=queue, url=f"https://sqs.eu-central-1.amazonaws.com/000000000000/{queue}")


# CPU


def _changes_ms(kind: ExchangeType, snapshot: bytes) -> tuple[float, float]:
    """Add and remove bindings one by one; return CPU ms for each, of the links function and of an exchange function."""
    client = client_in_memory()
    logs = [DynamoChangeLog(client=client, table="t", name="exchanges", new_token=new_id) for _ in range(2)]
    logs[0].save(snapshot, after=0, version=1)
    store, table = ExchangeStore(logs[0]), CachedReplica(logs[1], RoutingTable)
    store.bindings(), table.value()
    binding_s = taking_in_s = 0.0
    for number in range(NUMBER, NUMBER + BINDS):
        binding = _own(kind, number)
        for change in (add_binding(binding, _destination(binding.queue)), remove_binding(binding.id)):
            started = time.process_time()
            store.change(change)
            bound_at = time.process_time()
            table.value()
            binding_s += bound_at - started
            taking_in_s += time.process_time() - bound_at
    assert table.value().version == 1 + 2 * BINDS
    return binding_s / (2 * BINDS) * 1e3, taking_in_s / (2 * BINDS) * 1e3


def client_in_memory() -> Any:
    """Create an AWS client of a table in this process."""
    world = SimpleNamespace(now=0.0, happens=lambda _: False)
    dynamodb = DynamoDb(world)
    dynamodb.make_table("t")

    def answer(request: Any, **_: Any) -> Any:
        world.now += 1  # a partition has limited units per second, which would distort the measurement
        operation = xform_name(request.headers["X-Amz-Target"].decode().rpartition(".")[2])
        answered = getattr(dynamodb, operation)(**json.loads(request.body, object_hook=_with_bytes))
        body = _Raw(json.dumps(answered, default=lambda content: b64encode(content).decode()).encode())
        return AWSResponse(request.url, 200, HTTPHeaders(), body)

    client = Session().create_client(
        "dynamodb", region_name="eu-central-1", aws_access_key_id="test", aws_secret_access_key="test"
    )
    client.meta.events.register("before-send.dynamodb", answer)
    return client


def _with_bytes(value: dict[str, Any]) -> dict[str, Any]:
    return {"B": b64decode(value["B"])} if value.keys() == {"B"} else value


class _Raw(io.BytesIO):
    """A response body in the form that botocore reads."""

    def stream(self, **_: Any) -> Iterator[bytes]:
        yield self.read()


# Memory


def _of_environment(function: str, stored: Path) -> tuple[float, float]:
    """Start a function's environment that reads a snapshot; return its peak memory in MB, and CPU ms of reading."""
    command = [sys.executable, "-m", "benchmarks.binding_memory", function, str(stored)]
    variables = {"PATH": os.environ["PATH"], "PYTHONPATH": os.pathsep.join(sys.path), **CREDENTIALS}
    done = subprocess.run(command, check=True, capture_output=True, text=True, env=variables)
    mb, ms = map(float, done.stdout.split())
    return mb, ms


if __name__ == "__main__":
    typer.run(main)
