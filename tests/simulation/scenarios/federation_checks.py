"""What always holds of a simulated federation, checked as each message is sent, and once all is at rest.

Of what is stored nothing but the bindings is read: a message has to get to whoever was bound, by whatever way, since
before it was published.
"""

import json
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from msgspec import UNSET
from msgspec.structs import replace

from sluice.aws.dead_letters import REASON
from sluice.dead_letter_reasons import LAMBDAS_REASON
from sluice.federation.bridge_provisioner import BRIDGE_QUEUE_PREFIX
from sluice.federation.links.links import RouteKind
from sluice.federation.matching.bindings import Destination, SiteBindings, apply_changes, build_replica
from sluice.federation.matching.metadata import ATTRIBUTE, KEY_ATTRIBUTE, Sites
from tests.simulation.kernel.world import World
from tests.simulation.models.dynamodb import Item, Key
from tests.simulation.models.queues import DEDUPLICATION_S, Queue, Stored
from tests.simulation.scenarios.federation_routes import CONSUMED, FEED, Bound, Plan, admits
from tests.simulation.scenarios.federation_sites import FederatedSite

# A message is routed by bindings of a moment ago: the second for which they are cached, and the function's time limit.
CACHED_S, LATE_S = 2.0, 35.0
MAX_WAYS = 2  # from site to site
COPIES = 4  # that one fault may make of a message: a call has three attempts
CALLS = 20  # of a function, for a message or a fault
BINDINGS, LINKS, HEAD = "document#exchanges", "document#links", "head"
GONE, CLOSED = "QueueGone: no such queue: ", "the route "  # so the reason of a dead letter begins

Place = tuple[str, str]  # a site's tag and a queue's name


@dataclass(frozen=True, slots=True, kw_only=True)
class Published:
    """A message as SQS took it: by its body, which no other has. `required` are the queues that must get it."""

    body: str
    site: str
    exchange: str
    key: str
    group: str | None  # at a FIFO ingress
    number: int
    faults: int  # up to now
    fed: bool  # to a queue that a route reads
    required: frozenset[Place]


class Checks:
    """Observes a world's queues. Raises `Violation` as soon as something doesn't hold."""

    def __init__(self, world: World, plan: Plan, sites: Mapping[str, FederatedSite]) -> None:
        self.world, self.plan, self.sites = world, plan, sites
        self.published: dict[str, Published] = {}
        self.copies: Counter[tuple[str, str]] = Counter()  # by queue's URL and body
        self.got: Counter[tuple[Place, str]] = Counter()  # how often a bound queue was sent a body
        self.arrived: dict[tuple[str, str], float] = {}  # by FIFO queue's URL and message id
        self.last: defaultdict[tuple[object, ...], int] = defaultdict(int)  # of a group, by what keeps it in order
        self.owed: set[tuple[str, str]] = set()  # by a bridge queue: to which site, and which body
        self.crossed: set[tuple[str, str]] = set()
        self.vanished: dict[str, Place] = {}  # by URL: somebody deleted it
        self.arrivals = 0
        self.bindings: dict[str, list[tuple[float, str, SiteBindings]]] = {tag: [] for tag in sites}  # since when
        self.entries: dict[str, FederatedSite] = {}  # where messages are published, by URL
        self.from_links: dict[str, FederatedSite] = {}
        self.bound: dict[str, Place] = {}
        for tag, site in sites.items():
            self.entries |= {each.url: site for each in (site.ingress, site.fifo_ingress, site.bound[FEED])}
            self.from_links |= {each.url: site for each in (site.link_ingress, site.fifo_link_ingress)}
            self.bound |= {site.bound[name].url: (tag, name) for name in CONSUMED}
        world.sqs.observers.append(self._observe)

    def _observe(self, what: str, queue: Queue, message: Stored) -> None:
        if what == "sent":
            self.look()
            if queue.url in self.entries:
                self._entered(self.entries[queue.url], queue, message)
            elif queue.url in self.from_links:
                self._crossed(self.from_links[queue.url], queue, message)
            elif queue.url in self.bound:
                self._delivered(self.bound[queue.url], queue, message)
            elif queue.name.startswith(BRIDGE_QUEUE_PREFIX):
                self.owed.add((self._peer_behind(queue), message.body))
        elif what == "dead" and message.body in self.published:
            self.world.fail(f"{message.body} was moved from {message.system['DeadLetterQueueSourceArn']}, unsaid why")
        elif what == "lost" or (what == "vanished" and queue.name.startswith(BRIDGE_QUEUE_PREFIX)):
            self.world.check(queue.url in self.vanished, f"{message.body} is lost with {queue.name}, which was deleted")
        elif what == "expired":
            self.world.fail(f"{message.body} expired in {queue.name}")

    # What is stored

    def look(self) -> None:
        """Note what each site's bindings are now, where they have changed."""
        for tag in self.sites:
            known = self.bindings[tag]
            head = self._documents(tag).get((BINDINGS, HEAD))
            token = "" if head is None else head["token"]["S"]
            if not known or known[-1][1] != token:
                known.append((self.world.now, token, self.bindings_of(tag)))

    def bindings_of(self, tag: str) -> SiteBindings:
        """Read the bindings of a site, without any call."""
        items = self._documents(tag)
        head = items.get((BINDINGS, HEAD), {})
        token, _, number = head.get("snapshot", {}).get("S", "").rpartition("*")
        parts = [items.get((BINDINGS, f"{token}#{part}")) for part in range(int(number or 0))]
        versions = (int(head.get(name, {}).get("N", "0")) for name in ("snapshot_version", "version"))
        at, last = versions
        changes = [items.get((BINDINGS, f"change#{version:012}")) for version in range(at + 1, last + 1)]
        self.world.check(None not in [*parts, *changes], f"{BINDINGS} of {tag} can't be read: a part is gone")
        snapshot = b"".join(part["data"]["B"] for part in parts if part) if parts else None
        bindings = build_replica(snapshot, SiteBindings, version=at)
        apply_changes(bindings, [change["data"]["B"] for change in changes if change])
        return bindings

    def stored(self, tag: str, document: str) -> bytes | None:
        """Read a document of a site, without any call; None before the first."""
        items = self._documents(tag)
        head = items.get((document, HEAD))
        if head is None:
            return None
        parts = [items.get((document, f"{head['token']['S']}#{part}")) for part in range(int(head["parts"]["N"]))]
        self.world.check(None not in parts, f"{document} of {tag} can't be read: a part is gone")
        return b"".join(part["data"]["B"] for part in parts if part is not None)

    def _documents(self, tag: str) -> dict[Key, Item]:
        return self.world.dynamodb.tables[self.sites[tag].table].items

    def lasting(self, tag: str) -> Iterator[tuple[Destination, str, str]]:
        """Go through what has been bound at a site for as long as any function may have known it.

        Of each the queue, with the sites that it has led to all the time, the exchange and the key.
        """
        recent: list[SiteBindings] = []
        for since, _, bindings in reversed(self.bindings[tag]):
            recent.append(bindings)
            if since <= self.world.now - CACHED_S:
                break
        else:
            return
        for binding in recent[0]:
            if all(binding.key in each.keys(binding.exchange, binding.queue) for each in recent[1:]):
                known = [each.destination(binding.queue) for each in recent]
                queue = next(each for each in known if each is not None)
                led = [each.crossing.origins for each in known if each is not None and each.crossing is not None]
                if queue.crossing is not None and queue.crossing.origins is not UNSET:
                    stays = frozenset.intersection(*(each for each in led if each is not UNSET))
                    queue = replace(queue, crossing=replace(queue.crossing, origins=stays))
                yield queue, binding.exchange, binding.key

    def _peer_behind(self, queue: Queue) -> str:
        """Find the site that a bridge queue's messages go to, where it is bound, or was."""
        [known] = [self.bindings[tag] for tag, site in self.sites.items() if queue.arn.startswith(site.arns)]
        bound = (each.destination(queue.name) for _, _, each in reversed(known))
        return next(each.crossing.peer for each in bound if each is not None and each.crossing is not None)

    def required(
        self, tag: str, exchange: str, key: str, trace: tuple[str, ...] = (), to: Sites | None = None
    ) -> set[Place]:
        """Find who has to get a message that an exchange gets now, or a copy that is for those sites alone."""
        found: set[Place] = set()
        routes = [route for route in self.plan.routes if route.exchange == exchange]
        stays = {
            (binding.queue, binding.pattern)
            for binding in self.plan.bindings
            if (binding.site, binding.exchange, binding.lasts) == (tag, exchange, True)
        }
        for destination, at, pattern in self.lasting(tag):
            if at != exchange or not admits(exchange, pattern, key):
                continue
            crossing, is_for_here = destination.crossing, to is None or tag in to
            if crossing is None:
                if is_for_here and (destination.queue, pattern) in stays:
                    found.add((tag, destination.queue))
                continue
            if not any((route.source, route.dest, route.lasts) == (tag, crossing.peer, True) for route in routes):
                continue
            if crossing.origins is UNSET:
                if is_for_here and crossing.peer not in trace and crossing.excludes.isdisjoint(trace):
                    found |= self.required(crossing.peer, exchange, key, (*trace, crossing.tag))
            elif crossing.peer not in trace:  # who sends it back is a moment behind
                shared = crossing.origins - {*trace, tag} if to is None else crossing.origins & to
                found |= self.required(crossing.peer, exchange, key, (*trace, crossing.tag), shared)
        return found

    # What is sent

    def _entered(self, site: FederatedSite, queue: Queue, message: Stored) -> None:
        """Note what is published; once more by the same body, where a producer's call was done and its answer lost."""
        if message.body in self.published:
            return
        fed = queue is site.bound[FEED]
        at = site.tag
        trace: tuple[str, ...] = ()
        if fed:
            route = next(feed for feed in self.plan.feeds if feed.source == site.tag)
            key, exchange = message.attributes[KEY_ATTRIBUTE]["StringValue"], route.exchange
            at, trace = route.dest, (site.tag,)
        else:
            said = _said(message)
            key, exchange = said.get("key", ""), said["exchange"]
        before = self.published.get(message.body)
        self.published[message.body] = Published(
            body=message.body,
            site=site.tag,
            exchange=exchange,
            key=key,
            group=message.group if queue.fifo else None,
            number=message.order,
            faults=self._faults_so_far() if before is None else before.faults,
            fed=fed,
            required=frozenset(self.required(at, exchange, key, trace)),
        )

    def _faults_so_far(self) -> int:
        """Count what went wrong before a message is sent: not that its own sender hears no answer, and sends again."""
        taken = self.world.decisions.taken
        is_own = bool(taken) and taken[-1].who == self.world.scheduler.current.name
        return self.world.decisions.counts.total() - is_own

    def _crossed(self, site: FederatedSite, queue: Queue, message: Stored) -> None:
        """Check what comes to a site over a link: it hasn't been there, a route takes it, and somebody wants it."""
        self.arrivals += 1
        self.crossed.add((site.tag, message.body))
        published, said = self.published[message.body], _said(message)
        exchange, key, trace = published.exchange, published.key, said["trace"]
        by = message.system["SenderId"].split(":")[1].split("_")[0]
        is_new = site.tag not in trace and len(set(trace)) == len(trace)
        self.world.check(is_new and trace[-1] == by, f"{message.body} comes to {site.tag} from {by} again, by {trace}")
        routes = [route for route in self.plan.routes if (route.source, route.dest) == (by, site.tag)]
        is_wanted = any(
            binding.exchange == exchange and binding.site != published.site and admits(exchange, binding.pattern, key)
            for binding in self.plan.bindings
        )
        is_taken = published.fed or any(
            route.takes(exchange, key) and (is_wanted or route.kind is RouteKind.STATIC) for route in routes
        )
        self.world.check(
            routes and is_taken, f"{message.body} ({exchange}, {key}) comes from {by} to {site.tag}: nobody asks for it"
        )
        if queue.fifo:
            # Copies for different sites, and one that has come back, are others; where they end, it is the message.
            self._once(queue, f"{said['id']} {said.get('to')} {said.get('turns')}", message.body)
        else:
            self._counted(queue, published)

    def _delivered(self, place: Place, queue: Queue, message: Stored) -> None:
        """Check what comes to a bound queue."""
        published, said, now = self.published[message.body], _said(message), self.world.now
        admitting = [
            binding
            for binding in self.plan.bindings
            if (binding.site, binding.queue, binding.exchange) == (*place, published.exchange)
            and (binding.until is None or now - binding.until < LATE_S)
            and admits(binding.exchange, binding.pattern, published.key)
        ]
        self.world.check(
            admitting, f"{message.body} ({published.exchange}, {published.key}) comes to {place}, which isn't bound so"
        )
        if queue.fifo:
            self._once(queue, said["id"], message.body)
            self._in_order(place, published, said.get("trace", []))
        else:
            self._counted(queue, published)
        self.got[place, message.body] += 1

    def _counted(self, queue: Queue, published: Published) -> None:
        """Check that faults alone make copies on standard queues."""
        self.copies[queue.url, published.body] += 1
        copies = self.copies[queue.url, published.body]
        faults = self.world.decisions.counts.total() - published.faults
        most = MAX_WAYS * (1 + COPIES * faults)
        self.world.check(copies <= most, f"{copies} copies of {published.body} in {queue.name}, after {faults} faults")

    def _once(self, queue: Queue, message_id: str, body: str) -> None:
        """Check that a FIFO queue gets a message once in the five minutes for which it knows its id."""
        again_s = self.world.now - self.arrived.get((queue.url, message_id), -DEDUPLICATION_S)
        self.world.check(again_s >= DEDUPLICATION_S, f"{body} comes to {queue.name} again after {again_s:.0f} s")
        self.arrived[queue.url, message_id] = self.world.now

    def _in_order(self, place: Place, published: Published, trace: list[str]) -> None:
        """Check the order of a group that has passed nothing but FIFO queues, by one way, to who was bound for it."""
        is_kept = published.group is not None and all(route.fifo for route in self.plan.routes)
        if not is_kept or place not in published.required or (place, published.body) in self.got:
            return
        stream = (place, published.site, published.exchange, published.group, *trace)
        self.world.check(published.number > self.last[stream], f"{published.body} comes to {place} after its successor")
        self.last[stream] = published.number

    # At rest

    def places(self, body: str) -> dict[Place, int]:
        """Find where a message has come to, and how often."""
        return {place: self.got[place, body] for place in self.bound.values() if (place, body) in self.got}

    def at_rest(self) -> None:
        """Check that nothing is lost, left over or stuck."""
        letters = self._letters()
        for published in self.published.values():
            reason = letters.get(published.body, "")
            for place in sorted(published.required - set(self.vanished.values())):
                there = (place, published.body) in self.got or reason.startswith(CLOSED)
                self.world.check(there, f"{published.body} is lost for {place}: {reason or 'gone'}")
        for tag, body in sorted(self.owed - self.crossed):
            self.world.check(body in letters, f"{body} is lost on its way to {tag}")
        for body, reason in letters.items():
            is_right = reason.startswith(CLOSED) or reason.removeprefix(GONE) in self.vanished
            self.world.check(is_right, f"{body} is a dead letter: {reason}")
        lacking = self.lacking()
        self.world.check(not lacking, lacking)
        self._few_calls()

    def unbound(self) -> list[Bound]:
        """Find what is to be bound for good and isn't yet, or is bound and has vanished."""
        self.look()
        vanished = set(self.vanished.values())

        def is_bound(each: Bound) -> bool:
            return each.pattern in self.bindings[each.site][-1][2].keys(each.exchange, each.queue)

        return [
            binding
            for binding in self.plan.bindings
            if binding.lasts and is_bound(binding) is ((binding.site, binding.queue) in vanished)
        ]

    def busy(self) -> str:
        """Say where something is still under way, or nothing."""
        for site in self.sites.values():
            for queue in (*site.passed, *self._bridge_queues(site)):
                if queue.messages:
                    return f"{queue.name} of {site.tag} has {len(queue.messages)} messages"
        return ""

    def _letters(self) -> dict[str, str]:
        """Find the dead letters among what was published, with their reasons; each dead letter has one."""
        found: dict[str, str] = {}
        for site in self.sites.values():
            for letter in (*site.dead.messages.values(), *site.fifo_dead.messages.values()):
                said = letter.attributes.get(REASON) or letter.attributes.get(LAMBDAS_REASON) or {}
                self.world.check(said, f"{letter.body} is a dead letter of {site.tag} without a reason")
                if letter.body in self.published:
                    found[letter.body] = said["StringValue"]
        return found

    def _bridge_queues(self, site: FederatedSite) -> list[Queue]:
        urls = site.dead.url.removesuffix(site.dead.name) + BRIDGE_QUEUE_PREFIX
        return [queue for url, queue in self.world.sqs.queues.items() if url.startswith(urls)]

    def lacking(self) -> str:
        """Say where there isn't what the routes need, or more; nothing where all is as it should be."""
        for site in self.sites.values():
            routes = [route for route in self.plan.routes if route.source == site.tag and route.lasts]
            wanted = sum(route.kind is not RouteKind.QUEUE for route in routes)
            found = [queue.name for queue in self._bridge_queues(site)]
            if len(found) != wanted:
                return f"{site.tag} has {wanted} routes, and bridge queues {found}"
            function = site.function("bridge")
            on = [
                trigger.enabled for trigger in self.world.lambdas.triggers.values() if trigger.function.name == function
            ]
            if on != [True] * len(routes):
                return f"{site.tag} has {len(routes)} routes, and mappings that are {on}"
            static = sum(route.kind is RouteKind.STATIC for route in routes)
            bound = [each.queue for each in self.bindings[site.tag][-1][2].queues if each.crossing is not None]
            if len(bound) < static:
                return f"{site.tag} has {static} static routes, and bridge queues that are bound {bound}"
        return ""

    def _few_calls(self) -> None:
        """Check that a message costs so many calls at most."""
        faults, messages = self.world.decisions.counts.total(), len(self.published) + self.arrivals
        most = CALLS * (messages + faults + 10)
        for tag in self.sites:
            for name in ("exchange", "bridge"):
                made = self.world.calls_of[f"{tag}_{name}"]
                self.world.check(made <= most, f"{name} of {tag} made {made} calls for {messages} messages")


def _said(message: Stored) -> dict[str, Any]:
    """Read what the message carries beside the user's own."""
    attribute = message.attributes.get(ATTRIBUTE)
    return {} if attribute is None else json.loads(attribute["StringValue"])
