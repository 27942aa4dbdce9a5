"""Where clients and proxies are: the best candidate of an SDP, and the country of an address."""

import ipaddress
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sluice.rendezvous.event_recorder import Countries, parse_country
from sluice.rendezvous.protocol.addresses import FORWARDED_CHARACTERS, find_forwarded_address, hash_address
from sluice.rendezvous.protocol.messages import CANDIDATE_TYPES, Bridge, parse_offer, pick_address
from tests.mmdb import mmdb
from tests.traffic import offer

KEY = b"k" * 32


def candidate(type_: str, priority: int, address: str, more: str = "") -> str:
    return f"a=candidate:1 1 udp {priority} {address} 50000 typ {type_}{more}\r\n"


Described = tuple[str, int, str]


@given(
    st.lists(
        st.tuples(st.sampled_from(CANDIDATE_TYPES), st.integers(0, 2**31 - 1), st.ip_addresses().map(str)),
        unique_by=lambda each: each[:2],
    )
)
def test_the_best_candidate_is_of_the_first_type_there_is_and_of_its_highest_priority(found: list[Described]) -> None:
    sdp = "v=0\r\n" + "".join(candidate(*each) for each in found) + "a=mid:0\r\n"
    best = None
    for type_ in ("host", "prflx", "srflx", "relay"):
        of_type = [each for each in found if each[0] == type_]
        if of_type:
            best = max(of_type, key=lambda each: each[1])[2]
            break
    assert pick_address(sdp) == best


@pytest.mark.parametrize(
    "line",
    [
        candidate("host", 1, "0bd2cf3d-3b43.local"),
        candidate("other", 1, "192.0.2.1"),
        "a=candidate:1 1 udp x 192.0.2.1 1 typ host\r\n",
        "a=candidate:\r\n",
        " a=candidate:1 1 udp 1 192.0.2.1 1 typ host\r\n",
    ],
)
def test_what_is_no_candidate_with_an_address_is_passed_over(line: str) -> None:
    assert pick_address(line) is None
    assert pick_address(line + candidate("relay", 1, "192.0.2.9", " raddr 10.0.0.1 rport 9")) == "192.0.2.9"


def test_an_offers_own_candidate_is_found() -> None:
    assert address_of(offer("1")) == "127.0.0.1"
    assert address_of(json.dumps({"type": "offer", "sdp": ""})) is None


def address_of(description: str) -> str | None:
    """Where an offer's client is, as its parser has it."""
    bridge = Bridge(display_name="d", websocket_address="wss://relay.example/", fingerprint=b"f" * 20)
    body = "1.0\n" + json.dumps({"offer": description, "fingerprint": (b"f" * 20).hex()})
    bridges = {bridge.fingerprint: bridge}
    return parse_offer(body, bridges=bridges).address


@pytest.fixture(scope="module")
def database(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("geoip") / "countries.mmdb"
    path.write_bytes(
        mmdb(
            {
                "5.0.0.0/8": {"country": {"iso_code": "DE"}, "registered_country": {"iso_code": "US"}},
                "5.6.0.0/16": {"country_code": "at"},
                "2a00::/16": {"country": "FR"},
            }
        )
    )
    return str(path)


@pytest.mark.parametrize(
    ("address", "country"),
    [
        ("5.1.2.3", "DE"),
        ("5.6.7.8", "AT"),
        ("2a00::1", "FR"),
        ("::ffff:5.1.2.3", "DE"),
        ("6.1.2.3", "??"),
        ("2b00::1", "??"),
        ("10.1.2.3", "??"),
        ("1.2.3", "??"),
        ("", "??"),
    ],
)
def test_a_country_is_the_databases(database: str, address: str, country: str) -> None:
    assert Countries(database).look_up(address) == country


def test_a_database_of_ipv4_alone_knows_no_country_of_ipv6(tmp_path: Path) -> None:
    path = tmp_path / "ipv4.mmdb"
    path.write_bytes(mmdb({"5.0.0.0/8": {"country": {"iso_code": "DE"}}}, ip_version=4))
    countries = Countries(str(path))
    assert [countries.look_up(address) for address in ("5.1.2.3", "2a00::1", "::ffff:5.1.2.3")] == ["DE", "??", "DE"]


@pytest.mark.parametrize("content", [None, b"", b"no database", mmdb({"::/1": {"country": "DE"}})[3:]])
def test_a_look_up_that_fails_is_of_no_country(tmp_path: Path, content: bytes | None) -> None:
    path = tmp_path / "damaged.mmdb"
    if content is not None:
        path.write_bytes(content)
    assert Countries(str(path)).look_up("5.1.2.3") == "??"


@pytest.mark.parametrize(
    "record", [None, [], "DE", {}, {"country": {}}, {"country": {"iso_code": 5}}, {"country": "DEU"}, {"country": "%!"}]
)
def test_a_record_without_a_code_is_of_no_country(record: Any) -> None:
    assert parse_country(record) == "??"


def test_without_a_database_no_country_is_known_and_its_library_isnt_imported() -> None:
    code = (
        "import sys; sys.modules['maxminddb'] = None\n"
        "from sluice.rendezvous.event_recorder import Countries\n"
        "print(Countries().look_up('5.1.2.3'))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=Path(__file__).parents[3]
    )
    assert done.stdout == "??\n"


def test_an_address_has_one_hash_however_it_is_spelled() -> None:
    assert hash_address("2001:DB8:0::1", KEY) == hash_address("2001:db8::1", KEY)
    assert hash_address("::ffff:192.0.2.1", KEY) == hash_address("192.0.2.1", KEY)
    # A customer of IPv6 has a /64 at least, so its addresses count as one.
    assert hash_address("2001:db8::1", KEY) == hash_address("2001:db8::ffff:0:0:2", KEY)
    assert hash_address("2001:db8::1", KEY) != hash_address("2001:db8:0:1::1", KEY)
    assert hash_address("192.0.2.1", KEY) != hash_address("192.0.2.2", KEY)
    # HMAC-SHA256 of the four bytes, by another program: `printf '\300\000\002\001' | openssl dgst -sha256 -hmac …`
    assert hash_address("192.0.2.1", KEY) == "6345701bce9c3f084afd21bac39e01ab"


@given(st.ip_addresses().map(str), st.binary(min_size=32, max_size=32), st.binary(min_size=32, max_size=32))
def test_another_days_hash_says_nothing(address: str, today: bytes, tomorrow: bytes) -> None:
    hashed = hash_address(address, today)
    assert hashed is not None
    assert len(hashed) == 32
    assert (hash_address(address, tomorrow) == hashed) == (today == tomorrow)


def test_what_is_no_address_has_no_hash() -> None:
    assert hash_address("nowhere", KEY) is None


@pytest.mark.parametrize(
    ("forwarded", "address"),
    [
        ("for=8.8.8.8", "8.8.8.8"),
        ("For=8.8.8.8;proto=https;by=9.9.9.9", "8.8.8.8"),
        ("by=9.9.9.9;host=x;FOR=8.8.8.8", "8.8.8.8"),
        ("for = 8.8.8.8", "8.8.8.8"),
        ('for="8.8.8.8"', "8.8.8.8"),
        ('for="8.8.8.8:4711"', "8.8.8.8"),
        ("for=8.8.8.8:4711", "8.8.8.8"),
        ('for="8.8.8.8:_port"', "8.8.8.8"),
        (r'for="8.8\.8.8"', "8.8.8.8"),
        ('for="[2606:4700::1]"', "2606:4700::1"),
        ('for="[2606:4700:0::1]:4711"', "2606:4700::1"),
        ('for="[::ffff:8.8.8.8]"', "8.8.8.8"),
        ("for=9.9.9.9, for=8.8.8.8", "8.8.8.8"),
        ("for=9.9.9.9,for=1.1.1.1 , for=8.8.8.8;by=_edge", "8.8.8.8"),
        ('by="a, for=1.1.1.1", for=9.9.9.9', "9.9.9.9"),
        ("for=9.9.9.9, xfor=1.1.1.1, x-for=1.1.1.1", "9.9.9.9"),
        *((f"for=9.9.9.9, for={node}", None) for node in ("10.0.0.1", "100.64.0.1", "127.0.0.1", "224.0.0.1")),
        *((f"for=9.9.9.9, for={node}", None) for node in ("unknown", "_hidden", '"_x:1"', "")),
        *((f'for="[{node}]"', None) for node in ("fe80::1", "fc00::1", "::1", "ff0e::1", "2606::1%en0")),
        ("for=, for, =8.8.8.8, for==8.8.8.8", None),
        ('for="8.8.8.8', None),
        ("8.8.8.8", None),
        ("", None),
        ("for=8.8.8.8, " + "x" * FORWARDED_CHARACTERS, None),
        ("x" * 2 * FORWARDED_CHARACTERS + ", for=8.8.8.8", "8.8.8.8"),
    ],
)
def test_the_sender_is_the_address_that_the_one_trusted_hop_appended(forwarded: str, address: str | None) -> None:
    assert find_forwarded_address({"forwarded": forwarded}, hops=1) == address


@pytest.mark.parametrize(
    ("forwarded_for", "address"),
    [
        ("8.8.8.8", "8.8.8.8"),
        ("9.9.9.9 , 8.8.8.8 ", "8.8.8.8"),
        ("8.8.8.8, 2606:4700::1", "2606:4700::1"),
        ("[2606:4700::1]:443", "2606:4700::1"),
        ("8.8.8.8:443", "8.8.8.8"),
        ("8.8.8.8, 10.1.2.3", None),
        ("unknown,, 8.8.8", None),
        ("x" * FORWARDED_CHARACTERS + ", 8.8.8.8", "8.8.8.8"),
        ("", None),
    ],
)
def test_the_older_header_is_a_list_of_addresses(forwarded_for: str, address: str | None) -> None:
    assert find_forwarded_address({"x-forwarded-for": forwarded_for}, hops=1) == address


SENDER, SENDER_V6, INNER = "8.8.8.8", "2606:4700::1", "9.9.9.9"
# What a sender may write before the hops append to it, to pass for 1.1.1.1.
FORGED = (
    "",
    "1.1.1.1",
    "for=1.1.1.1",
    "for=1.1.1.1, for=1.1.1.1",
    'for="1.1.1.1", by="',
    'for="1.1.1.1", by="\\',
    'for="1.1.1.1", by="", x="',
    'for=1.1.1.1;by="x',
    "for=1.1.1.1;",
    'for="',
    ",",
)


@pytest.mark.parametrize("forged", FORGED)
@pytest.mark.parametrize("other", [None, "1.1.1.1", "for=1.1.1.1", 'for="', "for=1.1.1.1, for=1.1.1.1"])
@pytest.mark.parametrize("sender", [SENDER, SENDER_V6])
@pytest.mark.parametrize("hops", [1, 2])
def test_no_sender_passes_for_another_address(forged: str, other: str | None, sender: str, hops: int) -> None:
    node = sender if sender == SENDER else f'"[{sender}]"'
    added = [f"for={node}", f"for={INNER}"][:hops]
    forwarded = ", ".join([*([forged] if forged else []), *added])
    headers = {"forwarded": forwarded} | ({} if other is None else {"x-forwarded-for": other})
    assert find_forwarded_address(headers, hops=hops) in {sender, None}
    assert find_forwarded_address({"forwarded": ", ".join(added)}, hops=hops) == sender

    older = ", ".join([*([forged] if forged else []), *[sender, INNER][:hops]])
    headers = {"x-forwarded-for": older} | ({} if other is None else {"forwarded": other})
    assert find_forwarded_address(headers, hops=hops) in {sender, None}
    assert find_forwarded_address({"x-forwarded-for": older}, hops=hops) == sender


def test_a_request_that_passed_fewer_hops_has_no_address() -> None:
    assert find_forwarded_address({"x-forwarded-for": "8.8.8.8"}, hops=2) is None
    assert find_forwarded_address({"forwarded": "for=8.8.8.8", "x-forwarded-for": "8.8.8.8"}, hops=2) is None
    assert find_forwarded_address({}, hops=1) is None


def test_headers_that_agree_or_are_short_are_no_contradiction() -> None:
    both = {"forwarded": "for=8.8.8.8, for=9.9.9.9", "x-forwarded-for": "8.8.8.8, 9.9.9.9"}
    assert find_forwarded_address(both, hops=2) == "8.8.8.8"
    # A function URL passes on one address of X-Forwarded-For.
    assert find_forwarded_address(both | {"x-forwarded-for": "1.1.1.1"}, hops=2) == "8.8.8.8"


@given(st.text(), st.text(), st.integers(1, 3))
def test_any_headers_have_an_address_or_none(forwarded: str, forwarded_for: str, hops: int) -> None:
    found = find_forwarded_address({"forwarded": forwarded, "x-forwarded-for": forwarded_for}, hops=hops)
    assert found is None or ipaddress.ip_address(found).is_global
