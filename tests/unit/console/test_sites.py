"""How often a watched site is asked: once a second for all, at most ten times a round, by turns."""

from collections import Counter
from collections.abc import Callable
from functools import partial
from traceback import walk_tb
from types import SimpleNamespace
from typing import Any

import pytest

from sluice.aws.deployment import STACK, NotDeployed
from sluice.console.sites import CACHE_EXPIRY_S, CALLS_PER_ROUND, TURN_KEPT_S, CallLimitedSite, SiteCache
from sluice.errors import CallFailed, SluiceError

CONNECTION: Any = SimpleNamespace(region="eu-central-1", stage=None, client=lambda _: None)


def a_round(memory: SiteCache, calls: int = CALLS_PER_ROUND) -> CallLimitedSite:
    return CallLimitedSite(CONNECTION, memory, is_local=True, calls=calls)


def noted(asked: Counter[int], number: int) -> int:
    asked[number] += 1
    return number


def test_a_round_makes_no_more_calls_than_it_has_and_the_next_goes_on_with_who_waits() -> None:
    memory, asked = SiteCache(), Counter[int]()
    look = partial(noted, asked)

    for _ in range(3):
        site = a_round(memory)
        for number in range(25):
            site.read_cached(number, lambda number=number: look(number), every_s=60)  # type: ignore[misc]  # by its default
        assert asked.total() <= CALLS_PER_ROUND * 3
    assert asked == Counter(range(25))


def test_who_waits_longest_has_the_next_turn_however_often_all_are_due() -> None:
    memory, asked = SiteCache(), Counter[int]()
    look = partial(noted, asked)

    for _ in range(9):
        site = a_round(memory)
        for number in range(30):
            site.read_cached_in_turn("queue", number, partial(look, number), every_s=0)
    assert asked == Counter(dict.fromkeys(range(30), 3))


def test_what_nobody_wants_any_more_takes_no_turn() -> None:
    now_s = 1_000.0
    memory = SiteCache(now_s=lambda: now_s)
    for number in range(10):
        a_round(memory).read_cached_in_turn("queue", number, lambda: 1, every_s=0)
    now_s += TURN_KEPT_S + 1
    asked = a_round(memory, calls=1).read_cached_in_turn("queue", 9, lambda: 2, every_s=0)
    assert asked == 2
    now_s += CACHE_EXPIRY_S + 1
    a_round(memory, calls=0).read_cached_in_turn("queue", "another", lambda: 1, every_s=0)
    assert not memory.results


def test_queues_leave_calls_for_what_else_a_page_shows() -> None:
    site = a_round(SiteCache(), calls=4)
    found = [site.read_cached_in_turn("queue", number, lambda: 1, every_s=0, leaving=3) for number in range(4)]
    assert found == [1, None, None, None]
    assert site.spend_calls(3)


def test_calls_that_were_set_aside_are_nobody_else_s() -> None:
    site = a_round(SiteCache())
    site.reserve_calls(4)
    assert site.spend_calls(6)
    assert not site.spend_calls(1)


def test_what_was_never_asked_is_none_and_not_nothing() -> None:
    assert a_round(SiteCache(), calls=0).read_cached("alarms", lambda: [1], every_s=60) is None


def test_what_failed_fails_until_it_is_asked_again() -> None:
    memory = SiteCache()

    def refused() -> int:
        raise CallFailed("DescribeAlarms", "AccessDenied", "")

    for calls in (1, 0):
        with pytest.raises(CallFailed):
            a_round(memory, calls).read_cached("alarms", refused, every_s=60)
    assert a_round(memory).read_cached("alarms", lambda: 1, every_s=0) == 1


def test_a_failure_that_is_told_again_and_again_keeps_nothing_of_those_who_were_told() -> None:
    memory = SiteCache(stacks={}, absent_stacks={STACK: NotDeployed("none")})

    def fail() -> int:
        raise CallFailed("DescribeAlarms", "AccessDenied", "no")

    def frames(told: Callable[[CallLimitedSite], object]) -> int:
        with pytest.raises(SluiceError) as caught:
            told(a_round(memory))
        return len(list(walk_tb(caught.tb)))

    for told in (lambda site: site.read_cached("alarms", fail, every_s=60), lambda site: site.read_outputs(STACK)):
        frames(told)
        assert len({frames(told) for _ in range(3)}) == 1


def test_a_queue_that_wasnt_looked_at_yet_holds_nobody_knows_what() -> None:
    memory = SiteCache(stacks={}, absent_stacks={STACK: NotDeployed("none")})
    site = a_round(memory, calls=0)
    assert site.read_depths(["http://here/0/orders"]) == {
        "http://here/0/orders": {"url": "http://here/0/orders", "visible": None, "in_flight": None}
    }


def test_what_a_page_keeps_for_a_site_is_made_once() -> None:
    memory = SiteCache()
    assert memory.get_state("changes", lambda: [1]) is memory.get_state("changes", lambda: [2])
