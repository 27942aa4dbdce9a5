"""Dynamic routes of one exchange at one site: what is bound for whom, by which way. Pure: time and epochs come in.

`step` takes an event into the state and says what to tell which peer. All that is told follows from the state, and is
told again with heartbeats in such a form that who has missed something asks for it: so ops may be lost, come twice or
in any order.

How each message arrives once, in whatever topology:

- Each site wants things for its own queues: it is their *origin*. What it wants goes upstream over the bridges that
  pull, from site to site, with the path that it came.
- Who hears of an origin over several bridges has one *active* path to it: the one with the fewest links that are down,
  then the fewest hops, then the first tag of a peer (and of several bridges to one peer the one that allows the most
  hops, then the first by name). Only that is bound, and only that is told upstream. As each site
  chooses by the same rule, a part of an active path is the active path between its ends.
- Messages for several origins part somewhere, and a site where they meet again would send them on once more. So each
  source tells the destination, by origin, whose messages go over the bridge, and a destination that hears of a sender
  over another bridge lets this one exclude the sender's tag. Without such evidence nothing is excluded.
- Before another way becomes active, all sites along it have said that they exclude none of those who will use it. Until
  then the former one stays, so that what is published meanwhile may come twice, but isn't lost.

A bridge whose link is down counts as the last choice; where there is no other it stays bound, and its queue keeps.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any, NamedTuple, TypeVar

from sluice.errors import Malformed
from sluice.federation.dynamic.ops import (
    MAX_ORIGINS,
    NO_WANTS,
    AskSnapshot,
    Bind,
    Carried,
    Op,
    Reach,
    Reaches,
    SnapshotPart,
    Tags,
    Unbind,
    Want,
    Wanted,
    Wants,
    digest_of,
    read_snapshot,
    snapshot_parts,
)
from sluice.federation.links.registry import served_name
from sluice.federation.matching.tracing import DEFAULT_MAX_HOPS, MAX_TRACE_TAGS

_K = TypeVar("_K")
_V = TypeVar("_V")

MAX_WANTS = 500_000  # of one origin
MAX_CHANGES = 200  # told one by one; more of them are told as a snapshot

Bound = tuple[str, Want]  # a queue and what it is bound by


class Ignored(StrEnum):
    """Why an op changed nothing."""

    UNKNOWN_BRIDGE = "unknown_bridge"
    EPOCH = "epoch"
    REPLAYED = "replayed"
    GAP = "gap"
    LOOP = "loop"
    LIMIT = "limit"
    MALFORMED = "malformed"


@dataclass(frozen=True, slots=True, kw_only=True)
class Pull:
    """A bridge that pulls from `peer` over `link`. Here is its destination, which tells what is wanted.

    `epoch` is larger each time that the bridge is made; `sequence` counts its ops, `number` its hellos. `senders` are
    those that the peer has told of, as of its hello `heard`: an epoch and a number.
    """

    bridge: str
    link: str
    peer: str
    max_hops: int
    epoch: int
    up: bool = True
    sequence: int = 1
    number: int = 0
    senders: Mapping[str, Tags] = field(default_factory=dict)
    heard: tuple[int, int] = (0, 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Partial:
    """A snapshot that isn't complete yet."""

    version: tuple[int, int]
    parts: int
    data: Mapping[int, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Served:
    """A bridge that `peer` pulls by over `link`. Here is its source. `tag` is what messages get on the way.

    `version` is the epoch and the sequence of the last op that `reaches` has; `hello` those of the last hello heard,
    which had `excludes` and `ready`. `unheard` has, by origin, the number of the hello from here with the last senders
    that the peer isn't known to have heard of: what is `ready` for that origin is from before. What came over it is
    forgotten when the link has been down for `expires_ms`, if there is such a limit.
    """

    bridge: str
    link: str
    peer: str
    tag: str
    epoch: int
    max_hops: int = DEFAULT_MAX_HOPS
    up: bool = True
    down_since_ms: int | None = None
    expires_ms: int | None = None
    number: int = 0
    reaches: Reaches = field(default_factory=dict)
    version: tuple[int, int] = (0, 0)
    hello: tuple[int, int] = (0, 0)
    excludes: Tags = frozenset()
    ready: Mapping[str, Tags] = field(default_factory=dict)
    unheard: Mapping[str, int] = field(default_factory=dict)
    asked: bool = False
    partial: Partial | None = None

    @property
    def name(self) -> str:
        """As this site knows it."""
        return served_name(self.bridge, self.peer)


@dataclass(frozen=True, slots=True, kw_only=True)
class DynamicRoutes:
    """One exchange's at the site `here`. `local` has the queues by what they are bound by, dynamic bridges' left out.

    `pulls` are by their names, `served` by the names that they have here. `active` has by origin the name of the served
    bridge that is bound for it.
    """

    here: str
    exchange: str
    local: Mapping[Want, frozenset[str]] = field(default_factory=dict)
    pulls: Mapping[str, Pull] = field(default_factory=dict)
    served: Mapping[str, Served] = field(default_factory=dict)
    active: Mapping[str, str] = field(default_factory=dict)


# Events


@dataclass(frozen=True, slots=True)
class QueueBound:
    """A queue of the site is bound to the exchange."""

    queue: str
    want: Want


@dataclass(frozen=True, slots=True)
class QueueUnbound:
    """A queue's binding is gone."""

    queue: str
    want: Want


@dataclass(frozen=True, slots=True)
class Surveyed:
    """All bindings of the exchange but those of dynamic bridges' queues, whatever was known."""

    bound: frozenset[Bound]


@dataclass(frozen=True, slots=True)
class PullAdded:
    """A bridge here pulls; one that is known with this or a later epoch stays as it is."""

    pull: Pull


@dataclass(frozen=True, slots=True)
class PullRemoved:
    """A bridge that pulled is gone."""

    bridge: str


@dataclass(frozen=True, slots=True)
class ServedAdded:
    """A peer pulls by a bridge; one that is known with this or a later epoch stays as it is."""

    served: Served


@dataclass(frozen=True, slots=True)
class ServedRemoved:
    """A peer's bridge is gone; `name` is what it was called here."""

    name: str


@dataclass(frozen=True, slots=True)
class LinkTurned:
    """A link carries, or doesn't any more."""

    link: str
    up: bool
    now_ms: int


@dataclass(frozen=True, slots=True)
class Heard:
    """A peer says something."""

    peer: str
    op: Op


@dataclass(frozen=True, slots=True)
class Heartbeat:
    """Time to tell the peers how things stand, and to forget what has expired."""

    now_ms: int


Event = (
    QueueBound | QueueUnbound | Surveyed | PullAdded | PullRemoved | ServedAdded | ServedRemoved | LinkTurned | Heard
    | Heartbeat
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Sending:
    """An op for the peer that a link goes to. Ops of one link and exchange go in their order."""

    link: str
    op: Op


@dataclass(frozen=True, slots=True)
class Step:
    """The state after an event, what is to be told, and why the event was ignored, if it was."""

    routes: DynamicRoutes
    sendings: tuple[Sending, ...] = ()
    ignored: Ignored | None = None


def step(routes: DynamicRoutes, event: Event) -> Step:
    """The state after the event, and what follows. Events that come twice change nothing."""
    taken = _taken(routes, event)
    if not _is_same_for_others(routes, taken.routes):
        after = _with_unheard(routes, taken.routes)
        after = replace(after, active=_activated(after))
        taken = _then(taken, _tell_changes(routes, after))
    if isinstance(event, Heartbeat):
        return _then(taken, _greetings(taken.routes))
    return _then(taken, _answer_to(event, taken)) if isinstance(event, Heard) and not taken.ignored else taken


def _then(one: Step, other: Step) -> Step:
    return Step(other.routes, (*one.sendings, *other.sendings), one.ignored)


def _taken(routes: DynamicRoutes, event: Event) -> Step:  # noqa: PLR0911, C901 - one line an event
    match event:
        case QueueBound():
            return Step(_with_queues(routes, event.want, routes.local.get(event.want, frozenset()) | {event.queue}))
        case QueueUnbound():
            return Step(_with_queues(routes, event.want, routes.local.get(event.want, frozenset()) - {event.queue}))
        case Surveyed():
            return Step(_surveyed(routes, event))
        case PullAdded():
            return _pull_added(routes, event.pull)
        case PullRemoved():
            return Step(replace(routes, pulls=_without(routes.pulls, event.bridge)))
        case ServedAdded():
            return _served_added(routes, event.served)
        case ServedRemoved():
            return Step(replace(routes, served=_without(routes.served, event.name)))
        case LinkTurned():
            return Step(_link_turned(routes, event))
        case Heard():
            return _heard(routes, event)
        case Heartbeat():
            return Step(_expired(routes, event))


def _with_queues(routes: DynamicRoutes, want: Want, queues: frozenset[str]) -> DynamicRoutes:
    if routes.local.get(want, frozenset()) == queues:
        return routes
    others = _without(routes.local, want)
    return replace(routes, local=others | {want: queues} if queues else others)


def _surveyed(routes: DynamicRoutes, event: Surveyed) -> DynamicRoutes:
    queues: dict[Want, set[str]] = {}
    for queue, want in event.bound:
        queues.setdefault(want, set()).add(queue)
    local = {want: frozenset(of_want) for want, of_want in queues.items()}
    return routes if local == routes.local else replace(routes, local=local)


def _pull_added(routes: DynamicRoutes, pull: Pull) -> Step:
    known = routes.pulls.get(pull.bridge)
    if known is not None and known.epoch >= pull.epoch:
        return Step(routes)
    return _hello(_with_pull(routes, pull), pull)


def _served_added(routes: DynamicRoutes, served: Served) -> Step:
    known = routes.served.get(served.name)
    if known is not None and known.epoch >= served.epoch:
        return Step(routes)
    if known is not None:  # what is wanted goes on to be, until the peer says otherwise
        served = replace(served, reaches=known.reaches, version=known.version, hello=known.hello)
    return _ask(_with_served(routes, served), served)


def _link_turned(routes: DynamicRoutes, event: LinkTurned) -> DynamicRoutes:
    for pull in routes.pulls.values():
        if pull.link == event.link and pull.up != event.up:
            routes = _with_pull(routes, replace(pull, up=event.up))
    for served in routes.served.values():
        if served.link == event.link and (served.up != event.up or _is_down_unnoticed(served)):
            since_ms = None if event.up else event.now_ms
            routes = _with_served(routes, replace(served, up=event.up, down_since_ms=since_ms))
    return routes


def _is_down_unnoticed(served: Served) -> bool:
    """Whether it was down already when it was made."""
    return not served.up and served.down_since_ms is None


def _expired(routes: DynamicRoutes, event: Heartbeat) -> DynamicRoutes:
    for served in routes.served.values():
        if _has_expired(served, event.now_ms):
            # The peer is asked for everything when it comes back.
            routes = _with_served(routes, replace(served, reaches={}, version=(0, 0), partial=None))
    return routes


def _has_expired(served: Served, now_ms: int) -> bool:
    if served.expires_ms is None or served.down_since_ms is None or not served.reaches:
        return False
    return now_ms - served.down_since_ms >= served.expires_ms


# What is heard


def _heard(routes: DynamicRoutes, event: Heard) -> Step:
    op = event.op
    if op.exchange != routes.exchange:
        return Step(routes, ignored=Ignored.UNKNOWN_BRIDGE)
    if isinstance(op, Carried | AskSnapshot):
        pull = routes.pulls.get(op.bridge)
        if pull is None or pull.peer != event.peer:
            return Step(routes, ignored=Ignored.UNKNOWN_BRIDGE)
        return _heard_from_source(routes, pull, op)
    served = routes.served.get(served_name(op.bridge, event.peer))
    if served is None:
        return Step(routes, ignored=Ignored.UNKNOWN_BRIDGE)
    return _heard_from_destination(routes, served, op)


def _heard_from_source(routes: DynamicRoutes, pull: Pull, op: Carried | AskSnapshot) -> Step:
    version = (op.epoch, op.number)
    if version <= pull.heard:
        return Step(routes, ignored=Ignored.EPOCH if op.epoch < pull.heard[0] else Ignored.REPLAYED)
    pull = replace(pull, heard=version)
    if isinstance(op, AskSnapshot):
        return Step(_with_pull(routes, pull), tuple(_snapshot(routes, pull)))
    if op.senders != pull.senders:
        pull = replace(pull, senders=op.senders)
    return Step(_with_pull(routes, pull))


def _heard_from_destination(routes: DynamicRoutes, served: Served, op: Op) -> Step:
    match op:
        case Wanted():
            return _heard_hello(routes, served, op)
        case SnapshotPart():
            return _heard_part(routes, served, op)
        case Bind() | Unbind():
            return _heard_change(routes, served, op)
        case _:  # the source's
            return Step(routes, ignored=Ignored.UNKNOWN_BRIDGE)


def _heard_hello(routes: DynamicRoutes, served: Served, op: Wanted) -> Step:
    if (op.epoch, op.number) <= served.hello:
        return Step(routes, ignored=Ignored.EPOCH if op.epoch < served.hello[0] else Ignored.REPLAYED)
    served = replace(
        served,
        hello=(op.epoch, op.number),
        excludes=served.excludes if op.excludes == served.excludes else op.excludes,
        ready=served.ready if op.ready == served.ready else op.ready,
        unheard=_still_unheard(served, op),
    )
    told = (op.epoch, op.sequence)
    if told < served.version:  # it was overtaken by later ops
        return Step(_with_served(routes, served))
    if told == served.version and op.digest == digest_of(served.reaches):
        return Step(_with_served(routes, replace(served, asked=False)))
    return _ask(routes, served)


def _still_unheard(served: Served, op: Wanted) -> Mapping[str, int]:
    epoch, number = op.heard
    if epoch != served.epoch or all(each > number for each in served.unheard.values()):
        return served.unheard
    return {origin: each for origin, each in served.unheard.items() if each > number}


def _heard_change(routes: DynamicRoutes, served: Served, op: Bind | Unbind) -> Step:
    epoch, sequence = served.version
    if op.epoch < epoch:
        return Step(routes, ignored=Ignored.EPOCH)
    if op.epoch > epoch or op.sequence > sequence + 1:
        # Whatever follows is ignored until the snapshot is there: one request is enough, and a hello repeats it.
        asked = Step(routes) if served.asked else _ask(routes, served)
        return replace(asked, ignored=Ignored.EPOCH if op.epoch > epoch else Ignored.GAP)
    if op.sequence <= sequence:
        return Step(routes, ignored=Ignored.REPLAYED)
    reaches, ignored = _changed(routes, served, op)
    # What can't be taken counts as heard: the digests tell.
    heard = replace(served, reaches=reaches, version=(epoch, op.sequence))
    return Step(_with_served(routes, heard), ignored=ignored)


class _Taken(NamedTuple):
    reaches: Reaches
    ignored: Ignored | None = None


def _changed(routes: DynamicRoutes, served: Served, op: Bind | Unbind) -> _Taken:
    known = served.reaches.get(op.origin)
    if isinstance(op, Unbind):
        if op.want is None or known is None:
            return _Taken(_without(served.reaches, op.origin))
        return _Taken({**served.reaches, op.origin: replace(known, wants=known.wants - {op.want})})
    wants = NO_WANTS if known is None else known.wants
    if op.want is not None and op.want not in wants:
        wants |= {op.want}
    reach = Reach(path=op.path, hops_left=op.hops_left, outages=op.outages, wants=wants)
    reaches = {**served.reaches, op.origin: reach}
    refused = _refused(routes, served, reaches)
    return _Taken(served.reaches, refused) if refused else _Taken(reaches)


def _refused(routes: DynamicRoutes, served: Served, reaches: Reaches) -> Ignored | None:
    """Why a peer can't be believed."""
    if any(routes.here in reach.path for reach in reaches.values()):
        return Ignored.LOOP
    if any(reach.path[-1] != served.peer or reach.path[0] != origin for origin, reach in reaches.items()):
        return Ignored.MALFORMED
    if len(reaches) > MAX_ORIGINS or any(len(reach.wants) > MAX_WANTS for reach in reaches.values()):
        return Ignored.LIMIT
    return None


def _heard_part(routes: DynamicRoutes, served: Served, op: SnapshotPart) -> Step:
    version = (op.epoch, op.sequence)
    if version < served.version or (version == served.version and not served.asked):
        return Step(routes, ignored=Ignored.EPOCH if op.epoch < served.version[0] else Ignored.REPLAYED)
    partial = served.partial
    if partial is None or version > partial.version or partial.parts != op.parts:
        partial = Partial(version=version, parts=op.parts, data={})
    if version < partial.version or op.part in partial.data:
        return Step(routes, ignored=Ignored.REPLAYED)
    partial = replace(partial, data={**partial.data, op.part: op.data})
    if len(partial.data) < op.parts:
        return Step(_with_served(routes, replace(served, partial=partial)))
    return _heard_all(routes, replace(served, partial=None, asked=False), partial)


def _heard_all(routes: DynamicRoutes, served: Served, partial: Partial) -> Step:
    try:
        reaches = read_snapshot(data for _, data in sorted(partial.data.items()))
    except Malformed:
        return Step(_with_served(routes, served), ignored=Ignored.MALFORMED)
    refused = _refused(routes, served, reaches)
    if refused:
        return Step(_with_served(routes, served), ignored=refused)
    # What is as it was stays the same object: comparing it later costs nothing.
    kept = {origin: _same_or(served.reaches.get(origin), reach) for origin, reach in reaches.items()}
    return Step(_with_served(routes, replace(served, reaches=kept, version=partial.version)))


def _same_or(known: Reach | None, reach: Reach) -> Reach:
    if known is not None and known.wants == reach.wants:
        reach = replace(reach, wants=known.wants)
    return known if known is not None and known == reach else reach


# What is told


def _greetings(routes: DynamicRoutes) -> Step:
    sendings: list[Sending] = []
    for pull in routes.pulls.values():
        if pull.up:
            routes = _told(_hello(routes, pull), sendings)
    for served in routes.served.values():
        if served.up:
            routes = _told(_carried(routes, served), sendings)
    return Step(routes, tuple(sendings))


def _answer_to(heard: Heard, taken: Step) -> Step:
    """The hello that the source asks for, if it isn't among what is told anyway."""
    op = heard.op
    is_told = any(isinstance(each.op, Wanted) and each.op.bridge == op.bridge for each in taken.sendings)
    if not isinstance(op, Carried) or not op.asks or is_told or not taken.routes.pulls[op.bridge].up:
        return Step(taken.routes)
    return _hello(taken.routes, taken.routes.pulls[op.bridge])


def _told(taken: Step, sendings: list[Sending]) -> DynamicRoutes:
    sendings.extend(taken.sendings)
    return taken.routes


def _ask(routes: DynamicRoutes, served: Served) -> Step:
    served = replace(served, asked=True, number=served.number + 1)
    op = AskSnapshot(exchange=routes.exchange, bridge=served.bridge, epoch=served.epoch, number=served.number)
    return Step(_with_served(routes, served), (Sending(served.link, op),) if served.up else ())


def _hello(routes: DynamicRoutes, pull: Pull) -> Step:
    """Tells the source how things stand."""
    pull = replace(pull, number=pull.number + 1)
    op = Wanted(
        exchange=routes.exchange,
        bridge=pull.bridge,
        epoch=pull.epoch,
        number=pull.number,
        sequence=pull.sequence,
        digest=digest_of(told_to(routes, pull, best_ways(routes))),
        excludes=_excluded_by(routes, pull),
        ready=_ready(routes, pull),
        heard=pull.heard,
    )
    return Step(_with_pull(routes, pull), (Sending(pull.link, op),))


def _carried(routes: DynamicRoutes, served: Served) -> Step:
    """Tells the destination for whom its bridge carries."""
    served = replace(served, number=served.number + 1)
    op = Carried(
        exchange=routes.exchange,
        bridge=served.bridge,
        epoch=served.epoch,
        number=served.number,
        senders=_senders(routes, served, _ways_in_use(routes, best_ways(routes))),
        asks=bool(served.unheard),
    )
    return Step(_with_served(routes, served), (Sending(served.link, op),))


def _is_same_for_others(before: DynamicRoutes, after: DynamicRoutes) -> bool:
    """Whether nothing has changed that anyone is told of."""
    if not _are_wants_same(before, after) or before.pulls.keys() != after.pulls.keys():
        return False
    pulls = all(
        (known := before.pulls[name]).senders is pull.senders and (known.up, known.epoch) == (pull.up, pull.epoch)
        for name, pull in after.pulls.items()
    )
    return pulls and all(
        (was := before.served[name]).ready is served.ready
        and was.excludes is served.excludes
        and was.unheard is served.unheard
        for name, served in after.served.items()
    )


def _are_wants_same(before: DynamicRoutes, after: DynamicRoutes) -> bool:
    """Whether neither what is wanted nor the best ways to where have changed."""
    if before.local is not after.local or before.served.keys() != after.served.keys():
        return False
    return all(_is_same_bridge(before.served[name], served) for name, served in after.served.items())


def _is_same_bridge(before: Served, after: Served) -> bool:
    # Comparing what they are, and not whether they are the same, would cost more than it saves.
    return before.reaches is after.reaches and (before.up, before.tag, before.max_hops) == (
        after.up,
        after.tag,
        after.max_hops,
    )


def _with_unheard(before: DynamicRoutes, after: DynamicRoutes) -> DynamicRoutes:
    """Notes who is to come by a bridge from now on: the next hello over it says so."""
    used_before = _ways_in_use(before, best_ways(before))
    used = _ways_in_use(after, best_ways(after))
    for name, served in after.served.items():
        told = _told_senders(before, name, used_before)
        new = {
            origin: served.number + 1
            for origin, tags in _senders(after, served, used).items()
            if not tags <= told.get(origin, frozenset())
        }
        if new:
            after = _with_served(after, replace(served, unheard={**served.unheard, **new}))
    return after


def _told_senders(routes: DynamicRoutes, name: str, used: frozenset[tuple[str, str]]) -> Mapping[str, Tags]:
    served = routes.served.get(name)
    return {} if served is None or not served.up else _senders(routes, served, used)


def _tell_changes(before: DynamicRoutes, after: DynamicRoutes) -> Step:
    sendings: list[Sending] = []
    routes = after
    best_before, best = best_ways(before), best_ways(after)
    are_wants_same = _are_wants_same(before, after)
    for name, pull in after.pulls.items():
        known = before.pulls.get(name)
        if known is None or known.epoch != pull.epoch:
            continue  # its hello has said it all
        if not are_wants_same:
            changes = list(_changes(told_to(before, known, best_before), told_to(after, pull, best)))
            routes = _tell_wants(routes, name, changes, sendings)
        if pull.up and (not known.up or _answer(before, known) != _answer(after, pull)):
            routes = _told(_hello(routes, routes.pulls[name]), sendings)
    used_before, used = _ways_in_use(before, best_before), _ways_in_use(after, best)
    for name, served in after.served.items():
        if served.up and _senders(after, served, used) != _told_senders(before, name, used_before):
            routes = _told(_carried(routes, routes.served[name]), sendings)
    return Step(routes, tuple(sendings))


def _answer(routes: DynamicRoutes, pull: Pull) -> tuple[Tags, Mapping[str, Tags]]:
    """What a hello says beside the wants."""
    return _excluded_by(routes, pull), _ready(routes, pull)


class _Change(NamedTuple):
    """Of what is told of an origin: `reach` None for what is wanted no more, `want` None for the origin itself."""

    origin: str
    reach: Reach | None
    want: Want | None

    def op(self, routes: DynamicRoutes, pull: Pull, sequence: int) -> Bind | Unbind:
        """The change as the peer is told of it."""
        common: dict[str, Any] = {
            "exchange": routes.exchange,
            "bridge": pull.bridge,
            "epoch": pull.epoch,
            "sequence": sequence,
            "origin": self.origin,
            "want": self.want,
        }
        if self.reach is None:
            return Unbind(**common)
        return Bind(path=self.reach.path, hops_left=self.reach.hops_left, outages=self.reach.outages, **common)


def _changes(before: Reaches, after: Reaches) -> Iterator[_Change]:
    for origin in sorted(before.keys() - after.keys()):
        yield _Change(origin, None, None)
    for origin, reach in sorted(after.items()):
        yield from _changes_of(origin, before.get(origin), reach)


def _changes_of(origin: str, before: Reach | None, after: Reach) -> Iterator[_Change]:
    wanted = NO_WANTS if before is None else before.wants
    if wanted is not after.wants:
        for want in sorted(wanted - after.wants):
            yield _Change(origin, None, want)
    added = NO_WANTS if wanted is after.wants else after.wants - wanted
    if not added and (before is None or _way(before) != _way(after)):
        yield _Change(origin, after, None)
    for want in sorted(added):
        yield _Change(origin, after, want)


def _way(reach: Reach) -> tuple[tuple[str, ...], int, int]:
    return reach.path, reach.hops_left, reach.outages


def _tell_wants(routes: DynamicRoutes, name: str, changes: Sequence[_Change], sendings: list[Sending]) -> DynamicRoutes:
    """Tells the changes one by one, or all that is wanted where they are many, or nothing over a link that is down."""
    pull = routes.pulls[name]
    if not changes:
        return routes
    if not pull.up or len(changes) > MAX_CHANGES:
        pull = replace(pull, sequence=pull.sequence + 1)  # who has missed it asks at the next hello
        if pull.up:
            sendings.extend(_snapshot(routes, pull))
        return _with_pull(routes, pull)
    for sequence, change in enumerate(changes, pull.sequence + 1):
        sendings.append(Sending(pull.link, change.op(routes, pull, sequence)))
    return _with_pull(routes, replace(pull, sequence=pull.sequence + len(changes)))


def _snapshot(routes: DynamicRoutes, pull: Pull) -> Iterator[Sending]:
    parts = snapshot_parts(told_to(routes, pull, best_ways(routes)))
    for part, data in enumerate(parts):
        op = SnapshotPart(
            exchange=routes.exchange,
            bridge=pull.bridge,
            epoch=pull.epoch,
            sequence=pull.sequence,
            part=part,
            parts=len(parts),
            data=data,
        )
        yield Sending(pull.link, op)


# What follows from the state

Ways = Mapping[str, str]  # by origin, the name of the bridge that leads to it


def best_ways(routes: DynamicRoutes) -> Ways:
    """The way to each origin that is known, as the rule has it. It is active once it is ready."""
    ranks: dict[str, _Rank] = {}
    for name, served in routes.served.items():
        for origin, reach in served.reaches.items():
            rank = _rank(name, served, reach)
            known = ranks.get(origin)
            if known is None or rank < known:
                ranks[origin] = rank
    return {origin: rank[-1] for origin, rank in ranks.items()}


_Rank = tuple[int, int, str, int, str]  # outages, hops, peer, hops that the bridge lacks, bridge


def _rank(name: str, served: Served, reach: Reach) -> _Rank:
    """The least is the best. It adds up along a path, so that every part of a best path is a best path."""
    return reach.outages + (not served.up), len(reach.path), served.peer, -served.max_hops, name


def _activated(routes: DynamicRoutes) -> Ways:
    """What is bound from now on: of each origin the best way, but the former one until the best is ready."""
    return {
        origin: best if _may_take_over(routes, origin, best) else routes.active[origin]
        for origin, best in best_ways(routes).items()
    }


def _may_take_over(routes: DynamicRoutes, origin: str, best: str) -> bool:
    former = routes.served.get(routes.active.get(origin, ""))
    if former is None or former.name == best or origin not in former.reaches:
        return True  # nobody else would do
    served = routes.served[best]
    if not served.up:
        return True  # what is published waits there, and nobody along the way can be heard
    coming = _coming(routes, origin)
    return coming <= _ready_by(served, origin) - excludes_of(routes, best)


def _ready_by(served: Served, origin: str) -> Tags:
    return served.ready.get(origin, frozenset()) if origin not in served.unheard else frozenset()


def _coming(routes: DynamicRoutes, origin: str) -> Tags:
    """The tags of messages for the origin that are sent on from here."""
    passing = (pull.senders.get(origin, frozenset()) for pull in routes.pulls.values() if pull.up)
    return _own_tags(routes).union(*passing)


def _ways_in_use(routes: DynamicRoutes, best: Ways) -> frozenset[tuple[str, str]]:
    """Origins with the bridges that carry for them, or are about to."""
    return frozenset(best.items()) | frozenset(routes.active.items())


def _ready(routes: DynamicRoutes, pull: Pull) -> dict[str, Tags]:
    """By origin, those of the bridge's senders whose messages nobody on the way from here on excludes."""
    found = {}
    for origin, senders in pull.senders.items():
        name = routes.active.get(origin)
        if origin == routes.here:
            found[origin] = senders
        elif name is not None:
            served = routes.served[name]
            # Behind a link that is down nobody can say so; messages wait there.
            ready = senders & _ready_by(served, origin) if served.up else senders
            found[origin] = ready - excludes_of(routes, name)
    return found


def told_to(routes: DynamicRoutes, pull: Pull, ways: Ways) -> Reaches:
    """What the bridge's source is to know: the origins that are reached through here, and what they want."""
    found = {routes.here: Reach(path=(routes.here,), hops_left=pull.max_hops, outages=0, wants=frozenset(routes.local))}
    for origin, name in ways.items():
        served = routes.served[name]
        reach = served.reaches[origin]
        hops_left = min(reach.hops_left - 1, pull.max_hops)
        if pull.peer in reach.path or hops_left < 1 or len(reach.path) >= MAX_TRACE_TAGS:
            continue
        outages = reach.outages + (not served.up)
        path = (*reach.path, routes.here)
        found[origin] = Reach(path=path, hops_left=hops_left, outages=outages, wants=reach.wants)
    return found


def _senders(routes: DynamicRoutes, served: Served, used: frozenset[tuple[str, str]]) -> dict[str, Tags]:
    """By origin, the tags of messages that go to it over this bridge: this site's, and of those that pass here."""
    return {origin: _coming(routes, origin) for origin, name in used if name == served.name}


def _own_tags(routes: DynamicRoutes) -> Tags:
    """Those that messages get when they leave here."""
    return frozenset(each.tag for each in routes.served.values())


def _excluded_by(routes: DynamicRoutes, pull: Pull) -> Tags:
    """The tags of messages that come here by another bridge than this, and not by this, or that begin here."""
    others = (each for each in routes.pulls.values() if each.up and each.bridge != pull.bridge)
    coming = _own_tags(routes).union(*(each.senders.get(routes.here, ()) for each in others))
    return coming - pull.senders.get(routes.here, frozenset())


# What others read


def wants_of(routes: DynamicRoutes, name: str) -> Wants:
    """What the queue of a served bridge is to be bound by now."""
    served = routes.served[name]
    active = [origin for origin, way in routes.active.items() if way == name]
    return NO_WANTS.union(*(served.reaches[origin].wants for origin in active))


def excludes_of(routes: DynamicRoutes, name: str) -> Tags:
    """The tags whose messages a served bridge doesn't take, beside those of its declaration."""
    served = routes.served[name]
    if not served.excludes or not _leads_to(routes, name, served.peer):
        return served.excludes
    # Who is to come by here now isn't held back until the peer has heard of it.
    return served.excludes - _coming(routes, served.peer)


def _leads_to(routes: DynamicRoutes, name: str, origin: str) -> bool:
    return routes.active.get(origin) == name or best_ways(routes).get(origin) == name


@dataclass(frozen=True, slots=True, kw_only=True)
class Way:
    """How a site's messages reach an origin over a served bridge, and what that wants.

    `path` are the sites on the way, the next one first, the origin last.
    """

    origin: str
    bridge: str
    path: tuple[str, ...]
    outages: int
    wants: Wants
    active: bool


def ways_of(routes: DynamicRoutes) -> list[Way]:
    """All ways to all origins: in order of origins, the best one first, the others as they would take over."""
    found = [
        (origin, _rank(name, served, reach), reach)
        for name, served in routes.served.items()
        for origin, reach in served.reaches.items()
    ]
    return [
        Way(
            origin=origin,
            bridge=rank[-1],
            path=reach.path[::-1],
            outages=rank[0],
            wants=reach.wants,
            active=routes.active.get(origin) == rank[-1],
        )
        for origin, rank, reach in sorted(found, key=lambda each: each[:2])
    ]


def _with_pull(routes: DynamicRoutes, pull: Pull) -> DynamicRoutes:
    return replace(routes, pulls={**routes.pulls, pull.bridge: pull})


def _with_served(routes: DynamicRoutes, served: Served) -> DynamicRoutes:
    return replace(routes, served={**routes.served, served.name: served})


def _without(mapping: Mapping[_K, _V], key: _K) -> dict[_K, _V]:
    return {each: value for each, value in mapping.items() if each != key}
