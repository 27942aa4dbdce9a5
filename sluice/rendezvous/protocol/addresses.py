"""Client addresses: parsing, masking in logs, and keyed hashes. Pure.

A hash can't be reversed, or compared with another day's, once the day's key is deleted.
"""

import hashlib
import hmac
import ipaddress
import re
from collections.abc import Mapping

UNKNOWN_COUNTRY = "??"
HASH_DIGITS = 32
CUSTOMER_BITS = 64  # length of the IPv6 prefix that one customer has: https://www.rfc-editor.org/rfc/rfc6177
KEY_BYTES = 32
FORWARDED_CHARACTERS = 4_096  # longest part of a header that is parsed

# `name=value` of RFC 7239, section 4, and what separates it from the next. A quoted value is matched as a whole.
_PAIR = re.compile(
    r'\s*(?<![\w-])(?P<name>[\w-]+)\s*=\s*(?:"(?P<quoted>(?:[^"\\]|\\.)*)"|(?P<token>[^\s,;"]*))\s*(?:[,;]|$)'
)
# Section 6: an address, perhaps with a port; IPv6 in brackets. X-Forwarded-For has IPv6 without brackets.
_NODE = re.compile(r"\[(?P<v6>[^\]%]+)\](?::\w+)?|(?P<v4>[0-9.]+):\w+|(?P<bare>[^%]+)")

# In JSON inside JSON, the escapes `\r` and `\n` have additional backslashes.
_DESCRIPTION = re.compile(r"v=0(?:\\+r)?(?:\\+n|\r?\n)|sdp\\*\"\s*:|candidate:|a=candidate|c=IN IP")
_LIKE_IPV4 = re.compile(r"[0-9]{1,3}(?:\.[0-9]{1,3}){3}")
# The look-behind lets a match start only at the first such character: otherwise a megabyte of them takes hours.
_LIKE_IPV6 = re.compile(r"(?<![0-9A-Fa-f:])[0-9A-Fa-f:]*:[0-9A-Fa-f:]*:[0-9A-Fa-f:.]*")
_OF_ADDRESSES = "0123456789abcdefABCDEF:."
_GROUPS = 8  # groups of an IPv6 address without `::`
_IPV6_CHARACTERS = 45  # longest IPv6 address, with an IPv4 address at its end

Address = ipaddress.IPv4Address | ipaddress.IPv6Address


def parse_address(text: str) -> Address | None:
    """Parse an address; an IPv4 address mapped to IPv6 becomes IPv4. Returns None if it is invalid."""
    try:
        address = ipaddress.ip_address(text)
    except ValueError:
        return None
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return mapped or address


def has_description(text: str) -> bool:
    """Return whether a text contains a session description, or a part of one."""
    return _DESCRIPTION.search(text) is not None


def mask_addresses(text: str, *, most: int | None = None) -> str:
    """Mask the addresses in a text, cut to `most` characters. A text with a session description becomes its length."""
    if has_description(text):
        return f"[a session description in {len(text)} characters]"
    if most is not None and len(text) > most:
        text = text[:most].rstrip(_OF_ADDRESSES)  # part of an address would not be masked
    return _LIKE_IPV4.sub("[address]", _LIKE_IPV6.sub(_mask_ipv6, text))


def _mask_ipv6(found: re.Match[str]) -> str:
    """Mask an IPv6 address, also after a hexadecimal word and a colon, or before a port."""
    text = found[0].rstrip(".")
    ends = [len(text), text.rfind(":")] if text.count(":") >= _GROUPS else [len(text)]
    first = max(0, ends[-1] - _IPV6_CHARACTERS)
    starts = [*([] if first else [0]), *(place.end() for place in re.compile(":").finditer(text, max(0, first - 1)))]
    for end in ends:
        for start in starts:
            may_be = end - start <= _IPV6_CHARACTERS and text.count(":", start, end) <= _GROUPS
            if may_be and parse_address(text[start:end]) is not None:
                return f"{found[0][:start]}[address]{found[0][end:]}"
    return found[0]


def hash_address(text: str, key: bytes) -> str | None:
    """Hash an IPv4 address or an IPv6 /64 by HMAC-SHA256 in 32 hex digits. Returns None if the address is invalid.

    A customer has 2**64 addresses of a /64, so these are counted and limited as one.
    """
    address = parse_address(text)
    if address is None:
        return None
    customer = address.packed if address.version == 4 else address.packed[: CUSTOMER_BITS // 8]  # noqa: PLR2004 - IPv4
    return hmac.new(key, customer, hashlib.sha256).hexdigest()[:HASH_DIGITS]


def find_forwarded_address(headers: Mapping[str, str], *, hops: int) -> str | None:
    """Find the public address that the first of this many proxies appended to `Forwarded` or `X-Forwarded-For`.

    The sender can write all that precedes it, and the whole of a header that the proxies don't append to. So if both
    headers are long enough, they must agree. Header names are in lower case.
    """
    forwarded, older = (headers.get(name, "")[-FORWARDED_CHARACTERS:] for name in ("forwarded", "x-forwarded-for"))
    lists = _read_forwarded(forwarded), older.split(",") if older else []
    senders = {_public_address(nodes[-hops]) for nodes in lists if len(nodes) >= hops}
    return senders.pop() if len(senders) == 1 else None


def _read_forwarded(header: str) -> list[str]:
    # After a quote that a sender left open, the next pair is read as usual.
    nodes = (pair for pair in _PAIR.finditer(header) if pair["name"].lower() == "for")
    return [re.sub(r"\\(.)", r"\1", node["token"] if node["quoted"] is None else node["quoted"]) for node in nodes]


def _public_address(node: str) -> str | None:
    matched = _NODE.fullmatch(node.strip())
    address = parse_address(matched["v6"] or matched["v4"] or matched["bare"]) if matched else None
    # Python counts multicast addresses as global.
    return str(address) if address and address.is_global and not address.is_multicast else None
