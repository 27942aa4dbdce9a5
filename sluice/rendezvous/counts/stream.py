"""Parses events from records of the table's stream. Pure.

Two kinds of records have events: a new item with events that a function wrote, and the update that stores an offer's
end, from which the events of the offer and of its answer are built. `FILTERS` selects only these records.
https://docs.aws.amazon.com/amazondynamodb/latest/developerguide/Streams.Lambda.html
"""

from collections.abc import Mapping, Sequence
from typing import Any

from sluice.codec import decode
from sluice.errors import Malformed
from sluice.rendezvous.counts.events import AnswerEvent, Event, OfferEvent, event_id, parse_event
from sluice.rendezvous.protocol.addresses import UNKNOWN_COUNTRY
from sluice.rendezvous.protocol.ends import OPEN, End

EVENTS_PARTITION = "told"  # partition of items with events, of which an environment writes one every few seconds
OFFERS_PREFIX = "offers#"  # prefix of the partitions with offers
# The ends whose events are built from the update of the offer, by stored state.
ENDS: Mapping[str, End] = {end.state: end for end in End if end.state and end.event}

FILTERS: Sequence[Mapping[str, Any]] = (
    {"eventName": ["INSERT"], "dynamodb": {"Keys": {"pk": {"S": [EVENTS_PARTITION]}}}},
    {
        "eventName": ["MODIFY"],
        "dynamodb": {
            "Keys": {"pk": {"S": [{"prefix": OFFERS_PREFIX}]}},
            "OldImage": {"state": {"S": [OPEN]}},
            "NewImage": {"state": {"S": list(ENDS)}},
        },
    },
)


def read_events(record: Mapping[str, Any]) -> Sequence[Event]:
    """Parse the events of a stream record as Lambda delivers it. Raises `Malformed`.

    Other items, and event kinds of newer versions, yield no events.
    """
    change = record["dynamodb"]
    partition, image = _read_text(change["Keys"], "pk"), change.get("NewImage", {})
    if partition == EVENTS_PARTITION:
        documents = decode(_read_text(image, "events"), list[dict[str, Any]], of="recorded events")
        return [event for document in documents if (event := parse_event(document)) is not None]
    if partition.startswith(OFFERS_PREFIX) and _read_text(image, "state") in ENDS:
        return _build_offer_events(image)
    return ()


def _build_offer_events(image: Mapping[str, Any]) -> Sequence[Event]:
    """Build the events of an offer's end and of its answer. Their ids are derived from the offer."""
    sent_at, _, client_id = _read_text(image, "sk").partition("#")
    try:
        sent_at_ms, ended_at_ms = int(sent_at), int(image["ended_at"]["N"])
    except (ValueError, KeyError) as error:
        raise Malformed(f"no offer that ended: {error!r}") from None
    end = ENDS[_read_text(image, "state")]
    trace, proxy_type = _read_text(image, "trace") or None, _read_text(image, "proxy_type") or None
    offer = OfferEvent(
        id=event_id(OfferEvent.kind, client_id, at_ms=sent_at_ms),
        at_ms=ended_at_ms,
        outcome=end.event,
        nat=_read_text(image, "nat") or "unknown",
        country=_read_text(image, "country") or UNKNOWN_COUNTRY,
        proxy_type=proxy_type,
        trace=trace,
        method=_read_text(image, "method"),
        waited_ms=ended_at_ms - sent_at_ms,
    )
    if end is not End.OFFER_MATCHED:
        return [offer]
    answer = AnswerEvent(
        id=event_id(AnswerEvent.kind, client_id, at_ms=sent_at_ms),
        at_ms=ended_at_ms,
        outcome=End.ANSWER_DELIVERED.event,
        nat=_read_text(image, "proxy_nat") or "unknown",
        country=_read_text(image, "proxy_country") or UNKNOWN_COUNTRY,
        proxy_type=proxy_type,
        trace=trace,
    )
    return [offer, answer]


def _read_text(image: Mapping[str, Any], name: str) -> str:
    value: str = image.get(name, {}).get("S", "")
    return value
