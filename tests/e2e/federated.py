"""Sites, exchanges and routes as their operators see them."""

import json
import time
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, ClassVar

from sluice.aws.connections import Connection, connect_environment
from sluice.aws.dead_letters import REASON
from sluice.aws.deployment import read_stack_outputs
from sluice.errors import CallFailed
from sluice.federation.links.links import Bridge, Introduction, Link
from sluice.federation.links.peers import Peer
from sluice.federation.matching.metadata import ATTRIBUTE
from sluice.federation.operations import (
    AddBridge,
    AddLink,
    AddPeer,
    BindQueue,
    CloseLink,
    DeleteExchange,
    DeletePeer,
    LinkView,
    ListBindings,
    ShowSite,
    SiteView,
    UnbindQueue,
)
from sluice.local.cloud import Cloud
from sluice.local.sites import Site
from sluice.operations import Operation, R
from sluice.operator.functions import FEDERATION, ControlClient
from tests.deployed import BATCH, delete_all, make_queue, send_all
from tests.peer_rules import EVERYTHING
from tests.waiting import wait_until

MOST_THROTTLED = 4  # times in a row
PREFIX = "fed-"
FIFO = {"FifoQueue": "true", "ContentBasedDeduplication": "true"}
STEP_S = 0.2
BINDINGS_KNOWN_AFTER_S = 1.1  # exchange functions look for a new version every second
SETTLES_WITHIN_S = 150.0  # a mapping takes its time, and what AWS refuses meanwhile is tried again at the next minute


@dataclass(frozen=True)
class Arrival:
    """A message as a consumer got it."""

    body: str
    attributes: Mapping[str, Any]

    @property
    def metadata(self) -> Mapping[str, Any]:
        value = self.attributes.get(ATTRIBUTE)
        return json.loads(value["StringValue"]) if value else {}

    @property
    def trace(self) -> list[str]:
        return list(self.metadata.get("trace", []))


@dataclass
class BindingChanges:
    """Remembers when bindings were changed last: who publishes after that waits until exchange functions know them.

    It waits there and not at each change, so that of several changes one after the other only the last is waited for.
    """

    _known_at: float = 0.0

    def note(self) -> None:
        """Record that bindings have just changed, at any site."""
        self._known_at = time.monotonic() + BINDINGS_KNOWN_AFTER_S

    def wait_until_known(self) -> None:
        """Wait until the exchange functions of all sites must have looked since the last change."""
        time.sleep(max(self._known_at - time.monotonic(), 0))


class Federation:
    """One site's federation, with what a test made there, to be taken away after it."""

    # A message passes the functions of several sites, and so all sites have one.
    changes: ClassVar[BindingChanges] = BindingChanges()

    def __init__(self, connection: Connection) -> None:
        self.connection = connection
        self.queues: list[str] = []

    @cached_property
    def client(self) -> ControlClient:
        return ControlClient.connect(self.connection, FEDERATION)

    @cached_property
    def sqs(self) -> Any:
        return self.connection.client("sqs")

    @cached_property
    def outputs(self) -> Mapping[str, str]:
        return read_stack_outputs(self.connection, "SluiceFederation")

    @cached_property
    def address(self) -> Introduction:
        return self.ask(ShowSite()).address

    @property
    def tag(self) -> str:
        return self.address.tag

    def ask(self, operation: Operation[R], /) -> R:
        """Its result. Where the cloud throttles DynamoDB for longer than the function waits, it is asked again."""
        for _ in range(MOST_THROTTLED):
            try:
                return self.client.ask(operation)
            except CallFailed as error:
                if "ProvisionedThroughputExceeded" not in str(error):
                    raise
        return self.client.ask(operation)

    def ask_site(self) -> SiteView:
        """All that the site says of itself."""
        return self.ask(ShowSite())

    # Queues

    def queue(self, name: str, *, fifo: bool = True, **attributes: str) -> str:
        """The name of a new queue."""
        name = f"{PREFIX}{name}-{uuid.uuid4().hex[:6]}{'.fifo' if fifo else ''}"
        make_queue(self.sqs, name, {**(FIFO if fifo else {}), **attributes})
        self.queues.append(name)
        return name

    def url(self, name: str) -> str:
        return str(self.sqs.get_queue_url(QueueName=name)["QueueUrl"])

    def bound(self, exchange: str, key: str = "", *, fifo: bool = True, **arguments: Any) -> str:
        """A new queue, bound."""
        queue = self.queue("bound", fifo=fifo)
        self.bind(exchange, queue, key, **arguments)
        return queue

    def bind(self, exchange: str, queue: str, key: str = "", **arguments: Any) -> None:
        self.ask(BindQueue(exchange=exchange, queue=queue, key=key, arguments=arguments))
        self.changes.note()

    def unbind(self, exchange: str, queue: str, key: str = "") -> None:
        self.ask(UnbindQueue(exchange=exchange, queue=queue, key=key))

    def load(self, queue: str, bodies: Iterable[str], *, attributes: Mapping[str, Any] | None = None) -> None:
        """Sends to a queue as any producer does."""
        self._send(self.url(queue), bodies, attributes or {})

    def publish(
        self,
        exchange: str,
        key: str,
        bodies: Iterable[str],
        *,
        fifo: bool = True,
        attributes: Mapping[str, Any] | None = None,
        **metadata: Any,
    ) -> None:
        """Through the ingress, with `x-qpid` as far as there is metadata."""
        said = {"exchange": string(exchange), "routing-key": string(key)} if not metadata else {}
        if metadata:
            said = {ATTRIBUTE: string(json.dumps({"exchange": exchange, "key": key, **metadata}))}
        url = self.outputs["FifoIngressUrl" if fifo else "IngressUrl"]
        given = {name: value for name, value in said.items() if value["StringValue"]}
        self._send(url, bodies, given | dict(attributes or {}))

    def _send(self, url: str, bodies: Iterable[str], attributes: Mapping[str, Any]) -> None:
        self.changes.wait_until_known()
        entries = [
            {"MessageBody": body, "MessageAttributes": attributes}
            | ({"MessageGroupId": "g", "MessageDeduplicationId": uuid.uuid4().hex} if url.endswith(".fifo") else {})
            for body in bodies
        ]
        send_all(self.sqs, url, entries)

    def arrivals(self, queue: str, number: int, *, within_s: float = 120, quiet_s: float = 1.0) -> list[Arrival]:
        """That many messages, in the order in which they come, and whatever comes right after."""
        found: list[Arrival] = []
        url, deadline = self.url(queue), time.monotonic() + within_s
        while len(found) < number and time.monotonic() < deadline:
            found += self._receive(url, wait_s=1)
        if quiet_s:
            time.sleep(quiet_s)
            while more := self._receive(url, wait_s=0):
                found += more
        return found

    def bodies(self, queue: str, number: int, **options: Any) -> list[str]:
        return [arrival.body for arrival in self.arrivals(queue, number, **options)]

    def _receive(self, url: str, *, wait_s: int) -> list[Arrival]:
        received = self.sqs.receive_message(
            QueueUrl=url, MaxNumberOfMessages=BATCH, WaitTimeSeconds=wait_s, MessageAttributeNames=["All"]
        ).get("Messages", [])
        delete_all(self.sqs, url, received)
        return [Arrival(each["Body"], each.get("MessageAttributes", {})) for each in received]

    def count(self, queue: str) -> int:
        names = ["ApproximateNumberOfMessages", "ApproximateNumberOfMessagesNotVisible"]
        found = self.sqs.get_queue_attributes(QueueUrl=self.url(queue), AttributeNames=names)["Attributes"]
        return sum(map(int, found.values()))

    def dead_letters(self, body: str, *, saying: str = "", within_s: float = SETTLES_WITHIN_S) -> list[str]:
        """The reasons that say this of the dead letters with this body, each once; others stay."""
        url, deadline = self.outputs["FederationDeadLettersUrl"], time.monotonic() + within_s
        while time.monotonic() < deadline:
            received = self.sqs.receive_message(
                QueueUrl=url, MaxNumberOfMessages=10, VisibilityTimeout=1, MessageAttributeNames=["All"]
            ).get("Messages", [])
            found = [each for each in received if each["Body"] == body and saying in reason_of(each)]
            for each in found:
                self.sqs.delete_message(QueueUrl=url, ReceiptHandle=each["ReceiptHandle"])
            if found:
                return list(dict.fromkeys(map(reason_of, found)))
            time.sleep(STEP_S)
        return []

    def taken_dead_letters(self) -> list[str]:
        """The reasons of all dead letters, which are deleted."""
        url, reasons = self.outputs["FederationDeadLettersUrl"], list[str]()
        while received := self.sqs.receive_message(
            QueueUrl=url, MaxNumberOfMessages=BATCH, WaitTimeSeconds=1, MessageAttributeNames=["All"]
        ).get("Messages", []):
            reasons += map(reason_of, received)
            delete_all(self.sqs, url, received)
        return reasons

    def dead_letters_depth(self) -> int:
        """How many there are that nobody holds."""
        url, name = self.outputs["FederationDeadLettersUrl"], "ApproximateNumberOfMessages"
        return int(self.sqs.get_queue_attributes(QueueUrl=url, AttributeNames=[name])["Attributes"][name])

    # Links and routes

    def link(self, peer: "Federation", name: str | None = None) -> str:
        """A link to the peer; its name."""
        name = name or f"to-{peer.tag}"
        self.introduce(peer)
        self.ask(AddLink(link=Link.to_peer(peer.address, name=name)))
        return name

    def introduce(self, peer: "Federation") -> None:
        """Let each of the two be the other's peer, which may do anything."""
        self.ask(AddPeer(peer=Peer.from_introduction(peer.address, **EVERYTHING)))
        peer.ask(AddPeer(peer=Peer.from_introduction(self.address, **EVERYTHING)))

    def route(self, name: str, link: str, **fields: Any) -> str:
        """A bridge over the link, when it is operational."""
        self.declare(name, link, **fields)
        self.until_operational(name)
        return name

    def declare(self, name: str, link: str, **fields: Any) -> None:
        self.ask(AddBridge(bridge=Bridge(name=name, link=link, **fields)))

    def pull(self, peer: "Federation", src: str, dest: str | None = None, **fields: Any) -> str:
        """A bridge from the peer, when it is operational."""
        name = self.begin_to_pull(peer, src, dest, **fields)
        self.until_operational(name)
        return name

    def begin_to_pull(self, peer: "Federation", src: str, dest: str | None = None, **fields: Any) -> str:
        """The same at once, for who declares several and waits for them together."""
        link, name = self.link(peer), f"pull-{uuid.uuid4().hex[:6]}"
        self.declare(name, link, src=src, dest=dest or src, **fields)
        return name

    def push(self, peer: "Federation", src: str, dest: str | None = None, **fields: Any) -> str:
        return self.pull(peer, src, dest, src_is_local=True, **fields)

    def until_operational(self, route: str, *, within_s: float = SETTLES_WITHIN_S) -> None:
        self.until(
            lambda site: any((each.name, each.state) == (route, "Operational") for each in site.bridges),
            within_s=within_s,
        )
        self.changes.note()

    def until_link(self, link: str, *states: str, within_s: float = SETTLES_WITHIN_S) -> LinkView:
        """The link, once it is in one of these states."""
        site = self.until(
            lambda site: any(each.name == link and each.status.state in states for each in site.links),
            within_s=within_s,
        )
        return next(each for each in site.links if each.name == link)

    def until(self, done: Callable[[SiteView], bool], *, within_s: float = SETTLES_WITHIN_S) -> SiteView:
        return wait_until(lambda: self.ask(ShowSite()), done, within_s=within_s)

    # Afterwards

    def bridge_queues(self) -> list[str]:
        urls: Sequence[str] = self.sqs.list_queues(QueueNamePrefix="sluice-bridge-").get("QueueUrls", [])
        return [url.rsplit("/", 1)[1] for url in urls]

    def mappings(self) -> list[str]:
        """The queues that the bridge function reads, and will go on to."""
        pages = self.connection.client("lambda").list_event_source_mappings()["EventSourceMappings"]
        return [
            each["EventSourceArn"].rsplit(":", 1)[1]
            for each in pages
            if "SluiceFederation-Bridge" in each["FunctionArn"] and each["State"] != "Deleting"
        ]

    def until_nothing_is_left(self, *, within_s: float = SETTLES_WITHIN_S) -> None:
        """Until the links function has deleted all queues and mappings: a call that failed is made again."""
        nothing: tuple[list[str], list[str]] = [], []
        wait_until(lambda: (self.bridge_queues(), self.mappings()), nothing.__eq__, within_s=within_s)

    def close_all(self) -> None:
        for link in self.ask(ShowSite()).links:
            if not link.served:
                self.ask(CloseLink(name=link.name))

    def forget(self) -> None:
        """Takes away what a test made: bindings, exchanges, peers and queues."""
        for binding in self.ask(ListBindings()).bindings:
            if binding.queue in self.queues:
                self.unbind(binding.exchange, binding.queue, binding.key)
        site = self.ask(ShowSite())
        for exchange in site.exchanges:
            if not exchange.name.startswith("amq."):
                self.ask(DeleteExchange(name=exchange.name))
        for peer in site.peers:
            self.ask(DeletePeer(name=peer.tag))
        for queue in self.queues:
            self.sqs.delete_queue(QueueUrl=self.url(queue))
        self.queues.clear()


class FederatedSite(Federation):
    """A site of an embedded cloud."""

    def __init__(self, cloud: Cloud, site: Site) -> None:
        super().__init__(connect_environment(cloud.environment(site), stage=site.stage))
        self.cloud, self.site = cloud, site

    def sqs_at(self, other: "FederatedSite") -> Any:
        """Return this account's client for queues of another site, whose region may be another one."""
        there = replace(self.site, region=other.site.region)
        return connect_environment(self.cloud.environment(there)).client("sqs")


def bodies_of_all(places: Iterable[tuple[FederatedSite, str]], number: int, **options: Any) -> list[list[str]]:
    """What `FederatedSite.bodies` gives of several queues, which are read side by side."""
    reads = list(places)
    with ThreadPoolExecutor(len(reads)) as executor:
        return list(executor.map(lambda read: read[0].bodies(read[1], number, **options), reads))


def string(text: str) -> dict[str, str]:
    return {"DataType": "String", "StringValue": text}


def reason_of(letter: Mapping[str, Any]) -> str:
    """A dead letter's, as it was received."""
    return str(letter["MessageAttributes"][REASON]["StringValue"])
