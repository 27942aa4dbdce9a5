"""Requests of Snowflake's clients and proxies, and the replies to them, in Snowflake's formats. Pure.

An offer is `1.0`, a newline, and the JSON of `{offer, nat, fingerprint}`; its reply is JSON, `{answer}` or `{error}`.
Polls and answers are JSON objects too. Session descriptions are forwarded verbatim.
"""

import binascii
import json
import math
import re
from collections.abc import Collection, Mapping, Sequence
from typing import Any, NoReturn
from urllib.parse import urlsplit

import msgspec

from sluice.documents import NestedTooDeep, check_depth
from sluice.errors import BadBridgeList, Malformed, OfferRefused
from sluice.rendezvous.protocol.addresses import parse_address
from sluice.rendezvous.protocol.ends import End
from sluice.rendezvous.protocol.matching import Nat

MAX_BODY_BYTES = 100_000
MAX_OFFER_BYTES = 100_000  # This is the limit of HTTP bodies; SQS's own limit is ten times as large.
MAX_LEVELS = 500  # Arrays and objects can be nested this deep; Go allows 10,000.
ANSWER_QUEUE_PREFIX = "snowflake-client-"  # A client over SQS reads the queue with this prefix and the client's id.

OFFER_VERSION = "1.0"
CLIENT_ID = re.compile(r"[A-Za-z0-9_-]{1,63}", re.ASCII)
DEFAULT_FINGERPRINT = "2B280B23E1107BB62ABFC40DDCC8824814F80A72"
FINGERPRINT_BYTES = (20, 32)
BRIDGE_FIELDS = frozenset({"displayName", "webSocketAddress", "fingerprint"})  # fields of a line in the bridge list


class Bridge(msgspec.Struct, frozen=True, kw_only=True):
    """A bridge. An offer names its bridge by the bridge's fingerprint."""

    display_name: str
    websocket_address: str
    fingerprint: bytes


class Offer(msgspec.Struct, frozen=True, kw_only=True):
    """A valid offer. `offer` is the session description as text.

    `address` is the client's address; None if the description contains none.
    """

    offer: str
    nat: Nat
    bridge: Bridge
    address: str | None = None


def is_client_id(text: str) -> bool:
    """Return whether the text is a ClientID that can be part of a queue's name."""
    return CLIENT_ID.fullmatch(text) is not None


def parse_offer(body: str, *, bridges: Mapping[bytes, Bridge]) -> Offer:
    """Parse a client's offer. Raises `OfferRefused` with the protocol's error text for the first fault."""
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
    try:
        sdp = read_sdp(offer)
    except Malformed as error:
        raise OfferRefused(f"malformed session description: {error}") from None
    if len(offer.encode()) > MAX_OFFER_BYTES:
        raise OfferRefused(f"malformed session description: larger than {MAX_OFFER_BYTES} bytes")
    try:
        fingerprint = parse_fingerprint(fields.get("fingerprint", "") or DEFAULT_FINGERPRINT)
    except ValueError:
        raise OfferRefused("cannot decode fingerprint") from None
    if fingerprint not in bridges:
        raise OfferRefused("bridge with requested fingerprint is unknown to the broker")
    return Offer(offer=offer, nat=Nat(fields.get("nat", "")), bridge=bridges[fingerprint], address=pick_address(sdp))


def parse_fingerprint(text: str) -> bytes:
    """Parse a bridge's fingerprint: 20 or 32 bytes in hexadecimal. Raises ValueError for any other text."""
    try:
        # `bytes.fromhex` would skip white space.
        fingerprint = binascii.unhexlify(text)
    except ValueError:
        raise ValueError(f"fingerprint {text[:80]!r} is not hex") from None
    if len(fingerprint) not in FINGERPRINT_BYTES:
        raise ValueError(f"fingerprint has {len(fingerprint)} bytes, not 20 or 32")
    return fingerprint


def parse_bridges(text: str) -> tuple[Bridge, ...]:
    """Parse the bridge list that operators write: a JSON object per line. Blank lines are skipped.

    One invalid line or unknown field makes the whole list invalid: raises `BadBridgeList` with the line's number.
    """
    bridges: dict[bytes, Bridge] = {}
    for number, line in enumerate(text.splitlines(), start=1):
        if not line.strip():
            continue
        try:
            bridge = _parse_bridge(line)
        except ValueError as error:
            raise BadBridgeList(number, str(error)) from None
        if bridge.fingerprint in bridges:
            raise BadBridgeList(number, f"fingerprint {bridge.fingerprint.hex()} is listed twice")
        bridges[bridge.fingerprint] = bridge
    if not bridges:
        raise BadBridgeList(1, "no bridge")
    return tuple(bridges.values())


def _parse_bridge(line: str) -> Bridge:
    fields: Any = json.loads(line)
    if not isinstance(fields, dict):
        raise ValueError("not a JSON object")  # noqa: TRY004 - one kind of error for whatever is wrong with a line
    for name in fields.keys() ^ BRIDGE_FIELDS:
        raise ValueError(f"{'unknown' if name in fields else 'missing'} field {name!r}")
    for name, value in fields.items():
        if not isinstance(value, str):
            raise ValueError(f"field {name!r} is not a string")  # noqa: TRY004 - see above
    fingerprint, address = parse_fingerprint(fields["fingerprint"]), fields["webSocketAddress"]
    if urlsplit(address).scheme not in {"ws", "wss"} or not urlsplit(address).hostname:
        raise ValueError(f"webSocketAddress {address!r} is not a ws:// or wss:// address")
    return Bridge(display_name=fields["displayName"], websocket_address=address, fingerprint=fingerprint)


def index_by_fingerprint(bridges: Sequence[Bridge]) -> Mapping[bytes, Bridge]:
    """Index bridges by their fingerprints."""
    return {bridge.fingerprint: bridge for bridge in bridges}


def write_answer_reply(answer: str) -> str:
    """Write the reply to a client that carries a proxy's answer, verbatim."""
    return dump_json({"answer": answer})


def write_error_reply(text: str) -> str:
    """Write the reply to a client that carries an error text instead of an answer."""
    return dump_json({"error": text})


MAJOR_VERSION = "1"
TYPES = frozenset({"standalone", "webext", "badge", "iptproxy", "bloco"})
NEXT_POLL_REFUSED_MS = 3_600_000  # A proxy whose relay pattern was refused polls again after this mean interval.


class RelayPattern(msgspec.Struct, frozen=True):
    """Host names of relays: all names that end with `suffix`, or only the name `suffix` if `exact`."""

    suffix: str
    exact: bool

    @classmethod
    def parse(cls, text: str) -> "RelayPattern":
        """Parse Snowflake's notation of a pattern: `^` in front means exact; `$` at the end has no effect."""
        text = text.removesuffix("$")
        return cls(text.removeprefix("^"), exact=text.startswith("^"))

    def covers(self, other: "RelayPattern") -> bool:
        """Return whether this pattern matches every host name that `other` matches."""
        if self.exact:
            return other == self
        return other.suffix.endswith(self.suffix)


class Poll(msgspec.Struct, frozen=True, kw_only=True):
    """A proxy's poll. `relay_pattern` is None if the proxy's version is too old to send a pattern."""

    sid: str
    type: str
    nat: Nat
    clients: int
    relay_pattern: RelayPattern | None


class ProxyAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """A proxy's answer to the offer that it got, verbatim."""

    sid: str
    answer: str


def parse_poll(body: bytes) -> Poll:
    """Parse the body of a proxy's `POST /proxy`. Raises `Malformed`, which becomes HTTP status 400."""
    fields = _read_request(
        body,
        {"Sid": str, "Version": str, "Type": str, "NAT": str, "Clients": int, "AcceptedRelayPattern": str},
        pointer_fields={"AcceptedRelayPattern"},
    )
    type_ = fields.get("Type", "")
    pattern = fields.get("AcceptedRelayPattern")
    return Poll(
        sid=fields["Sid"],
        type=type_ if type_ in TYPES else "unknown",
        nat=Nat(fields.get("NAT", "")),
        clients=max(fields.get("Clients", 0), 0),
        relay_pattern=None if pattern is None else RelayPattern.parse(pattern),
    )


def parse_answer(body: bytes) -> ProxyAnswer:
    """Parse the body of a proxy's `POST /answer`. Raises `Malformed`, which becomes HTTP status 400."""
    # No client can connect to an answer without a candidate. This check is cheaper than decoding.
    if b"a=candidate" not in body:
        raise Malformed("no candidate")
    fields = _read_request(body, {"Version": str, "Sid": str, "Answer": str})
    answer = fields.get("Answer", "")
    if not answer:
        raise Malformed("no answer")
    read_sdp(answer)
    return ProxyAnswer(sid=fields["Sid"], answer=answer)


def _read_request(body: bytes, names: Mapping[str, type], *, pointer_fields: Collection[str] = ()) -> dict[str, Any]:
    if len(body) > MAX_BODY_BYTES:
        raise Malformed(f"larger than {MAX_BODY_BYTES} bytes")
    fields = read_object(body, names, pointer_fields=pointer_fields)
    if fields.get("Version", "").split(".")[0] != MAJOR_VERSION:
        raise Malformed("unknown version")
    if not fields.get("Sid"):
        raise Malformed("no Sid")
    return fields


def write_poll_reply(end: End, *, next_poll_ms: int, offer: str = "", nat: str = "", relay: str = "") -> str:
    """Write the body of the response to a poll. It has all keys, in the order that old proxies expect."""
    return dump_json({"Status": end.reply, "Offer": offer, "NAT": nat, "NextPoll": next_poll_ms, "RelayURL": relay})


# Session descriptions are the JSON text of `{type, sdp}`.

SDP_TYPES = frozenset({"offer", "pranswer", "answer", "rollback"})
# Statistics use the country of the first type in this order that an SDP has, which is most likely the client's own.
CANDIDATE_TYPES = ("host", "prflx", "srflx", "relay")
# Matches a candidate: a=candidate:<foundation> <component> <transport> <priority> <address> <port> typ <type>
_CANDIDATE = re.compile(
    r"^a=candidate:\S+ \d+ \S+ (?P<priority>\d{1,10}) (?P<address>\S+) \d+ typ (?P<type>\S+)", re.MULTILINE
)


def read_sdp(description: str) -> str:
    """Return the SDP in the JSON text of a session description. Raises `Malformed` with Snowflake's error text."""
    fields = read_map(description)
    for name in ("type", "sdp"):
        if name not in fields:
            raise Malformed(f"cannot deserialize SessionDescription without {name} field")
    type_, sdp = fields["type"], fields["sdp"]
    if not isinstance(type_, str):
        raise Malformed("invalid SDP type")
    if not isinstance(sdp, str):
        raise Malformed("invalid SDP")
    if type_ not in SDP_TYPES:
        raise Malformed("Unknown SDP type")
    return sdp


def pick_address(sdp: str) -> str | None:
    """Find the address of the best ICE candidate: first type in `CANDIDATE_TYPES`, then highest priority.

    Candidates with a name instead of an address are ignored: browsers hide addresses behind mDNS names.
    """
    candidates = [
        (CANDIDATE_TYPES.index(candidate["type"]), -int(candidate["priority"]), candidate["address"])
        for candidate in _CANDIDATE.finditer(sdp)
        if candidate["type"] in CANDIDATE_TYPES and parse_address(candidate["address"]) is not None
    ]
    return min(candidates, default=(0, 0, None))[2]


# This section reads and writes JSON exactly like Go's encoding/json, which Snowflake's clients and proxies use, with
# two differences: the texts of syntax errors, and the nesting limit, `MAX_LEVELS` here and 10,000 in Go.

INT64 = range(-(2**63), 2**63)
_INT64_CHARACTERS = 20
_KINDS: Mapping[type, str] = {dict: "object", list: "array", str: "string", bool: "boolean", type(None): "null"}
_SURROGATE = re.compile("[\ud800-\udfff]")
# Go escapes these characters, for HTML and JavaScript. It doesn't escape U+FFFE and U+FFFF, but SQS rejects them:
# https://docs.aws.amazon.com/AWSSimpleQueueService/latest/APIReference/API_SendMessage.html
_ESCAPED = re.compile("[<>&\u2028\u2029\ufffe\uffff]")


class _Members(tuple[tuple[str, Any], ...]):
    """The members of a JSON object in order. Repeated keys are kept, because Go checks the value of each one."""

    __slots__ = ()


def read_object(
    text: str | bytes, fields: Mapping[str, type], *, pointer_fields: Collection[str] = ()
) -> dict[str, Any]:
    """Read fields of a JSON object: `fields` maps names to types. Absent fields are left out of the result.

    Keys match in any case, unknown keys are ignored, and of repeated keys the last one counts. As in Go, `null` doesn't
    change a field, but makes one of `pointer_fields` absent; the document `null` is an empty object. Raises `Malformed`
    if `text` isn't a JSON object, or if a field has another type.
    """
    members = _decode_json(
        decode_utf8(text) if isinstance(text, bytes) else text,
        object_pairs_hook=_Members,
        # Python refuses every integer of more than 4,300 digits; Go refuses such integers only in fields that it reads.
        parse_int=lambda digits: int(digits) if len(digits) <= _INT64_CHARACTERS else float(digits),
    )
    if members is None:
        return {}
    if not isinstance(members, _Members):
        raise Malformed(f"cannot read a JSON {_json_type_name(members)} as an object")
    by_folded = {_fold_case(name): name for name in fields}
    values_by_name: dict[str, Any] = {}
    for key, value in members:
        name = by_folded.get(_fold_case(key))
        if name is None:
            continue
        if value is None:
            if name in pointer_fields:
                values_by_name.pop(name, None)
            continue
        # isinstance() would accept a bool as an int.
        if type(value) is not fields[name] or (fields[name] is int and value not in INT64):
            raise Malformed(f"cannot read a JSON {_json_type_name(value)} into field {name}")
        values_by_name[name] = _SURROGATE.sub("\ufffd", value) if isinstance(value, str) else value
    return values_by_name


def _fold_case(key: str) -> str:
    """Fold a key's case character by character, as Go does, so that a ligature differs from its letters."""
    return "".join(character if len(character.casefold()) != 1 else character.casefold() for character in key)


def _json_type_name(value: Any) -> str:
    return "object" if isinstance(value, _Members) else _KINDS.get(type(value), "number")


def read_map(text: str) -> dict[str, Any]:
    """Read a JSON object as Go does into `map[string]any`: keys are case-sensitive, and the last repeated key counts.

    The document `null` is an empty object. Raises `Malformed`, also for a number that exceeds float64.
    """
    members = _decode_json(text, parse_int=_parse_float, parse_float=_parse_float)
    if members is not None and not isinstance(members, dict):
        raise Malformed(f"cannot read a JSON {_json_type_name(members)} as an object")
    return members or {}


def _decode_json(text: str, **hooks: Any) -> Any:
    try:
        check_depth(text, levels=MAX_LEVELS)
        return json.JSONDecoder(parse_constant=_reject_constant, **hooks).decode(text)
    except NestedTooDeep:
        raise Malformed("exceeded max depth") from None
    except ValueError as error:
        raise Malformed(str(error)) from None


def _parse_float(digits: str) -> float:
    number = float(digits)
    if math.isinf(number):
        raise ValueError(f"cannot read number {digits[:32]} as float64")
    return number


def _reject_constant(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is not JSON")


def decode_utf8(text: bytes) -> str:
    """Decode UTF-8 as Go does: each invalid byte becomes one U+FFFD."""
    # The error handler "replace" would replace up to three bytes by one character.
    return _SURROGATE.sub("\ufffd", text.decode(errors="surrogateescape"))


def dump_json(value: Mapping[str, str | int]) -> str:
    """Write a JSON object without spaces, as Go does. Characters that UTF-8 can't encode become U+FFFD."""
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    return _ESCAPED.sub(lambda found: f"\\u{ord(found[0]):04x}", _SURROGATE.sub("\ufffd", text))
