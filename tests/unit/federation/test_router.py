"""Routing a batch: every bound queue has its copy, in order, whatever goes wrong amid it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from msgspec.structs import replace

from sluice.batches import RefusedEntry
from sluice.errors import CallFailed, HeldBack, Malformed, QueueGone, UnknownExchange, describe_reason
from sluice.federation.links.peers import KnownPeers, Peer
from sluice.federation.matching.bindings import Binding, Destination, RoutingTable
from sluice.federation.matching.metadata import ATTRIBUTE, Crossing, DropReason
from sluice.federation.router import FailingQueues, Ingress, RoutingOutcome, route
from sluice.message import Message, Value
from tests.bindings import bound
from tests.federation_fakes import Inline
from tests.peer_rules import EVERYTHING

NOW = 1_700_000_000_000
KEYS = ("a", "b", "none")
NAMES = ("one", "two", "three")
LUCK = ("sent", "refused in part", "failed", "gone", "forbidden")


@dataclass
class Fickle:
    """Each call has its own luck: sent, refused in part, failed, or the queue is gone, or forbidden, from then on."""

    luck: list[str] = field(default_factory=list)
    gone: set[str] = field(default_factory=set)
    forbidden: set[str] = field(default_factory=set)
    sends: list[tuple[str, str]] = field(default_factory=list)  # queue and body, as SQS took them
    requests: int = 0

    def send_batch(self, url: str, entries: Sequence[dict[str, Any]]) -> Mapping[str, str]:
        self.requests += 1
        assert 1 <= len(entries) <= 10
        luck = self.luck.pop() if self.luck else "sent"
        if luck == "gone":
            self.gone.add(url)
        if url in self.gone:
            raise QueueGone(url)
        if luck == "forbidden":
            self.forbidden.add(url)
        if url in self.forbidden:
            raise CallFailed("SendMessageBatch", "AccessDenied", f"to {url}")
        if luck == "failed":
            raise CallFailed("SendMessageBatch", "InternalError", "by script")
        refused = {entry["Id"]: "by script" for entry in entries[::2]} if luck == "refused in part" else {}
        self.sends += [(url, entry["MessageBody"]) for entry in entries if entry["Id"] not in refused]
        return refused

    def bodies(self, url: str) -> list[str]:
        return [body for to, body in self.sends if to == url]


def table(bindings: Sequence[tuple[str, str]], *, fifo: bool = False) -> RoutingTable:
    suffix = ".fifo" if fifo else ""
    return RoutingTable(
        bound(
            queues=[Destination(queue=name, url=f"url/{name}{suffix}") for name in NAMES],
            bindings=[Binding(exchange="amq.direct", queue=queue, key=key) for queue, key in dict.fromkeys(bindings)],
        )
    )


def message(body: str, *, key: str = "a", group: str | None = None, **attributes: str) -> Message:
    said = {"exchange": "amq.direct", "routing-key": key, **attributes}
    system = {"SentTimestamp": str(NOW)} | ({"MessageGroupId": group} if group else {})
    values = {name: Value("String", value) for name, value in said.items()}
    return Message(message_id=f"id-{body}", body=body, attributes=values, system=system)


def failed_before() -> FailingQueues:
    """What an environment knows that has been told for long that there are no queues."""
    return FailingQueues(since_ms={f"url/{name}{suffix}": 0 for name in NAMES for suffix in ("", ".fifo")})


def run(
    messages: Sequence[Message],
    to: RoutingTable,
    queues: Fickle,
    *,
    fifo: bool = False,
    failing: FailingQueues | None = None,
    **how: Any,
) -> RoutingOutcome:
    ingress = Ingress(fifo=fifo, **how)
    known = {"THERE": Peer(tag="THERE", account="1", region="r", senders=("AROATHERE",), **EVERYTHING)}
    return route(
        messages,
        ingress,
        to,
        site="HERE",
        peers=lambda: KnownPeers(known),
        now_ms=NOW,
        send=queues.send_batch,
        executor=Inline(),
        failing=FailingQueues() if failing is None else failing,
    )


@given(
    keys=st.lists(st.sampled_from(KEYS), max_size=25),
    bindings=st.lists(st.tuples(st.sampled_from(NAMES), st.sampled_from(KEYS[:2])), max_size=6),
    groups=st.lists(st.sampled_from(["g", "h"]), min_size=25, max_size=25),
    luck=st.lists(st.sampled_from(LUCK), max_size=12),
    fifo=st.booleans(),
    missed=st.booleans(),
)
@example(
    keys=["a"] * 12, bindings=[("one", "a"), ("two", "a")], groups=["g"] * 25, luck=["failed"], fifo=True, missed=True
)
@example(
    keys=["a", "b"], bindings=[("one", "a"), ("two", "b")], groups=["g"] * 25, luck=["gone"], fifo=True, missed=True
)
@example(
    keys=["a", "a", "b"],
    bindings=[("one", "b"), ("one", "a"), ("three", "b")],
    groups=["g"] * 25,
    luck=["gone", "gone", "forbidden"],
    fifo=True,
    missed=True,
)
def test_whatever_goes_wrong_amid_a_batch_nothing_is_done_that_a_queue_lacks(
    *, keys: list[str], bindings: list[tuple[str, str]], groups: list[str], luck: list[str], fifo: bool, missed: bool
) -> None:
    """The literal oracle: each queue bound by the key has the one copy, or is gone, and that is said."""
    messages = [message(f"{n}", key=key, group=groups[n] if fifo else None) for n, key in enumerate(keys)]
    queues = Fickle(luck=list(luck))
    to = table(bindings, fifo=fifo)
    urls = {name: f"url/{name}{'.fifo' if fifo else ''}" for name in NAMES}
    outcome = run(messages, to, queues, fifo=fifo, failing=failed_before() if missed else None)
    without = {(each.position, each.target) for each, _ in outcome.undeliverable}
    assert missed or not without  # by one answer nobody is gone
    assert {position for position, _ in without}.isdisjoint(outcome.failures)
    assert outcome.missing_urls.keys() == queues.gone
    assert outcome.refusals.keys() == queues.forbidden - queues.gone
    assert sum(outcome.missing_urls.values()) == sum(url in queues.gone for _, url in without)
    # A queue that refused a message may be gone by the next: each copy has the reason that SQS gave for it.
    for each, fault in outcome.undeliverable:
        reasons = {"QueueGone: no such queue: "} if each.target in queues.gone else set()
        if each.target in queues.forbidden:
            reasons.add("NotDelivered: SendMessageBatch: AccessDenied: to ")
        assert describe_reason(fault) in {reason + each.target for reason in reasons}
    for position, key in enumerate(keys):
        wanted = {urls[queue] for queue, by in bindings if by == key}
        got = {url for url, body in queues.sends if body == f"{position}"}
        assert got <= wanted
        if position not in outcome.failures:
            assert wanted - got == {url for at, url in without if at == position}
    assert all(url in queues.gone | queues.forbidden for _, url in without)
    assert len(queues.sends) == len(set(queues.sends))
    assert len(outcome.dropped_messages) == sum(not any(by == key for _, by in bindings) for key in keys)
    assert {drop.reason for drop in outcome.dropped_messages} <= {DropReason.UNROUTABLE}
    assert all(map(str, outcome.failures.values()))
    if fifo:
        for url in urls.values():
            for group in ("g", "h"):
                numbers = [int(body) for body in queues.bodies(url) if groups[int(body)] == group]
                assert numbers == sorted(numbers)


@given(
    keys=st.lists(st.sampled_from(KEYS), max_size=25),
    luck=st.lists(st.sampled_from(LUCK[:3]), max_size=12),
)
def test_what_comes_again_until_it_is_done_is_everywhere(*, keys: list[str], luck: list[str]) -> None:
    """As a FIFO queue would: what failed, and nothing else, comes again."""
    to = table([("one", "a"), ("two", "a"), ("two", "b")], fifo=True)
    queues, left = Fickle(luck=list(luck)), [message(f"{n}", key=key, group="g") for n, key in enumerate(keys)]
    while left:
        outcome = run(left, to, queues, fifo=True)
        left = [left[position] for position in sorted(outcome.failures)]
    for name, by in (("one", {"a"}), ("two", {"a", "b"})):
        bodies = list(dict.fromkeys(queues.bodies(f"url/{name}.fifo")))  # SQS takes a repeated one once
        assert sorted(bodies, key=int) == [f"{n}" for n, key in enumerate(keys) if key in by]


@pytest.mark.parametrize("number", [1, 10, 11, 100])
def test_a_queue_gets_tens(number: int) -> None:
    queues = Fickle()
    run([message(f"{n}") for n in range(number)], table([("one", "a")]), queues)
    assert queues.requests == -(-number // 10)


def test_what_a_queue_that_is_not_there_yet_was_to_get_comes_again() -> None:
    """SQS says of a queue in its first second that it doesn't exist: nobody can tell by one answer that it is gone."""
    queues, left = Fickle(luck=["gone"]), [message("one")]
    undeliverable: list[RefusedEntry] = []
    for _ in range(3):
        outcome = run(left, table([("one", "a")]), queues)
        undeliverable += outcome.undeliverable
        left = [left[position] for position in outcome.failures]
        queues.gone.clear()
    assert undeliverable == []
    assert queues.bodies("url/one") == ["one"]


def test_a_queue_that_takes_something_again_has_its_second_anew() -> None:
    failing, to = failed_before(), table([("one", "a")])
    run([message("0")], to, Fickle(), failing=failing)
    outcome = run([message("1")], to, Fickle(luck=["gone"]), failing=failing)
    assert (outcome.undeliverable, type(outcome.failures[0])) == ([], QueueGone)


def test_what_comes_again_and_still_has_no_queue_is_undeliverable() -> None:
    again = replace(message("0"), system={"ApproximateReceiveCount": "2"})
    outcome = run([again], table([("one", "a")]), Fickle(luck=["gone"]))
    assert [(each.position, each.target, describe_reason(fault)) for each, fault in outcome.undeliverable] == [
        (0, "url/one", "QueueGone: no such queue: url/one")
    ]
    assert outcome.failures == {}


REFUSED = "NotDelivered: SendMessageBatch: AccessDenied: to url/{}"


@pytest.mark.parametrize("fifo", [False, True])
def test_a_queue_that_refuses_makes_no_other_get_a_message_more_than_twice(*, fifo: bool) -> None:
    """As SQS would: what failed comes again, here each time to an environment that knows nothing."""
    to, left = table([("one", "a"), ("two", "a"), ("three", "b")], fifo=fifo), list[Message]()
    keys = ["a", "a", "b", "a"]
    left = [message(f"{n}", key=key, group="g" if fifo else None) for n, key in enumerate(keys)]
    queues = Fickle(forbidden={f"url/one{'.fifo' if fifo else ''}"})
    dead: list[tuple[str, str]] = []
    for receives in range(1, 4):
        left = [replace(each, system={**each.system, "ApproximateReceiveCount": f"{receives}"}) for each in left]
        outcome = run(left, to, queues, fifo=fifo)
        dead += [(left[each.position].body, describe_reason(fault)) for each, fault in outcome.undeliverable]
        left = [left[position] for position in sorted(outcome.failures)]
    assert left == []
    assert sorted(dead) == [(body, REFUSED.format("one.fifo" if fifo else "one")) for body in ("0", "1", "3")]
    for name, bodies in (("two", ["0", "1", "3"]), ("three", ["2"])):
        got = queues.bodies(f"url/{name}{'.fifo' if fifo else ''}")
        assert list(dict.fromkeys(got)) == bodies
        assert max(map(got.count, bodies)) <= 2


def test_what_is_known_to_be_refused_is_undeliverable_at_once_and_the_others_go_on() -> None:
    queues = Fickle(forbidden={"url/one"})
    outcome = run([message("0"), message("1")], table([("one", "a"), ("two", "a")]), queues, failing=failed_before())
    assert [(each.position, each.target, describe_reason(fault)) for each, fault in outcome.undeliverable] == [
        (position, "url/one", REFUSED.format("one")) for position in (0, 1)
    ]
    assert (outcome.failures, queues.bodies("url/two")) == ({}, ["0", "1"])
    assert (outcome.missing_urls, outcome.refusals) == ({}, {"url/one": "SendMessageBatch: AccessDenied: to url/one"})


def test_a_refusal_of_one_message_is_no_other_messages() -> None:
    """A queue with a smaller limit of size refuses what is larger, and takes the rest."""

    def send(url: str, entries: Sequence[dict[str, Any]]) -> Mapping[str, str]:
        return {entry["Id"]: "InvalidParameterValue: too long" for entry in entries if entry["MessageBody"] == "3"}

    queues = Fickle()
    queues.send_batch = send  # type: ignore[method-assign]
    messages = [replace(message(f"{n}"), system={"ApproximateReceiveCount": "2"}) for n in range(25)]
    outcome = run(messages, table([("one", "a")]), queues)
    assert [(each.position, describe_reason(fault)) for each, fault in outcome.undeliverable] == [
        (3, "NotDelivered: InvalidParameterValue: too long")
    ]
    assert (outcome.failures, outcome.counts["MessagesRouted"]) == ({}, 24)


def test_after_a_refusal_nothing_more_of_the_group_is_sent() -> None:
    messages = [message(f"{n}", group="g") for n in range(11)] + [message("11", group="h")]
    outcome = run(messages, table([("one", "a")], fifo=True), queues := Fickle(luck=["failed"]), fifo=True)
    assert (type(outcome.failures[10]), queues.bodies("url/one.fifo")) == (HeldBack, ["11"])


def claiming(text: str, body: str = "body") -> Message:
    return Message(message_id="id", body=body, attributes={ATTRIBUTE: Value("String", text)})


@pytest.mark.parametrize(
    ("bad", "error"),
    [
        (claiming("no JSON"), Malformed),
        (claiming('{"trace": "HERE"}'), Malformed),
        (claiming('{"trace": ["' + "x" * 33 + '"]}'), Malformed),
        (claiming('{"trace": [' + ", ".join(['"A"'] * 65) + "]}"), Malformed),
        (claiming('{"exchange": "amq.direct", "key": "' + "k" * 257 + '"}'), Malformed),
        (claiming('{"exchange": "nowhere"}'), UnknownExchange),
        (claiming("[" * 50_000), Malformed),
        (Message(message_id="id", body="names no exchange"), Malformed),
        (message("long key", key="k" * 257), Malformed),
    ],
)
def test_a_bad_message_is_refused_with_the_reason_and_the_others_go_on(bad: Message, error: type[Exception]) -> None:
    outcome = run([message("0"), bad, message("2")], table([("one", "a")]), queues := Fickle())
    assert {position: type(fault) for position, fault in outcome.failures.items()} == {1: error}
    assert str(outcome.failures[1])
    assert queues.bodies("url/one") == ["0", "2"]
    assert outcome.counts["MessagesRefused"] == 1


@pytest.mark.parametrize(("trusted", "arrives"), [(True, False), (False, True)])
def test_a_trace_is_believed_of_what_came_over_a_link_alone(*, trusted: bool, arrives: bool) -> None:
    claimed = claiming('{"exchange": "amq.direct", "key": "a", "trace": ["HERE"]}', "been here")
    outcome = run([claimed], table([("one", "a")]), queues := Fickle(), trusted=trusted)
    assert (queues.bodies("url/one") == ["been here"]) is arrives
    assert [drop.reason for drop in outcome.dropped_messages] == ([] if arrives else [DropReason.LOOP])


def test_an_ingress_of_one_exchange_takes_no_other() -> None:
    outcome = run([message("0", exchange="nowhere")], table([("one", "a")]), queues := Fickle(), exchange="amq.direct")
    assert (outcome.failures, queues.bodies("url/one")) == ({}, ["0"])


def test_a_bridge_that_would_lead_back_gets_no_copy_and_the_others_do() -> None:
    back = Destination(queue="back", url="url/back", crossing=Crossing(peer="THERE", tag="HERE"))
    on = Destination(queue="on", url="url/on", crossing=Crossing(peer="ELSEWHERE", tag="HERE"))
    to = RoutingTable(
        bound(
            queues=[back, on],
            bindings=[Binding(exchange="amq.fanout", queue=queue) for queue in ("back", "on")],
        )
    )
    outcome = run([claiming('{"exchange": "amq.fanout", "trace": ["THERE"]}')], to, queues := Fickle(), trusted=True)
    assert [url for url, _ in queues.sends] == ["url/on"]
    assert [(drop.reason, drop.queue) for drop in outcome.dropped_messages] == [(DropReason.LOOP, "back")]


def test_counts_add_up() -> None:
    messages = [message("0"), message("1", key="b"), message("2", key="none"), claiming("no JSON")]
    to = table([("one", "a"), ("two", "a"), ("three", "b")])
    counts = run(messages, to, Fickle(luck=["gone"]), failing=failed_before()).counts
    assert counts == {"MessagesReceived": 4, "MessagesRouted": 2, "MessagesRefused": 1, "MessagesUndeliverable": 1}
