"""The registry's events and what is due: each may come late or twice."""

from typing import Any

import pytest
from msgspec.structs import replace

from sluice.errors import BadRoute
from sluice.federation.links.due import EMPTY_FOR_MS, Act, Due, due
from sluice.federation.links.links import Address, Bridge, Endpoint, Link
from sluice.federation.links.registry import Registry, fed_queues, forwards_of, pulls_over, state_of
from sluice.federation.links.states import (
    ANSWER_MS,
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
    add_bridge,
    add_link,
    apply,
    change_bridge,
    close_bridge,
    drop_bridge,
    drop_link,
    greet,
    note_count,
    note_hello_sent,
    note_refitted,
    note_things,
    part,
    take_answer,
    tell_bridge,
    tell_link,
)

EMPTY = Registry(here="HERE")
END = Endpoint(region="r", account="1", control_queue_url="there")
SECOND = replace(END, sqs_url="https://vpce")
LINK = Link(name="link", peer="THERE", endpoints=(END, SECOND))
PUSH = Bridge(name="push", link="link", src="amq.topic", dest="amq.topic", src_is_local=True)
PULL = Bridge(name="pull", link="link", src="amq.topic", dest="amq.topic")
QUEUE = Bridge(name="queue", link="link", src="q", dest="amq.topic", src_is_local=True, src_is_queue=True)
PEER = Address(tag="THERE", region="r", account="1", control_queue_url="there", ingress_url="i", fifo_ingress_url="f")
MADE = note_things(bridge="push", queue="bridge-queue")
MAPPED = note_things(bridge="push", mapping="m", on=True)
BOUND = note_things(bridge="push", bound=True)


def after(registry: Registry, *events: Change, at_ms: int = 0) -> Registry:
    for event in events:
        registry = apply(registry, event, now_ms=at_ms, jitter=0)
    return registry


def tick(registry: Registry, *, now_ms: int, jitter: float) -> Registry:
    """The registry after time has gone by."""
    for name in registry.links:
        registry = apply(registry, tell_link(name, TimePassed()), now_ms=now_ms, jitter=jitter)
    return registry


def actions(registry: Registry, at_ms: int = 0) -> list[Due]:
    return list(due(registry, now_ms=at_ms))


def up(*bridges: Bridge) -> Registry:
    """A link that carries."""
    trying = tick(after(EMPTY, add_link(LINK)), now_ms=0, jitter=0)
    return after(trying, note_hello_sent("link"), answering(), *(add_bridge(each) for each in bridges))


def pushing() -> Registry:
    return after(up(PUSH), MADE, BOUND, MAPPED)


def answering(**fields: Any) -> Change:
    said: dict[str, Any] = {"link": "link", "peer": PEER, "exchanges": {"amq.topic": "topic"}, "ours": {}}
    return take_answer(**{**said, "bridges": {"pull": "Operational"}, **fields})


def greeting(*pulls: Bridge, **fields: Any) -> Change:
    return greet(link="link", peer=PEER, pulls=pulls, **fields)


def test_a_link_is_tried_in_turn_until_it_answers() -> None:
    registry = after(EMPTY, add_link(LINK))
    assert actions(registry) == []
    registry = tick(registry, now_ms=0, jitter=0)
    assert actions(registry) == [Due(Act.SEND_HELLO, "link")]
    registry = after(registry, note_hello_sent("link"))
    assert actions(registry) == []
    registry = tick(registry, now_ms=ANSWER_MS, jitter=0)
    status = registry.links["link"].status
    assert (status.state, status.endpoint, status.last_error) == (LinkState.WAITING, 1, "no answer")
    registry = tick(registry, now_ms=status.due_at_ms, jitter=0)
    assert actions(registry) == [Due(Act.SEND_HELLO, "link")]
    assert after(registry, answering()).links["link"].carries


def test_a_push_is_built_step_by_step() -> None:
    registry = up(PUSH)
    assert actions(registry) == [Due(Act.MAKE_QUEUE, "push")]
    registry = after(registry, MADE)
    assert actions(registry) == [Due(Act.BIND, "push"), Due(Act.MAKE_MAPPING, "push", True)]
    assert actions(after(registry, BOUND, MAPPED)) == []


def test_a_queue_route_binds_nothing() -> None:
    registry = after(up(QUEUE), note_things(bridge="queue", queue="q"))
    assert actions(registry) == [Due(Act.MAKE_MAPPING, "queue", True)]
    assert fed_queues(registry) == {"q"}


def test_a_pull_is_told_to_the_peer_and_needs_nothing_here() -> None:
    registry = up(PULL)
    assert (actions(registry), pulls_over(registry, "link")[0]) == ([Due(Act.SEND_HELLO, "link")], (PULL,))
    closed = after(registry, note_hello_sent("link"), close_bridge("pull"))
    assert actions(closed) == [Due(Act.SEND_HELLO, "link"), Due(Act.TEAR_DOWN, "pull")]
    assert pulls_over(closed, "link")[0] == ()


def test_a_dynamic_pull_between_exchanges_of_two_types_fails_until_they_are_of_one() -> None:
    pull = replace(PULL, dynamic=True)
    registry = after(up(pull), note_hello_sent("link"))
    mismatched = answering(ours={"amq.topic": "direct"})
    failed = after(registry, mismatched)
    assert state_of(failed.bridges["pull"], failed.links["link"]) == (
        "Failed: amq.topic is topic at THERE, direct at HERE: a dynamic route needs one type"
    )
    assert (pulls_over(failed, "link")[0], actions(failed)) == ((), [Due(Act.SEND_HELLO, "link")])  # which withdraws it
    assert actions(after(failed, note_hello_sent("link"), mismatched)) == []
    mended = after(failed, note_hello_sent("link"), answering(ours={"amq.topic": "topic"}))
    assert (pulls_over(mended, "link")[0], actions(mended)) == ((pull,), [Due(Act.SEND_HELLO, "link")])
    assert state_of(mended.bridges["pull"], mended.links["link"]) == "Operational"


@pytest.mark.parametrize("ours", [{}, {"amq.topic": "topic"}])
def test_a_static_pull_and_what_isnt_known_of_types_fail_for_nothing(ours: dict[str, str]) -> None:
    static = after(up(PULL), answering(ours={"amq.topic": "direct"}))
    assert state_of(static.bridges["pull"], static.links["link"]) == "Operational"
    dynamic = after(up(replace(PULL, dynamic=True)), answering(ours=ours))
    assert state_of(dynamic.bridges["pull"], dynamic.links["link"]) == "Operational"


@pytest.mark.parametrize("event", [Unreachable("down"), AccessRefused("denied"), Command.PAUSE])
def test_the_mapping_is_off_while_the_link_does_not_carry(event: Any) -> None:
    down = after(pushing(), tell_link("link", event))
    assert Due(Act.SWITCH_MAPPING, "push", False) in actions(down)
    assert Due(Act.SWITCH_MAPPING, "push", False) not in actions(after(down, note_things(bridge="push", on=False)))
    assert forwards_of(down, "bridge-queue") == []


def test_a_refused_link_is_probed_after_a_while_and_on_request() -> None:
    failed = after(pushing(), tell_link("link", AccessRefused("denied")))
    assert not tick(failed, now_ms=PROBE_MS - 1, jitter=0).links["link"].hello_due
    assert tick(failed, now_ms=PROBE_MS, jitter=0).links["link"].hello_due
    assert after(failed, tell_link("link", Command.RETRY)).links["link"].hello_due


def test_a_paused_link_goes_on_saying_so() -> None:
    paused = after(up(PULL), tell_link("link", Command.PAUSE), note_hello_sent("link"))
    assert pulls_over(paused, "link") == ((PULL,), frozenset({"pull"}))
    assert not tick(paused, now_ms=HEARTBEAT_DUE_MS - 1, jitter=0).links["link"].hello_due
    assert actions(tick(paused, now_ms=HEARTBEAT_DUE_MS, jitter=0)) == [Due(Act.SEND_HELLO, "link")]


def test_what_drains_over_there_is_not_paused_by_us() -> None:
    """The pulling site's own queues are empty at once; the peer's drain first, and pause then."""
    draining = after(up(PULL), tell_link("link", Command.DRAIN))
    draining = tick(draining, now_ms=1, jitter=0)
    assert draining.links["link"].status.state is LinkState.PAUSED
    assert pulls_over(draining, "link") == ((PULL,), frozenset())


@pytest.mark.parametrize("what", [Command.PAUSE, Command.DRAIN])
def test_a_bridge_is_held_and_let_go(what: Command) -> None:
    held = after(pushing(), tell_bridge("push", what))
    expected: Any = Due(Act.SWITCH_MAPPING, "push", False) if what is Command.PAUSE else Due(Act.UNBIND, "push")
    assert expected in actions(held)
    assert actions(after(held, tell_bridge("push", Command.RESUME))) == []


def test_a_queue_goes_when_it_has_been_empty_for_long_enough() -> None:
    closing = after(pushing(), close_bridge("push"))
    assert actions(closing) == [Due(Act.UNBIND, "push")]
    closing = after(closing, note_things(bridge="push", bound=False))
    assert actions(closing) == [Due(Act.COUNT_QUEUE, "push")]
    closing = after(closing, note_count("push", 0), at_ms=1_000)
    assert actions(closing, 1_000 + EMPTY_FOR_MS - 1) == [Due(Act.COUNT_QUEUE, "push")]
    filled = after(closing, note_count("push", 1), note_count("push", 0), at_ms=2_000)
    assert actions(filled, 1_000 + EMPTY_FOR_MS) == [Due(Act.COUNT_QUEUE, "push")]
    assert actions(closing, 1_000 + EMPTY_FOR_MS) == [Due(Act.TEAR_DOWN, "push")]
    assert after(closing, drop_bridge("push")).bridges == {}


def test_what_a_closing_link_cannot_send_is_buried_before_the_queue_goes() -> None:
    closing = after(pushing(), tell_link("link", LinkEvent.CLOSE), note_things(bridge="push", bound=False))
    assert actions(closing) == [Due(Act.COUNT_QUEUE, "push")]
    given_up = after(closing, tell_link("link", Unreachable("down")))
    assert actions(given_up) == [Due(Act.BURY_LEFTOVERS, "push")]
    buried = after(given_up, note_count("push", 0))
    assert actions(buried, EMPTY_FOR_MS) == [Due(Act.TEAR_DOWN, "push")]


def test_what_may_have_been_made_is_waited_for() -> None:
    """Whoever makes a queue may be about to say so, or have died before."""
    assert actions(after(up(PUSH), close_bridge("push"))) == [Due(Act.BURY_LEFTOVERS, "push")]


def test_a_link_goes_after_its_bridges_with_a_parting() -> None:
    closing = after(pushing(), tell_link("link", LinkEvent.CLOSE))
    assert Due(Act.SEND_PARTING, "link") not in actions(closing)
    bare = after(closing, drop_bridge("push"))
    assert actions(bare) == [Due(Act.SEND_PARTING, "link")]
    assert after(bare, drop_link("link")) == EMPTY


def test_a_hello_makes_what_it_asks_for_and_closes_the_rest() -> None:
    served = after(EMPTY, greeting(PULL))
    assert [(each.bridge.link, each.bridge.src_is_local) for each in served.bridges.values()] == [("link@THERE", True)]
    assert after(served, greeting(PULL)) == served
    again = after(served, greeting())
    assert [each.closing for each in again.bridges.values()] == [True]
    paused = after(served, greeting(PULL, paused={"pull"}))
    assert [each.wanted for each in paused.bridges.values()] == [Intent.PAUSED]
    another = after(served, greeting(replace(PULL, fifo=False)))
    assert [each.closing for each in another.bridges.values()] == [True]


def test_a_hello_with_other_options_changes_a_route_where_it_stands() -> None:
    served = after(EMPTY, greeting(PULL), note_things(bridge="pull@THERE", queue="q", mapping="m", on=True, bound=True))
    assert actions(served) == []
    changed = after(served, greeting(replace(PULL, max_hops=3)))
    [record] = changed.bridges.values()
    assert (record.queue, record.mapping, record.on, record.bound) == ("q", "m", True, True)
    assert actions(changed) == [Due(Act.REFIT, "pull@THERE")]
    more = after(changed, greeting(replace(PULL, max_hops=4)), note_refitted(record.bridge))
    assert actions(more) == [Due(Act.REFIT, "pull@THERE")]  # what was done was for the one before
    assert actions(after(more, note_refitted(more.bridges["pull@THERE"].bridge))) == []


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
    parted = after(served, part("link", "THERE"))
    assert parted.links["link@THERE"].status.state is LinkState.CLOSING
    assert after(EMPTY, part("link", "THERE")) == EMPTY
    back = after(parted, drop_bridge("pull@THERE"), greeting(PULL))
    assert back.links["link@THERE"].carries


def test_a_served_link_that_hears_nothing_asks() -> None:
    silent = after(EMPTY, greeting(PULL), note_things(bridge="pull@THERE", queue="q"))
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
        (greet(link="a link", peer=PEER), "'a link': a name is 1 to 128 printable characters"),
        (greet(link="", peer=PEER), "'': a name is 1 to 128"),
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
        *(add_link(LINK), add_bridge(PUSH), MADE, BOUND, MAPPED, note_hello_sent("link")),
        *(close_bridge("none"), tell_bridge("none", Command.PAUSE), drop_bridge("none"), note_count("none", 1)),
        *(tell_link("none", LinkEvent.CLOSE), part("none", "THERE"), answering(link="none")),
        *(note_things(bridge="none", queue="q"), note_hello_sent("none"), drop_link("link")),
    ],
)
def test_an_event_that_comes_twice_or_too_late_changes_nothing(event: Change) -> None:
    assert after(pushing(), event) == pushing()


def test_several_queue_routes_share_a_queue_while_they_may_flow() -> None:
    other = Link(name="other", peer="OTHER", endpoints=(replace(END, control_queue_url="other"),))
    second = replace(QUEUE, name="second", link="other")
    registry = after(up(QUEUE), add_link(other), add_bridge(second))
    registry = after(registry, *(note_things(name, queue="q", mapping="m", on=True) for name in ("queue", "second")))
    assert [each.bridge.name for each in forwards_of(registry, "q")] == ["queue"]
    down = after(registry, tell_link("link", Unreachable("down")))
    assert forwards_of(down, "q") == []
    assert {action for action in actions(down) if action.act is Act.SWITCH_MAPPING} == {
        Due(Act.SWITCH_MAPPING, "queue", False),
        Due(Act.SWITCH_MAPPING, "second", False),
    }
