"""One trace id from a client's offer to the queue whose messages become rows, hop by hop with the real functions.

What Spark does with it is its own suite's: column `trace_header`.
"""

import pytest
from msgspec.structs import replace

from sluice.aws.federation.publisher import PublishRequest
from sluice.federation.forwarder import forward
from sluice.federation.matching.bindings import Binding, Destination, RoutingTable
from sluice.federation.matching.exchanges import Exchange, ExchangeType
from sluice.federation.matching.metadata import Crossing, ReceivedMessage
from sluice.federation.router import publish
from sluice.message import TRACE_HEADER, Message, Outgoing
from sluice.rendezvous.counts.events import OfferEvent
from sluice.rendezvous.counts.stream import read_events
from sluice.rendezvous.protocol.matching import OfferRecord
from sluice.splitting.routing.router import build_main_message, build_returned_message, build_session_copy
from tests.bindings import bound
from tests.unit.rendezvous.test_broker import World, post

TRACE = "Root=1-5759e988-bd862e3fe1be46a994272793;Parent=53995c3f42cd8ad8;Sampled=1"
OF_THE_BATCH = "Root=1-00000000-000000000000000000000000"
ULID = "01JD0000000000000000000000"
NOW = 1_700_000_000_000
CROSSING = Crossing(peer="WEST", tag="EAST")


def recorded(trace: str | None) -> OfferRecord:
    """What is written down of an offer when it comes: the write that ends it tells of its end with the same trace."""
    world = World()
    world.recorder = replace(world.recorder, trace=lambda: OF_THE_BATCH)
    offer = post()
    world.serve(replace(offer, system={**offer.system, **({} if trace is None else {TRACE_HEADER: trace})}))
    [record] = world.offers.offers.values()
    return record


def told(record: OfferRecord) -> OfferEvent:
    """The event of its end."""
    image = {
        "pk": {"S": "offers#0"},
        "sk": {"S": f"{record.sent_at_ms}#{record.client_id}"},
        "state": {"S": "denied"},
        "trace": {"S": record.trace},
        "ended_at": {"N": str(NOW)},
    }
    keys = {name: image[name] for name in ("pk", "sk")}
    [event] = read_events({"dynamodb": {"Keys": keys, "NewImage": image, "SequenceNumber": "1"}})
    assert isinstance(event, OfferEvent)
    return event


def test_an_offers_event_has_the_offers_trace_and_not_that_of_its_batch() -> None:
    assert told(recorded(TRACE)).trace == TRACE


def test_an_offer_without_a_trace_has_its_batchs() -> None:
    assert told(recorded(None)).trace == OF_THE_BATCH


def received(sent: Outgoing) -> Message:
    """As the next function has it: by the names of SQS's own fields."""
    fields = sent.fields()
    system = {name: value["StringValue"] for name, value in fields.get("MessageSystemAttributes", {}).items()}
    return Message(
        message_id="id", body=sent.body, attributes=sent.attributes, system={"SentTimestamp": str(NOW), **system}
    )


def routed(message: Message, *, site: str, destination: Destination) -> Outgoing:
    table = RoutingTable(
        bound(
            exchanges=[Exchange(name="events", type=ExchangeType.TOPIC)],
            queues=[destination],
            bindings=[Binding(exchange="events", queue=destination.queue, key="#")],
        )
    )
    receipt = ReceivedMessage(message=message, site=site, ulid=ULID, now_ms=NOW)
    [copy] = publish(receipt, trusted=True, table=table).copies
    return copy.outgoing


@pytest.mark.parametrize("fifo", [False, True])
def test_from_the_offer_to_the_pipelines_queue_it_is_one_trace(fifo: bool) -> None:
    event = told(recorded(TRACE))
    published = PublishRequest(
        exchange="events", key=event.routing_key, body=event.to_json(site="EAST"), trace_header=event.trace
    )
    suffix = ".fifo" if fifo else ""
    bridge = Destination(queue="bridge", url=f"https://sqs/bridge{suffix}", crossing=CROSSING)
    source = Destination(queue="source", url=f"https://sqs/source{suffix}")
    on_the_bridge = received(routed(received(published.to_message(fifo=fifo)), site="EAST", destination=bridge))
    receipt = ReceivedMessage(message=on_the_bridge, site="EAST", ulid=ULID, now_ms=NOW)
    crossed = forward(receipt, crossing=CROSSING, dest="events", fifo=fifo)
    assert isinstance(crossed, Outgoing)
    at_the_source = received(routed(received(crossed), site="WEST", destination=source))
    landed = received(build_main_message(at_the_source, fifo=fifo))
    assert (landed.trace_header, landed.body) == (TRACE, event.to_json(site="EAST"))


def test_a_message_that_a_session_had_and_gave_back_keeps_it() -> None:
    message = Message(message_id="id", body="b", system={TRACE_HEADER: TRACE})
    at_the_session = received(build_session_copy(message, key="k", fifo=False))
    assert at_the_session.trace_header == TRACE
    assert build_returned_message(at_the_session, key="k", fifo=False).trace_header == TRACE


def test_without_a_trace_nothing_is_sent_in_its_place() -> None:
    assert "MessageSystemAttributes" not in PublishRequest(exchange="e", body="b").to_message(fifo=False).fields()
