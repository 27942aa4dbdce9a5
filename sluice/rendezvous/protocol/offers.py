"""What a client posts and what it gets back. Pure.

An offer is `1.0`, a newline, and the JSON of `{offer, nat, fingerprint}`; the reply is JSON, `{answer}` or `{error}`.
"""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from sluice.errors import Malformed, Refused
from sluice.rendezvous.protocol.bridges import DEFAULT_FINGERPRINT, Bridge, parse_fingerprint
from sluice.rendezvous.protocol.decoding import read_object
from sluice.rendezvous.protocol.descriptions import description_fault
from sluice.rendezvous.protocol.matching import Nat

MAX_OFFER_BYTES = 100_000  # as over HTTP; a body of SQS could be ten times as large
VERSION = "1.0"
CLIENT_ID = re.compile(r"[A-Za-z0-9_-]{1,63}", re.ASCII)

NO_PROXIES = "no snowflake proxies currently available"
TIMED_OUT = "timed out waiting for answer!"


class Method(StrEnum):
    """How an offer came."""

    SQS = "sqs"
    HTTP = "http"
    AMP_CACHE = "ampcache"


@dataclass(frozen=True, slots=True, kw_only=True)
class Offer:
    """An offer that may be matched. `offer` is the session description as text, handed on verbatim."""

    client_id: str
    offer: str
    nat: Nat
    bridge: Bridge
    method: Method
    sent_at_ms: int


def is_client_id(text: str) -> bool:
    """Whether a queue may be made for it: the name goes into a queue's name."""
    return CLIENT_ID.fullmatch(text) is not None


def parse_offer(
    body: str, *, client_id: str, method: Method, sent_at_ms: int, bridges: Mapping[bytes, Bridge]
) -> Offer:
    """The offer in a client's message. Raises `Refused` with the protocol's error text for the first fault found."""
    fields = _fields(body)
    offer = _session_description(fields.get("offer", ""))
    fingerprint = _fingerprint(fields.get("fingerprint", ""))
    return Offer(
        client_id=client_id,
        offer=offer,
        nat=parse_nat(fields.get("nat", "")),
        bridge=_bridge(fingerprint, bridges),
        method=method,
        sent_at_ms=sent_at_ms,
    )


def _fields(body: str) -> dict[str, str]:
    version, newline, rest = body.partition("\n")
    if not newline or version != VERSION:
        raise Refused("unsupported message version")
    try:
        return read_object(rest, {"offer": str, "nat": str, "fingerprint": str})
    except Malformed as error:
        raise Refused(str(error)) from None


def _session_description(offer: str) -> str:
    if not offer:
        raise Refused("no supplied offer")
    fault = description_fault(offer)
    if fault is None and len(offer.encode()) > MAX_OFFER_BYTES:
        fault = f"larger than {MAX_OFFER_BYTES} bytes"
    if fault is not None:
        raise Refused(f"malformed session description: {fault}")
    return offer


def _fingerprint(text: str) -> bytes:
    try:
        return parse_fingerprint(text or DEFAULT_FINGERPRINT)
    except ValueError:
        raise Refused("cannot decode fingerprint") from None


def parse_nat(text: str) -> Nat:
    """An empty NAT is unknown. Raises `Refused` for a word that isn't one."""
    try:
        return Nat(text or Nat.UNKNOWN)
    except ValueError:
        raise Refused("invalid NAT type") from None


def _bridge(fingerprint: bytes, bridges: Mapping[bytes, Bridge]) -> Bridge:
    try:
        return bridges[fingerprint]
    except KeyError:
        raise Refused("bridge with requested fingerprint is unknown to the broker") from None


def answer_reply(answer: str) -> str:
    """The reply that carries a proxy's answer, verbatim."""
    return json.dumps({"answer": answer})


def error_reply(text: str) -> str:
    """The reply that says why there is no answer."""
    return json.dumps({"error": text})
