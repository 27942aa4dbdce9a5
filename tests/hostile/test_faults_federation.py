"""What hostile input does to federation: faults are expected to fail until they are mended."""

import re
from collections.abc import Mapping, Sequence
from typing import Any

import pytest
from msgspec import Raw
from msgspec.structs import replace

from sluice.aws.federation.peers import PeerQueues
from sluice.codec import encode
from sluice.errors import BadRoute, CallFailed, DestinationFault, QueueGone
from sluice.federation.dynamic.ops import Bind, BindingAdvertisement, RequestSnapshot, RouteHello, SnapshotPart
from sluice.federation.links import transitions
from sluice.federation.links.links import Address, Bridge, BridgeDeclaration, Endpoint, Link
from sluice.federation.links.messages import DynamicMessage, Hello, LinkClosed, LinkMessage, encode_control
from sluice.federation.links.peers import KNOWN_PEERS, Peer
from sluice.federation.links.registry import Registry
from sluice.federation.links.transitions import MAX_LINKS_OF_A_PEER, accept_hello, apply
from sluice.message import Value
from sluice.splitting.filters.values import Filter
from tests.federation_fakes import FIFO_INGRESS, INGRESS, SOURCE
from tests.hostile.events import NOW_MS
from tests.hostile.federation_entries import FANOUT, MATCH, OVER, TOPIC, Links, Sites, routed
from tests.hostile.strict_sqs import MAX_BYTES, StrictClient

THIEF = "THIEF"  # a third site, of an account that is permitted


def robbed(*said: LinkMessage) -> Sites:
    """THERE pulls from HERE; then the thief says this to HERE, whose control queue it may send to."""
    world = Sites(["HERE", "THERE", THIEF])
    world.pulls("THERE", "HERE")
    for message in said:
        world["HERE"].control.append((f"{THIEF}/link", encode_control(message)))
        world["HERE"].receive()
    return world


def there(world: Sites) -> Address:
    """What the thief knows of THERE, as every peer of it does: it stands in each hello."""
    return world["THERE"].address


def forward(world: Sites) -> None:
    """HERE's bridge function sends what is in its queues; what arrives stays in the ingress queues."""
    for mapping in list(world["HERE"].mappings.made):
        world["HERE"].begin(mapping)
    for batch in list(world["HERE"].pending):
        world["HERE"].finish(batch)


def delivered(world: Sites, *tags: str) -> tuple[Sequence[str], ...]:
    """What the links function is told to do is done; then a message is published HERE. What of it got to each site."""
    world["HERE"].link_service().advance()
    world["HERE"].publish("secret")
    forward(world)
    return tuple(world[tag].queues.bodies(FIFO_INGRESS) for tag in tags)


def test_a_message_gets_to_the_peer_that_pulls_it() -> None:
    world = robbed()
    assert delivered(world, "THERE", THIEF) == (["secret"], [])


def test_a_peer_cannot_say_where_another_peers_messages_go() -> None:
    pulls = (Bridge(name="route", link="to-HERE", src=FANOUT, dest=FANOUT),)
    world = Sites(["HERE", "THERE", THIEF])
    forged = replace(there(world), fifo_ingress_url=world[THIEF].address.fifo_ingress_url)
    world = robbed(Hello(link="to-HERE", sender=forged, pulls=pulls))
    assert delivered(world, THIEF, "THERE") == ([], ["secret"])


@pytest.mark.parametrize("what", ["parting", "hello that pulls nothing"])
def test_a_peer_cannot_close_another_peers_routes(what: str) -> None:
    sender = there(Sites(["HERE", "THERE", THIEF]))
    forged = LinkClosed if what == "parting" else Hello
    world = robbed(forged(link="to-HERE", sender=sender))
    assert delivered(world, "THERE") == (["secret"],)


@pytest.mark.parametrize("arguments", ['{"x-match":"some"}', '{"a":1}', '{"a":"\\ud800","x-match":"all"}'])
def test_a_want_that_cannot_be_a_binding_is_ignored(arguments: str) -> None:
    """Were it kept, each message of any peer, each operation and each sweep would raise `BadBinding`."""
    world = Sites(["HERE", "THERE"])
    world.pulls("THERE", "HERE", exchange=MATCH, dynamic=True)
    site, function = world["HERE"], Links(world["HERE"])
    function.ask({"op": "sweep"})
    [served] = site.dynamics().routes.value()[MATCH].served.values()
    epoch, sequence = served.version
    bind = Bind(
        exchange=MATCH,
        bridge="route",
        epoch=epoch,
        sequence=sequence + 1,
        origin="THERE",
        path=("THERE",),
        hops_left=1,
        outages=0,
        binding=BindingAdvertisement("k", arguments),
    )
    function.receive(encode_control(DynamicMessage(link="to-HERE", sender=there(world), op=Raw(encode(bind)))))
    assert function.ask({"op": "sweep"}) == {"result": None}


def test_a_peer_has_so_many_links_and_no_more() -> None:
    peer = there(Sites(["HERE", "THERE"]))
    registry = Registry(here="HERE")
    for number in range(MAX_LINKS_OF_A_PEER):
        registry = apply(registry, accept_hello(link=f"l{number}", peer=peer), now_ms=NOW_MS, jitter=0.5)
    with pytest.raises(BadRoute, match="THERE: has 16 links here, as many as a peer may have"):
        apply(registry, accept_hello(link="one more", peer=peer), now_ms=NOW_MS, jitter=0.5)


def test_a_peer_has_so_many_routes_over_all_of_its_links(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each route is a queue, a trigger and a copy of each message here."""
    monkeypatch.setattr(transitions, "MAX_ROUTES_OF_A_PEER", 5)
    peer, registry = there(Sites(["HERE", "THERE"])), Registry(here="HERE")

    def pull(registry: Registry, link: str, number: int) -> Registry:
        pulls = [Bridge(name=f"{link}-{key}", link=link, src=FANOUT, dest=f"d{key}") for key in range(number)]
        return apply(registry, accept_hello(link=link, peer=peer, pulls=pulls), now_ms=NOW_MS, jitter=0.5)

    registry = pull(pull(registry, "l1", 3), "l2", 2)
    with pytest.raises(BadRoute, match="THERE: pulls 6 routes here, more than 5"):
        pull(registry, "l2", 3)
    assert len(pull(registry, "l1", 3).bridges) == 5  # a hello may be repeated


def test_a_route_of_a_peer_does_not_have_another_peers_tag() -> None:
    """Messages with that tag in their traces would never reach the other peer."""
    world = Sites(["HERE", "THERE", THIEF])
    world.pulls("THERE", "HERE", exchange=FANOUT, tag=THIEF)
    state = world["THERE"].registry().links["to-HERE"].remote["route"]
    assert state == f"Failed: THERE may not use the tag {THIEF}, because another peer has it"


def with_rule(world: Sites, tag: str, **rules: tuple[str, ...]) -> None:
    """HERE gives a peer these permissions and no others."""
    site = world["HERE"]
    known = KNOWN_PEERS.unpack(site.known_peers.content or b"")
    known[tag] = Peer.from_introduction(world[tag].introduction, **rules)
    site.known_peers.content = KNOWN_PEERS.pack(known)


HONEST: dict[str, Any] = {"key": "eu.#"}
LIES: Sequence[dict[str, Any]] = (
    HONEST,
    {},
    {"key": "#"},
    {"key": ""},
    {"key": "*.x"},
    {"key": "eu.*"},
    {"src": FANOUT},
    {"src": FANOUT, "key": "eu.x"},
    {"src": MATCH},
    {"src": "amq.*"},
    {"src": "orders"},
    {"dynamic": True},
    {"dynamic": True, "src": FANOUT, "dest": FANOUT},
    {"src": SOURCE, "src_is_queue": True},
    {"src": "ingress", "src_is_queue": True},
    {"src_is_local": True, "key": "#"},
    {"tag": THIEF, "key": "eu.#"},
    {"tag": "HERE", "key": "eu.#"},
    {"link": "to-HERE@THIEF", "key": "eu.#"},
    {"name": "route@THIEF", "key": "eu.#"},
    {"dest": FANOUT, "dest_key": "us.x", "key": "eu.#"},
    {"retention_s": 1, "key": "eu.#"},
    {"credit": 10**9, "key": "eu.#"},
    {"sync": -1, "key": "eu.#"},
    {"max_hops": 0, "key": "eu.#"},
    {"fifo": False, "key": "#"},
    {"filter": Filter(jq="true"), "key": "#"},
)


@pytest.mark.parametrize("lie", LIES, ids=str)
def test_whatever_a_peer_asks_for_it_gets_what_its_rule_gives_it(lie: dict[str, Any]) -> None:
    world = Sites(["HERE", "THERE", THIEF])
    with_rule(world, "THERE", pulls=(f"{TOPIC}:eu.#",))
    world["HERE"].offer("queued")
    pull = Bridge(**{"name": "route", "link": "to-HERE", "src": TOPIC, "dest": TOPIC} | lie)
    Links(world["HERE"]).receive(encode_control(Hello(link="to-HERE", sender=there(world), pulls=(pull,))))
    for exchange in (TOPIC, FANOUT, MATCH):
        for key in ("eu.x", "eu.y.z", "us.x"):
            world["HERE"].publish(f"{exchange} {key}", exchange=exchange, key=key)
    forward(world)
    taken = {body for name in (INGRESS, FIFO_INGRESS) for body in world["THERE"].queues.bodies(name)}
    given = {f"{TOPIC} eu.x", f"{TOPIC} eu.y.z"}
    assert taken == given if lie == HONEST else taken <= given
    assert world["HERE"].queues.bodies(SOURCE) == ["queued"]


SENDERS: Sequence[dict[str, Any]] = (
    {"tag": THIEF},
    {"tag": "HERE"},
    {"account": "999999999999"},
    {"region": "us-east-1"},
    {"role_arn": "arn:aws:iam::999999999999:role/r"},
    {"control_queue_url": "https://evil.example/1/x y"},
    {"ingress_url": "https://sqs.THIEF/1/a b"},
    {"fifo_ingress_url": ""},
    {"sqs_url": "http://127.0.0.1:1"},
    {"stage": "dev"},
)


@pytest.mark.parametrize("lie", SENDERS, ids=str)
def test_whatever_a_peer_says_of_itself_nothing_goes_elsewhere(lie: dict[str, Any]) -> None:
    world = Sites(["HERE", "THERE", THIEF])
    pulls = (Bridge(name="route", link="to-HERE", src=FANOUT, dest=FANOUT),)
    Links(world["HERE"]).receive(
        encode_control(Hello(link="to-HERE", sender=replace(there(world), **lie), pulls=pulls))
    )
    links = [record.link for record in world["HERE"].registry().links.values()]
    assert {endpoint.control_queue_url for link in links for endpoint in link.endpoints} <= {
        there(world).control_queue_url
    }
    assert all((link.peer, link.role_arn) == ("THERE", None) for link in links)
    assert delivered(world, THIEF) == ([],)


def steal(leads: tuple[str, ...]) -> list[str]:
    """Lets a peer claim a way to another one, which has advertised nothing yet. Returns what the first one gets."""
    world = Sites(["HERE", "THERE", THIEF])
    with_rule(world, THIEF, pulls=("*",), leads=leads)
    function = Links(world["HERE"])
    for tag in ("THERE", THIEF):
        world.pulls(tag, "HERE", exchange=TOPIC, dynamic=True)
    function.ask({"op": "sweep"})
    served = world["HERE"].dynamics().routes.value()[TOPIC].served[f"route@{THIEF}"]
    claim = Bind(
        exchange=TOPIC,
        bridge="route",
        epoch=served.version[0],
        sequence=served.version[1] + 1,
        origin="THERE",
        path=("THERE", THIEF),
        hops_left=8,
        outages=0,
        binding=BindingAdvertisement("#"),
    )
    message = DynamicMessage(link="to-HERE", sender=world[THIEF].address, op=Raw(encode(claim)))
    function.receive(encode_control(message), by=THIEF)
    function.ask({"op": "sweep"})
    world["HERE"].publish("secret", exchange=TOPIC, key="k")
    forward(world)
    return world[THIEF].queues.bodies(FIFO_INGRESS)


@pytest.mark.parametrize("leads", [(), ("OTHER",), ("*",)])
def test_a_peer_leads_to_no_site_that_its_rule_does_not_name(leads: tuple[str, ...]) -> None:
    assert steal(leads) == (["secret"] if leads == ("*",) else [])


def test_what_a_company_wants_takes_nothing_away_that_another_site_wants() -> None:
    """What `dynamic add` grants to a site of another account lets it lead only to itself."""
    company = Peer(tag=THIEF, account="999999999999", region="eu-west-1")
    route = BridgeDeclaration(src=TOPIC, dest=TOPIC, dynamic=True)
    granted = company.grant_source(route, follows_keys=True, account="000000000000")
    assert granted.find_pull_refusal(route, follows_keys=True) is None
    assert steal(granted.leads) == []


def test_an_epoch_far_ahead_is_not_taken() -> None:
    """Otherwise nothing that the peer says later, of the same bridge, would be newer."""
    world = Sites(["HERE", "THERE"])
    world.pulls("THERE", "HERE", exchange=TOPIC, dynamic=True)
    function = Links(world["HERE"])
    function.ask({"op": "sweep"})
    before = world["HERE"].dynamics().routes.value()
    for op in (
        RouteHello(exchange=TOPIC, bridge="route", epoch=1 << 61, number=1, sequence=1, digest="x"),
        RequestSnapshot(exchange=TOPIC, bridge="route", epoch=1 << 61, number=1),
        SnapshotPart(exchange=TOPIC, bridge="route", epoch=1 << 61, sequence=1, part=0, parts=1, data=""),
    ):
        function.receive(encode_control(DynamicMessage(link="to-HERE", sender=there(world), op=Raw(encode(op)))))
    assert world["HERE"].dynamics().routes.value() == before


@pytest.mark.parametrize("url", ["x", "", "http://", "http://[", "file:///etc/passwd"])
def test_a_peer_whose_address_is_none_is_unreachable_or_refuses(url: str) -> None:
    """Its link is kept before it is answered, and whatever asks for it again raises botocore's ValueError."""
    endpoint = Endpoint(region="eu-central-1", account="123456789012", control_queue_url="u", sqs_url=url)
    link = Link(name="l", peer="THERE", endpoints=(endpoint,))
    peers: Any = PeerQueues("123456789012")
    with pytest.raises(DestinationFault):
        peers.send_control_message(link, endpoint, "body")


GROUP = re.compile(r"[!-~]{1,128}")  # a message group, as SQS takes it: letters, digits and punctuation


@pytest.mark.parametrize("name", ["to HERE", "\u00e9", "a\nb"])
def test_a_link_whose_name_is_no_message_group_is_refused(name: str) -> None:
    """It is the group of what the peer is told: what SQS refuses of that comes up in each sweep."""
    world = Sites(["HERE", "THERE"])
    site = world["HERE"]
    tell = site.peers.send_control_message

    def told(link: Link, endpoint: Endpoint, body: str) -> None:
        if not GROUP.fullmatch(link.name[:128]):
            raise CallFailed("SendMessage", "InvalidParameterValue", "MessageGroupId")
        tell(link, endpoint, body)

    site.peers.send_control_message = told  # type: ignore[method-assign]  # as SQS does
    function = Links(site)
    function.receive(encode_control(Hello(link=name, sender=there(world))))
    for _ in range(5):
        world.at_ms += 10 * 60_000
        assert function.ask({"op": "sweep"}) == {"result": None}


def test_a_message_of_the_greatest_size_for_a_queue_that_is_gone_fails_alone() -> None:
    """Were it not buried, the others of the batch, which were sent, would be sent again, and again."""

    class Gone(StrictClient):
        def send_batch(self, url: str, entries: Sequence[dict[str, Any]]) -> Mapping[str, str]:
            if url == OVER:
                raise QueueGone(url)
            return super().send_batch(url, entries)

    own = {"exchange": Value("String", FANOUT)}
    small = StrictClient()
    routed(small, [("b", own)])
    carried = small.taken[0][1]["MessageAttributes"].items()
    room = MAX_BYTES - sum(len(name) + len(value["DataType"]) + len(value["StringValue"]) for name, value in carried)
    said = routed(Gone(), [("b" * room, own), ("well", own)])
    assert "comes again: m1" not in said
