"""Parses events from records of the table's stream. Pure.

Two kinds of records have events. A new item has events that a function wrote. An update that stores an offer's end
becomes the events of the offer and of its answer. `FILTERS` selects only these records.
https://docs.aws.amazon.com/amazondynamodb/latest/developerguide/Streams.Lambda.html
"""

from collections.abc import Mapping, Sequence
from typing import Any

from sluice.codec import decode
from sluice.errors import Malformed
from sluice.rendezvous.counts.events import AnswerEvent, Event, OfferEvent, derive_event_id, parse_event
from sluice.rendezvous.protocol.addresses import UNKNOWN_COUNTRY
from sluice.rendezvous.protocol.ends import OPEN, End

EVENTS_PARTITION = "told"  # The items of this partition have events; an environment writes one item every few seconds.
OFFERS_PREFIX = "offers#"  # The partitions with offers have this prefix.
# Ends of offers by stored state. Events of offers with these ends are built from the update of the offer's item.
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
    """Parse the events of a stream record in Lambda's format. Raises `Malformed`.

    Records of other items, and events of kinds that only newer versions know, yield no events.
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
    """Build the events of an offer's end and of its answer, whose ids are derived from the offer."""
    sent_at, _, client_id = _read_text(image, "sk").partition("#")
    try:
        sent_at_ms, ended_at_ms = int(sent_at), int(image["ended_at"]["N"])
    except (ValueError, KeyError) as error:
        raise Malformed(f"no offer that ended: {error!r}") from None
    end = ENDS[_read_text(image, "state")]

    def build_event(kind: type[OfferEvent | AnswerEvent], whose: str, outcome: str, **more: Any) -> Event:
        return kind(
            id=derive_event_id(kind.kind, client_id, at_ms=sent_at_ms),
            at_ms=ended_at_ms,
            outcome=outcome,
            nat=_read_text(image, f"{whose}nat") or "unknown",
            country=_read_text(image, f"{whose}country") or UNKNOWN_COUNTRY,
            proxy_type=_read_text(image, "proxy_type") or None,
            trace=_read_text(image, "trace") or None,
            **more,
        )

    method, waited_ms = _read_text(image, "method"), ended_at_ms - sent_at_ms
    offer = build_event(OfferEvent, "", end.event, method=method, waited_ms=waited_ms)
    is_answered = end is End.OFFER_MATCHED
    return [offer, build_event(AnswerEvent, "proxy_", End.ANSWER_DELIVERED.event)] if is_answered else [offer]


def _read_text(image: Mapping[str, Any], name: str) -> str:
    value: str = image.get(name, {}).get("S", "")
    return value
