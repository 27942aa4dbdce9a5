"""A peer is who SQS says that it is, may what its rules say, and leads to nothing outside its account and region."""

import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import UNSET
from msgspec.structs import fields, replace

from sluice.errors import BadRoute
from sluice.federation.links.links import Address, Bridge, BridgeDeclaration, Introduction
from sluice.federation.links.peers import (
    KnownPeers,
    Peer,
    append_peer_tag,
    build_peer_url_function,
    check_peer,
    find_pull_problem,
    verify_address,
)
from sluice.federation.matching.exchanges import ExchangeType
from sluice.federation.matching.indexes import Publication
from sluice.federation.matching.topics import covers
from sluice.federation.matching.typed_values import to_stored
from tests.unit.federation.matching.test_topics import oracle

ACCOUNT, REGION = "111111111111", "eu-west-1"
URLS = f"https://sqs.{REGION}.amazonaws.com/{ACCOUNT}/"
ADDRESS = Address(
    tag="THERE",
    region=REGION,
    account=ACCOUNT,
    control_queue_url=f"{URLS}links.fifo",
    ingress_url=f"{URLS}ingress",
    fifo_ingress_url=f"{URLS}ingress.fifo",
)
THERE = Peer(
    tag="THERE", account=ACCOUNT, region=REGION, senders=("AROALINKS", "AROABRIDGE"), pulls=("*",), pushes=("*",)
)
FAR = Peer(tag="FAR", account="222222222222", region=REGION, senders=("AROAFAR",))
EU = {"pulls": ("amq.topic:eu.#",)}
URL_OF = build_peer_url_function("https://sqs.us-east-1.amazonaws.com/000000000000/links.fifo", here="us-east-1")


def known(*peers: Peer, role_id: str | None = None) -> KnownPeers:
    return KnownPeers({peer.tag: peer for peer in peers}, role_id)


def pull(src: str = "amq.topic", **fields: Any) -> Bridge:
    return Bridge(name="route", link="link", src=src, dest=src, **fields)


# Who it is


@pytest.mark.parametrize("sender_id", ["AROALINKS:links", "AROABRIDGE:bridge", "AROABRIDGE"])
def test_a_message_is_the_peers_whose_role_sent_it(sender_id: str) -> None:
    assert known(THERE, FAR).find_senders(sender_id) == [THERE]
    assert known(THERE, FAR).identify_peer("THERE", sender_id=sender_id) == THERE


@pytest.mark.parametrize("sender_id", ["AROAFAR:bridge", "AROAOTHER:links", "", ":", ACCOUNT, f"AROAMINE:{ACCOUNT}"])
def test_a_tag_is_not_believed_of_another_role(sender_id: str) -> None:
    with pytest.raises(BadRoute, match=r"THERE: sent by .* which is none of its roles"):
        known(THERE, FAR).identify_peer("THERE", sender_id=sender_id)


def test_who_assumes_this_sites_role_is_of_the_account_that_its_session_has_for_a_name() -> None:
    peers = known(THERE, FAR, role_id="AROAMINE")
    assert peers.find_senders(f"AROAMINE:{ACCOUNT}") == [THERE]
    assert peers.find_senders("AROAMINE:222222222222") == [FAR]
    assert peers.find_senders("AROAMINE:") == peers.find_senders("AROAMINE:sluice") == []


def test_a_site_that_is_no_peer_is_told_how_it_becomes_one() -> None:
    with pytest.raises(BadRoute, match="'STRANGER' is no peer of this site: `sluice peer add` makes it one"):
        known(THERE).identify_peer("STRANGER", sender_id="AROASTRANGER:links")


# Where it is

STAGED = replace(
    ADDRESS,
    stage="dev",
    control_queue_url=f"{URLS}dev-SluiceState-links.fifo",
    ingress_url=f"{URLS}dev-SluiceState-ingress",
    fifo_ingress_url=f"{URLS}dev-SluiceState-ingress.fifo",
)
AT_STAGE = replace(THERE, stage="dev")


def test_queues_of_a_peer_at_a_stage_are_that_stages() -> None:
    assert verify_address(STAGED, AT_STAGE, peer_queue_url=URL_OF) == STAGED
    assert verify_address(replace(STAGED, stage="prod"), AT_STAGE, peer_queue_url=URL_OF) == STAGED


@pytest.mark.parametrize(
    ("peer", "name"),
    [
        (AT_STAGE, "SluiceState-links.fifo"),
        (AT_STAGE, "dev2-SluiceState-links.fifo"),
        (AT_STAGE, "links.fifo"),
        (THERE, "dev-SluiceState-links.fifo"),
        (THERE, "dev-sluice-queue-orders"),
    ],
)
def test_a_peer_leads_into_no_other_stage_of_its_account(peer: Peer, name: str) -> None:
    said = replace(STAGED if peer is AT_STAGE else ADDRESS, control_queue_url=URLS + name)
    with pytest.raises(BadRoute, match=f"{name}' is no queue of {'dev' if peer is AT_STAGE else 'a site without'}"):
        verify_address(said, peer, peer_queue_url=URL_OF)


def test_a_peers_stage_is_one_that_the_configuration_lists() -> None:
    places: dict[str, Any] = {"here": "HERE", "accounts": [ACCOUNT], "existing": []}
    check_peer(AT_STAGE, **places, stages={"dev"})
    check_peer(THERE, **places, stages={"", "dev"})
    with pytest.raises(BadRoute, match=r"federation\.peer_stages at HERE doesn't list 'dev'"):
        check_peer(AT_STAGE, **places, stages={"", "dev2"})
    with pytest.raises(BadRoute, match="doesn't list 'sites without a stage'"):
        check_peer(THERE, **places, stages={"dev"})
    with pytest.raises(BadRoute, match="'Dev' is no stage"):
        check_peer(replace(THERE, stage="Dev"), **places)


def test_queues_are_those_of_the_peers_account_and_region_whatever_it_says() -> None:
    said = replace(
        ADDRESS,
        control_queue_url="http://127.0.0.1:1/222222222222/links.fifo",
        ingress_url="https://evil.example/x/ingress",
        sqs_url="http://127.0.0.1:1",
    )
    assert verify_address(said, THERE, peer_queue_url=URL_OF) == ADDRESS
    at_endpoint = replace(THERE, sqs_url="https://vpce-1.sqs.eu-west-1.vpce.amazonaws.com")
    assert verify_address(said, at_endpoint, peer_queue_url=URL_OF).sqs_url == at_endpoint.sqs_url


def test_where_there_is_one_endpoint_peers_are_there_too() -> None:
    url_of = build_peer_url_function("http://127.0.0.1:4566/000000000000/links.fifo", here="us-east-1")
    assert (
        verify_address(ADDRESS, THERE, peer_queue_url=url_of).ingress_url == f"http://127.0.0.1:4566/{ACCOUNT}/ingress"
    )


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"account": "222222222222"}, f"is at {ACCOUNT}/{REGION}, not at 222222222222/{REGION}"),
        ({"region": "us-east-1"}, "not at 111111111111/us-east-1"),
        ({"role_arn": "arn:aws:iam::222222222222:role/r"}, "is no role of account 111111111111"),
        ({"role_arn": "x"}, "'x' is no role of account"),
        ({"ingress_url": ""}, "'' is no queue's URL"),
        ({"control_queue_url": "https://x/a b"}, "'https://x/a b' is no queue's URL"),
        ({"fifo_ingress_url": "https://x/ingress?x=y"}, "is no queue's URL"),
    ],
)
def test_an_address_that_leads_elsewhere_is_refused(fields: dict[str, str], reason: str) -> None:
    with pytest.raises(BadRoute, match=f"THERE: .*{reason}"):
        verify_address(replace(ADDRESS, **fields), THERE, peer_queue_url=URL_OF)


# What it may


@pytest.mark.parametrize(
    ("rules", "bridge", "refusal"),
    [
        ({}, pull(key="a.#"), None),
        ({}, pull(dynamic=True), None),
        ({"pulls": ("amq.*",)}, pull(), None),
        ({"pulls": ("amq.*",)}, pull("events"), "pull events: its peer rule here says amq.*"),
        ({"pulls": ("amq.topic:eu.#",)}, pull(key="eu.fr.*"), None),
        (
            {"pulls": ("amq.topic:eu.#",)},
            pull(key="#"),
            "pull amq.topic by '#': its peer rule here says amq.topic:eu.#",
        ),
        ({"pulls": ("amq.topic:eu.#",)}, pull(dynamic=True), "pull amq.topic: its peer rule here says amq.topic:eu.#"),
        ({"pulls": ("amq.topic:eu.#", "amq.topic:us")}, pull(key="us"), None),
        ({"pulls": ()}, pull(), "pull amq.topic: its peer rule here says nothing"),
        ({}, pull("orders", src_is_queue=True), "take from the queue orders: its peer rule here says nothing"),
        ({"queues": ("ord*",)}, pull("orders", src_is_queue=True), None),
    ],
)
def test_a_peer_pulls_what_its_rules_let_it(rules: dict[str, Any], bridge: Bridge, refusal: str | None) -> None:
    said = replace(THERE, **rules).find_pull_refusal(bridge, follows_keys=True)
    assert said == (None if refusal is None else f"THERE may not {refusal}")


@pytest.mark.parametrize("key", ["", "eu.fr", "#"])
def test_a_rule_by_keys_lets_nothing_out_of_an_exchange_that_ignores_keys(key: str) -> None:
    by_keys, by_all_keys = (replace(THERE, pulls=(f"amq.fanout:{keys}",)) for keys in ("eu.#", "#"))
    refusal = by_keys.find_pull_refusal(pull("amq.fanout", key=key), follows_keys=False)
    assert refusal == "THERE may not pull amq.fanout: its peer rule here says amq.fanout:eu.#"
    assert by_all_keys.find_pull_refusal(pull("amq.fanout", key=key), follows_keys=False) is None


def test_a_peer_may_do_nothing_unless_a_rule_says_so() -> None:
    peer = Peer(tag="THERE", account=ACCOUNT, region=REGION)
    assert (peer.pulls, peer.pushes, peer.queues) == ((), (), ())


NO_RULES = Peer(tag="THERE", account=ACCOUNT, region=REGION)
ROUTES = st.builds(
    pull,
    st.sampled_from(["amq.topic", "a", "a:b", "a:c", "ab"]),
    key=st.sampled_from(["", "#", "a", "a.b", "a.*", "a.#", "*.b", "b.#"]),
    dynamic=st.booleans(),
    src_is_queue=st.booleans(),
)


@given(ROUTES, ROUTES, st.booleans())
def test_what_is_granted_for_a_route_is_what_it_takes_and_no_more(
    granted: Bridge, other: Bridge, follows_keys: bool
) -> None:
    """Another route is let in only if it takes nothing that the granted one doesn't take."""
    peer = NO_RULES.grant_source(granted, follows_keys=follows_keys, account=ACCOUNT)
    assert peer.find_pull_refusal(granted, follows_keys=follows_keys) is None
    if peer.find_pull_refusal(other, follows_keys=follows_keys) is None:
        assert granted.src_is_queue == other.src_is_queue
        assert granted.src == other.src
        takes_all = granted.src_is_queue or granted.dynamic or not follows_keys
        assert takes_all or covers(granted.key, "#" if other.dynamic else other.key)
    assert peer.grant_source(granted, follows_keys=follows_keys, account=ACCOUNT) == peer
    following_keys = {granted.src, other.src} if follows_keys else set()
    rest = peer.withdraw_grants([granted], [other], key_exchanges=following_keys)
    if peer.find_pull_refusal(other, follows_keys=follows_keys) is None:
        assert rest.find_pull_refusal(other, follows_keys=follows_keys) is None
        assert rest == peer or not other.dynamic
    else:
        assert replace(rest, leads=(), granted=UNSET) == NO_RULES
        assert bool(rest.leads) == (granted.dynamic and other.dynamic)
    assert granted == other or peer.withdraw_grants([other], [granted], key_exchanges=following_keys) == peer


def test_what_an_operator_allowed_is_not_withdrawn_with_a_route() -> None:
    """A permission that was there before the route isn't the route's."""
    route = pull(key="eu.#")
    peer = replace(THERE, **EU).grant_source(pull("orders", src_is_queue=True), follows_keys=True, account=ACCOUNT)
    assert peer.withdraw_grants([route], [], key_exchanges={route.src}) == peer


NAMES = ("amq.topic", "a", "ab", "b")
KEYS = ("", "#", "a", "b", "a.b", "a.*", "a.#", "*.b", "#.b", "*", "a.#.b")
RULES = st.tuples(
    st.sampled_from(["*", "a", "a*", "?", "amq.*", "b"]), st.sampled_from(["", *(f":{key}" for key in KEYS)])
).map("".join)


def _is_within(rules: tuple[str, ...], exchange: str, key: str) -> bool:
    """Whether the rules say of a message that it may be had, read literally."""
    for name, colon, keys in (rule.partition(":") for rule in rules):
        glob = re.escape(name).replace(r"\*", ".*").replace(r"\?", ".")
        if re.fullmatch(glob, exchange) and (not colon or oracle(keys, key)):
            return True
    return False


@given(
    st.lists(RULES, max_size=3).map(tuple),
    st.lists(st.sampled_from(["*", "a", "a*", "b"]), max_size=2).map(tuple),
    st.sampled_from([*ExchangeType, None]),
    st.builds(
        pull,
        st.sampled_from(NAMES),
        key=st.sampled_from(KEYS),
        dynamic=st.booleans(),
        src_is_queue=st.booleans(),
        tag=st.sampled_from([None, "THERE", "FAR", "route"]),
        excludes=st.frozensets(st.sampled_from(["THERE", "FAR"])),
        fifo=st.booleans(),
        sync=st.integers(1, 10),
        credit=st.integers(10, 100),
        retention_s=st.integers(60, 120),
    ),
    st.sampled_from(["", "a", "b", "a.b", "a.c.b", "x.y", "#", "a.*"]),
)
def test_what_comes_over_is_within_the_rules(
    pulls: tuple[str, ...], queues: tuple[str, ...], type_: ExchangeType | None, route: Bridge, key: str
) -> None:
    """Whatever a peer asks for, at whatever exchange, also one that gets its type later."""
    peer = Peer(tag="THERE", account=ACCOUNT, region=REGION, pulls=pulls, queues=queues)
    types = {} if type_ is None else {route.src: type_}
    if find_pull_problem(peer, route, types=types, peers=[peer, FAR]) is not None:
        return
    assert route.tag != "FAR"
    if route.src_is_queue:
        assert any(_is_within((name,), route.src, "") for name in queues)
        return
    for made in [type_] if type_ is not None else ExchangeType:
        index = made.index_class()
        asked = [key, "#"] if route.dynamic else [route.key]  # a peer of a dynamic route binds what it likes
        index.add("bridge", {each: to_stored(index.match_all_arguments) for each in asked})
        if index.find_queues(Publication(exchange=route.src, key=key)):
            assert _is_within(pulls, route.src, key)


def test_every_field_of_a_request_is_checked_or_is_the_peers_own_affair() -> None:
    """A new field needs a decision: may a peer choose it? These only change its own queue, messages and traces."""
    checked = {"src", "key", "src_is_queue", "dynamic", "tag", "filter", "src_is_local"}
    limited_and_its_own = {"excludes", "max_hops", "expires_s", "retention_s", "dest_key", "dest", "fifo", "durable"}
    not_counted_where_others_read_the_queue = {"sync", "credit", "rate"}
    every = {field.name for field in fields(BridgeDeclaration)}
    assert every == checked | limited_and_its_own | not_counted_where_others_read_the_queue


def test_a_grant_for_a_destination_is_for_its_exchange() -> None:
    peer = Peer(tag="THERE", account=ACCOUNT, region=REGION).grant_destination(pull("events"))
    assert (peer.pulls, peer.pushes, peer.queues) == ((), ("events",), ())
    assert peer.grant_destination(pull("events")) == peer


def test_a_peer_pushes_to_the_exchanges_that_its_rules_name() -> None:
    peer = replace(THERE, pushes=("events", "amq.t*"))
    assert [peer.find_push_refusal(each) is None for each in ("events", "amq.topic", "amq.fanout")] == [
        True,
        True,
        False,
    ]


def test_what_a_peer_sends_has_been_there() -> None:
    assert append_peer_tag(("THERE",), [THERE]) == ("THERE",)
    assert append_peer_tag((), [THERE]) == ("THERE",)
    assert append_peer_tag(("FAR", "OTHER"), [THERE]) == ("FAR", "OTHER", "THERE")
    assert append_peer_tag(("FAR",), [THERE, FAR]) == ("FAR",)
    assert append_peer_tag(("a-route",), [replace(THERE, tags=("a-route",))]) == ("a-route",)


@pytest.mark.parametrize(
    ("pattern", "other", "is_covered"),
    [
        ("#", "a.b.#", True),
        ("#", "#", True),
        ("a.#", "a", True),
        ("a.#", "a.*.b", True),
        ("a.#", "#", False),
        ("a.*", "a.b", True),
        ("a.*", "a.*", True),
        ("a.*", "a.#", False),
        ("*.#", "#.*", True),
        ("a.#.z", "a.b.#.z", True),
        ("a.#.z", "a.b.#", False),
        ("", "", True),
        ("", "a", False),
        ("*", "", True),
    ],
)
def test_a_pattern_covers_another_where_it_matches_all_of_its_keys(
    pattern: str, other: str, *, is_covered: bool
) -> None:
    assert covers(pattern, other) is is_covered


# Who can be one


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"tag": "no tag"}, "'no tag' is no site's tag"),
        ({"tag": "HERE"}, "a site is no peer of its own"),
        ({"account": "1"}, "'1' is no account"),
        ({"account": "333333333333"}, "federation.peer_accounts at HERE doesn't list 333333333333, THERE's"),
        ({"region": "mars"}, "'mars' is no region"),
        ({"senders": ("a b",)}, "an id of a role is letters and digits"),
        ({"senders": ("AROAFAR",)}, "THERE and FAR: one site has one tag"),
        ({"sqs_url": "file:///etc/passwd"}, "'file:///etc/passwd' is no address of SQS"),
        ({"sqs_url": "http://"}, "is no address of SQS"),
    ],
)
def test_a_peer_that_cant_be_is_refused(fields: dict[str, Any], reason: str) -> None:
    with pytest.raises(BadRoute, match=reason):
        check_peer(replace(THERE, **fields), here="HERE", accounts=[ACCOUNT, FAR.account], existing=[FAR])
    check_peer(THERE, here="HERE", accounts=[ACCOUNT], existing=[FAR, THERE])


def test_a_peer_is_declared_by_what_its_site_says_of_itself() -> None:
    said = Introduction(
        **{name: getattr(ADDRESS, name) for name in Address.__struct_fields__}, senders=("AROALINKS", "AROABRIDGE")
    )
    assert Peer.from_introduction(said, pulls=("*",), pushes=("*",)) == THERE
