"""Which proxies fit which client, and how many to hold."""

from hypothesis import given
from hypothesis import strategies as st

from sluice.rendezvous.protocol.matching import (
    HOLD_MS,
    PATIENCE_MS,
    Nat,
    Pool,
    WaitingProxy,
    in_order,
    is_stale,
    pool_of,
    pools_for,
    proxies_to_hold,
)


def test_only_an_unrestricted_client_gets_a_restricted_proxy_and_it_gets_it_first() -> None:
    assert pools_for(Nat.UNRESTRICTED) == (Pool.RESTRICTED, Pool.UNRESTRICTED)
    assert pools_for(Nat.RESTRICTED) == pools_for(Nat.UNKNOWN) == (Pool.UNRESTRICTED,)


def test_a_proxy_that_does_not_know_its_nat_waits_with_the_restricted_ones() -> None:
    assert [pool_of(nat) for nat in Nat] == [Pool.RESTRICTED, Pool.RESTRICTED, Pool.UNRESTRICTED]


PROXIES = st.lists(
    st.builds(
        WaitingProxy,
        poll_id=st.uuids().map(str),
        sid=st.just("s"),
        pool=st.sampled_from(Pool),
        clients=st.integers(0, 3),
        polled_at_ms=st.integers(0, 3 * HOLD_MS),
        mailbox=st.just("m"),
    )
)


@given(PROXIES, st.integers(0, 4 * HOLD_MS), st.randoms())
def test_the_order_is_fewest_clients_first_of_those_who_still_wait(
    proxies: list[WaitingProxy], now_ms: int, random: object
) -> None:
    ties = [random.random() for _ in proxies]  # type: ignore[attr-defined]  # hypothesis' randoms are untyped
    ordered = in_order(proxies, now_ms=now_ms, ties=ties)
    assert [proxy.clients for proxy in ordered] == sorted(proxy.clients for proxy in ordered)
    assert {proxy.poll_id for proxy in ordered} == {p.poll_id for p in proxies if p.polled_at_ms + HOLD_MS > now_ms}


@given(st.integers(0, 10_000), st.integers(0, 10), st.integers(10, 1_000))
def test_twice_the_demand_is_held_within_its_limits(offers: int, at_least: int, at_most: int) -> None:
    held = proxies_to_hold(recent_offers=offers, at_least=at_least, at_most=at_most)
    assert at_least <= held <= at_most
    assert held == 2 * offers or held in {at_least, at_most}


def test_an_offer_is_stale_when_its_client_has_given_up() -> None:
    assert not is_stale(sent_at_ms=0, now_ms=PATIENCE_MS - 1)
    assert is_stale(sent_at_ms=0, now_ms=PATIENCE_MS)
