"""Writes a MaxMind database: https://maxmind.github.io/MaxMind-DB/. Networks to records, of IPv4 and IPv6."""

import ipaddress
import struct
from collections.abc import Mapping
from typing import Any

RECORD_BITS = 24
SEPARATOR = bytes(16)
METADATA_MARKER = b"\xab\xcd\xefMaxMind.com"
TEXT, MAP, UINT16, UINT32, UINT64, ARRAY = 2, 7, 5, 6, 9, 11
LARGEST_BASIC_TYPE = 7
SHORT_SIZE = 29  # from which on a size has a byte of its own

Node = list[Any]  # two of: another node, a record's place in the data section, None


def mmdb(networks: Mapping[str, Any], *, ip_version: int = 6) -> bytes:
    """The file's content. Later networks may lie within earlier ones; a database of version 4 has none of IPv6."""
    data, places, root = b"", {}, [None, None]
    for network, record in networks.items():
        places[network] = len(data)
        data += _encoded(record)
        _insert(root, _bits(network)[0 if ip_version == 6 else 96 :], places[network])
    nodes = _in_order(root)
    numbers = {id(node): number for number, node in enumerate(nodes)}
    tree = b"".join(_pointer(child, numbers).to_bytes(3, "big") for node in nodes for child in node)
    metadata = {
        "binary_format_major_version": (UINT16, 2),
        "binary_format_minor_version": (UINT16, 0),
        "build_epoch": (UINT64, 1_700_000_000),
        "database_type": "Test-Country",
        "description": {"en": "test"},
        "ip_version": (UINT16, ip_version),
        "languages": [],
        "node_count": (UINT32, len(nodes)),
        "record_size": (UINT16, RECORD_BITS),
    }
    return tree + SEPARATOR + data + METADATA_MARKER + _encoded(metadata)


def _bits(network: str) -> str:
    """An IPv4 network lies under ::/96."""
    parsed = ipaddress.ip_network(network)
    length = parsed.prefixlen + (96 if parsed.version == 4 else 0)
    return f"{int(parsed.network_address):0128b}"[:length]


def _insert(node: Node, bits: str, place: int) -> None:
    for bit in map(int, bits[:-1]):
        if not isinstance(node[bit], list):
            node[bit] = [node[bit], node[bit]]
        node = node[bit]
    node[int(bits[-1])] = place


def _in_order(root: Node) -> list[Node]:
    nodes = [root]
    for node in nodes:
        nodes += [child for child in node if isinstance(child, list)]
    return nodes


def _pointer(child: Any, numbers: Mapping[int, int]) -> int:
    if isinstance(child, list):
        return numbers[id(child)]
    return len(numbers) if child is None else len(numbers) + len(SEPARATOR) + child


def _encoded(value: Any) -> bytes:
    match value:
        case str():
            return _control(TEXT, len(value.encode())) + value.encode()
        case dict():
            return _control(MAP, len(value)) + b"".join(_encoded(k) + _encoded(v) for k, v in value.items())
        case list():
            return _control(ARRAY, len(value)) + b"".join(map(_encoded, value))
        case (int(type_), int(number)):
            content = struct.pack(">Q", number).lstrip(b"\0")
            return _control(type_, len(content)) + content
    raise TypeError(value)


def _control(type_: int, size: int) -> bytes:
    assert size < SHORT_SIZE + 256
    short, more = (size, b"") if size < SHORT_SIZE else (SHORT_SIZE, bytes([size - SHORT_SIZE]))
    if type_ <= LARGEST_BASIC_TYPE:
        return bytes([type_ << 5 | short]) + more
    return bytes([short, type_ - LARGEST_BASIC_TYPE]) + more
