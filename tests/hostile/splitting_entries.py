"""Splitting's entries: messages of a split queue, filter files, operations, and what the registry's table has."""

import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from msgspec.structs import replace

from functions.control import handler as control
from functions.splitter import handler as splitter
from sluice.aws.splitting.registry_store import DynamoRegistryStore
from sluice.cli.splitting.filters import read_filters
from sluice.errors import BadFilter, BadSnapshot
from sluice.federation.declared import DECLARED
from sluice.pipeline.runs import DESIRED_STATE
from sluice.splitting.control import Control, RegistryCache
from sluice.splitting.filters.jq import Decide
from sluice.splitting.filters.values import Filter, Mode, Share
from sluice.splitting.jq_runner import compile_problem
from sluice.splitting.operation_handler import OperationHandler
from sluice.splitting.routing.router import Router
from sluice.splitting.sessions.state import SESSIONS, SPLITS, TEMPORARY_QUEUES
from sluice.splitting.settings import SplitConfig
from sluice.splitting.splitter import Routes, SessionCircuitBreaker, SplitOutcome, split
from tests.functions.conftest import CONTEXT
from tests.functions.ways import Inline
from tests.hostile.events import NOW_MS, Given, became, event, put_together, record, reporter
from tests.hostile.strict_sqs import StrictClient, as_json
from tests.splitting_fakes import SETTINGS, FakeRegistryStore, FakeSplitQueues, pointing

QUEUE = SplitConfig(queue_id="q", source="q", main="main", sns=True, s3_event=True)
CONFIG = SplitConfig(queue_id="q", source="source", main="main", sns=True, s3_event=True)
ANYTHING = Share(
    session_id="mirror", key="k", started_at_ms=0, filter=Filter(attributes=(("a", ""),)), mode=Mode.MIRROR
)


def never(program: str, document: str) -> bool | None:
    """No session of these has a program."""
    raise AssertionError(program)


def share(name: str, pattern: str | None = None, *, jq: str | None = None) -> Share:
    """A session that takes what the pattern finds in attribute `a`, or what the program says yes to."""
    attributes = () if pattern is None else (("a", pattern),)
    return Share(session_id=name, key=name, started_at_ms=1, filter=Filter(attributes=attributes, jq=jq))


def routes(shares: Sequence[Share], decide: Decide = never) -> Routes:
    """Where a splitter sends, with these sessions."""
    return Routes(
        router=Router.build(shares, decide=decide),
        queues={each.session_id: f"queue-{each.session_id}" for each in shares},
    )


@dataclass
class Splitter:
    """The splitter function, its queues on a strict SQS."""

    shares: Sequence[Share] = (ANYTHING,)
    decide: Decide = never
    metadata: Any = lambda _: {}
    client: StrictClient = field(default_factory=StrictClient)
    cancelled: list[tuple[str, str]] = field(default_factory=list)

    def told(self, session_id: str, reason: str) -> None:
        """As control would be."""
        self.cancelled.append((session_id, reason))

    def take(self, *messages: dict[str, Any], queue: str = "source") -> list[str]:
        outcomes: list[SplitOutcome] = []

        def split_batch(batch: Any, split_queue: SplitConfig) -> SplitOutcome:
            outcomes.append(
                split(
                    batch,
                    split_queue,
                    routes(self.shares, self.decide),
                    send=self.client.send_batch,
                    executor=Inline(),
                    metadata=self.metadata,
                    circuit_breaker=SessionCircuitBreaker(clock_s=time.monotonic, cancel=self.told),
                    began_s=time.monotonic(),
                )
            )
            return outcomes[0]

        parts = SimpleNamespace(by_source={queue: QUEUE}, split=split_batch, reporter=reporter(self.client))
        with put_together(splitter, parts):
            response = splitter.handler(event(*messages), CONTEXT)
        self.outcome = outcomes[0]
        return list(became(response, self.client))


def message(body: str, attributes: Given | None = None) -> str:
    """A message of a split queue, with a session that mirrors what has an attribute `a`: main has it, as it came."""
    site = Splitter()
    taken = record(body, attributes, queue="source")
    said = site.take(taken)
    assert site.client.refused == []
    if said:
        return said[0]
    sent = dict(site.client.taken)
    assert sent["main"]["MessageBody"] == body
    assert sent["main"].get("MessageAttributes", {}) == {name: each.api() for name, each in (attributes or {}).items()}
    return "to " + ", ".join(sent)


def filters(content: bytes, *, ending: str = ".yaml") -> str:
    """A filter file: the sessions' queues, or which place is wrong."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / f"filter{ending}"
        file.write_bytes(content)
        try:
            found, _ = read_filters(file, [])
        except BadFilter as fault:
            return f"refused: {fault}".replace(f"{folder}/", "")
    return f"queues: {', '.join(found)}"


@dataclass
class Sessions:
    """The control function over a registry in memory, without sessions."""

    store: FakeRegistryStore = field(default_factory=FakeRegistryStore)
    queues: FakeSplitQueues = field(default_factory=FakeSplitQueues)
    client: StrictClient = field(default_factory=StrictClient)

    def __post_init__(self) -> None:
        self.queues.messages["source"] = []
        self.queues.messages["main"] = []
        self.reporter = reporter(self.client)
        self.tokens = iter(f"token{number:07}" for number in range(1_000))

    def control(self, context: Any) -> Control:
        return Control(
            registry_cache=RegistryCache(self.store),
            queues=self.queues,
            pointing=pointing(),
            settings=replace(SETTINGS, split_queues=(CONFIG,)),
            now_ms=lambda: NOW_MS,
            new_token=lambda: next(self.tokens),
            may_go_on=lambda: True,
        )

    def make_operation_handler(self, control: Control) -> OperationHandler:
        return OperationHandler(
            control=control,
            compile_problem=compile_problem,
            counts=self.store.read_counts,
            url=lambda name: f"url/{name}",
        )

    def arm_tick(self) -> None:
        """Nobody waits here."""

    def ask(self, request: Any) -> dict[str, Any]:
        with put_together(control, self):
            reply: dict[str, Any] = control.handler(request, CONTEXT)
        as_json(reply)
        return reply

    def take(self, body: str) -> list[str]:
        with put_together(control, self):
            response = control.handler(event(record(body, queue="control")), CONTEXT)
        return list(became(response, self.client))


def asked(request: Any) -> str:
    """An operator's request of the control function: a refusal, and then nothing has changed; or a result."""
    site = Sessions()
    before = site.store.registry
    reply = site.ask(request)
    if "error" in reply:
        assert site.store.registry == before
        return f"refused: {reply['error']}"
    return "result"


def queued(body: str) -> str:
    """A message of the control queue: a tick, or what a splitter asks for."""
    said = Sessions().take(body)
    return said[0] if said else "done"


class Table:
    """As much of a DynamoDB client as reads the registry: its items by partition."""

    def __init__(self, items: Mapping[str, Sequence[Mapping[str, Any]]]) -> None:
        self._items = items

    def get_item(self, *, Key: Any, **_: Any) -> dict[str, Any]:  # noqa: N803 - the API's own
        found = [each for each in self._items.get(Key["pk"]["S"], ()) if each["sk"] == Key["sk"]]
        return {"Item": found[0]} if found else {}

    def get_paginator(self, _: str) -> "Table":
        return self

    def paginate(self, *, ExpressionAttributeValues: Any, **_: Any) -> list[dict[str, Any]]:  # noqa: N803 - see above
        return [{"Items": list(self._items.get(ExpressionAttributeValues[":pk"]["S"], ()))}]


def stored(text: str) -> str:
    """A registry with this text in each kind of item in turn: it is read, or it is said why it can't be."""
    said = []
    for prefix, kind in (("session#x", SESSIONS), ("split#x", SPLITS), ("queue#x", TEMPORARY_QUEUES)):
        client: Any = Table({"registry": [{"sk": {"S": prefix}, "value": {"S": text}}]})
        said.append(_read(kind.kind, DynamoRegistryStore(client, "t").load))
    said += [
        _read(DECLARED.kind, partial(DECLARED.from_text, text)),
        _read(DESIRED_STATE.kind, partial(DESIRED_STATE.from_text, text)),
    ]
    return "; ".join(said)


def _read(kind: str, read: Callable[[], object]) -> str:
    try:
        read()
    except BadSnapshot as fault:
        return str(fault)
    return f"{kind}: read"
