"""Bytes that may be held: leases, answers that turn out larger, and who waits for room."""

from hypothesis import given
from hypothesis import strategies as st
from sluice_spark.source.budget import (
    ANSWER_BYTES,
    COPIES,
    MINIMUM_BYTES,
    OBJECTS_BYTES,
    ByteBudget,
    Lease,
    ResponseEstimate,
    measure_sizes,
)
from sluice_spark.sqs.received import parse_messages

LIMIT = 2**20


def full(budget: ByteBudget, size: int = MINIMUM_BYTES) -> int:
    """How many receives of this size may be asked for at once."""
    count = 0
    while budget.has_room_to_lease(size):
        budget.lease(size)
        count += 1
    return count


def after(size: int, messages: int) -> ResponseEstimate:
    """What is expected after one answer."""
    expectation = ResponseEstimate()
    expectation.update_estimate(size, messages)
    return expectation


def test_there_are_few_receives_of_large_messages_and_many_of_small() -> None:
    small, large = after(1_000, 10), after(LIMIT // (4 * COPIES), 10)
    assert full(ByteBudget(limit=LIMIT), small.size) == LIMIT // MINIMUM_BYTES
    assert full(ByteBudget(limit=LIMIT), large.size) == 4


def test_one_receive_may_always_be_asked_for() -> None:
    assert full(ByteBudget(limit=LIMIT), 2 * LIMIT) == 1


def test_what_is_expected_of_an_answer_is_for_ten_messages_and_forgotten_with_time() -> None:
    expectation = after(LIMIT // 100, 1)
    assert expectation.size == 10 * (COPIES * (LIMIT // 100) - (COPIES - 1) * OBJECTS_BYTES)
    for _ in range(100):
        expectation.update_estimate(1, 10)
    assert expectation.size == MINIMUM_BYTES


def test_of_large_messages_fewer_are_asked_for() -> None:
    assert ResponseEstimate().max_messages == 10
    for size, most in ((ANSWER_BYTES // 10, 10), (ANSWER_BYTES // 2, 2), (4 * ANSWER_BYTES, 1)):
        expectation = after(size, 1)
        assert (expectation.max_messages, expectation.size) == (
            most,
            (COPIES * size - (COPIES - 1) * OBJECTS_BYTES) * most,
        )


def test_receives_that_wait_for_messages_fill_no_budget() -> None:
    budget, size = ByteBudget(limit=LIMIT), after(LIMIT // 30, 1).size
    leases = [budget.lease(size) for _ in range(full(budget, size))]
    assert not budget.has_room_to_lease(size)
    assert not budget.is_full_for(size)
    budget.hold(LIMIT - size // 2)
    assert budget.is_full_for(size)
    budget.free(LIMIT - size // 2)
    assert not budget.is_full_for(size)
    for lease in leases:
        lease.end()


def test_a_wide_character_widens_all_of_its_text() -> None:
    narrow, wide, bearing = (
        parse_messages(b'{"Messages":[{"MessageId":"1","Body":"%s"%s}]}' % (body * 999, more))
        for body, more in (
            (b"x", b""),
            ("\N{GRINNING FACE}".encode(), b""),
            (b"x", b',"MessageAttributes":{"a":{"DataType":"String","StringValue":"%s"}}' % (b"v" * 500)),
        )
    )
    assert OBJECTS_BYTES + 999 < measure_sizes(narrow).memory < OBJECTS_BYTES + 1100
    assert measure_sizes(wide).memory > OBJECTS_BYTES + 2 * 4 * 999  # with its UTF-8
    assert measure_sizes(bearing).memory > measure_sizes(narrow).memory + 500
    assert [(each.bodies, each.payload) for each in map(measure_sizes, (narrow, wide, bearing))] == [
        (999, 999),
        (999, 999),
        (999, 1_499),
    ]


def test_an_answer_for_which_there_is_no_room_waits_until_there_is() -> None:
    budget, went = ByteBudget(limit=LIMIT), list[str]()
    first, second = budget.lease(MINIMUM_BYTES), budget.lease(MINIMUM_BYTES)
    first.await_room(LIMIT // COPIES, lambda: went.append("first"))
    second.await_room(1000, lambda: went.append("second"))
    assert went == ["first"]
    first.end()
    assert went == ["first", "second"]
    for lease in (first, second, second):  # a lease ends once, however often that is said
        lease.end()
    assert (budget.used, budget.leased) == (0, 0)


def test_one_that_has_failed_leaves_its_turn_and_its_room_to_others() -> None:
    budget, went = ByteBudget(limit=LIMIT), list[str]()
    leases = [budget.lease(MINIMUM_BYTES) for _ in range(3)]
    for name, lease in zip("abc", leases, strict=True):
        lease.await_room(LIMIT // COPIES, lambda name=name: went.append(name))  # type: ignore[misc]  # a name of each
    leases[1].end()
    leases[0].end()
    assert went == ["a", "c"]
    leases[2].end()
    assert (budget.used, budget.leased) == (0, 0)


@given(st.lists(st.tuples(st.integers(0, 9), st.integers(1, 2 * LIMIT)), max_size=60))
def test_no_more_is_held_than_the_limit_or_one_answer(steps: list[tuple[int, int]]) -> None:
    budget, leases = ByteBudget(limit=LIMIT), dict[int, Lease]()
    largest, granted = 0, set[int]()
    for who, size in steps:
        if who in leases:
            leases.pop(who).end()
            granted.discard(who)
            continue
        leases[who] = budget.lease(MINIMUM_BYTES)
        leases[who].await_room(size, lambda who=who: granted.add(who))  # type: ignore[misc]  # of each
        largest = max(largest, COPIES * size)
        assert granted  # somebody always goes on
        assert budget.used <= max(LIMIT, largest)
    for lease in leases.values():
        lease.end()
    assert (budget.used, budget.leased) == (0, 0)
