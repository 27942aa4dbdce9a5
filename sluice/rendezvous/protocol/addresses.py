"""Client addresses: parsing, masking in logs, and keyed hashes. Pure.

Once a day's key is deleted, nobody can reverse that day's hashes or compare them with another day's.
"""

import hashlib
import hmac
import ipaddress
import re
from collections.abc import Mapping

UNKNOWN_COUNTRY = "??"
HASH_DIGITS = 32
CUSTOMER_BITS = 64  # A customer has an IPv6 prefix of this length: https://www.rfc-editor.org/rfc/rfc6177
KEY_BYTES = 32
FORWARDED_CHARACTERS = 4_096  # The rest of a longer header isn't parsed.

# Matches a `name=value` pair of RFC 7239, section 4, with its separator. A quoted value is matched as a whole.
_PAIR = re.compile(
    r'\s*(?<![\w-])(?P<name>[\w-]+)\s*=\s*(?:"(?P<quoted>(?:[^"\\]|\\.)*)"|(?P<token>[^\s,;"]*))\s*(?:[,;]|$)'
)
# Matches an address with an optional port (section 6). `Forwarded` puts IPv6 in brackets, `X-Forwarded-For` doesn't.
_NODE = re.compile(r"\[(?P<v6>[^\]%]+)\](?::\w+)?|(?P<v4>[0-9.]+):\w+|(?P<bare>[^%]+)")

# Inside nested JSON, the escapes `\r` and `\n` have additional backslashes.
_DESCRIPTION = re.compile(r"v=0(?:\\+r)?(?:\\+n|\r?\n)|sdp\\*\"\s*:|candidate:|a=candidate|c=IN IP")
_LIKE_IPV4 = re.compile(r"[0-9]{1,3}(?:\.[0-9]{1,3}){3}")
# The look-behind lets a match start only at the first hexadecimal digit or colon: without it, a megabyte takes hours.
_LIKE_IPV6 = re.compile(r"(?<![0-9A-Fa-f:])[0-9A-Fa-f:]*:[0-9A-Fa-f:]*:[0-9A-Fa-f:.]*")
_OF_ADDRESSES = "0123456789abcdefABCDEF:."
_GROUPS = 8  # An IPv6 address without `::` has this many groups.
_IPV6_CHARACTERS = 45  # The longest IPv6 address ends with an IPv4 address.

Address = ipaddress.IPv4Address | ipaddress.IPv6Address


def parse_address(text: str) -> Address | None:
    """Parse an address; IPv4 mapped to IPv6 becomes IPv4. Returns None if the address is invalid."""
    try:
        address = ipaddress.ip_address(text)
    except ValueError:
        return None
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return mapped or address


def has_description(text: str) -> bool:
    """Return whether a text contains a WebRTC session description or a part of one."""
    return _DESCRIPTION.search(text) is not None


def mask_addresses(text: str, *, most: int | None = None) -> str:
    """Mask the addresses in a text, cut to `most` characters. A session description is replaced by its length."""
    if has_description(text):
        return f"[a session description in {len(text)} characters]"
    if most is not None and len(text) > most:
        text = text[:most].rstrip(_OF_ADDRESSES)  # A part of an address wouldn't be recognized and masked.
    return _LIKE_IPV4.sub("[address]", _LIKE_IPV6.sub(_mask_ipv6, text))


def _mask_ipv6(found: re.Match[str]) -> str:
    """Mask an IPv6 address, even if a hexadecimal word and a colon precede it, or a port follows."""
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
    """Hash an address by HMAC-SHA256 to 32 hexadecimal digits. Returns None if the address is invalid.

    Of an IPv6 address only the first 64 bits are hashed, so that all addresses of a customer count as one.
    """
    address = parse_address(text)
    if address is None:
        return None
    customer = address.packed if address.version == 4 else address.packed[: CUSTOMER_BITS // 8]  # noqa: PLR2004 - IPv4
    return hmac.new(key, customer, hashlib.sha256).hexdigest()[:HASH_DIGITS]


def find_forwarded_address(headers: Mapping[str, str], *, hops: int) -> str | None:
    """Find the public address that the first of this many proxies appended to `Forwarded` or `X-Forwarded-For`.

    The sender can write everything before the proxies' entries, and a whole header that the proxies don't append to. So
    if both headers are long enough, their addresses must agree. Header names are in lower case.
    """
    forwarded, older = (headers.get(name, "")[-FORWARDED_CHARACTERS:] for name in ("forwarded", "x-forwarded-for"))
    lists = _read_forwarded(forwarded), older.split(",") if older else []
    senders = {_parse_public_address(nodes[-hops]) for nodes in lists if len(nodes) >= hops}
    return senders.pop() if len(senders) == 1 else None


def _read_forwarded(header: str) -> list[str]:
    # An open quote of a sender doesn't hide the next `name=value` pair.
    nodes = (pair for pair in _PAIR.finditer(header) if pair["name"].lower() == "for")
    return [re.sub(r"\\(.)", r"\1", node["token"] if node["quoted"] is None else node["quoted"]) for node in nodes]


def _parse_public_address(node: str) -> str | None:
    matched = _NODE.fullmatch(node.strip())
    address = parse_address(matched["v6"] or matched["v4"] or matched["bare"]) if matched else None
    # Python's `is_global` is also true for multicast addresses.
    return str(address) if address and address.is_global and not address.is_multicast else None
