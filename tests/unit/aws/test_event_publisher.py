"""Events are told of by one write; and are published in order, up to the first that can't be."""

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest
from botocore.exceptions import EndpointConnectionError

from sluice.aws.federation.publisher import Publisher
from sluice.aws.rendezvous.event_publisher import MAX_EVENTS_BYTES, TableEventPublisher
from sluice.aws.rendezvous.exchange_publisher import BindingCounts, ExchangePublisher
from sluice.federation.matching.bindings import Bindings, BindingsChange, Destination, build_replica, pack
from sluice.federation.matching.exchanges import STANDARD_EXCHANGES, Exchange, ExchangeType
from sluice.rendezvous.counts.events import Event, OfferEvent, PollEvent, event_id
from sluice.rendezvous.counts.stream import read_record
from tests.fakes import Clock

URL = "https://sqs.eu-central-1.amazonaws.com/000000000000/ingress"
NOW = 1_700_000_000_000


def event(number: int, *, country: str = "??") -> OfferEvent:
    id_ = event_id("offer", str(number), at_ms=1)
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
        return [event for change in changes for event in read_record(change).events]


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
    table = Table()
    addresses = tuple(f"{number:032}" for number in range(1_000))
    polls = [
        PollEvent(id=event_id("poll", str(number), at_ms=1), at_ms=1, outcome="idle", polls=1_000, addresses=addresses)
        for number in range(20)
    ]
    assert teller(table).publish(polls) == 0
    assert len(table.items) == 3
    assert len({item["sk"]["S"] for item in table.items}) == 3
    assert all(len(item["events"]["S"]) < MAX_EVENTS_BYTES * 1.1 for item in table.items)
    assert table.events() == polls


def test_what_cant_be_written_is_lost_and_counted_and_raises_nothing() -> None:
    assert teller(Table(fails=0)).publish([event(1), event(2)]) == 2
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
        self.taken += [json.loads(each["MessageBody"])["id"] for each in Entries if int(each["Id"]) not in failed]
        refused = [{"Id": str(place), "Code": "InternalError", "SenderFault": False} for place in failed]
        return {"Successful": [], "Failed": refused}


def publisher(ingress: Ingress) -> ExchangePublisher:
    client: Any = ingress
    return ExchangePublisher(exchange="events", site="here", publisher=Publisher(URL, client))


@pytest.mark.parametrize(
    ("fails", "requests", "sent"),
    [([], 2, 12), ([(3,)], 1, 3), ([(), (0, 1)], 2, 10), ([(), (1,)], 2, 11), ([None], 1, 0), ([(), None], 2, 10)],
)
def test_how_many_were_sent_is_up_to_the_first_that_wasnt(
    fails: list[Sequence[int] | None], requests: int, sent: int
) -> None:
    ingress = Ingress(fails)
    assert publisher(ingress).publish([event(number) for number in range(12)]) == sent
    assert ingress.requests == requests


def test_what_can_never_be_published_is_passed_over() -> None:
    ingress = Ingress([])
    events = [event(0), event(1, country="x" * 300), event(2)]
    assert publisher(ingress).publish(events) == 3
    assert ingress.taken == [events[0].id, events[2].id]


def test_after_one_that_can_never_be_published_places_are_still_those_of_all() -> None:
    events = [event(0), event(1, country="x" * 300), event(2), event(3)]
    assert publisher(Ingress([(), (1,)])).publish(events) == 3


EVENTS = Exchange(name="events", type=ExchangeType.TOPIC, alternate="amq.fanout")
QUEUE = Destination(queue="q", url="https://sqs.test/000000000000/q")


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
    assert build_replica(pack(bindings), BindingCounts).has_binding("events") is is_wanted


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
