"""Applies changes to a site's registry of links and bridges, and runs the actions that are due.

Several invocations may run at once, and each may fail at any point. So every action is idempotent, and its result is
saved as a change.
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

import msgspec
from msgspec import UNSET
from msgspec.structs import replace

from sluice.errors import BadRoute, PeerRefused, PeerUnreachable
from sluice.federation.bridge_provisioner import BridgeProvisioner
from sluice.federation.exchange_store import ExchangeStore
from sluice.federation.links import messages, transitions
from sluice.federation.links.due import EMPTY_FOR_MS, Action, DueAction, find_due_actions
from sluice.federation.links.links import Address, Bridge, Link
from sluice.federation.links.peers import ONLY_UNSTAGED, KnownPeers, Peer, find_pull_problem, verify_address
from sluice.federation.links.registry import (
    REGISTRY,
    SERVED_MARK,
    LinkRecord,
    Registry,
    collect_pulls,
    describe_state,
    format_served_name,
)
from sluice.federation.links.states import AccessRefused, Intent, LinkEvent, LinkState, TimePassed, Unreachable
from sluice.federation.matching.exchanges import ExchangeType
from sluice.federation.stored import DocumentStore
from sluice.splitting.filters.values import Filter

if TYPE_CHECKING:  # Adapters are passed in as arguments, so their classes are only imported for type checking.
    from sluice.aws.documents import DynamoDocument
    from sluice.aws.federation.peers import PeerQueues

MAX_ROUNDS = 8
SOON_MS = 2_000  # pause until the next tick while a link or bridge is closing, draining or changing
UNFINISHED_MS = 10_000  # pause until the next tick while AWS can't create a bridge's resource
_PASSING = frozenset({Intent.CLOSED, Intent.DRAINING})
_AWAITING = frozenset({LinkState.WAITING, LinkState.FAILED, LinkState.CONNECTING})


def to_link_update(error: PeerUnreachable | PeerRefused) -> Unreachable | AccessRefused:
    """Convert the error of a failed call to the peer into an update of the link."""
    return AccessRefused(str(error)) if isinstance(error, PeerRefused) else Unreachable(str(error))


class LinkService(msgspec.Struct, frozen=True, kw_only=True):
    """Manages links during one invocation. Raises `BadRoute`, `BadBinding`, or `CallFailed` if AWS refuses a call."""

    here: Address
    document: "DynamoDocument"
    exchanges: ExchangeStore
    provisioner: BridgeProvisioner
    peers: "PeerQueues"
    peer_accounts: frozenset[str]
    known_peers: DocumentStore[dict[str, Peer]]  # peers by tag
    peer_role_id: str | None  # id of the role that this site has for peers in other accounts
    peer_queue_url: Callable[[Peer, str], str]  # returns the URL of a peer's queue with this name
    find_filter_problem: Callable[[Filter], str | None]  # returns why routes can't have this filter; None if they can
    last_forwards: Callable[[], Mapping[str, int]]  # returns the time of each bridge's last forward, in ms
    waiting_since: Callable[[], Mapping[str, int]]  # returns the time since which each queue has had messages, in ms
    now_ms: Callable[[], int]
    jitter: Callable[[], float]
    empty_for_ms: int = EMPTY_FOR_MS
    peer_stages: frozenset[str] = ONLY_UNSTAGED

    def registry(self) -> Registry:
        """Return the current registry. Raises `BadSnapshot`."""
        return self._stored.value()

    @property
    def _stored(self) -> DocumentStore[Registry]:
        return DocumentStore(self.document, REGISTRY, lambda: Registry(here=self.here.tag))

    def advance(self, changes: Sequence[transitions.Change] = (), *, ticks: bool = True) -> Registry:
        """Save changes, and run due actions until none is due. Returns the registry."""
        registry = self.save_changes(changes)
        if ticks:
            registry = self.save_changes(self._derive_ticks(registry))
        finished_actions: set[tuple[DueAction, object]] = set()
        for _ in range(MAX_ROUNDS):
            resulting_changes: list[transitions.Change] = []
            for action in find_due_actions(registry, now_ms=self.now_ms(), empty_for_ms=self.empty_for_ms):
                # An action that had no effect isn't run again until the state of its bridge or link changes.
                is_links = action.action in {Action.SEND_HELLO, Action.SEND_LINK_CLOSED}
                state = registry.links[action.name].status.state if is_links else registry.bridges[action.name].mapping
                if (action, state) in finished_actions or not self.provisioner.may_go_on():
                    continue
                finished_actions.add((action, state))
                match action.action:
                    case Action.SEND_HELLO:
                        resulting_changes += self._send_hello(action.name, registry)
                    case Action.SEND_LINK_CLOSED:
                        resulting_changes += self._send_link_closed(action.name, registry)
                    case _:
                        resulting_changes.append(self.provisioner.run_action(action, registry))
            if not resulting_changes:
                return registry
            registry = self.save_changes(resulting_changes)
        return registry

    def save_changes(self, changes: Sequence[transitions.Change]) -> Registry:
        """Save either all of the changes or none. Raises `BadRoute`, `TooBusy`."""

        def change(registry: Registry) -> Registry:
            for pending in changes:
                registry = transitions.apply(registry, pending, now_ms=self.now_ms(), jitter=self.jitter())
            return registry

        return self._stored.change(change)

    def _derive_ticks(self, registry: Registry) -> list[transitions.Change]:
        forwards, waiting, events = self.last_forwards(), self.waiting_since(), list[transitions.Change]()
        for name, record in registry.links.items():
            bridges = registry.list_bridges(name)
            last_ms = max((forwards.get(bridge_record.bridge.name, 0) for bridge_record in bridges), default=0)
            if last_ms > (record.status.last_forward_ms or 0):
                events.append(transitions.update_link(name, LinkEvent.FORWARDED))
            queued = 0  # only the ticks of draining links need the number of messages
            if record.status.draining:
                queued = sum(bridge_record.bound for bridge_record in bridges)
                queued += sum(
                    self.provisioner.count_messages(bridge_record.queue)
                    for bridge_record in bridges
                    if bridge_record.queue is not None
                )
            # Older messages are forwarded first. So the oldest message has waited at least since the last forward.
            oldest = [
                max(since_ms, forwards.get(bridge_record.bridge.name, 0))
                for bridge_record in bridges
                if (since_ms := waiting.get(bridge_record.queue or "")) is not None
                and registry.may_forward(bridge_record)
            ]
            events.append(
                transitions.update_link(name, TimePassed(queued=queued, waiting_since_ms=min(oldest, default=None)))
            )
        return events

    def next_tick_ms(self, registry: Registry) -> int | None:
        """Return when the next tick is needed, in ms since the epoch; None if the scheduled sweep is enough."""
        now_ms, links = self.now_ms(), registry.links.values()
        times = [link_record.status.due_at_ms for link_record in links if link_record.status.state in _AWAITING]
        ends = any(
            bridge_record.intent in _PASSING or bridge_record.changed for bridge_record in registry.bridges.values()
        )
        if ends or any(link_record.status.draining and link_record.carries for link_record in links):
            times.append(now_ms + SOON_MS)
        if any(
            bridge_record.error is not None and bridge_record.bridge.src_is_local
            for bridge_record in registry.bridges.values()
        ):
            times.append(now_ms + UNFINISHED_MS)
        return max(min(times), now_ms) if times else None

    # The methods below process messages of peers.

    def receive(self, message: messages.LinkMessage, *, sender_id: str) -> Registry:
        """Process a peer's message and answer it. Raises `BadRoute` if the sender isn't allowed to send the message.

        `sender_id` is the id with which SQS identifies the sender.
        """
        sender, link = self.verify_sender(message.sender, sender_id=sender_id), message.link
        if isinstance(message, messages.HelloAnswer | messages.HelloRefusal):
            record = self.registry().links.get(link)
            if record is not None and record.link.peer != sender.tag:
                raise BadRoute(f"{sender.tag}: {link[:100]} is a link to {record.link.peer}")
        match message:
            case messages.Hello(served=True):
                # The peer serves a link that was declared here, and learns whether the link still exists.
                own_name = link.removesuffix(SERVED_MARK + self.here.tag)
                is_known = own_name in self.registry().links
                parting = messages.LinkClosed(link=own_name, sender=self.here)
                self._reply(sender, self._build_answer(link, {}) if is_known else parting)
                return self.registry()
            case messages.Hello():
                return self._receive_hello(message, sender)
            case messages.HelloAnswer(exchanges=exchanges, bridges=bridges):
                event = transitions.accept_answer(
                    link, peer=sender, exchanges=exchanges, bridges=bridges, own_exchanges=self.exchange_types()
                )
            case messages.HelloRefusal(reason=reason):
                event = transitions.update_link(link, AccessRefused(reason))
            case messages.LinkClosed():
                event = transitions.update_link(format_served_name(link, sender.tag), LinkEvent.CLOSE)
        return self.advance([event], ticks=False)

    def verify_sender(self, address: Address, *, sender_id: str) -> Address:
        """Return the sender's verified address. Raises `BadRoute` if the sender isn't the peer with this tag."""
        peer = KnownPeers(self.known_peers.value(), self.peer_role_id).identify_peer(address.tag, sender_id=sender_id)
        sender = verify_address(address, peer, peer_queue_url=self.peer_queue_url)
        if sender.account == self.here.account:  # only peers in other accounts need a role
            sender = replace(sender, role_arn=None, external_id=None)
        return sender

    def _receive_hello(self, hello: messages.Hello, peer: Address) -> Registry:
        """Process a peer's hello and answer it. The answer has the reason for each refused pull."""
        rules, name = self.known_peers.value()[peer.tag], format_served_name(hello.link, peer.tag)
        refused = self.list_refusals(rules, hello.pulls)
        allowed = [pull for pull in hello.pulls if pull.name not in refused]
        try:
            event = transitions.accept_hello(
                hello.link, peer=peer, pulls=allowed, paused=hello.paused, draining=hello.draining
            )
            registry = self.advance([event], ticks=False)
        except BadRoute as error:
            self._reply(peer, messages.HelloRefusal(link=hello.link, sender=self.here, reason=str(error)))
            return self.registry()
        record = registry.links.get(name)
        if record is None:
            return registry  # the peer closed this link in the meantime
        bridges = {pull: f"{LinkState.FAILED}: {reason}" for pull, reason in refused.items()} | {
            bridge_record.bridge.name.removesuffix(SERVED_MARK + peer.tag): describe_state(bridge_record, record)
            for bridge_record in registry.list_bridges(name)
        }
        try:
            self._send(record.link, self._build_answer(hello.link, bridges))
        except (PeerUnreachable, PeerRefused) as error:  # such an error determines the state of a served link
            return self.advance([transitions.update_link(name, to_link_update(error))], ticks=False)
        return self.registry()

    def list_refusals(self, peer: Peer, pulls: Sequence[Bridge]) -> dict[str, str]:
        """Return the reasons why the peer may not pull some of these routes, by the routes' names."""
        types, peers = self.exchange_types(), self.known_peers.value().values()
        problems = {pull.name: find_pull_problem(peer, pull, types=types, peers=peers) for pull in pulls}
        for pull in pulls:
            if problems[pull.name] is None and pull.filter is not UNSET:
                problems[pull.name] = self.find_filter_problem(pull.filter)
        return {name: problem for name, problem in problems.items() if problem is not None}

    def _build_answer(self, link: str, bridges: Mapping[str, str]) -> messages.HelloAnswer:
        return messages.HelloAnswer(link=link, sender=self.here, exchanges=self.exchange_types(), bridges=bridges)

    def exchange_types(self) -> Mapping[str, ExchangeType]:
        """Return the type of each exchange of this site, by name."""
        return {exchange.name: exchange.type for exchange in self.exchanges.bindings().exchanges}

    def _reply(self, peer: Address, message: messages.LinkMessage) -> None:
        """Reply to a peer that may have no link here. If the reply is lost, the peer repeats its hello."""
        with suppress(PeerUnreachable, PeerRefused):
            self._send(Link.to_peer(peer, name=peer.tag), message)

    def _send(self, link: Link, message: messages.LinkMessage) -> None:
        self.peers.send_control_message(link, link.endpoints[0], messages.encode_control(message))

    # The methods below run due actions of links.

    def _send_hello(self, link: str, registry: Registry) -> list[transitions.Change]:
        record = registry.links[link]
        pulls, paused = collect_pulls(registry, link)
        hello = messages.Hello(
            link=link,
            sender=self.here,
            served=record.served,
            draining=record.status.draining,
            pulls=pulls,
            paused=paused,
        )
        sent = transitions.record_hello_sent(link)
        try:
            self.peers.send_control_message(record.link, record.endpoint, messages.encode_control(hello))
        except PeerRefused as error:
            return [sent, transitions.update_link(link, AccessRefused(f"{error}{self._explain_refusal(record)}"))]
        except PeerUnreachable as error:
            return [sent, transitions.update_link(link, to_link_update(error))]
        return [sent]

    def _explain_refusal(self, record: LinkRecord) -> str:
        """Return a hint at the setting that may be missing, because AWS's error doesn't name the missing setting."""
        account, own_account = record.endpoint.account, self.here.account
        if account == own_account:
            return ""
        if account not in self.peer_accounts:
            return f": federation.peer_accounts at {self.here.tag} doesn't list {account}, {record.link.peer}'s"
        return f": does federation.peer_accounts at {record.link.peer} list {own_account}, {self.here.tag}'s?"

    def _send_link_closed(self, link: str, registry: Registry) -> list[transitions.Change]:
        record, is_unreachable = registry.links[link], False
        parting = messages.encode_control(messages.LinkClosed(link=link, sender=self.here))
        # The endpoint in use comes first. If the peer refuses all endpoints, the link is removed without notice.
        for endpoint in () if record.served else dict.fromkeys((record.endpoint, *record.link.endpoints)):
            try:
                self.peers.send_control_message(record.link, endpoint, parting)
            except PeerUnreachable:
                is_unreachable = True
            except PeerRefused:
                continue
            else:
                return [transitions.remove_link(link)]
        return [] if is_unreachable else [transitions.remove_link(link)]  # a later action sends the message again
