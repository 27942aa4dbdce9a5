"""Bytes that may be held: leases, answers that turn out larger, and who waits for room."""

from hypothesis import given
from hypothesis import strategies as st
from sluice_spark.source.budget import COPIES, LEAST_BYTES, ByteBudget, Lease

LIMIT = 2**20


def full(budget: ByteBudget) -> int:
    """How many receives may be asked for at once."""
    count = 0
    while budget.open:
        budget.lease()
        count += 1
    return count


def test_there_are_few_receives_of_large_messages_and_many_of_small() -> None:
    small, large = ByteBudget(limit=LIMIT), ByteBudget(limit=LIMIT)
    small.learn(1_000, 10)
    large.learn(LIMIT // (4 * COPIES), 10)
    assert (full(small), full(large)) == (LIMIT // LEAST_BYTES, 4)


def test_one_receive_may_always_be_asked_for() -> None:
    budget = ByteBudget(limit=LIMIT)
    budget.learn(LIMIT, 1)
    assert full(budget) == 1


def test_what_is_expected_of_an_answer_is_for_ten_messages_and_forgotten_with_time() -> None:
    budget = ByteBudget(limit=LIMIT)
    budget.learn(LIMIT // 100, 1)
    assert budget.expected == LIMIT // 100 * 10 * COPIES
    for _ in range(100):
        budget.learn(1, 10)
    assert budget.expected == LEAST_BYTES


def test_an_answer_for_which_there_is_no_room_waits_until_there_is() -> None:
    budget, went = ByteBudget(limit=LIMIT), list[str]()
    first, second = budget.lease(), budget.lease()
    first.room(LIMIT // COPIES, lambda: went.append("first"))
    second.room(1000, lambda: went.append("second"))
    assert went == ["first"]
    first.end()
    assert went == ["first", "second"]
    for lease in (first, second, second):  # a lease ends once, however often that is said
        lease.end()
    assert (budget.held, budget.leased) == (0, 0)


def test_one_that_has_failed_leaves_its_turn_and_its_room_to_others() -> None:
    budget, went = ByteBudget(limit=LIMIT), list[str]()
    leases = [budget.lease() for _ in range(3)]
    for name, lease in zip("abc", leases, strict=True):
        lease.room(LIMIT // COPIES, lambda name=name: went.append(name))  # type: ignore[misc]  # a name of each
    leases[1].end()
    leases[0].end()
    assert went == ["a", "c"]
    leases[2].end()
    assert (budget.held, budget.leased) == (0, 0)


@given(st.lists(st.tuples(st.integers(0, 9), st.integers(1, 2 * LIMIT)), max_size=60))
def test_no_more_is_held_than_the_limit_or_one_answer(steps: list[tuple[int, int]]) -> None:
    budget, leases = ByteBudget(limit=LIMIT), dict[int, Lease]()
    largest, granted = 0, set[int]()
    for who, size in steps:
        if who in leases:
            leases.pop(who).end()
            granted.discard(who)
            continue
        leases[who] = budget.lease()
        leases[who].room(size, lambda who=who: granted.add(who))  # type: ignore[misc]  # of each
        largest = max(largest, COPIES * size)
        assert granted  # somebody always goes on
        assert budget.held <= max(LIMIT, largest)
    for lease in leases.values():
        lease.end()
    assert (budget.held, budget.leased) == (0, 0)
