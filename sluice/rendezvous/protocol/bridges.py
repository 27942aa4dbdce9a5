"""The bridges that offers may ask for, and which relays a volunteer lets its traffic go to. Pure."""

import binascii
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from sluice.errors import BadBridgeList

DEFAULT_FINGERPRINT = "2B280B23E1107BB62ABFC40DDCC8824814F80A72"
FINGERPRINT_BYTES = (20, 32)
FIELDS = frozenset({"displayName", "webSocketAddress", "fingerprint"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Bridge:
    """One line of a bridge list."""

    display_name: str
    websocket_address: str
    fingerprint: bytes


def parse_bridges(text: str) -> tuple[Bridge, ...]:
    """The bridges of a list in JSON lines; blank lines are skipped.

    One bad line or unknown field rejects the list: raises `BadBridgeList` with the line's number.
    """
    bridges: dict[bytes, Bridge] = {}
    for number, line in enumerate(text.splitlines(), start=1):
        if not line.strip():
            continue
        bridge = _parse_line(number, line)
        if bridge.fingerprint in bridges:
            raise BadBridgeList(number, f"fingerprint {bridge.fingerprint.hex()} is listed twice")
        bridges[bridge.fingerprint] = bridge
    if not bridges:
        raise BadBridgeList(1, "no bridge")
    return tuple(bridges.values())


def _parse_line(number: int, line: str) -> Bridge:
    fields = _line_fields(number, line)
    try:
        fingerprint = parse_fingerprint(fields["fingerprint"])
    except ValueError as error:
        raise BadBridgeList(number, str(error)) from None
    address = fields["webSocketAddress"]
    if urlsplit(address).scheme not in {"ws", "wss"} or not urlsplit(address).hostname:
        raise BadBridgeList(number, f"webSocketAddress {address!r} is not a ws:// or wss:// address")
    return Bridge(display_name=fields["displayName"], websocket_address=address, fingerprint=fingerprint)


def _line_fields(number: int, line: str) -> dict[str, str]:
    try:
        fields: Any = json.loads(line)
    except ValueError as error:
        raise BadBridgeList(number, str(error)) from None
    if not isinstance(fields, dict):
        raise BadBridgeList(number, "not a JSON object")
    for name in fields.keys() ^ FIELDS:
        raise BadBridgeList(number, f"{'unknown' if name in fields else 'missing'} field {name!r}")
    for name, value in fields.items():
        if not isinstance(value, str):
            raise BadBridgeList(number, f"field {name!r} is not a string")
    return fields


def parse_fingerprint(text: str) -> bytes:
    """The 20 or 32 bytes that `text` gives in hex. Raises ValueError for anything else."""
    try:
        # Not bytes.fromhex, which skips white space.
        fingerprint = binascii.unhexlify(text)
    except ValueError:
        raise ValueError(f"fingerprint {text[:80]!r} is not hex") from None
    if len(fingerprint) not in FINGERPRINT_BYTES:
        raise ValueError(f"fingerprint has {len(fingerprint)} bytes, not 20 or 32")
    return fingerprint


def by_fingerprint(bridges: Sequence[Bridge]) -> Mapping[bytes, Bridge]:
    """The bridges, to be looked up by what an offer asks for."""
    return {bridge.fingerprint: bridge for bridge in bridges}


@dataclass(frozen=True, slots=True)
class RelayPattern:
    """Host names: all that end with `suffix`, or `suffix` alone where `exact`."""

    suffix: str
    exact: bool

    @classmethod
    def parse(cls, text: str) -> "RelayPattern":
        """`^` in front means exact, `$` at the end means nothing: Snowflake's notation."""
        text = text.removesuffix("$")
        return cls(text.removeprefix("^"), exact=text.startswith("^"))

    def covers(self, other: "RelayPattern") -> bool:
        """Whether every host name of `other` is one of ours."""
        if self.exact:
            return other == self
        return other.suffix.endswith(self.suffix)

    def matches(self, host: str) -> bool:
        """Whether `host` is one of ours."""
        return host == self.suffix if self.exact else host.endswith(self.suffix)
