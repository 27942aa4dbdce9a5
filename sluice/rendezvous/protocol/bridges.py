"""The list of bridges that offers may ask for, as its operator writes it. Pure."""

import json
from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import urlsplit

from sluice.errors import BadBridgeList
from sluice.rendezvous.protocol.messages import Bridge, parse_fingerprint

FIELDS = frozenset({"displayName", "webSocketAddress", "fingerprint"})


def parse_bridges(text: str) -> tuple[Bridge, ...]:
    """Read a list in JSON lines; blank lines are skipped.

    One bad line or unknown field rejects the list: raises `BadBridgeList` with the line's number.
    """
    bridges: dict[bytes, Bridge] = {}
    for number, line in enumerate(text.splitlines(), start=1):
        if not line.strip():
            continue
        try:
            bridge = _parse_line(line)
        except ValueError as error:
            raise BadBridgeList(number, str(error)) from None
        if bridge.fingerprint in bridges:
            raise BadBridgeList(number, f"fingerprint {bridge.fingerprint.hex()} is listed twice")
        bridges[bridge.fingerprint] = bridge
    if not bridges:
        raise BadBridgeList(1, "no bridge")
    return tuple(bridges.values())


def _parse_line(line: str) -> Bridge:
    fields: Any = json.loads(line)
    if not isinstance(fields, dict):
        raise ValueError("not a JSON object")  # noqa: TRY004 - one kind of error for whatever is wrong with a line
    for name in fields.keys() ^ FIELDS:
        raise ValueError(f"{'unknown' if name in fields else 'missing'} field {name!r}")
    for name, value in fields.items():
        if not isinstance(value, str):
            raise ValueError(f"field {name!r} is not a string")  # noqa: TRY004 - see above
    fingerprint, address = parse_fingerprint(fields["fingerprint"]), fields["webSocketAddress"]
    if urlsplit(address).scheme not in {"ws", "wss"} or not urlsplit(address).hostname:
        raise ValueError(f"webSocketAddress {address!r} is not a ws:// or wss:// address")
    return Bridge(display_name=fields["displayName"], websocket_address=address, fingerprint=fingerprint)


def by_fingerprint(bridges: Sequence[Bridge]) -> Mapping[bytes, Bridge]:
    """Index bridges by what an offer asks for."""
    return {bridge.fingerprint: bridge for bridge in bridges}
