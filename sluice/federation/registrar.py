"""Looks after a site's links and bridges: takes changes into the registry, and does what falls due.

One invocation's. What it does may be done by another at the same time, or was done by one that died: all of it is safe
to do again, and what has become of it comes back as a change.
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

import msgspec
from msgspec import UNSET
from msgspec.structs import replace

from sluice.errors import BadRoute, PeerRefused, PeerUnreachable
from sluice.federation.bridge_works import BridgeProvisioner
from sluice.federation.exchange_store import ExchangeStore
from sluice.federation.links.due import EMPTY_FOR_MS, Act, Due, due
from sluice.federation.links.links import Address, Bridge, Link
from sluice.federation.links.messages import (
    Hello,
    HelloAnswer,
    HelloRefusal,
    LinkMessage,
    Parting,
    encode_control,
)
from sluice.federation.links.peers import ONLY_UNSTAGED, KnownPeers, Peer, vouched
from sluice.federation.links.registry import (
    REGISTRY,
    SERVED_MARK,
    LinkRecord,
    Registry,
    pulls_over,
    served_name,
    state_of,
)
from sluice.federation.links.states import AccessRefused, Intent, LinkEvent, LinkState, TimePassed, Unreachable
from sluice.federation.links.transitions import (
    Change,
    apply,
    drop_link,
    greet,
    note_hello_sent,
    part,
    take_answer,
    tell_link,
)
from sluice.federation.stored import Stored
from sluice.splitting.filters.values import Filter

if TYPE_CHECKING:  # at run time the shell is given its adapters, and imports none
    from sluice.aws.documents import DynamoDocument
    from sluice.aws.federation.peers import PeerQueues

MAX_ROUNDS = 8
SOON_MS = 2_000  # while a bridge or a link closes or drains, or a bridge is being changed
UNFINISHED_MS = 10_000  # while a bridge lacks what AWS didn't let be made
_PASSING = frozenset({Intent.CLOSED, Intent.DRAINING})
_AWAITING = frozenset({LinkState.WAITING, LinkState.FAILED, LinkState.CONNECTING})


def news_of(error: PeerUnreachable | PeerRefused) -> Unreachable | AccessRefused:
    """Return what a call that failed says of its link."""
    return AccessRefused(str(error)) if isinstance(error, PeerRefused) else Unreachable(str(error))


class LinkService(msgspec.Struct, frozen=True, kw_only=True):
    """One invocation's. Raises `BadRoute`, `BadBinding`, or `CallFailed` for what AWS refuses."""

    here: Address
    document: "DynamoDocument"
    exchanges: ExchangeStore
    works: BridgeProvisioner
    peers: "PeerQueues"
    peer_accounts: frozenset[str]
    known: Stored[dict[str, Peer]]  # by tag
    peer_role_id: str | None  # of the role that this site has for its peers in other accounts
    peer_queue_url: Callable[[Peer, str], str]  # from a queue's name
    filter_problem: Callable[[Filter], str | None]  # why no route can have it, or None
    last_forwards: Callable[[], Mapping[str, int]]  # by bridge: ms since 1970
    waiting_since: Callable[[], Mapping[str, int]]  # by queue: since when, at least, it hasn't been empty
    now_ms: Callable[[], int]
    jitter: Callable[[], float]
    empty_for_ms: int = EMPTY_FOR_MS
    peer_stages: frozenset[str] = ONLY_UNSTAGED

    def registry(self) -> Registry:
        """Read the registry as it stands. Raises `BadSnapshot`."""
        return self._stored.value()

    @property
    def _stored(self) -> Stored[Registry]:
        return Stored(self.document, REGISTRY, lambda: Registry(here=self.here.tag))

    def advance(self, changes: Sequence[Change] = (), *, ticks: bool = True) -> Registry:
        """Take changes in and do what is due, until nothing more can be done now; the registry then."""
        registry = self.take_in(changes)
        if ticks:
            registry = self.take_in(self._ticks(registry))
        done: set[tuple[Due, object]] = set()
        for _ in range(MAX_ROUNDS):
            followed: list[Change] = []
            for action in due(registry, now_ms=self.now_ms(), empty_for_ms=self.empty_for_ms):
                # Each action once in a state of its bridge or link: what isn't settled by doing it again must wait.
                is_links = action.act in {Act.SEND_HELLO, Act.SEND_PARTING}
                state = registry.links[action.name].status.state if is_links else registry.bridges[action.name].mapping
                if (action, state) in done or not self.works.may_go_on():
                    continue
                done.add((action, state))
                match action.act:
                    case Act.SEND_HELLO:
                        followed += self._hello_sent(action.name, registry)
                    case Act.SEND_PARTING:
                        followed += self._parting_sent(action.name, registry)
                    case _:
                        followed.append(self.works.perform(action, registry))
            if not followed:
                return registry
            registry = self.take_in(followed)
        return registry

    def take_in(self, changes: Sequence[Change]) -> Registry:
        """Write the registry after the changes, all or none of them. Raises `BadRoute`, `TooBusy`."""

        def change(registry: Registry) -> Registry:
            for each in changes:
                registry = apply(registry, each, now_ms=self.now_ms(), jitter=self.jitter())
            return registry

        return self._stored.change(change)

    def _ticks(self, registry: Registry) -> list[Change]:
        forwards, waiting, events = self.last_forwards(), self.waiting_since(), list[Change]()
        for name, record in registry.links.items():
            bridges = registry.bridges_of(name)
            last_ms = max((forwards.get(each.bridge.name, 0) for each in bridges), default=0)
            if last_ms > (record.status.last_forward_ms or 0):
                events.append(tell_link(name, LinkEvent.FORWARDED))
            queued = 0  # nobody asks what is left, unless the link drains
            if record.status.draining:
                queued = sum(each.bound for each in bridges)
                queued += sum(self.works.count(each.queue) for each in bridges if each.queue is not None)
            # What was forwarded since was older: so the oldest message has waited for as long, at least.
            oldest = [
                max(since_ms, forwards.get(each.bridge.name, 0))
                for each in bridges
                if (since_ms := waiting.get(each.queue or "")) is not None and registry.may_flow(each)
            ]
            events.append(tell_link(name, TimePassed(queued=queued, waiting_since_ms=min(oldest, default=None))))
        return events

    def next_tick_ms(self, registry: Registry) -> int | None:
        """When somebody should look again, ms since 1970; None where the schedule will do."""
        now_ms, links = self.now_ms(), registry.links.values()
        times = [each.status.due_at_ms for each in links if each.status.state in _AWAITING]
        ends = any(each.wanted in _PASSING or each.changed for each in registry.bridges.values())
        if ends or any(each.status.draining and each.carries for each in links):
            times.append(now_ms + SOON_MS)
        if any(each.error is not None and each.bridge.src_is_local for each in registry.bridges.values()):
            times.append(now_ms + UNFINISHED_MS)
        return max(min(times), now_ms) if times else None

    # What peers say

    def hear(self, message: LinkMessage, *, sender_id: str) -> Registry:
        """Take in what a peer says, and answer. Raises `BadRoute` for a site that may not say it.

        `sender_id` is SQS's, of whoever sent the message.
        """
        sender, link = self.checked_sender(message.sender, sender_id=sender_id), message.link
        self._check_link(message, sender)
        match message:
            case Hello(served=True):
                return self._greet_server(link, sender)
            case Hello():
                return self._greet(message, sender)
            case HelloAnswer(exchanges=exchanges, bridges=bridges):
                event = take_answer(link, peer=sender, exchanges=exchanges, bridges=bridges, ours=self._types())
            case HelloRefusal(reason=reason):
                event = tell_link(link, AccessRefused(reason))
            case Parting():
                event = part(link, sender.tag)
        return self.advance([event], ticks=False)

    def filter_refusal(self, bridge: Bridge) -> str | None:
        """Say why a route can't have its filter; None where it can, or has none."""
        return None if bridge.filter is UNSET else self.filter_problem(bridge.filter)

    def checked_sender(self, claimed: Address, *, sender_id: str) -> Address:
        """Return where the peer is who says something. Raises `BadRoute` for what isn't from a peer of that tag."""
        peer = KnownPeers(self.known.value(), self.peer_role_id).named(claimed.tag, sender_id=sender_id)
        sender = vouched(claimed, peer, url_of=self.peer_queue_url)
        if sender.account == self.here.account:  # what lets other accounts in isn't for its own
            sender = replace(sender, role_arn=None, external_id=None)
        return sender

    def _check_link(self, message: LinkMessage, sender: Address) -> None:
        """Check that what is said of a link of ours is said by whom it goes to. Raises `BadRoute`."""
        if isinstance(message, HelloAnswer | HelloRefusal):
            record = self.registry().links.get(message.link)
            if record is not None and record.link.peer != sender.tag:
                raise BadRoute(f"{sender.tag}: {message.link[:100]} is a link to {record.link.peer}")

    def _greet(self, hello: Hello, peer: Address) -> Registry:
        """Take in a hello, and answer it, with the reasons for what the peer may not pull."""
        rules, name = self.known.value()[peer.tag], served_name(hello.link, peer.tag)
        reasons = {pull.name: rules.refusal_of(pull) or self.filter_refusal(pull) for pull in hello.pulls}
        allowed = [pull for pull in hello.pulls if reasons[pull.name] is None]
        try:
            event = greet(hello.link, peer=peer, pulls=allowed, paused=hello.paused, draining=hello.draining)
            registry = self.advance([event], ticks=False)
        except BadRoute as error:
            self._reply(peer, HelloRefusal(link=hello.link, sender=self.here, reason=str(error)))
            return self.registry()
        record = registry.links.get(name)
        if record is None:
            return registry  # a parting has come in between
        refused = {pull: reason for pull, reason in reasons.items() if reason is not None}
        bridges = {pull: f"{LinkState.FAILED}: {reason}" for pull, reason in refused.items()} | {
            each.bridge.name.removesuffix(SERVED_MARK + peer.tag): state_of(each, record)
            for each in registry.bridges_of(name)
        }
        try:
            self._tell(record.link, self._answer(hello.link, bridges))
        except (PeerUnreachable, PeerRefused) as error:  # the evidence that a served link has
            return self.advance([tell_link(name, news_of(error))], ticks=False)
        return self.registry()

    def _greet_server(self, link: str, peer: Address) -> Registry:
        """From a site where our own link is served: whether the two still know of each other."""
        registry, ours = self.registry(), link.removesuffix(SERVED_MARK + self.here.tag)
        is_known = ours in registry.links
        self._reply(peer, self._answer(link, {}) if is_known else Parting(link=ours, sender=self.here))
        return registry

    def _answer(self, link: str, bridges: Mapping[str, str]) -> HelloAnswer:
        return HelloAnswer(link=link, sender=self.here, exchanges=self._types(), bridges=bridges)

    def _types(self) -> Mapping[str, str]:
        """Return the exchanges here with their types."""
        return {exchange.name: exchange.type.value for exchange in self.exchanges.bindings().exchanges}

    def _reply(self, peer: Address, message: LinkMessage) -> None:
        """To a site that no link here goes to. One that can't be told asks again: its hello is no dead letter."""
        with suppress(PeerUnreachable, PeerRefused):
            self._tell(Link.to(peer, name=peer.tag), message)

    def _tell(self, link: Link, message: LinkMessage) -> None:
        self.peers.tell(link, link.endpoints[0], encode_control(message))

    # What is due of links

    def _hello_sent(self, link: str, registry: Registry) -> list[Change]:
        record = registry.links[link]
        pulls, paused = pulls_over(registry, link)
        hello = Hello(
            link=link,
            sender=self.here,
            served=record.served,
            draining=record.status.draining,
            pulls=pulls,
            paused=paused,
        )
        try:
            self.peers.tell(record.link, record.endpoint, encode_control(hello))
        except PeerRefused as error:
            return [note_hello_sent(link), tell_link(link, AccessRefused(f"{error}{self._why_refused(record)}"))]
        except PeerUnreachable as error:
            return [note_hello_sent(link), tell_link(link, news_of(error))]
        return [note_hello_sent(link)]

    def _why_refused(self, record: LinkRecord) -> str:
        """Say which setting may be missing: AWS's own words name none."""
        account, ours = record.endpoint.account, self.here.account
        if account == ours:
            return ""
        if account not in self.peer_accounts:
            return f": federation.peer_accounts at {self.here.tag} doesn't list {account}, {record.link.peer}'s"
        return f": does federation.peer_accounts at {record.link.peer} list {ours}, {self.here.tag}'s?"

    def _parting_sent(self, link: str, registry: Registry) -> list[Change]:
        record = registry.links[link]
        if not record.served:
            try:
                self._tell(record.link, Parting(link=link, sender=self.here))
            except PeerUnreachable:
                return []  # told once it can be
            except PeerRefused:
                pass  # it will never be told
        return [drop_link(link)]
