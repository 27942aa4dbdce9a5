"""Which proxies fit which client, in what order, and until when a client is answered."""

from collections.abc import Callable, Sequence

from hypothesis import given
from hypothesis import strategies as st

from sluice.rendezvous.protocol.matching import (
    HOLD_MS,
    PATIENCE_MS,
    Nat,
    Pool,
    Profile,
    WaitingProxy,
    choose_shard,
    is_stale,
    list_pools_for_client,
    rank_proxies,
    seconds_until,
    select_pool_for_proxy,
)

SENT_MS = 1_700_000_000_000
PROMPT_MS = 3_700  # a queue that is there by then has its client hear by six seconds


def test_a_client_tries_the_most_restricted_proxies_that_it_can_reach_first() -> None:
    for client in (Nat.OPEN, Nat.UNRESTRICTED):
        assert list_pools_for_client(client) == (Pool.RESTRICTED, Pool.MODERATE, Pool.UNRESTRICTED)
    assert list_pools_for_client(Nat.MODERATE) == (Pool.MODERATE, Pool.UNRESTRICTED)
    for client in (Nat.STRICT, Nat.RESTRICTED, Nat.UNKNOWN):
        assert list_pools_for_client(client) == (Pool.UNRESTRICTED,)


def test_a_proxy_that_does_not_know_its_nat_waits_with_the_restricted_ones() -> None:
    assert {nat: select_pool_for_proxy(nat) for nat in Nat} == {
        Nat.OPEN: Pool.UNRESTRICTED,
        Nat.UNRESTRICTED: Pool.UNRESTRICTED,
        Nat.MODERATE: Pool.MODERATE,
        Nat.STRICT: Pool.RESTRICTED,
        Nat.RESTRICTED: Pool.RESTRICTED,
        Nat.UNKNOWN: Pool.RESTRICTED,
    }


def test_a_word_that_names_no_nat_is_an_unknown_one() -> None:
    assert {Nat(word) for word in ("", "Open", "symmetric", "\ud800")} == {Nat.UNKNOWN}


PROXIES = st.lists(
    st.builds(
        WaitingProxy,
        poll_id=st.uuids().map(str),
        sid=st.just("s"),
        pool=st.sampled_from(Pool),
        clients=st.integers(0, 3),
        polled_at_ms=st.integers(0, 3 * HOLD_MS),
        profile=st.builds(Profile, address=st.none() | st.sampled_from("abc")),
    )
)


def drawn_in_turns(proxies: Sequence[WaitingProxy], ties: Sequence[float]) -> list[WaitingProxy]:
    """A round takes the best of each address, and all that have none; then comes the next round."""
    left = sorted(range(len(proxies)), key=lambda place: (proxies[place].clients, ties[place]))
    ordered: list[WaitingProxy] = []
    while left:
        seen: set[str] = set()
        later: list[int] = []
        for place in left:
            address = proxies[place].profile.address
            if address in seen:
                later.append(place)
            else:
                ordered.append(proxies[place])
                if address is not None:
                    seen.add(address)
        left = later
    return ordered


@given(PROXIES, st.randoms())
def test_the_fewest_clients_go_first_but_each_address_once_before_any_comes_again(
    proxies: list[WaitingProxy], random: object
) -> None:
    draw: Callable[[], float] = random.random  # type: ignore[attr-defined]  # hypothesis' randoms are untyped
    ties = [draw() for _ in proxies]
    assert rank_proxies(proxies, ties=ties) == drawn_in_turns(proxies, ties)


def test_many_polls_of_one_address_dont_keep_others_from_their_turn() -> None:
    def proxy(sid: str, address: str | None, clients: int) -> WaitingProxy:
        profile = Profile(address=address)
        return WaitingProxy(
            poll_id=sid, sid=sid, pool=Pool.RESTRICTED, clients=clients, polled_at_ms=0, profile=profile
        )

    waiting = [*(proxy(f"a{number}", "a", 0) for number in range(3)), proxy("b", "b", 9), proxy("c", None, 5)]
    assert [each.sid for each in rank_proxies(waiting, ties=[0.1, 0.2, 0.3, 0.4, 0.5])] == ["a0", "c", "b", "a1", "a2"]


@given(st.integers(-100_000, 100_000))
def test_a_delay_ends_when_the_time_is_over_and_at_most_a_second_later(left_ms: int) -> None:
    delay_s = seconds_until(SENT_MS + left_ms, now_ms=SENT_MS)
    assert max(left_ms, 0) <= 1000 * delay_s < max(left_ms, 0) + 1000


@given(st.text(), st.integers(1, 100))
def test_a_name_stands_in_one_shard_of_those_there_are(name: str, shards: int) -> None:
    assert 0 <= choose_shard(name, shards) < shards
    assert choose_shard(name, 1) == 0


def test_an_offer_is_stale_when_its_client_has_given_up() -> None:
    assert not is_stale(sent_at_ms=0, now_ms=PATIENCE_MS - 1)
    assert is_stale(sent_at_ms=0, now_ms=PATIENCE_MS)
