"""What a volunteer's proxy posts, to `/proxy` and `/answer`, and what it gets back. Pure."""

import json
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from sluice.errors import Malformed, Refused
from sluice.rendezvous.protocol.bridges import RelayPattern
from sluice.rendezvous.protocol.decoding import read_object
from sluice.rendezvous.protocol.descriptions import description_fault
from sluice.rendezvous.protocol.matching import Nat
from sluice.rendezvous.protocol.offers import parse_nat

MAX_BODY_BYTES = 100_000
MAJOR_VERSION = "1"
TYPES = frozenset({"standalone", "webext", "badge", "iptproxy", "bloco"})
NEXT_POLL_MS = 20_000
NEXT_POLL_REFUSED_MS = 3_600_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Poll:
    """A proxy that offers itself. `relay_pattern` is None where the proxy is too old to say one."""

    sid: str
    type: str
    nat: Nat
    clients: int
    relay_pattern: RelayPattern | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """A proxy's answer, verbatim, to the offer that it got."""

    sid: str
    answer: str


def parse_poll(body: bytes) -> Poll:
    """The poll in a body of `POST /proxy`. Raises `Malformed`, which is a 400."""
    fields = _versioned(
        body, {"Sid": str, "Version": str, "Type": str, "NAT": str, "Clients": int, "AcceptedRelayPattern": str}
    )
    kind = fields.get("Type", "")
    pattern = fields.get("AcceptedRelayPattern")
    return Poll(
        sid=fields["Sid"],
        type=kind if kind in TYPES else "unknown",
        nat=_nat(fields.get("NAT", "")),
        clients=max(fields.get("Clients", 0), 0),
        relay_pattern=None if pattern is None else RelayPattern.parse(pattern),
    )


def parse_answer(body: bytes) -> Answer:
    """The answer in a body of `POST /answer`. Raises `Malformed`, which is a 400."""
    # Before any decoding: an answer without a candidate can't be connected to, whatever else it is.
    if b"a=candidate" not in body:
        raise Malformed("no candidate")
    fields = _versioned(body, {"Version": str, "Sid": str, "Answer": str})
    answer = fields.get("Answer", "")
    fault = description_fault(answer) if answer else "no answer"
    if fault is not None:
        raise Malformed(fault)
    return Answer(sid=fields["Sid"], answer=answer)


def _versioned(body: bytes, names: dict[str, type]) -> dict[str, Any]:
    if len(body) > MAX_BODY_BYTES:
        raise Malformed(f"larger than {MAX_BODY_BYTES} bytes")
    fields = read_object(body, names)
    if fields.get("Version", "").split(".")[0] != MAJOR_VERSION:
        raise Malformed("unknown version")
    if not fields.get("Sid"):
        raise Malformed("no Sid")
    return fields


def _nat(text: str) -> Nat:
    try:
        return parse_nat(text)
    except Refused as error:
        raise Malformed(str(error)) from None


def accepts(relay_pattern: RelayPattern | None, *, allowed: RelayPattern) -> bool:
    """Whether a proxy with this pattern would reach every relay that the broker may name."""
    return relay_pattern is not None and relay_pattern.covers(allowed)


class PollStatus(StrEnum):
    """How a poll ended."""

    MATCHED = "client match"
    NO_MATCH = "no match"
    REFUSED = "incorrect relay pattern"


def poll_reply(
    status: PollStatus, *, offer: str = "", nat: str = "", relay: str = "", next_poll_ms: int = NEXT_POLL_MS
) -> str:
    """The body that a poll gets. All keys are there, in the order in which old proxies expect them."""
    return json.dumps({"Status": status, "Offer": offer, "NAT": nat, "NextPoll": next_poll_ms, "RelayURL": relay})


def refused_reply() -> str:
    """For a proxy whose relay pattern doesn't cover ours: it need not come back soon."""
    return poll_reply(PollStatus.REFUSED, next_poll_ms=NEXT_POLL_REFUSED_MS)


def answer_status(*, delivered: bool) -> str:
    """The body that an answer gets."""
    return json.dumps({"Status": "success" if delivered else "client gone"})
