"""A site's peers and their permissions, configured at this site and never taken from a message. Pure.

SQS identifies a message's sender by the id of the sender's role (`SenderId`). A peer's functions have their own roles,
or assume this site's role for peers in a session named after their account. A message is accepted if its role and tag
belong to one peer. Replies go only to queues in that peer's account and region.
"""

import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import cached_property
from typing import Annotated

from msgspec import UNSET, Meta, UnsetType
from msgspec.structs import replace

from sluice.codec import Format, Struct, pick_shared_fields
from sluice.errors import BadRoute
from sluice.federation.links.links import (
    ALL_KEYS,
    Address,
    Bridge,
    BridgeDeclaration,
    Introduction,
    RouteKind,
    find_key_problem,
)
from sluice.federation.matching.exchanges import ExchangeType
from sluice.federation.matching.metadata import Trace, is_tag
from sluice.federation.matching.topics import covers
from sluice.stages import is_stage, parse_stage

MAX_PEERS = 200
MAX_SENDERS = 8
MAX_RULES = 64  # maximum number of rules in one of a peer's lists of permissions
RULES = ("pulls", "pushes", "queues", "leads")  # the fields that are a peer's lists of permissions
MAX_RULE_CHARACTERS = 512
ONLY_UNSTAGED = frozenset({""})  # allows only peers without a stage

_ACCOUNT = re.compile(r"\d{12}")
_REGION = re.compile(r"[a-z]{2}(?:-[a-z]+)+-\d")
_SENDER = re.compile(r"[A-Z0-9]{4,128}")
_QUEUE = re.compile(r"[A-Za-z0-9_-]{1,80}(?:\.fifo)?")
_SQS_URL = re.compile(r"https?://[A-Za-z0-9.-]{1,253}(?::\d{1,5})?/?")

Rules = Annotated[tuple[Annotated[str, Meta(max_length=MAX_RULE_CHARACTERS)], ...], Meta(max_length=MAX_RULES)]


class Peer(Struct, frozen=True, kw_only=True):
    """A site that may link to this site. `senders` are the ids of the roles of the peer's functions.

    Permissions are patterns of names with `*` and `?`; what none of them allows is refused. `pulls` has exchanges to
    pull from, each with an optional topic pattern after a colon; `pushes` has exchanges to publish to, by routes that
    the peer pushes or this site pulls; `queues` has queues to consume; `leads` has other sites to which the peer's
    dynamic routes may lead. `tags` are the tags of the peer's routes. `sqs_url` is the peer's SQS endpoint, if not the
    default. `stage` prefixes its queues' names. `declared` is true if the deployed configuration lists the peer.
    `granted` has the permissions that a command gave for a route, as the list's name and the pattern: the command that
    deletes the route withdraws them.
    """

    tag: str
    account: str
    region: str
    senders: Annotated[tuple[str, ...], Meta(max_length=MAX_SENDERS)] = ()
    pulls: Rules = ()
    pushes: Rules = ()
    queues: Rules = ()
    leads: Rules = ()
    tags: Rules = ()
    sqs_url: str | None = None
    stage: str | UnsetType = UNSET
    declared: bool = False
    granted: Rules | UnsetType = UNSET

    @classmethod
    def from_introduction(cls, address: Introduction, **rules: tuple[str, ...]) -> "Peer":
        """Return the peer at this address, with the permissions `rules`, which are named as in `RULES`."""
        return replace(cls(**pick_shared_fields(address, cls)), **rules)

    def merge_rules(self, other: "Peer") -> "Peer":
        """Merge two records of a peer: the result has all permissions. A list that would be too long stays."""
        rules = {name: tuple(dict.fromkeys((*getattr(self, name), *getattr(other, name)))) for name in RULES}
        return replace(self, **{name: patterns for name, patterns in rules.items() if len(patterns) <= MAX_RULES})

    def grant_source(self, route: BridgeDeclaration, *, follows_keys: bool, account: str) -> "Peer":
        """Return the peer with permission to take from this site what the route takes, and nothing else.

        `account` is this site's account. A peer whose routes lead to another site can get the copies for that site. So
        only a peer in the same account gets this permission by default.
        """
        if route.dynamic and not self.leads and self.account == account:
            peer = replace(self, leads=("*",), granted=(*(self.granted or ()), "leads:*"))
            return peer.grant_source(route, follows_keys=follows_keys, account=account)
        if self.find_pull_refusal(route, follows_keys=follows_keys) is None:
            return self
        rules, pattern = "queues", route.src
        if not route.src_is_queue:
            keys = f":{route.key}" if route.kind is RouteKind.STATIC and follows_keys else ""
            rules, pattern = "pulls", route.src.replace(":", "?") + keys  # a colon would end the name in a rule
        granted = (*(self.granted or ()), f"{rules}:{pattern}")
        return replace(self, **{rules: (*getattr(self, rules), pattern)}, granted=granted)

    def withdraw_grants(
        self, closed_routes: Sequence[Bridge], kept_routes: Sequence[Bridge], *, key_exchanges: Collection[str]
    ) -> "Peer":
        """Return the peer without the granted permissions that `closed_routes` needed and none of `kept_routes` needs.

        `key_exchanges` has the exchanges that select messages by key.
        """

        def allows(peer: Peer, route: Bridge) -> bool:
            return peer.find_pull_refusal(route, follows_keys=route.src in key_exchanges) is None

        peer = self
        for grant in self.granted or ():
            rules, _, pattern = grant.partition(":")
            rest = tuple(rule for rule in getattr(peer, rules) if rule != pattern)
            granted = tuple(other for other in peer.granted or () if other != grant)
            without = replace(peer, **{rules: rest}, granted=granted or UNSET)
            needing = [
                route
                for route in (*closed_routes, *kept_routes)
                if (route.dynamic if rules == "leads" else allows(peer, route) and not allows(without, route))
            ]
            if needing and not any(route in kept_routes for route in needing):
                peer = without
        return peer

    def grant_destination(self, route: BridgeDeclaration) -> "Peer":
        """Return the peer with permission to publish to the route's destination at this site."""
        is_allowed = self.find_push_refusal(route.dest) is None
        return self if is_allowed else replace(self, pushes=(*self.pushes, route.dest))

    def find_pull_refusal(self, route: BridgeDeclaration, *, follows_keys: bool) -> str | None:
        """Return why the peer may not pull a route; None if it may.

        `follows_keys` says whether the exchange selects messages by key. If it doesn't, any route takes all of its
        messages.
        """
        if route.src_is_queue:
            is_allowed = _matches_any(self.queues, route.src)
            return None if is_allowed else self._describe_refusal("take from the queue", route.src, self.queues)
        key = route.key if route.kind is RouteKind.STATIC and follows_keys else ALL_KEYS
        for rule in self.pulls:
            name, colon, keys = rule.partition(":")
            if fnmatchcase(route.src, name) and covers(keys if colon else ALL_KEYS, key):
                return None
        by_key = f" by {route.key!r}" if route.key and follows_keys else ""
        return self._describe_refusal("pull", route.src + by_key, self.pulls)

    def find_push_refusal(self, exchange: str) -> str | None:
        """Return why the peer may not publish to an exchange; None if it may publish."""
        return None if _matches_any(self.pushes, exchange) else self._describe_refusal("push to", exchange, self.pushes)

    def _describe_refusal(self, action: str, name: str, rules: Iterable[str]) -> str:
        return f"{self.tag} may not {action} {name}: its peer rule here says {', '.join(rules) or 'nothing'}"


def find_pull_problem(
    peer: Peer, pull: BridgeDeclaration, *, types: Mapping[str, ExchangeType], peers: Iterable[Peer]
) -> str | None:
    """Return why a peer's request for a route is refused; None if the site serves the route.

    `types` has the types of this site's exchanges by name, and `peers` all of its peers. The request's other fields
    concern only the route's own queue and messages; `check_bridge` limits their values.
    """
    type_ = types.get(pull.src)
    refusal = peer.find_pull_refusal(pull, follows_keys=type_ is not None and type_.follows_keys)
    if refusal is None and pull.tag is not None and pull.tag in {other.tag for other in peers} - {peer.tag}:
        return f"{peer.tag} may not use the tag {pull.tag}, because another peer has it"
    return refusal or find_key_problem(pull, type_)


KNOWN_PEERS = Format(kind="peers", version=1, type=dict[str, Peer])  # peers by tag


def _matches_any(patterns: Iterable[str], name: str) -> bool:
    return any(fnmatchcase(name, pattern) for pattern in patterns)


def describe_unknown_peer(tag: str) -> str:
    """Return the error message for a tag that no peer has."""
    return f"{tag[:100]!r} is no peer of this site: `sluice peer add` makes it one"


def check_peer(
    peer: Peer, *, here: str, accounts: Iterable[str], stages: Collection[str] | None = None, existing: Iterable[Peer]
) -> None:
    """Check a peer against the site's `existing` peers. Raises `BadRoute` if the peer is invalid.

    `stages` are the allowed stages. The stage "" allows peers without a stage. None allows all stages.
    """
    stage = "" if peer.stage is UNSET else peer.stage
    others = [other for other in existing if other.tag != peer.tag]
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


@dataclass(frozen=True)  # This class has no slots, because `peers_by_sender` is cached in its objects.
class KnownPeers:
    """A site's peers by tag. `role_id` is the id of the role that this site has for peers in other accounts.

    The role's trust policy requires that a session is named after its caller's account.
    """

    peers_by_tag: Mapping[str, Peer]
    role_id: str | None = None

    def find_senders(self, sender_id: str) -> Sequence[Peer]:
        """Return the peers that may have sent a message: several if they share a session, none if the id is unknown.

        `sender_id` is SQS's `SenderId`: a role's id, a colon, and a session name. Peers of one account share a session.
        """
        return self.peers_by_sender.get(sender_id) or self.peers_by_sender.get(sender_id.partition(":")[0], [])

    @cached_property
    def peers_by_sender(self) -> Mapping[str, Sequence[Peer]]:
        """The peers by the ids of their roles. Peers that assume this site's role are listed by id and session name."""
        peers_by_sender: dict[str, list[Peer]] = {}
        for peer in self.peers_by_tag.values():
            of_account = () if self.role_id is None else (f"{self.role_id}:{peer.account}",)
            for sender in {*peer.senders, *of_account}:
                peers_by_sender.setdefault(sender, []).append(peer)
        return peers_by_sender

    def identify_peer(self, tag: str, *, sender_id: str) -> Peer:
        """Return the peer with this tag. Raises `BadRoute` if the sender's role isn't one of the peer's roles."""
        peer = self.peers_by_tag.get(tag)
        if peer is None:
            raise BadRoute(describe_unknown_peer(tag))
        if peer not in self.find_senders(sender_id):
            raise BadRoute(f"{tag}: sent by {sender_id.partition(':')[0][:100]!r}, which is none of its roles")
        return peer


def verify_address(address: Address, peer: Peer, *, peer_queue_url: Callable[[Peer, str], str]) -> Address:
    """Return a claimed address after checking that the address is in the peer's account, region and stage.

    `peer_queue_url` builds a peer's queue URL from the queue's name. Raises `BadRoute`.
    """
    if (address.account, address.region) != (peer.account, peer.region):
        raise BadRoute(
            f"{peer.tag}: is at {peer.account}/{peer.region}, not at {address.account[:100]}/{address.region[:100]}"
        )
    stage = None if peer.stage is UNSET else peer.stage
    role_arn = address.role_arn
    if role_arn is not None and role_arn.split(":")[4:5] != [peer.account]:
        raise BadRoute(f"{peer.tag}: {role_arn[:200]!r} is no role of account {peer.account}")

    def rebuild_url(claimed_url: str) -> str:
        name = claimed_url.rsplit("/", 1)[-1]
        if not _QUEUE.fullmatch(name):
            raise BadRoute(f"{peer.tag}: {claimed_url[:200]!r} is no queue's URL")
        if parse_stage(name) != stage:
            raise BadRoute(f"{peer.tag}: {claimed_url[:200]!r} is no queue of {stage or 'a site without a stage'}")
        return peer_queue_url(peer, name)

    return replace(
        address,
        control_queue_url=rebuild_url(address.control_queue_url),
        ingress_url=rebuild_url(address.ingress_url),
        fifo_ingress_url=rebuild_url(address.fifo_ingress_url),
        sqs_url=peer.sqs_url,
        stage=peer.stage,
    )


def build_peer_url_function(own_url: str, *, here: str) -> Callable[[Peer, str], str]:
    """Return a function that builds the URL of a peer's queue, in the form of `own_url`, a queue URL of this site.

    The form is AWS's, or that of an emulator with one endpoint. `here` is this site's region.
    """
    base = own_url.rsplit("/", 2)[0]

    def build_url(peer: Peer, name: str) -> str:
        return f"{base.replace(here, peer.region)}/{peer.account}/{name}"

    return build_url


def append_peer_tag(trace: Trace, peers: Iterable[Peer]) -> Trace:
    """Return the trace with the peer's tag appended, unless the trace already has a tag of one of the peers."""
    tags = [tag for peer in peers for tag in (peer.tag, *peer.tags)]
    return trace if not tags or not set(tags).isdisjoint(trace) else (*trace, tags[0])
