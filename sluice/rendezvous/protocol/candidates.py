"""Where a client can be reached, from the ICE candidates of its SDP. Pure."""

import ipaddress
import json
import re
from collections.abc import Iterator

# The order in which statistics prefer them: the first says most of where the client is.
TYPES = ("host", "prflx", "srflx", "relay")
# a=candidate:<foundation> <component> <transport> <priority> <address> <port> typ <type>: RFC 8839, section 5.1
_CANDIDATE = re.compile(
    r"^a=candidate:\S+ \d+ \S+ (?P<priority>\d{1,10}) (?P<address>\S+) \d+ typ (?P<type>\S+)", re.MULTILINE
)


def client_address(offer: str) -> str | None:
    """The address of the best candidate in an offer, the JSON text of `{type, sdp}`; None where it names none."""
    return best_address(json.loads(offer)["sdp"])


def best_address(sdp: str) -> str | None:
    """The address of the first type that is there, and of its highest priority.

    A name instead of an address (browsers hide theirs behind mDNS) says nothing of where its client is.
    """
    return min(_candidates(sdp), default=(0, 0, None))[2]


def _candidates(sdp: str) -> Iterator[tuple[int, int, str]]:
    for found in _CANDIDATE.finditer(sdp):
        if found["type"] in TYPES and _is_address(found["address"]):
            yield TYPES.index(found["type"]), -int(found["priority"]), found["address"]


def _is_address(text: str) -> bool:
    try:
        ipaddress.ip_address(text)
    except ValueError:
        return False
    return True
