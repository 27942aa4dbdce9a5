"""What is kept of an address: its country, and a hash that nobody can undo once the day's key is gone. Pure."""

import hashlib
import hmac
import ipaddress

UNKNOWN_COUNTRY = "??"
HASH_DIGITS = 32
KEY_BYTES = 32

Address = ipaddress.IPv4Address | ipaddress.IPv6Address


def parse_address(text: str) -> Address | None:
    """Read an address, an IPv4 one where IPv6 only wraps it; None for what is no address."""
    try:
        address = ipaddress.ip_address(text)
    except ValueError:
        return None
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return mapped or address


def keyed_hash(text: str, key: bytes) -> str | None:
    """Hash an address by HMAC-SHA256 in 32 hex digits, the same however the address is spelled; None for no address."""
    address = parse_address(text)
    if address is None:
        return None
    return hmac.new(key, address.packed, hashlib.sha256).hexdigest()[:HASH_DIGITS]
