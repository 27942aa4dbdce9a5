"""Events are told of by one write; and are published in order, up to the first that can't be."""

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest
from botocore.exceptions import EndpointConnectionError

from sluice.aws.federation.publisher import NotPublished, Publisher
from sluice.aws.rendezvous.event_publisher import MAX_EVENTS, TableEventPublisher
from sluice.aws.rendezvous.exchange_publisher import BindingCounts, ExchangePublisher
from sluice.federation.matching.bindings import Bindings, BindingsChange, Destination, build_replica, encode_page
from sluice.federation.matching.exchanges import STANDARD_EXCHANGES, Exchange, ExchangeType
from sluice.rendezvous.counts.events import Event, OfferEvent, PollEvent, derive_event_id
from sluice.rendezvous.counts.stream import read_events
from sluice.rendezvous.event_recorder import MAX_BUFFERED_POLLS
from tests.fakes import Clock

URL = "https://sqs.eu-central-1.amazonaws.com/000000000000/ingress"
NOW = 1_700_000_000_000


def event(number: int, *, country: str = "??") -> OfferEvent:
    id_ = derive_event_id("offer", str(number), at_ms=1)
    return OfferEvent(id=id_, at_ms=1, outcome="denied", method="sqs", country=country)


# To the table


@dataclass
class Table:
    """A DynamoDB client. The write of this number fails, and all after it."""

    fails: int | None = None
    items: list[Any] = field(default_factory=list)

    def put_item(self, *, TableName: str, Item: Any) -> None:  # noqa: N803  boto3's names
        if len(self.items) == self.fails:
            raise EndpointConnectionError(endpoint_url="dynamodb")
        self.items.append(Item)

    def events(self) -> list[Event]:
        changes = [
            {"eventName": "INSERT", "dynamodb": {"Keys": item, "NewImage": item, "SequenceNumber": "1"}}
            for item in self.items
        ]
        return [event for change in changes for event in read_events(change)]


def teller(table: Table) -> TableEventPublisher:
    client: Any = table
    ids = iter("abcdefgh")
    return TableEventPublisher(
        table="t", site="here", client=lambda: client, now_ms=Clock(NOW), new_id=lambda: next(ids)
    )


def test_all_that_an_invocation_tells_of_is_one_write_and_is_read_from_the_stream() -> None:
    table, events = Table(), [event(number) for number in range(12)]
    assert teller(table).publish(events) == 0
    [item] = table.items
    assert item["pk"] == {"S": "told"}
    assert int(item["expires_at"]["N"]) == NOW // 1000 + 3_600
    assert table.events() == events


def test_what_an_item_doesnt_hold_is_in_the_next() -> None:
    """With so many polls as an environment collects, each with an address and labels of its own."""
    table = Table()
    polls = [
        PollEvent(
            id=derive_event_id("poll", str(number), at_ms=1),
            at_ms=1_700_000_000_000,
            outcome="idle",
            nat="unrestricted",
            proxy_type="standalone",
            trace="Root=1-67891233-abcdef012345678912345678;Parent=53995c3f42cd8ad8;Sampled=1",
            relay_extension=True,
            clients=100,
            waited_ms=10_000,
            address=f"{number:032}",
        )
        for number in range(MAX_BUFFERED_POLLS)
    ]
    assert teller(table).publish(polls) == 0
    assert len({item["sk"]["S"] for item in table.items}) == len(table.items) == MAX_BUFFERED_POLLS // MAX_EVENTS
    addresses = 35 * MAX_BUFFERED_POLLS  # of which all may be in one event
    assert all(len(item["events"]["S"]) + addresses < 350_000 for item in table.items)
    assert table.events() == polls


def test_what_cant_be_written_is_lost_and_counted_and_raises_nothing() -> None:
    assert teller(Table(fails=0)).publish([event(1), event(2)]) == 2
    assert teller(Table(fails=1)).publish([event(number) for number in range(MAX_EVENTS + 3)]) == 3
    assert teller(Table()).publish([]) == 0


# To the exchange


@dataclass
class Ingress:
    """An SQS client. `fails` are the entries that each request fails, by place; None is all of the request."""

    fails: list[Sequence[int] | None]
    requests: int = 0
    taken: list[str] = field(default_factory=list)  # ids of events

    def send_message_batch(self, *, QueueUrl: str, Entries: Sequence[Any]) -> Any:  # noqa: N803  boto3's names
        self.requests += 1
        failed = self.fails.pop(0) if self.fails else ()
        if failed is None:
            raise EndpointConnectionError(endpoint_url=QueueUrl)
        self.taken += [json.loads(entry["MessageBody"])["id"] for entry in Entries if int(entry["Id"]) not in failed]
        refused = [{"Id": str(place), "Code": "InternalError", "SenderFault": False} for place in failed]
        return {"Successful": [], "Failed": refused}


def publisher(ingress: Ingress, *, bound: bool = True) -> ExchangePublisher:
    client: Any = ingress
    bindings = Bindings(
        exchanges=(*STANDARD_EXCHANGES, EVENTS), queues=(QUEUE,), bound={"events": {"q": {"#": {}}}} if bound else {}
    )
    replica: Any = SimpleNamespace(value=lambda: BindingCounts(bindings))
    return ExchangePublisher(exchange="events", site="here", publisher=Publisher(URL, client), bindings=replica)


EVENTS = Exchange(name="events", type=ExchangeType.TOPIC, alternate="amq.fanout")
QUEUE = Destination(queue="q", url="https://sqs.test/000000000000/q")


def test_events_are_sent_in_order_where_a_queue_is_bound() -> None:
    events = [event(number) for number in range(12)]
    for bound, requests in ((True, 2), (False, 0)):
        ingress = Ingress([])
        sent = events if bound else []
        assert publisher(ingress, bound=bound).publish(events) == len(sent)
        assert (ingress.requests, ingress.taken) == (requests, [each.id for each in sent])


@pytest.mark.parametrize("fails", [[(3,)], [(), (0, 1)], [None], [(), None]])
def test_what_cant_be_sent_is_raised(fails: list[Sequence[int] | None]) -> None:
    with pytest.raises(NotPublished):
        publisher(Ingress(fails)).publish([event(number) for number in range(12)])


def test_what_can_never_be_published_is_passed_over() -> None:
    ingress = Ingress([])
    events = [event(0), event(1, country="x" * 300), event(2)]
    assert publisher(ingress).publish(events) == 3
    assert ingress.taken == [events[0].id, events[2].id]


@pytest.mark.parametrize(
    ("bound", "is_wanted"),
    [
        ({}, False),
        ({"events": {}}, False),
        ({"events": {"q": {"rendezvous.#": {}}}}, True),
        ({"amq.topic": {"q": {"#": {}}}}, False),
        ({"amq.fanout": {"q": {"": {}}}}, True),
    ],
    ids=["nothing", "no longer", "a queue", "another exchange", "the alternate"],
)
def test_events_are_wanted_where_a_queue_gets_them(bound: Any, is_wanted: bool) -> None:
    bindings = Bindings(exchanges=(*STANDARD_EXCHANGES, EVENTS), queues=(QUEUE,), bound=bound)
    assert build_replica(encode_page(bindings), BindingCounts).has_binding("events") is is_wanted


def test_events_are_wanted_from_a_first_binding_to_the_last_ones_end() -> None:
    demand = build_replica(None, BindingCounts)
    keys: Any = {"events": {"q": {"rendezvous.#": {}}}}
    for change, is_wanted in [
        (BindingsChange(exchanges=(EVENTS,)), False),
        (BindingsChange(queues=(QUEUE,), bound=keys), True),
        (BindingsChange(unbound=keys, forgotten=("q",)), False),
        (BindingsChange(gone_exchanges=("events",)), False),
    ]:
        demand.apply(change)
        assert demand.has_binding("events") is is_wanted


def test_an_exchange_that_isnt_there_yet_leads_nowhere() -> None:
    assert not build_replica(None, BindingCounts).has_binding("events")
