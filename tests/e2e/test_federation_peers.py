"""Three accounts that let each other send: each is heard as itself alone, and has what it may have.

A serves, C pulls from it, and M, whose account may send as well, says that it is C.
"""

import json
import uuid
from typing import Any

import pytest
from msgspec.structs import replace

from sluice.federation.links.links import Address, Bridge
from sluice.federation.links.messages import Hello, LinkClosed, LinkMessage, encode_control
from sluice.federation.links.peers import Peer
from sluice.federation.matching.metadata import ATTRIBUTE
from sluice.federation.operations import AddPeer, ListBindings
from tests.e2e.conftest import Lending
from tests.e2e.federated import FederatedSite

FIVE = [f"Message {number}" for number in range(1, 6)]
FANOUT, TOPIC = "amq.fanout", "amq.topic"


@pytest.fixture
def sites(pair: list[FederatedSite], lending: Lending) -> list[FederatedSite]:
    """A, C and M. M has to be there only, so another test may still be leaving it."""
    accounts = {site.site.account for site in pair}
    return [*pair, next(site for site in lending.sites if site.site.account not in accounts)]


def says(speaker: FederatedSite, to: FederatedSite, message: LinkMessage) -> str:
    """Have whoever is the root of an account send what is a peer's to send; the message's body."""
    body = encode_control(message)
    speaker.sqs_at(to).send_message(
        QueueUrl=to.address.control_queue_url,
        MessageBody=body,
        MessageGroupId=message.link,
        MessageDeduplicationId=uuid.uuid4().hex,
    )
    return body


def in_the_name_of(site: FederatedSite, **fields: Any) -> Address:
    """Where a site is, as a message would say it."""
    known = {name: getattr(site.address, name) for name in Address.__struct_fields__}
    return replace(Address(**known), **fields)


@pytest.mark.parametrize(
    "what", [pytest.param("hello that leads elsewhere", marks=pytest.mark.slow), "hello that pulls nothing", "parting"]
)
def test_nobody_speaks_for_another(sites: list[FederatedSite], what: str) -> None:
    a, c, m = sites
    queue = c.bound(FANOUT)
    route = c.pull(a, FANOUT)
    link = next(bridge.link for bridge in c.ask_site().bridges if bridge.name == route)
    sender = in_the_name_of(c)
    if what == "hello that leads elsewhere":
        sender = in_the_name_of(c, fifo_ingress_url=m.address.fifo_ingress_url, sqs_url=m.cloud.endpoint)
        pulls = (Bridge(name=route, link=link, src=FANOUT, dest=FANOUT),)
        forged: LinkMessage = Hello(link=link, sender=sender, pulls=pulls)
    elif what == "parting":
        forged = LinkClosed(link=link, sender=sender)
    else:
        forged = Hello(link=link, sender=sender)
    for speaker in (m, c):  # nor does another role of its own account: it isn't its functions'
        body = says(speaker, a, forged)
        why = f"{c.tag}: sent by '{speaker.site.account}', which is none of its roles"
        assert a.dead_letters(body, saying=why)  # the other's, with the same body, may be delivered twice
    a.publish(FANOUT, "", FIVE)
    assert c.bodies(queue, 5) == FIVE


def test_nobody_who_is_no_peer_gets_anything_in_by_a_link(sites: list[FederatedSite]) -> None:
    a, c, m = sites
    queue = a.bound(FANOUT)
    c.introduce(a)
    a.changes.wait_until_known()
    said = {"exchange": FANOUT, "trace": [c.tag], "id": f"{c.tag}.01J00000000000000000000000"}
    m.sqs_at(a).send_message(
        QueueUrl=a.address.fifo_ingress_url,
        MessageBody="let me in",
        MessageGroupId="g",
        MessageDeduplicationId=uuid.uuid4().hex,
        MessageAttributes={ATTRIBUTE: {"DataType": "String", "StringValue": json.dumps(said)}},
    )
    [reason] = a.dead_letters("let me in")
    assert f"NoPeer: sent by '{m.site.account}', which is no peer's role" in reason
    assert a.bodies(queue, 1, within_s=2) == []


# What it may, what it asks for, and why not: the matrix.
RULES: list[tuple[dict[str, Any], dict[str, Any], str]] = [
    ({"pulls": ("*",)}, {"src": TOPIC, "key": "eu.#"}, ""),
    ({"pulls": ("*",)}, {"src": TOPIC, "dynamic": True}, ""),
    ({"pulls": (f"{TOPIC}:eu.#",)}, {"src": TOPIC, "key": "eu.fr"}, ""),
    ({"pulls": (f"{TOPIC}:eu.#",)}, {"src": TOPIC, "key": "#"}, "may not pull amq.topic by '#'"),
    ({"pulls": (f"{TOPIC}:eu.#",)}, {"src": TOPIC, "dynamic": True}, "may not pull amq.topic"),
    ({"pulls": (f"{FANOUT}:eu.#",)}, {"src": FANOUT, "key": "eu.fr"}, "may not pull amq.fanout"),
    ({}, {"src": "QUEUE", "src_is_queue": True}, "may not take from the queue QUEUE"),
    ({"queues": ("QUEUE",)}, {"src": "QUEUE", "src_is_queue": True}, ""),
]
OFTEN = {3, 6, 7}  # of these, in every run


@pytest.mark.parametrize(
    ("rules", "wanted", "refusal"),
    [each if number in OFTEN else pytest.param(*each, marks=pytest.mark.slow) for number, each in enumerate(RULES)],
)
def test_a_peer_has_what_its_rules_let_it(
    sites: list[FederatedSite], rules: dict[str, Any], wanted: dict[str, Any], refusal: str
) -> None:
    a, c, _ = sites
    queue = a.queue("asked")
    named = {name: tuple(each.replace("QUEUE", queue) for each in rule) for name, rule in rules.items()}
    link = c.link(a)
    a.ask(AddPeer(peer=Peer.from_introduction(c.address, **named)))
    dest = TOPIC if wanted.get("src_is_queue") else wanted["src"]
    c.declare("asked", link, dest=dest, **{**wanted, "src": wanted["src"].replace("QUEUE", queue)})
    state = "Operational"
    if refusal:
        state = f"Failed: {c.tag} {refusal.replace('QUEUE', queue)}: its peer rule here says "
    c.until(lambda site: any(bridge.name == "asked" and bridge.state.startswith(state) for bridge in site.bridges))
    if not refusal:  # and what it may no longer goes at once
        a.ask(AddPeer(peer=Peer.from_introduction(c.address, pulls=())))
        a.until(lambda site: not site.bridges)
        assert a.ask(ListBindings()).bindings == ()


def test_what_a_peer_may_not_push_is_a_dead_letter(sites: list[FederatedSite]) -> None:
    a, c, _ = sites
    c.push(a, FANOUT)
    a.ask(AddPeer(peer=Peer.from_introduction(c.address, pushes=("events",))))
    a.changes.note()  # exchange functions look for a new version of peers every second, as for one of bindings
    c.publish(FANOUT, "", ["pushed"])
    [reason] = a.dead_letters("pushed")
    assert f"{c.tag} may not push to {FANOUT}: its peer rule here says events" in reason
