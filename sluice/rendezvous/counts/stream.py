"""Parses events from records of the table's stream. Pure.

Two kinds of records have events: a new item with events that a function wrote, and the update that stores an offer's
end, from which the events of the offer and of its answer are built. `FILTERS` selects only these records.
https://docs.aws.amazon.com/amazondynamodb/latest/developerguide/Streams.Lambda.html
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec

from sluice.documents import NestedTooDeep, read_json
from sluice.errors import Malformed
from sluice.rendezvous.counts.events import AnswerEvent, Event, OfferEvent, event_id, parse_event
from sluice.rendezvous.protocol.addresses import UNKNOWN_COUNTRY
from sluice.rendezvous.protocol.ends import OPEN, End

EVENTS_PARTITION = "told"  # partition of items with events, of which an environment writes one every few seconds
OFFERS_PREFIX = "offers#"  # prefix of the partitions with offers
# The ends whose events are built from the update of the offer, by stored state.
ENDS: Mapping[str, End] = {end.state: end for end in End if end.state and end.event}
MAX_BAD = 100_000  # characters of an invalid event that are kept, so that its dead letter fits in a message

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


class BadEvent(msgspec.Struct, frozen=True, kw_only=True):
    """A record or entry that isn't an event, and the reason. `body` is JSON in ASCII, truncated if it is long."""

    body: str
    reason: str

    @classmethod
    def from_value(cls, value: object, reason: str) -> "BadEvent":
        """Write the invalid value as JSON, truncated to the limit."""
        return cls(body=json.dumps(value)[:MAX_BAD], reason=reason)


class StreamRecord(msgspec.Struct, frozen=True, kw_only=True):
    """A stream record with its events. `sequence_number` is a text that the stream assigns."""

    sequence_number: str
    events: tuple[Event, ...] = ()
    bad: tuple[BadEvent, ...] = ()


def join_events(bodies: Iterable[str]) -> str:
    """Join events to a JSON list, the attribute `events` of an item."""
    return f"[{','.join(bodies)}]"


def read_record(record: Mapping[str, Any]) -> StreamRecord:
    """Parse a stream record as Lambda delivers it. Other items, and event kinds of newer versions, yield no events."""
    change = record["dynamodb"]
    partition, image = _read_text(change["Keys"], "pk"), change.get("NewImage", {})
    events: Sequence[Event] = ()
    bad: Sequence[BadEvent] = ()
    if partition == EVENTS_PARTITION:
        events, bad = _read_events(_read_text(image, "events"))
    elif partition.startswith(OFFERS_PREFIX) and _read_text(image, "state") in ENDS:
        events, bad = _build_offer_events(image)
    return StreamRecord(sequence_number=change["SequenceNumber"], events=tuple(events), bad=tuple(bad))


def _read_events(text: str) -> tuple[list[Event], list[BadEvent]]:
    """Parse the list that `join_events` wrote. Invalid entries are returned separately and don't affect the others."""
    try:
        documents = read_json(text)
    except NestedTooDeep as error:
        return [], [BadEvent.from_value(text, str(error))]
    except ValueError as error:
        return [], [BadEvent.from_value(text, f"no JSON: {error}")]
    if not isinstance(documents, list):
        return [], [BadEvent.from_value(text, "told events are a JSON list")]
    events, bad = [], []
    for document in documents:
        try:
            event = parse_event(document)
        except Malformed as fault:
            bad.append(BadEvent.from_value(document, str(fault)))
        else:
            events += [event] if event is not None else []
    return events, bad


def _build_offer_events(image: Mapping[str, Any]) -> tuple[list[Event], list[BadEvent]]:
    """Build the events of an offer's end and of its answer. Their ids are derived from the offer."""
    sent_at, _, client_id = _read_text(image, "sk").partition("#")
    try:
        sent_at_ms, ended_at_ms = int(sent_at), int(image["ended_at"]["N"])
    except (ValueError, KeyError) as error:
        return [], [BadEvent.from_value(image, f"no offer that ended: {error!r}")]
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
        return [offer], []
    answer = AnswerEvent(
        id=event_id(AnswerEvent.kind, client_id, at_ms=sent_at_ms),
        at_ms=ended_at_ms,
        outcome=End.ANSWER_DELIVERED.event,
        nat=_read_text(image, "proxy_nat") or "unknown",
        country=_read_text(image, "proxy_country") or UNKNOWN_COUNTRY,
        proxy_type=proxy_type,
        trace=trace,
    )
    return [offer, answer], []


def _read_text(image: Mapping[str, Any], name: str) -> str:
    value: str = image.get(name, {}).get("S", "")
    return value
