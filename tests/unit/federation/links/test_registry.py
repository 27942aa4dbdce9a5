"""The registry's events and what is due: each may come late or twice."""

from typing import Any

import pytest
from msgspec import UNSET
from msgspec.structs import replace

from sluice.errors import BadRoute
from sluice.federation.links.due import EMPTY_FOR_MS, Action, DueAction, find_due_actions
from sluice.federation.links.links import Address, Bridge, Endpoint, Link
from sluice.federation.links.registry import Registry, collect_pulls, describe_state, find_feeding_queues, find_forwards
from sluice.federation.links.states import (
    ANSWER_TIMEOUT_MS,
    HEARTBEAT_DUE_MS,
    HEARTBEAT_INTERVAL_MS,
    PROBE_MS,
    AccessRefused,
    Command,
    Intent,
    LinkEvent,
    LinkState,
    TimePassed,
    Unreachable,
)
from sluice.federation.links.transitions import (
    Change,
    accept_answer,
    accept_hello,
    add_bridge,
    add_link,
    apply,
    change_bridge,
    close_bridge,
    command_bridge,
    record_count,
    record_hello_sent,
    record_resources,
    remove_bridge,
    remove_link,
    update_link,
)

EMPTY = Registry(here="HERE")
END = Endpoint(region="r", account="1", control_queue_url="there")
SECOND = replace(END, sqs_url="https://vpce")
LINK = Link(name="link", peer="THERE", endpoints=(END, SECOND))
PUSH = Bridge(name="push", link="link", src="amq.topic", dest="amq.topic", src_is_local=True)
PULL = Bridge(name="pull", link="link", src="amq.topic", dest="amq.topic")
QUEUE = Bridge(name="queue", link="link", src="q", dest="amq.topic", src_is_local=True, src_is_queue=True)
PEER = Address(tag="THERE", region="r", account="1", control_queue_url="there", ingress_url="i", fifo_ingress_url="f")
MADE = record_resources(bridge="push", queue="bridge-queue")
MAPPED = record_resources(bridge="push", mapping="m", on=True)
BOUND = record_resources(bridge="push", bound=True)


def after(registry: Registry, *events: Change, at_ms: int = 0) -> Registry:
    for event in events:
        registry = apply(registry, event, now_ms=at_ms, jitter=0)
    return registry


def tick(registry: Registry, *, now_ms: int, jitter: float) -> Registry:
    """The registry after time has gone by."""
    for name in registry.links:
        registry = apply(registry, update_link(name, TimePassed()), now_ms=now_ms, jitter=jitter)
    return registry


def actions(registry: Registry, at_ms: int = 0) -> list[DueAction]:
    return list(find_due_actions(registry, now_ms=at_ms))


def up(*bridges: Bridge) -> Registry:
    """A link that carries."""
    trying = tick(after(EMPTY, add_link(LINK)), now_ms=0, jitter=0)
    return after(trying, record_hello_sent("link"), answering(), *(add_bridge(bridge) for bridge in bridges))


def pushing() -> Registry:
    return after(up(PUSH), MADE, BOUND, MAPPED)


def answering(**fields: Any) -> Change:
    said: dict[str, Any] = {"link": "link", "peer": PEER, "exchanges": {"amq.topic": "topic"}, "own_exchanges": {}}
    return accept_answer(**{**said, "bridges": {"pull": "Operational"}, **fields})


def greeting(*pulls: Bridge, **fields: Any) -> Change:
    return accept_hello(link="link", peer=PEER, pulls=pulls, **fields)


def test_a_link_is_tried_in_turn_until_it_answers() -> None:
    registry = after(EMPTY, add_link(LINK))
    assert actions(registry) == []
    registry = tick(registry, now_ms=0, jitter=0)
    assert actions(registry) == [DueAction(Action.SEND_HELLO, "link")]
    registry = after(registry, record_hello_sent("link"))
    assert actions(registry) == []
    registry = tick(registry, now_ms=ANSWER_TIMEOUT_MS, jitter=0)
    status = registry.links["link"].status
    assert (status.state, status.endpoint, status.last_error) == (LinkState.WAITING, 1, "no answer")
    registry = tick(registry, now_ms=status.due_at_ms, jitter=0)
    assert actions(registry) == [DueAction(Action.SEND_HELLO, "link")]
    assert after(registry, answering()).links["link"].carries


def test_a_push_is_built_step_by_step() -> None:
    registry = up(PUSH)
    assert actions(registry) == [DueAction(Action.MAKE_QUEUE, "push")]
    registry = after(registry, MADE)
    assert actions(registry) == [DueAction(Action.BIND, "push"), DueAction(Action.RECONCILE, "push", True)]
    assert actions(after(registry, BOUND, MAPPED)) == []


def test_a_queue_route_binds_nothing() -> None:
    registry = after(up(QUEUE), record_resources(bridge="queue", queue="q"))
    assert actions(registry) == [DueAction(Action.RECONCILE, "queue", True)]
    assert find_feeding_queues(registry) == {"q"}


def test_a_pull_is_told_to_the_peer_and_needs_nothing_here() -> None:
    registry = up(PULL)
    assert (actions(registry), collect_pulls(registry, "link")[0]) == ([DueAction(Action.SEND_HELLO, "link")], (PULL,))
    closed = after(registry, record_hello_sent("link"), close_bridge("pull"))
    assert actions(closed) == [DueAction(Action.SEND_HELLO, "link"), DueAction(Action.TEAR_DOWN, "pull")]
    assert collect_pulls(closed, "link")[0] == ()


def test_a_dynamic_pull_between_exchanges_of_two_types_fails_until_they_are_of_one() -> None:
    pull = replace(PULL, dynamic=True)
    registry = after(up(pull), record_hello_sent("link"))
    mismatched = answering(own_exchanges={"amq.topic": "direct"})
    failed = after(registry, mismatched)
    assert describe_state(failed.bridges["pull"], failed.links["link"]) == (
        "Failed: amq.topic is topic at THERE, direct at HERE: a dynamic route needs one type"
    )
    assert (collect_pulls(failed, "link")[0], actions(failed)) == (
        (),
        [DueAction(Action.SEND_HELLO, "link")],
    )  # which withdraws it
    assert actions(after(failed, record_hello_sent("link"), mismatched)) == []
    mended = after(failed, record_hello_sent("link"), answering(own_exchanges={"amq.topic": "topic"}))
    assert (collect_pulls(mended, "link")[0], actions(mended)) == ((pull,), [DueAction(Action.SEND_HELLO, "link")])
    assert describe_state(mended.bridges["pull"], mended.links["link"]) == "Operational"


@pytest.mark.parametrize("ours", [{}, {"amq.topic": "topic"}])
def test_a_static_pull_and_what_isnt_known_of_types_fail_for_nothing(ours: dict[str, str]) -> None:
    static = after(up(PULL), answering(own_exchanges={"amq.topic": "direct"}))
    assert describe_state(static.bridges["pull"], static.links["link"]) == "Operational"
    dynamic = after(up(replace(PULL, dynamic=True)), answering(own_exchanges=ours))
    assert describe_state(dynamic.bridges["pull"], dynamic.links["link"]) == "Operational"


@pytest.mark.parametrize("event", [Unreachable("down"), AccessRefused("denied"), Command.PAUSE])
def test_the_mapping_is_off_while_the_link_does_not_carry(event: Any) -> None:
    down = after(pushing(), update_link("link", event))
    assert DueAction(Action.RECONCILE, "push", False) in actions(down)
    assert DueAction(Action.RECONCILE, "push", False) not in actions(
        after(down, record_resources(bridge="push", on=False))
    )
    assert find_forwards(down, "bridge-queue") == []


def test_a_refused_link_is_probed_after_a_while_and_on_request() -> None:
    failed = after(pushing(), update_link("link", AccessRefused("denied")))
    assert not tick(failed, now_ms=PROBE_MS - 1, jitter=0).links["link"].hello_due
    assert tick(failed, now_ms=PROBE_MS, jitter=0).links["link"].hello_due
    assert after(failed, update_link("link", Command.RETRY)).links["link"].hello_due


def test_a_paused_link_goes_on_saying_so() -> None:
    paused = after(up(PULL), update_link("link", Command.PAUSE), record_hello_sent("link"))
    assert collect_pulls(paused, "link") == ((PULL,), frozenset({"pull"}))
    assert not tick(paused, now_ms=HEARTBEAT_DUE_MS - 1, jitter=0).links["link"].hello_due
    assert actions(tick(paused, now_ms=HEARTBEAT_DUE_MS, jitter=0)) == [DueAction(Action.SEND_HELLO, "link")]


def test_what_drains_over_there_is_not_paused_by_us() -> None:
    """The pulling site's own queues are empty at once; the peer's drain first, and pause then."""
    draining = after(up(PULL), update_link("link", Command.DRAIN))
    draining = tick(draining, now_ms=1, jitter=0)
    assert draining.links["link"].status.state is LinkState.PAUSED
    assert collect_pulls(draining, "link") == ((PULL,), frozenset())


@pytest.mark.parametrize("what", [Command.PAUSE, Command.DRAIN])
def test_a_bridge_is_held_and_let_go(what: Command) -> None:
    held = after(pushing(), command_bridge("push", what))
    expected: Any = (
        DueAction(Action.RECONCILE, "push", False) if what is Command.PAUSE else DueAction(Action.UNBIND, "push")
    )
    assert expected in actions(held)
    assert actions(after(held, command_bridge("push", Command.RESUME))) == []


def test_a_queue_goes_when_it_has_been_empty_for_long_enough() -> None:
    closing = after(pushing(), close_bridge("push"))
    assert actions(closing) == [DueAction(Action.UNBIND, "push")]
    closing = after(closing, record_resources(bridge="push", bound=False))
    assert actions(closing) == [DueAction(Action.COUNT_QUEUE, "push")]
    closing = after(closing, record_count("push", 0), at_ms=1_000)
    assert actions(closing, 1_000 + EMPTY_FOR_MS - 1) == [DueAction(Action.COUNT_QUEUE, "push")]
    filled = after(closing, record_count("push", 1), record_count("push", 0), at_ms=2_000)
    assert actions(filled, 1_000 + EMPTY_FOR_MS) == [DueAction(Action.COUNT_QUEUE, "push")]
    assert actions(closing, 1_000 + EMPTY_FOR_MS) == [DueAction(Action.TEAR_DOWN, "push")]
    assert after(closing, remove_bridge("push")).bridges == {}


def test_what_a_closing_link_cannot_send_is_buried_before_the_queue_goes() -> None:
    closing = after(pushing(), update_link("link", LinkEvent.CLOSE), record_resources(bridge="push", bound=False))
    assert actions(closing) == [DueAction(Action.COUNT_QUEUE, "push")]
    given_up = after(closing, update_link("link", Unreachable("down")))
    assert actions(given_up) == [DueAction(Action.DEAD_LETTER_LEFTOVERS, "push")]
    buried = after(given_up, record_count("push", 0))
    assert actions(buried, EMPTY_FOR_MS) == [DueAction(Action.TEAR_DOWN, "push")]


def test_what_may_have_been_made_is_waited_for() -> None:
    """Whoever makes a queue may be about to say so, or have died before."""
    assert actions(after(up(PUSH), close_bridge("push"))) == [DueAction(Action.DEAD_LETTER_LEFTOVERS, "push")]


def test_a_link_goes_after_its_bridges_with_a_parting() -> None:
    closing = after(pushing(), update_link("link", LinkEvent.CLOSE))
    assert DueAction(Action.SEND_LINK_CLOSED, "link") not in actions(closing)
    bare = after(closing, remove_bridge("push"))
    assert actions(bare) == [DueAction(Action.SEND_LINK_CLOSED, "link")]
    assert after(bare, remove_link("link")) == EMPTY


def test_a_hello_makes_what_it_asks_for_and_closes_the_rest() -> None:
    served = after(EMPTY, greeting(PULL))
    assert [(bridge.bridge.link, bridge.bridge.src_is_local) for bridge in served.bridges.values()] == [
        ("link@THERE", True)
    ]
    assert after(served, greeting(PULL)) == served
    again = after(served, greeting())
    assert [bridge.closing for bridge in again.bridges.values()] == [True]
    paused = after(served, greeting(PULL, paused={"pull"}))
    assert [bridge.intent for bridge in paused.bridges.values()] == [Intent.PAUSED]
    another = after(served, greeting(replace(PULL, fifo=False)))
    assert [bridge.closing for bridge in another.bridges.values()] == [True]


def test_a_hello_with_other_options_changes_a_route_where_it_stands() -> None:
    served = after(
        EMPTY, greeting(PULL), record_resources(bridge="pull@THERE", queue="q", mapping="m", on=True, bound=True)
    )
    assert actions(served) == []
    changed = after(served, greeting(replace(PULL, max_hops=3)))
    [record] = changed.bridges.values()
    assert (record.queue, record.mapping, record.on, record.bound) == ("q", "m", True, True)
    reconcile = DueAction(Action.RECONCILE, "pull@THERE", on=True)
    assert actions(changed) == [reconcile]

    def reconciled(made_for: Bridge) -> Change:
        return record_resources("pull@THERE", mapping="m", on=True, changed=UNSET, made_for=made_for)

    more = after(changed, greeting(replace(PULL, max_hops=4)), reconciled(record.bridge))
    assert actions(more) == [reconcile]  # what was done was for the one before
    assert actions(after(more, reconciled(more.bridges["pull@THERE"].bridge))) == []


def test_what_may_not_be_changed_is_refused_with_the_reason() -> None:
    there = after(up(PUSH))
    for wrong, reason in (
        (replace(PUSH, key="other"), "another route"),
        (replace(PUSH, fifo=False), "another route"),
        (replace(PUSH, max_hops=0), "max hops"),
        (replace(PUSH, name="nobody"), "no such route"),
    ):
        with pytest.raises(BadRoute, match=reason):
            after(there, change_bridge(wrong))
    with pytest.raises(BadRoute, match="change it there"):
        after(after(EMPTY, greeting(PULL)), change_bridge(replace(PULL, name="pull@THERE", link="link@THERE")))
    assert after(there, change_bridge(PUSH)) == there


def test_a_served_link_goes_with_its_peers() -> None:
    served = after(EMPTY, greeting(PULL))
    parted = after(served, update_link("link@THERE", LinkEvent.CLOSE))
    assert parted.links["link@THERE"].status.state is LinkState.CLOSING
    assert after(EMPTY, update_link("link@THERE", LinkEvent.CLOSE)) == EMPTY
    back = after(parted, remove_bridge("pull@THERE"), greeting(PULL))
    assert back.links["link@THERE"].carries


def test_a_served_link_that_hears_nothing_asks() -> None:
    silent = after(EMPTY, greeting(PULL), record_resources(bridge="pull@THERE", queue="q"))
    at_ms = 0
    while not silent.links["link@THERE"].hello_due:
        at_ms += HEARTBEAT_INTERVAL_MS
        silent = tick(silent, now_ms=at_ms, jitter=0)
    assert (silent.links["link@THERE"].status.state, at_ms) == (LinkState.STALLED, 3 * HEARTBEAT_INTERVAL_MS)


@pytest.mark.parametrize(
    ("event", "error"),
    [
        (add_link(replace(LINK, name="a@b")), "@ is for links that a peer asked for"),
        (add_link(replace(LINK, peer="HERE")), "isn't linked to itself"),
        (add_link(replace(LINK, role_arn="role")), "there is a link of this name"),
        (add_link(replace(LINK, name="other", peer="ELSEWHERE")), "one tag is one site"),
        (add_bridge(replace(PUSH, name="a@b")), "@ is for routes that a peer asked for"),
        (add_bridge(replace(PUSH, name="other")), "duplicate route"),
        (add_bridge(replace(PUSH, key="k")), "there is a bridge of this name"),
        (add_bridge(replace(PUSH, name="other", link="none")), "no such link"),
        (greeting(replace(PULL, sync=0)), "sync 0"),
        (greeting(replace(PULL, src_is_local=True)), "isn't pulled"),
        (greeting(PULL, replace(PULL, name="twice")), "duplicate"),
        (greeting(PULL, replace(PULL, key="other")), "duplicate"),
        (accept_hello(link="a link", peer=PEER), "'a link': a name is 1 to 128 printable characters"),
        (accept_hello(link="", peer=PEER), "'': a name is 1 to 128"),
        (greeting(replace(PULL, name="p" * 129)), "a name is 1 to 128"),
    ],
)
def test_what_cannot_be_is_refused(event: Change, error: str) -> None:
    with pytest.raises(BadRoute, match=error):
        after(pushing(), event)


def test_an_answer_of_another_site_fails_the_link() -> None:
    registry = after(up(), answering(peer=replace(PEER, tag="ELSEWHERE")))
    status = registry.links["link"].status
    assert (status.state, status.last_error) == (LinkState.FAILED, "the site there has the tag ELSEWHERE, not THERE")


@pytest.mark.parametrize(
    "event",
    [
        *(add_link(LINK), add_bridge(PUSH), MADE, BOUND, MAPPED, record_hello_sent("link")),
        *(close_bridge("none"), command_bridge("none", Command.PAUSE), remove_bridge("none"), record_count("none", 1)),
        *(update_link("none", LinkEvent.CLOSE), update_link("none@THERE", LinkEvent.CLOSE), answering(link="none")),
        *(record_resources(bridge="none", queue="q"), record_hello_sent("none"), remove_link("link")),
    ],
)
def test_an_event_that_comes_twice_or_too_late_changes_nothing(event: Change) -> None:
    assert after(pushing(), event) == pushing()


def test_several_queue_routes_share_a_queue_while_they_may_flow() -> None:
    other = Link(name="other", peer="OTHER", endpoints=(replace(END, control_queue_url="other"),))
    second = replace(QUEUE, name="second", link="other")
    registry = after(up(QUEUE), add_link(other), add_bridge(second))
    registry = after(
        registry, *(record_resources(name, queue="q", mapping="m", on=True) for name in ("queue", "second"))
    )
    assert [forward.bridge.name for forward in find_forwards(registry, "q")] == ["queue"]
    down = after(registry, update_link("link", Unreachable("down")))
    assert find_forwards(down, "q") == []
    assert {action for action in actions(down) if action.action is Action.RECONCILE} == {
        DueAction(Action.RECONCILE, "queue", False),
        DueAction(Action.RECONCILE, "second", False),
    }
