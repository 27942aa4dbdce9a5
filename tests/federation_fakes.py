"""Federation's adapters in memory: sites with queues, mappings and documents, in a world where they reach each other.

Whatever a registrar calls may be struck: by a crash before or after, or by somebody else who comes in between.
"""

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Executor, Future
from dataclasses import dataclass, field
from functools import partial
from itertools import count
from typing import Any

import msgspec
from msgspec import UNSET
from msgspec.structs import asdict

from sluice.errors import (
    CallFailed,
    DestinationFault,
    PeerRefused,
    PeerUnreachable,
    QueueGone,
    SenderFault,
    SluiceError,
    describe_reason,
)
from sluice.federation.bridge_provisioner import BridgeProvisioner
from sluice.federation.declared import Declared
from sluice.federation.drift_repair import DriftRepair
from sluice.federation.exchange_store import ExchangeStore
from sluice.federation.forwarder import forward_all, split_batch
from sluice.federation.link_service import LinkService
from sluice.federation.links.links import Address, Bridge, Endpoint, Introduction, Link, MappingScaling
from sluice.federation.links.messages import decode_control
from sluice.federation.links.peers import KNOWN_PEERS, KnownPeers, Peer
from sluice.federation.links.registry import REGISTRY, Forward, Registry, find_forwards
from sluice.federation.links.states import AccessRefused, Unreachable
from sluice.federation.links.transitions import update_link
from sluice.federation.links.watch import WATCH, SiteWatch
from sluice.federation.matching.bindings import CHANGE, BindingsChange, BindingsUpdate, CachedReplica, RoutingTable
from sluice.federation.matching.metadata import Drop
from sluice.federation.operation_handler import OperationHandler
from sluice.federation.operations import PathsView
from sluice.federation.route_filters import find_filter_problem, make_route_filter
from sluice.federation.router import FailingQueues, Ingress, route
from sluice.federation.settings import SiteNames
from sluice.federation.stored import DocumentStore
from sluice.message import DeadLetter, Message, Value
from tests.peer_rules import EVERYTHING

VISIBILITY_MS = 180_000
MAX_HEARD = 1_000
# A fake stands for the adapter of which it has the methods: of this type it may be given in its place.
ADAPTER: Any = object
NEVER_STRUCK: Callable[[], None] = lambda: None  # noqa: E731 - a default, not a function to read


class Crash(Exception):
    """The function dies here: of this nothing may be caught."""


class Inline(Executor):
    """One after the other, so that luck falls the same way each time."""

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        future: Future[Any] = Future()
        future.set_result(fn(*args, **kwargs))
        return future


@dataclass
class FakeDocument(ADAPTER):
    """`rivals` are writes by somebody else, each just before one of ours."""

    content: bytes | None = None
    written: int = 0
    rivals: int = 0
    strike: Callable[[], None] = NEVER_STRUCK

    def version(self) -> int:
        return self.written

    def load(self) -> tuple[bytes | None, int]:
        return self.content, self.written

    def save(self, content: bytes, *, after: int) -> bool:
        self.strike()
        if self.rivals:
            self.rivals -= 1
            self.written += 1
        if after != self.written:
            return False
        self.content, self.written = content, after + 1
        self.strike()
        return True


NOTHING = CHANGE.pack(BindingsChange())


@dataclass
class FakeChangeLog(ADAPTER):
    """`rivals` are changes by somebody else, of nothing, each just before one of ours."""

    snapshot: bytes | None = None
    base: int = 0
    changes: dict[int, bytes] = field(default_factory=dict)  # by version
    rivals: int = 0
    long: int = 1_000
    strike: Callable[[], None] = NEVER_STRUCK

    @property
    def written(self) -> int:
        return max(self.changes, default=self.base)

    @property
    def content(self) -> object:
        return self.snapshot, dict(self.changes)

    @property
    def is_long(self) -> bool:
        return self.written - self.base >= self.long

    def read_since(self, version: int | None) -> BindingsUpdate:
        if version == self.written:
            return BindingsUpdate(version=version)
        reaches = version is not None and all(each in self.changes for each in range(version + 1, self.written + 1))
        after = version if version is not None and reaches else self.base
        changes = [self.changes[each] for each in range(after + 1, self.written + 1)]
        if reaches:
            return BindingsUpdate(version=self.written, changes=changes)
        return BindingsUpdate(version=self.written, changes=changes, base=self.base, snapshot=self.snapshot)

    def append(self, change: bytes, *, after: int) -> bool:
        self.strike()
        if self.rivals:
            self.rivals -= 1
            self.changes[self.written + 1] = NOTHING
        if after != self.written:
            return False
        self.changes[after + 1] = change
        self.strike()
        return True

    def save(self, snapshot: bytes, *, after: int, version: int) -> bool:
        self.strike()
        if after != self.written:
            return False
        before, self.snapshot, self.base = self.base, snapshot, version
        self.changes = {each: change for each, change in self.changes.items() if before < each and version == after}
        self.strike()
        return True


@dataclass
class Held:
    """A message in a queue; hidden while somebody has it."""

    message: Message
    visible_at_ms: int = 0
    receives: int = 0


@dataclass
class FakeQueues(ADAPTER):
    """One site's queues by name. What is deleted with something in it is kept in `lost`.

    `failing` names fail as a whole, `refused` bodies are refused one by one.
    """

    base: str
    now_ms: Callable[[], int]
    queues: dict[str, list[Held]] = field(default_factory=dict)
    attributes: dict[str, Mapping[str, str]] = field(default_factory=dict)
    tags: dict[str, Mapping[str, str]] = field(default_factory=dict)
    failing: set[str] = field(default_factory=set)
    refused: set[str] = field(default_factory=set)
    lost: list[tuple[str, str]] = field(default_factory=list)
    taken_in: list[tuple[str, str]] = field(default_factory=list)  # queue and body, in order
    strike: Callable[[], None] = NEVER_STRUCK
    numbers: Any = field(default_factory=count)

    def url(self, name: str) -> str:
        return f"{self.base}/{name}"

    def arn(self, name: str) -> str:
        return f"arn:{name}"

    def send_batch(self, name: str, entries: Sequence[dict[str, Any]]) -> Mapping[str, str]:
        self._call("SendMessageBatch", name)
        failed = {}
        for entry in entries:
            if entry["MessageBody"] in self.refused:
                failed[entry["Id"]] = "InternalError: by script"
            else:
                self.put(name, entry)
        self.strike()
        return failed

    def put(self, name: str, entry: Mapping[str, Any], *, sender_id: str = "AROAHERE:own") -> None:
        """What SQS does with an entry; duplicates are for whoever looks at `taken_in`."""
        self.taken_in.append((name, entry["MessageBody"]))
        received = _received(entry, f"{name}-{next(self.numbers)}", self.now_ms())
        system = {**received.system, "SenderId": sender_id}
        self.queues[name].append(Held(msgspec.structs.replace(received, system=system)))

    def create(self, name: str, attributes: Mapping[str, str], tags: Mapping[str, str]) -> None:
        self.strike()
        if name in self.failing:
            raise CallFailed("CreateQueue", "AccessDenied", "by script")
        if name in self.queues and self.attributes.get(name) != attributes:
            raise CallFailed("CreateQueue", "QueueNameExists", "with other attributes")
        self.queues.setdefault(name, [])
        self.attributes[name], self.tags[name] = attributes, tags
        self.strike()

    def delete(self, name: str) -> None:
        self.strike()
        if name in self.failing:
            raise CallFailed("DeleteQueue", "AccessDenied", "by script")
        self.lost += [(name, held.message.body) for held in self.queues.pop(name, [])]
        self.strike()

    def configure(self, name: str, attributes: Mapping[str, str]) -> bool:
        self._call("SetQueueAttributes", name)
        before, self.attributes[name] = self.attributes.get(name), attributes
        self.strike()
        return before != attributes

    def count(self, name: str) -> int:
        self._call("GetQueueAttributes", name)
        return len(self.queues[name])

    def receive_batch(self, name: str) -> Sequence[Message]:
        self._call("ReceiveMessage", name)
        return [held.message for held in self.received(name, 10)]

    def received(self, name: str, number: int) -> list[Held]:
        """The next ones, hidden from now on; of a group of which some are hidden none."""
        now_ms, found = self.now_ms(), list[Held]()
        hidden = [held for held in self.queues[name] if held.visible_at_ms > now_ms]
        locked = {held.message.group_id for held in hidden} if name.endswith(".fifo") else set()
        for held in self.queues[name]:
            if len(found) < number and held.visible_at_ms <= now_ms and held.message.group_id not in locked:
                held.visible_at_ms, held.receives = now_ms + VISIBILITY_MS, held.receives + 1
                found.append(held)
        return found

    def delete_batch(self, name: str, messages: Sequence[Message]) -> None:
        self._call("DeleteMessageBatch", name)
        ids = {message.message_id for message in messages}
        self.queues[name] = [held for held in self.queues[name] if held.message.message_id not in ids]
        self.strike()

    def bodies(self, name: str) -> list[str]:
        return [held.message.body for held in self.queues.get(name, [])]

    def _call(self, what: str, name: str) -> None:
        self.strike()
        if name in self.failing:
            raise CallFailed(what, "AccessDenied", "by script")
        if name not in self.queues:
            raise QueueGone(name)


@dataclass
class FakeMapping:
    """An event source mapping."""

    queue: str
    on: bool
    pace: MappingScaling


@dataclass
class FakeMappings(ADAPTER):
    """By id. Ids aren't used twice."""

    made: dict[str, FakeMapping] = field(default_factory=dict)
    failing: bool = False
    strike: Callable[[], None] = NEVER_STRUCK
    numbers: Any = field(default_factory=count)

    def reconcile(self, queue: str, scaling: MappingScaling, *, on: bool, creates: bool = True) -> str:
        self._call("ListEventSourceMappings")
        there = next((id_ for id_, mapping in self.made.items() if mapping.queue == queue), None)
        if there is None and not creates:
            return ""
        id_ = there or f"mapping-{next(self.numbers)}"
        self.made[id_] = FakeMapping(queue, on, scaling)
        self.strike()
        return id_

    def delete(self, queue: str) -> None:
        self._call("DeleteEventSourceMapping")
        self.made = {id_: mapping for id_, mapping in self.made.items() if mapping.queue != queue}
        self.strike()

    def _call(self, operation: str) -> None:
        self.strike()
        if self.failing:
            raise CallFailed(operation, "TooManyRequestsException", "by script")


@dataclass
class FakeDeadLetters(ADAPTER):
    """What can go no further."""

    letters: list[DeadLetter] = field(default_factory=list)
    strike: Callable[[], None] = NEVER_STRUCK

    def send(self, letter: DeadLetter) -> None:
        self.strike()
        self.letters.append(letter)
        self.strike()


@dataclass
class FakePeers(ADAPTER):
    """One site's way to the others, which may be `unreachable` or `refusing`, by tag."""

    world: "World"
    here: str
    unreachable: set[str] = field(default_factory=set)
    refusing: set[str] = field(default_factory=set)
    told: list[tuple[str, str]] = field(default_factory=list)  # queue URL and body
    strike: Callable[[], None] = NEVER_STRUCK

    def send_control_message(self, link: Link, endpoint: Endpoint, body: str) -> None:
        site = self._reached(endpoint.control_queue_url)
        self.told.append((endpoint.control_queue_url, body))
        site.control.append((f"{self.here}/{link.name}", body))
        self.strike()

    def send_batch(
        self, link: Link, endpoint: Endpoint, url: str, entries: Sequence[dict[str, Any]]
    ) -> Mapping[str, str]:
        site = self._reached(url)
        name = url.rsplit("/", 1)[1]
        failed = {}
        for entry in entries:
            if entry["MessageBody"] in site.queues.refused:
                failed[entry["Id"]] = "InternalError: by script"
            else:
                site.queues.put(name, entry, sender_id=make_sender_id(self.here))
        self.strike()
        return failed

    def _reached(self, url: str) -> "Site":
        self.strike()
        site = self.world.site_at(url)
        if site is None or site.tag in self.refusing:
            raise PeerRefused(f"AccessDenied: {url}")
        if site.tag in self.unreachable:
            raise PeerUnreachable(f"ConnectTimeoutError: {url}")
        return site


def make_sender_id(tag: str) -> str:
    """The sender's id of what a site's functions send."""
    return f"AROA{tag}:function"


def decided_never(program: str, document: str) -> bool | None:
    raise AssertionError(f"nobody here runs jq: {program} on {document}")


def queue_attributes(bridge: Bridge) -> Mapping[str, str]:
    """What the queue has that is made for a bridge."""
    kept_s = "1209600" if bridge.retention_s is UNSET else str(bridge.retention_s)
    return {"MessageRetentionPeriod": kept_s} | ({"FifoQueue": "true"} if bridge.fifo else {})


def build_operation_handler(
    link_service: LinkService,
    drift_repair: DriftRepair,
    *,
    names: SiteNames,
    paths: Callable[[], PathsView] = lambda: PathsView(paths=()),
    enable_peer_mappings: Callable[[], None] = lambda: None,
    senders: tuple[str, ...] = (),
    peers: tuple[Peer, ...] = (),
    declared: Declared | None = None,
    applied: FakeDocument | None = None,
) -> OperationHandler:
    """What applies operations, of a site where nothing is declared unless a test says so."""
    return OperationHandler(
        link_service=link_service,
        drift_repair=drift_repair,
        site_names=names,
        enable_peer_mappings=enable_peer_mappings,
        peers=peers,
        declared=declared or Declared(),
        applied_document=applied or FakeDocument(),
        sender_role_ids=senders,
        read_paths=paths,
    )


INGRESS, FIFO_INGRESS, SOURCE = "ingress", "ingress.fifo", "source.fifo"


@dataclass
class Batch:
    """What a bridge function has received and not yet dealt with."""

    queue: str
    held: list[Held]
    mapping: str


@dataclass
class Site:
    """One deployment, its functions called by hand."""

    tag: str
    world: "World"
    document: FakeDocument = field(default_factory=FakeDocument)
    table: FakeChangeLog = field(default_factory=FakeChangeLog)
    known_peers: FakeDocument = field(default_factory=FakeDocument)
    watched: FakeDocument = field(default_factory=FakeDocument)
    mappings: FakeMappings = field(default_factory=FakeMappings)
    dead: FakeDeadLetters = field(default_factory=FakeDeadLetters)
    control: list[tuple[str, str]] = field(default_factory=list)  # group and body
    deaf: list[str] = field(default_factory=list)  # control messages that became dead letters
    forwards: dict[str, int] = field(default_factory=dict)
    drops: list[Drop] = field(default_factory=list)
    pending: list[Batch] = field(default_factory=list)
    queues: FakeQueues = field(init=False)
    peers: FakePeers = field(init=False)
    seen_table: CachedReplica[RoutingTable] = field(init=False)
    may_go_on: bool = True
    find_readable_queue: Callable[[str], str] = str
    failing: FailingQueues = field(default_factory=FailingQueues)

    def __post_init__(self) -> None:
        self.queues = FakeQueues(f"https://sqs.{self.tag}", self.world.clock)
        self.peers = FakePeers(self.world, self.tag)
        self.seen_table = CachedReplica(self.table, RoutingTable, self.world.clock)
        for name in (INGRESS, FIFO_INGRESS, SOURCE):
            self.queues.queues[name] = []

    def strike_with(self, strike: Callable[[], None]) -> None:
        """Lets this happen at every call."""
        for each in (self.document, self.table, self.mappings, self.dead, self.queues, self.peers):
            each.strike = strike

    @property
    def address(self) -> Address:
        return Address(
            tag=self.tag,
            region="eu-central-1",
            account="123456789012",
            control_queue_url=self.queues.url("control.fifo"),
            ingress_url=self.queues.url(INGRESS),
            fifo_ingress_url=self.queues.url(FIFO_INGRESS),
        )

    def link_service(self) -> LinkService:
        exchanges = ExchangeStore(self.table)
        return LinkService(
            here=self.address,
            document=self.document,
            exchanges=exchanges,
            provisioner=BridgeProvisioner(
                here=self.address,
                exchanges=exchanges,
                queues=self.queues,
                mappings=self.mappings,
                dead_letter_queue=self.dead,
                bridge_queue_attributes=queue_attributes,
                find_readable_queue=self.find_readable_queue,
                may_go_on=lambda: self.may_go_on,
            ),
            peers=self.peers,
            peer_accounts=frozenset({"123456789012"}),
            known_peers=DocumentStore(self.known_peers, KNOWN_PEERS, dict),
            peer_role_id=None,
            peer_queue_url=lambda peer, name: f"https://sqs.{peer.tag}/{name}",
            last_forwards=lambda: self.forwards,
            waiting_since=lambda: DocumentStore(self.watched, WATCH, SiteWatch).value().waiting_since_ms,
            now_ms=self.world.clock,
            jitter=lambda: 0.5,
            find_filter_problem=partial(find_filter_problem, compile_problem=lambda _: None),
        )

    def drift_repair(self, link_service: LinkService | None = None, **how: Any) -> DriftRepair:
        asked = {"document": self.watched, "declared": frozenset(), "redrive": self.redrive, **how}
        return DriftRepair(link_service=link_service or self.link_service(), **asked)

    def redrive(self, queue: str) -> int:
        """Put the queue's dead letters back."""
        back = [letter for letter in self.dead.letters if letter.source == self.queues.arn(queue)]
        for each in back:
            entry = {"MessageBody": each.message.body, "MessageGroupId": each.message.group_id or each.message.body}
            self.queues.send_batch(queue, [{"Id": "0", **entry}])
            self.dead.letters.remove(each)
        return len(back)

    @property
    def introduction(self) -> Introduction:
        return Introduction(**asdict(self.address), senders=(make_sender_id(self.tag).partition(":")[0],))

    def next_tick_ms(self) -> int | None:
        times = (self.link_service().next_tick_ms(self.registry()), self.drift_repair().next_check_ms())
        return min((time_ for time_ in times if time_ is not None), default=None)

    def registry(self) -> Registry:
        return Registry(here=self.tag) if self.document.content is None else REGISTRY.unpack(self.document.content)

    # What the site's functions do

    def receive(self) -> None:
        """The next control message: it stays where the function fails, and is a dead letter where it is no good."""
        if not self.control:
            return
        said = self.control[0]
        try:
            control: Any = decode_control(said[1])  # none of these tests sends of dynamic routes
            self.link_service().receive(control, sender_id=make_sender_id(said[0].partition("/")[0]))
        except DestinationFault:
            return
        except SluiceError as error:
            self.deaf.append(f"{type(error).__name__}: {error}")
        # Somebody else may have heard it meanwhile.
        if self.control and self.control[0] is said:
            self.control.pop(0)

    def publish(self, body: str, *, exchange: str = "amq.fanout", key: str = "") -> None:
        """What the exchange function does with one message."""
        attributes = {"exchange": Value("String", exchange)} | ({"routing-key": Value("String", key)} if key else {})
        system = {"SentTimestamp": str(self.world.clock()), "MessageGroupId": "g"}
        message = Message(message_id=body, body=body, attributes=attributes, system=system)
        self._route([message], Ingress(fifo=True, exchange=None))

    def take_ingress(self) -> None:
        """What the exchange function does with what came over links."""
        for name in (INGRESS, FIFO_INGRESS):
            for held in list(self.queues.queues[name]):
                self._route([held.message], Ingress(fifo=name == FIFO_INGRESS, from_links=True))
                self.queues.queues[name] = [queue for queue in self.queues.queues[name] if queue is not held]

    def _route(self, messages: list[Message], ingress: Ingress) -> None:
        outcome = route(
            messages,
            ingress,
            self.seen_table.value(),
            site=self.tag,
            peers=lambda: KnownPeers(DocumentStore(self.known_peers, KNOWN_PEERS, dict).value()),
            now_ms=self.world.clock(),
            send=lambda url, entries: self.queues.send_batch(url.rsplit("/", 1)[1], entries),
            executor=Inline(),
            failing=self.failing,
        )
        self.drops += outcome.dropped_messages
        for each, fault in outcome.undeliverable:
            source, reason = self.queues.arn(each.target.rsplit("/", 1)[1]), describe_reason(fault)
            self.dead.send(DeadLetter(message=messages[each.position], reason=reason, source=source))
        if outcome.missing_urls or outcome.refusals:
            copies = {url.rsplit("/", 1)[1]: number for url, number in outcome.missing_urls.items()}
            self.drift_repair().report(copies, {url.rsplit("/", 1)[1]: why for url, why in outcome.refusals.items()})
            self.link_service().advance(ticks=False)
        if outcome.failures:  # they come again
            system = {"ApproximateReceiveCount": "2"}
            again = [messages[position] for position in sorted(outcome.failures)]
            self._route([msgspec.structs.replace(each, system={**each.system, **system}) for each in again], ingress)

    def offer(self, body: str) -> None:
        """Somebody sends to the queue that queue routes read."""
        self.queues.put(SOURCE, {"MessageBody": body, "MessageGroupId": "g"})

    def begin(self, mapping: str) -> None:
        """Lambda receives a batch for the bridge function."""
        made = self.mappings.made[mapping]
        if made.on and made.queue in self.queues.queues:
            held = self.queues.received(made.queue, made.pace.batch_size)
            if held:
                self.pending.append(Batch(made.queue, held, mapping))

    def finish(self, batch: Batch) -> None:
        """The bridge function deals with it."""
        self.pending = [each for each in self.pending if each is not batch]
        routes = find_forwards(self.registry(), batch.queue)
        messages = [held.message for held in batch.held]
        for found, positions in zip(routes, split_batch(messages, len(routes)), strict=True) if routes else ():
            self._finish([batch.held[position] for position in positions], found, batch.queue)

    def _finish(self, batch: list[Held], found: Forward, queue: str) -> None:
        messages = [held.message for held in batch]
        outcome = forward_all(
            messages,
            found,
            fifo=queue.endswith(".fifo"),
            site=self.tag,
            now_ms=self.world.clock(),
            peers=self.peers,
            executor=Inline(),
            passes_filter=self._sieve(found),
        )
        self.drops += outcome.dropped_messages.values()
        buried = {place: fault for place, fault in outcome.failures.items() if isinstance(fault, SenderFault)}
        for position, fault in buried.items():
            self.dead.send(DeadLetter(message=messages[position], reason=str(fault), source=queue))
        if outcome.outage is not None:
            self._outage(found.link.name, outcome.outage)
        elif outcome.counts["MessagesForwarded"]:
            self.forwards[found.bridge.name] = self.world.clock()
        if queue in self.queues.queues:
            staying = outcome.failures.keys() - buried.keys()
            done = [message for position, message in enumerate(messages) if position not in staying]
            self.queues.delete_batch(queue, done)
            for held in batch:
                held.visible_at_ms = self.world.clock() + (5_000 if outcome.outage is not None else 0)

    def _sieve(self, found: Forward) -> Callable[[Message], bool] | None:
        if found.bridge.filter is UNSET:
            return None
        return make_route_filter(found.bridge.filter, clock=lambda: self.world.clock() / 1_000, decide=decided_never)

    def _outage(self, link: str, outage: PeerUnreachable | PeerRefused) -> None:
        event = AccessRefused(str(outage)) if isinstance(outage, PeerRefused) else Unreachable(str(outage))
        self.link_service().advance([update_link(link, event)], ticks=False)


@dataclass
class World:
    """Sites, and one clock for all of them."""

    tags: Sequence[str]
    at_ms: int = 1_700_000_000_000
    sites: dict[str, Site] = field(init=False)

    def __post_init__(self) -> None:
        self.sites = {tag: Site(tag, self) for tag in self.tags}
        self.introduce()

    def introduce(self) -> None:
        """Declare at each site that all others are its peers, and may do anything."""
        for tag, site in self.sites.items():
            peers = [
                Peer.from_introduction(other.introduction, **EVERYTHING)
                for each, other in self.sites.items()
                if each != tag
            ]
            site.known_peers.content = KNOWN_PEERS.pack({peer.tag: peer for peer in peers})

    def clock(self) -> int:
        return self.at_ms

    def __getitem__(self, tag: str) -> Site:
        return self.sites[tag]

    def site_at(self, url: str) -> Site | None:
        """Whose queue it is."""
        host = url.removeprefix("https://sqs.").split("/", 1)[0]
        return self.sites.get(host)

    def link(self, here: str, peer: str, name: str | None = None, **fields: Any) -> Link:
        """A link to declare at `here`."""
        address = self[peer].address
        endpoint = Endpoint(region=address.region, account=address.account, control_queue_url=address.control_queue_url)
        return Link(name=name or f"to-{peer}", peer=peer, endpoints=(endpoint,), **fields)

    def talk(self) -> None:
        """Every control message is heard, and what follows from it."""
        for _ in range(MAX_HEARD):
            for site in self.sites.values():
                site.receive()
            if not any(site.control for site in self.sites.values()):
                return
        raise AssertionError("they talk without end")

    def forward(self) -> None:
        """Every message that can go goes."""
        for site in self.sites.values():
            for mapping in list(site.mappings.made):
                if mapping in site.mappings.made:
                    site.begin(mapping)
            for batch in list(site.pending):
                site.finish(batch)
            site.take_ingress()

    def settle(self, for_ms: int = 40 * 60_000) -> None:
        """Time goes by: ticks as they are armed, and the schedule's each minute; nobody is in the way."""
        end = self.at_ms + for_ms
        swept = self.at_ms
        while self.at_ms < end:
            self.talk()
            self.forward()
            self.talk()
            times = [site.next_tick_ms() for site in self.sites.values()]
            due = min([time for time in times if time is not None], default=swept + 60_000)
            self.at_ms = max(self.at_ms + 1_000, min(due, swept + 60_000))
            for site, time in zip(self.sites.values(), times, strict=True):
                if self.at_ms - swept >= 60_000:
                    site.drift_repair().sweep()
                    site.link_service().advance()
                elif time is not None and time <= self.at_ms:
                    site.drift_repair().recheck()
                    site.link_service().advance()
            if self.at_ms - swept >= 60_000:
                swept = self.at_ms


def _received(entry: Mapping[str, Any], message_id: str, at_ms: int) -> Message:
    attributes = {
        name: Value(value["DataType"], value.get("StringValue", value.get("BinaryValue")))
        for name, value in entry.get("MessageAttributes", {}).items()
    }
    system = {"SentTimestamp": str(at_ms)}
    if "MessageGroupId" in entry:
        system["MessageGroupId"] = entry["MessageGroupId"]
    return Message(message_id=message_id, body=entry["MessageBody"], attributes=attributes, system=system)
