"""Who a site's peers are, and what each of them may: declared here, never what a message says of itself. Pure.

Whom a message is from SQS says, by the id of the role that sent it (`SenderId`). A peer's functions have roles of their
own, or assume the one that this site has for its peers, in a session that has their account's name. So a message is a
peer's where the role is, and where it says the peer's tag; and whatever is sent to a peer goes to queues of its account
and region, whose names it says.
"""

import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import cached_property
from typing import Annotated

from msgspec import UNSET, Meta, UnsetType
from msgspec.structs import replace

from sluice.codec import Format, Struct, shared_fields
from sluice.errors import BadRoute
from sluice.federation.links.links import Address, Bridge, Introduction, RouteKind
from sluice.federation.matching.metadata import Trace, is_tag
from sluice.federation.matching.topics import covers
from sluice.stages import is_stage, stage_of

MAX_PEERS = 200
MAX_SENDERS = 8
MAX_RULES = 64
MAX_RULE_CHARACTERS = 512
EVERYTHING = "*"
ALL_KEYS = "#"
ONLY_UNSTAGED = frozenset({""})  # sites without a stage

_ACCOUNT = re.compile(r"\d{12}")
_REGION = re.compile(r"[a-z]{2}(?:-[a-z]+)+-\d")
_SENDER = re.compile(r"[A-Z0-9]{4,128}")
_QUEUE = re.compile(r"[A-Za-z0-9_-]{1,80}(?:\.fifo)?")
_SQS_URL = re.compile(r"https?://[A-Za-z0-9.-]{1,253}(?::\d{1,5})?/?")

Rules = Annotated[tuple[Annotated[str, Meta(max_length=MAX_RULE_CHARACTERS)], ...], Meta(max_length=MAX_RULES)]


class Peer(Struct, frozen=True, kw_only=True):
    """A site that may link to this one. `senders` are the ids of the roles of its functions, as SQS says them.

    What it may, in patterns with `*` and `?` for names: `pulls` are exchanges whose messages it may have, each with a
    topic pattern of keys after a colon, or all keys; `pushes` exchanges that it may send to; `queues` those that it may
    empty. `tags` are those that routes from there have in place of its own. `sqs_url` is where this site reaches the
    peer's SQS, if not at the usual address. `stage` is what its queues' names begin with, where it has one. `declared`
    where the configuration says so.
    """

    tag: str
    account: str
    region: str
    senders: Annotated[tuple[str, ...], Meta(max_length=MAX_SENDERS)] = ()
    pulls: Rules = (EVERYTHING,)
    pushes: Rules = (EVERYTHING,)
    queues: Rules = ()
    tags: Rules = ()
    sqs_url: str | None = None
    stage: str | UnsetType = UNSET
    declared: bool = False

    @classmethod
    def at(
        cls,
        address: Introduction,
        *,
        pulls: tuple[str, ...] = (EVERYTHING,),
        pushes: tuple[str, ...] = (EVERYTHING,),
        queues: tuple[str, ...] = (),
    ) -> "Peer":
        """Return the peer that is at this address, as its site says it to who declares it."""
        return cls(**shared_fields(address, cls), pulls=pulls, pushes=pushes, queues=queues)

    def with_rules_of(self, other: "Peer") -> "Peer":
        """Return the peer with all that it may, and that the other may, as far as there may be so many rules."""
        rules = {
            name: tuple(dict.fromkeys((*getattr(self, name), *getattr(other, name))))
            for name in ("pulls", "pushes", "queues")
        }
        return replace(self, **{name: each for name, each in rules.items() if len(each) <= MAX_RULES})

    def refusal_of(self, bridge: Bridge) -> str | None:
        """Say why the peer may not have what a route pulls; None where it may."""
        if bridge.kind is RouteKind.QUEUE:
            is_allowed = self.may_take_from(bridge.src)
            return None if is_allowed else self._refused("take from the queue", bridge.src, self.queues)
        key = bridge.key if bridge.kind is RouteKind.STATIC else ALL_KEYS
        if any(_pulls(rule, bridge.src, key) for rule in self.pulls):
            return None
        by_key = f" by {bridge.key!r}" if bridge.key else ""
        return self._refused("pull", bridge.src + by_key, self.pulls)

    def may_take_from(self, queue: str) -> bool:
        """Whether the peer may empty a queue."""
        return _any(self.queues, queue)

    def push_refusal(self, exchange: str) -> str | None:
        """Say why the peer may not send to an exchange; None where it may."""
        return None if _any(self.pushes, exchange) else self._refused("push to", exchange, self.pushes)

    def _refused(self, what: str, name: str, rules: Iterable[str]) -> str:
        return f"{self.tag} may not {what} {name}: its peer rule here says {', '.join(rules) or 'nothing'}"


KNOWN_PEERS = Format(kind="peers", version=1, type=dict[str, Peer])  # by tag


def _any(patterns: Iterable[str], name: str) -> bool:
    return any(fnmatchcase(name, pattern) for pattern in patterns)


def _pulls(rule: str, exchange: str, key: str) -> bool:
    name, colon, keys = rule.partition(":")
    return fnmatchcase(exchange, name) and covers(keys if colon else ALL_KEYS, key)


def no_peer(tag: str) -> str:
    """Say that a site with this tag isn't known."""
    return f"{tag[:100]!r} is no peer of this site: `sluice peer add` makes it one"


def check_peer(
    peer: Peer,
    *,
    here: str,
    accounts: Iterable[str],
    stages: Collection[str] | None = None,
    existing: Iterable[Peer],
) -> None:
    """Check a peer. Raises `BadRoute` for one that can't be. `existing` are the site's others.

    `stages` are those that peers may have, None where that isn't known; an empty one is of sites that have none.
    """
    stage = "" if peer.stage is UNSET else peer.stage
    others = [each for each in existing if each.tag != peer.tag]
    refused = {
        f"{peer.tag!r} is no site's tag": not is_tag(peer.tag),
        f"{peer.tag}: a site is no peer of its own, and no two sites have one tag": peer.tag == here,
        f"{peer.tag}: {peer.account!r} is no account": not _ACCOUNT.fullmatch(peer.account),
        f"{peer.tag}: {peer.region!r} is no region": not _REGION.fullmatch(peer.region),
        f"{peer.tag}: federation.peer_accounts at {here} doesn't list {peer.account}, {peer.tag}'s": peer.account
        not in accounts,
        f"{peer.tag}: {peer.stage!r} is no stage": peer.stage is not UNSET and not is_stage(peer.stage),
        f"{peer.tag}: federation.peer_stages at {here} doesn't list {stage or 'sites without a stage'!r}": stages
        is not None
        and stage not in stages,
        f"{peer.tag}: an id of a role is letters and digits": not all(map(_SENDER.fullmatch, peer.senders)),
        f"{peer.tag}: {peer.sqs_url!r} is no address of SQS": peer.sqs_url is not None
        and not _SQS_URL.fullmatch(peer.sqs_url),
        f"{len(others)} other peers, as many as there may be": len(others) >= MAX_PEERS,
    }
    for reason, is_so in refused.items():
        if is_so:
            raise BadRoute(reason)
    for other in others:
        if not set(peer.senders).isdisjoint(other.senders):
            raise BadRoute(f"{peer.tag} and {other.tag}: one site has one tag, and these have a role in common")


@dataclass(frozen=True)  # no slots: whose is what is found out once, at the first message
class KnownPeers:
    """A site's peers by tag. `role_id` is of the role that this site has for them.

    Who assumes that has to call the session by its account: the role's trust policy asks for it.
    """

    by_tag: Mapping[str, Peer]
    role_id: str | None = None

    def sent_by(self, sender_id: str) -> Sequence[Peer]:
        """Return whose message it may be: of all sites of an account, by this site's own role; none of a stranger.

        `sender_id` is SQS's `SenderId`: a role's id, with a session's name after a colon.
        """
        return self.by_sender.get(sender_id) or self.by_sender.get(sender_id.partition(":")[0], [])

    @cached_property
    def by_sender(self) -> Mapping[str, Sequence[Peer]]:
        """Peers by the ids of their roles; by id and session where the role is this site's own."""
        found: dict[str, list[Peer]] = {}
        for peer in self.by_tag.values():
            of_account = () if self.role_id is None else (f"{self.role_id}:{peer.account}",)
            for sender in {*peer.senders, *of_account}:
                found.setdefault(sender, []).append(peer)
        return found

    def named(self, tag: str, *, sender_id: str) -> Peer:
        """Return the peer that says this tag, and is it. Raises `BadRoute`."""
        peer = self.by_tag.get(tag)
        if peer is None:
            raise BadRoute(no_peer(tag))
        if peer not in self.sent_by(sender_id):
            raise BadRoute(f"{tag}: sent by {sender_id.partition(':')[0][:100]!r}, which is none of its roles")
        return peer


def vouched(claimed: Address, peer: Peer, *, url_of: Callable[[Peer, str], str]) -> Address:
    """Return where a peer is, of what it says itself: nothing leads out of its account, region and stage.

    `url_of` makes the URL of a peer's queue from its name. Raises `BadRoute`.
    """
    if (claimed.account, claimed.region) != (peer.account, peer.region):
        raise BadRoute(
            f"{peer.tag}: is at {peer.account}/{peer.region}, not at {claimed.account[:100]}/{claimed.region[:100]}"
        )
    stage = None if peer.stage is UNSET else peer.stage
    role_arn = claimed.role_arn
    if role_arn is not None and role_arn.split(":")[4:5] != [peer.account]:
        raise BadRoute(f"{peer.tag}: {role_arn[:200]!r} is no role of account {peer.account}")

    def url(said: str) -> str:
        name = said.rsplit("/", 1)[-1]
        if not _QUEUE.fullmatch(name):
            raise BadRoute(f"{peer.tag}: {said[:200]!r} is no queue's URL")
        if stage_of(name) != stage:
            raise BadRoute(f"{peer.tag}: {said[:200]!r} is no queue of {stage or 'a site without a stage'}")
        return url_of(peer, name)

    return replace(
        claimed,
        control_queue_url=url(claimed.control_queue_url),
        ingress_url=url(claimed.ingress_url),
        fifo_ingress_url=url(claimed.fifo_ingress_url),
        sqs_url=peer.sqs_url,
        stage=peer.stage,
    )


def url_beside(own_url: str, *, here: str) -> Callable[[Peer, str], str]:
    """Return what makes URLs of peers' queues, of one of ours: AWS's, or those of the one endpoint that there is.

    `here` is this site's region.
    """
    base = own_url.rsplit("/", 2)[0]

    def url_of(peer: Peer, name: str) -> str:
        return f"{base.replace(here, peer.region)}/{peer.account}/{name}"

    return url_of


def marked(trace: Trace, peers: Iterable[Peer]) -> Trace:
    """Return where a message of a peer's has been: at the peer, whatever it says, or over a route with its own tag."""
    tags = [tag for peer in peers for tag in (peer.tag, *peer.tags)]
    return trace if not tags or not set(tags).isdisjoint(trace) else (*trace, tags[0])
