"""What clients and volunteers' proxies post and what they get back, as Snowflake's programs write it. Pure.

An offer is `1.0`, a newline, and the JSON of `{offer, nat, fingerprint}`; its reply is JSON, `{answer}` or `{error}`.
Polls and answers are JSON objects too. Session descriptions in them are handed on verbatim.
"""

import binascii
import ipaddress
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, NoReturn

from sluice.errors import Malformed, OfferRefused
from sluice.rendezvous.protocol.matching import Nat
from sluice.rendezvous.protocol.pace import NEXT_POLL_MS

MAX_BODY_BYTES = 100_000
MAX_OFFER_BYTES = 100_000  # as over HTTP; a body of SQS could be ten times as large
ANSWER_QUEUE_PREFIX = "snowflake-client-"  # and the ClientID: where a client over SQS looks for its reply

# Offers

OFFER_VERSION = "1.0"
CLIENT_ID = re.compile(r"[A-Za-z0-9_-]{1,63}", re.ASCII)
DEFAULT_FINGERPRINT = "2B280B23E1107BB62ABFC40DDCC8824814F80A72"
FINGERPRINT_BYTES = (20, 32)

NO_PROXIES = "no snowflake proxies currently available"
TIMED_OUT = "timed out waiting for answer!"


class OfferMethod(StrEnum):
    """How an offer came."""

    SQS = "sqs"
    HTTP = "http"
    AMP_CACHE = "ampcache"


@dataclass(frozen=True, slots=True, kw_only=True)
class Bridge:
    """A bridge that offers may ask for by its fingerprint."""

    display_name: str
    websocket_address: str
    fingerprint: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Offer:
    """An offer that may be matched. `offer` is the session description as text.

    `address` is where its client can be reached, None where the description names no address.
    """

    client_id: str
    offer: str
    nat: Nat
    bridge: Bridge
    method: OfferMethod
    sent_at_ms: int
    address: str | None = None


def is_client_id(text: str) -> bool:
    """Say whether a queue may be made for it: the name goes into a queue's name."""
    return CLIENT_ID.fullmatch(text) is not None


def parse_offer(
    body: str, *, client_id: str, method: OfferMethod, sent_at_ms: int, bridges: Mapping[bytes, Bridge]
) -> Offer:
    """Read a client's message. Raises `OfferRefused` with the protocol's error text for the first fault found."""
    version, newline, rest = body.partition("\n")
    if not newline or version != OFFER_VERSION:
        raise OfferRefused("unsupported message version")
    try:
        fields = read_object(rest, {"offer": str, "nat": str, "fingerprint": str})
    except Malformed as error:
        raise OfferRefused(str(error)) from None
    offer = fields.get("offer", "")
    if not offer:
        raise OfferRefused("no supplied offer")
    fault = description_fault(offer)
    if fault is None and len(offer.encode()) > MAX_OFFER_BYTES:
        fault = f"larger than {MAX_OFFER_BYTES} bytes"
    if fault is not None:
        raise OfferRefused(f"malformed session description: {fault}")
    try:
        fingerprint = parse_fingerprint(fields.get("fingerprint", "") or DEFAULT_FINGERPRINT)
    except ValueError:
        raise OfferRefused("cannot decode fingerprint") from None
    nat = parse_nat(fields.get("nat", ""))
    if fingerprint not in bridges:
        raise OfferRefused("bridge with requested fingerprint is unknown to the broker")
    return Offer(
        client_id=client_id,
        offer=offer,
        nat=nat,
        bridge=bridges[fingerprint],
        method=method,
        sent_at_ms=sent_at_ms,
        address=best_address(json.loads(offer)["sdp"]),
    )


def parse_nat(text: str) -> Nat:
    """Read a NAT; an empty one is unknown. Raises `OfferRefused` for a word that isn't one."""
    try:
        return Nat(text or Nat.UNKNOWN)
    except ValueError:
        raise OfferRefused("invalid NAT type") from None


def parse_fingerprint(text: str) -> bytes:
    """Read the 20 or 32 bytes that `text` gives in hex. Raises ValueError for anything else."""
    try:
        # Not bytes.fromhex, which skips white space.
        fingerprint = binascii.unhexlify(text)
    except ValueError:
        raise ValueError(f"fingerprint {text[:80]!r} is not hex") from None
    if len(fingerprint) not in FINGERPRINT_BYTES:
        raise ValueError(f"fingerprint has {len(fingerprint)} bytes, not 20 or 32")
    return fingerprint


def answer_reply(answer: str) -> str:
    """Write the reply that carries a proxy's answer, verbatim."""
    return json.dumps({"answer": answer})


def error_reply(text: str) -> str:
    """Write the reply that says why there is no answer."""
    return json.dumps({"error": text})


# Polls and answers

MAJOR_VERSION = "1"
TYPES = frozenset({"standalone", "webext", "badge", "iptproxy", "bloco"})
NEXT_POLL_REFUSED_MS = 3_600_000  # where the relay pattern doesn't cover ours: it need not come back soon


@dataclass(frozen=True, slots=True)
class RelayPattern:
    """Host names of relays: all that end with `suffix`, or `suffix` alone where `exact`."""

    suffix: str
    exact: bool

    @classmethod
    def parse(cls, text: str) -> "RelayPattern":
        """Read Snowflake's notation: `^` in front means exact, `$` at the end means nothing."""
        text = text.removesuffix("$")
        return cls(text.removeprefix("^"), exact=text.startswith("^"))

    def covers(self, other: "RelayPattern") -> bool:
        """Say whether every host name of `other` is one of ours."""
        if self.exact:
            return other == self
        return other.suffix.endswith(self.suffix)

    def matches(self, host: str) -> bool:
        """Say whether `host` is one of ours."""
        return host == self.suffix if self.exact else host.endswith(self.suffix)


@dataclass(frozen=True, slots=True, kw_only=True)
class Poll:
    """A proxy that offers itself. `relay_pattern` is None where the proxy is too old to say one."""

    sid: str
    type: str
    nat: Nat
    clients: int
    relay_pattern: RelayPattern | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ProxyAnswer:
    """A proxy's answer, verbatim, to the offer that it got."""

    sid: str
    answer: str


class PollStatus(StrEnum):
    """What a poll's reply says."""

    MATCHED = "client match"
    NO_MATCH = "no match"
    REFUSED = "incorrect relay pattern"


def parse_poll(body: bytes) -> Poll:
    """Read a body of `POST /proxy`. Raises `Malformed`, which is a 400."""
    fields = _versioned(
        body, {"Sid": str, "Version": str, "Type": str, "NAT": str, "Clients": int, "AcceptedRelayPattern": str}
    )
    kind = fields.get("Type", "")
    pattern = fields.get("AcceptedRelayPattern")
    try:
        nat = parse_nat(fields.get("NAT", ""))
    except OfferRefused as error:
        raise Malformed(str(error)) from None
    return Poll(
        sid=fields["Sid"],
        type=kind if kind in TYPES else "unknown",
        nat=nat,
        clients=max(fields.get("Clients", 0), 0),
        relay_pattern=None if pattern is None else RelayPattern.parse(pattern),
    )


def parse_answer(body: bytes) -> ProxyAnswer:
    """Read a body of `POST /answer`. Raises `Malformed`, which is a 400."""
    # Before any decoding: an answer without a candidate can't be connected to, whatever else it is.
    if b"a=candidate" not in body:
        raise Malformed("no candidate")
    fields = _versioned(body, {"Version": str, "Sid": str, "Answer": str})
    answer = fields.get("Answer", "")
    fault = description_fault(answer) if answer else "no answer"
    if fault is not None:
        raise Malformed(fault)
    return ProxyAnswer(sid=fields["Sid"], answer=answer)


def _versioned(body: bytes, names: dict[str, type]) -> dict[str, Any]:
    if len(body) > MAX_BODY_BYTES:
        raise Malformed(f"larger than {MAX_BODY_BYTES} bytes")
    fields = read_object(body, names)
    if fields.get("Version", "").split(".")[0] != MAJOR_VERSION:
        raise Malformed("unknown version")
    if not fields.get("Sid"):
        raise Malformed("no Sid")
    return fields


def accepts(relay_pattern: RelayPattern | None, *, allowed: RelayPattern) -> bool:
    """Say whether a proxy with this pattern would reach every relay that the broker may name."""
    return relay_pattern is not None and relay_pattern.covers(allowed)


def poll_reply(
    status: PollStatus, *, offer: str = "", nat: str = "", relay: str = "", next_poll_ms: int = NEXT_POLL_MS
) -> str:
    """Write the body that a poll gets. All keys are there, in the order in which old proxies expect them."""
    next_poll_ms = NEXT_POLL_REFUSED_MS if status is PollStatus.REFUSED else next_poll_ms
    return json.dumps({"Status": status, "Offer": offer, "NAT": nat, "NextPoll": next_poll_ms, "RelayURL": relay})


def answer_status(*, delivered: bool) -> str:
    """Write the body that an answer gets."""
    return json.dumps({"Status": "success" if delivered else "client gone"})


# Session descriptions: the JSON text of `{type, sdp}`

SDP_TYPES = frozenset({"offer", "pranswer", "answer", "rollback"})
# The order in which statistics prefer candidates: the first says most of where the client is.
CANDIDATE_TYPES = ("host", "prflx", "srflx", "relay")
# a=candidate:<foundation> <component> <transport> <priority> <address> <port> typ <type>: RFC 8839, section 5.1
_CANDIDATE = re.compile(
    r"^a=candidate:\S+ \d+ \S+ (?P<priority>\d{1,10}) (?P<address>\S+) \d+ typ (?P<type>\S+)", re.MULTILINE
)


def description_fault(text: str) -> str | None:
    """Say why `text` isn't a session description; None where it is one. What is inside its SDP isn't looked at."""
    try:
        description = json.loads(text)
    except (ValueError, RecursionError) as error:
        return str(error)
    if not isinstance(description, dict):
        return "not a JSON object"
    for name in ("type", "sdp"):
        if name not in description:
            return f"no {name}"
        if not isinstance(description[name], str):
            return f"{name} is not a string"
    if description["type"] not in SDP_TYPES:
        return f"unknown SDP type {description['type'][:32]!r}"
    return None


def best_address(sdp: str) -> str | None:
    """Find the address of the ICE candidate whose type comes first, and of its highest priority; None for none.

    A name instead of an address (browsers hide theirs behind mDNS) says nothing of where its client is.
    """
    candidates = [
        (CANDIDATE_TYPES.index(found["type"]), -int(found["priority"]), found["address"])
        for found in _CANDIDATE.finditer(sdp)
        if found["type"] in CANDIDATE_TYPES and _is_address(found["address"])
    ]
    return min(candidates, default=(0, 0, None))[2]


def _is_address(text: str) -> bool:
    try:
        ipaddress.ip_address(text)
    except ValueError:
        return False
    return True


# JSON as in Go's encoding/json, which both of Snowflake's ends use: keys match without regard to case, unknown keys are
# ignored, `null` is an absent field, and the last of two equal keys wins.

_JSON_NAMES: Mapping[type, str] = {dict: "object", list: "array", str: "string", bool: "boolean", type(None): "null"}


def read_object(text: str | bytes, fields: Mapping[str, type]) -> dict[str, Any]:
    r"""Read the `fields` that a JSON object has, by the names given; the absent ones are left out.

    Lone surrogates (from escapes such as `\ud800`) are replaced: they can't be sent as UTF-8.
    Raises `Malformed` where `text` isn't a JSON object or a field has another type.
    """
    try:
        if isinstance(text, bytes):
            text = text.decode("utf-8", errors="replace")
        decoded = json.loads(text, parse_constant=_not_json)
    except RecursionError:
        raise Malformed("exceeded max depth") from None
    except ValueError as error:
        raise Malformed(str(error)) from None
    if decoded is None:
        return {}
    if not isinstance(decoded, dict):
        raise Malformed(f"cannot read a JSON {_JSON_NAMES.get(type(decoded), 'number')} as an object")
    by_folded = {name.casefold(): name for name in fields}
    picked: dict[str, Any] = {}
    for key, value in decoded.items():
        name = by_folded.get(key.casefold())
        if name is None or value is None:
            continue
        # bool is an int to Python, not to JSON.
        if not isinstance(value, fields[name]) or (isinstance(value, bool) and fields[name] is not bool):
            raise Malformed(f"cannot read a JSON {_JSON_NAMES.get(type(value), 'number')} into field {name}")
        picked[name] = value.encode("utf-8", errors="replace").decode() if isinstance(value, str) else value
    return picked


def _not_json(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is not JSON")
