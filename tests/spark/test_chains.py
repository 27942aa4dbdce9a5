"""A bounded read with `mode=executors` has each message once, whatever breaks, and leaves a log that is whole.

Tasks die at any call, are tried again, have twins, and stop early. The queue is the in-memory one, on its own clock.
"""

import random
import tempfile
from contextlib import closing, suppress
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sluice_spark.errors import Fenced, SluiceSparkError
from sluice_spark.log.planning import Admission
from sluice_spark.log.staging import StagedLog
from sluice_spark.source.chains import Chain, links
from sluice_spark.source.dispatching import Dispatcher, adopted

from tests.spark.test_executors_no_loss import ATTEMPTS, OPTIONS, Depth, SteadyLine
from tests.spark.test_no_loss import VISIBILITY_S, World, whole
from tests.sqs.queues import Queue

LIMIT = 40


def world_in(staging: str, seed: int = 0) -> World:
    return World(Path(staging), Queue("q", visibility_s=VISIBILITY_S), random.Random(seed))


def planned(world: World, admission: Admission, times: int = 500) -> list[Chain]:
    depth = Depth(world, times)
    return list(Dispatcher(world.store, depth, adopted(world.store)).chains(admission))  # type: ignore[arg-type]  # a depth


def task(world: World, chain: Chain, *, faults: float = 0.0, calls_left: int | None = None) -> list[str]:
    """All its rows. Raises what the task raises."""
    line = SteadyLine(world, faults=faults, calls_left=calls_left)
    try:
        found = links(chain, world.store, lambda: line, OPTIONS)  # type: ignore[arg-type, return-value]  # as a client
        return [body for _, rows in found for body in rows.column("body").to_pylist()]
    finally:
        assert line.wrong == []


def tried(world: World, chain: Chain, *, faults: float, dying: float) -> list[str]:
    """A task with its retries, and now and then a twin, before or after."""
    chance = world.chance
    if chance.random() < 0.3:
        with suppress(SluiceSparkError):
            task(world, chain, faults=faults, calls_left=chance.randint(0, 25))
    for _ in range(ATTEMPTS - 1):
        with suppress(SluiceSparkError):
            return task(
                world, chain, faults=faults, calls_left=chance.randint(0, 25) if chance.random() < dying else None
            )
        world.now += chance.choice([0.0, VISIBILITY_S + 1])
    return task(world, chain)


@settings(max_examples=40)  # each has some dozens of tasks with event loops of their own
@given(
    reads=st.lists(st.tuples(st.integers(0, 120), st.sampled_from([None, 1, 7, LIMIT])), min_size=1, max_size=3),
    faults=st.sampled_from([0.0, 0.05, 0.3]),
    dying=st.sampled_from([0.0, 0.3, 1.0]),
    times=st.sampled_from([1, 500]),
    seed=st.integers(0, 2**32),
)
def test_reads_whose_tasks_break_in_any_way_lose_and_double_nothing(
    reads: list[tuple[int, int | None]], faults: float, dying: float, times: int, seed: int
) -> None:
    with tempfile.TemporaryDirectory() as staging:
        world, found = world_in(staging, seed), list[str]()
        for sent, limit in [*reads, (0, None)]:
            world.send(sent)
            chains = planned(world, Admission(messages=limit), times)
            world.chance.shuffle(chains)
            rows = [body for chain in chains for body in tried(world, chain, faults=faults, dying=dying)]
            for chain in world.chance.sample(chains, 1):  # a twin that comes late reads the same
                twin = task(world, chain)
                assert len(twin) == len(set(twin))
                assert set(twin) <= set(rows)
            assert limit is None or len(rows) <= limit
            found += rows
            whole(world)
            world.now += 2 * VISIBILITY_S
        rest = [body for chain in planned(world, Admission(), times) for body in task(world, chain)]
        assert sorted(found + rest) == world.sent
        assert not world.queue.known
        view = StagedLog(world.store).view()
        assert view.offset(view.end).totals.messages == len(world.sent)  # no gap, where a reader would stop


def test_a_chain_ends_where_a_segment_has_no_rows_for_whoever_follows_it(tmp_path: Path) -> None:
    world = world_in(str(tmp_path))
    (chain,) = planned(world, Admission())
    assert task(world, chain) == []
    world.send(5)
    assert task(world, chain) == []
    (later,) = planned(world, Admission(), times=1)
    assert task(world, later) == world.sent


def test_a_read_that_is_cut_short_leaves_a_log_without_a_gap_once_all_tasks_have_ended(tmp_path: Path) -> None:
    """As `LIMIT` has it: one task stops after the rows that were wanted, segments ahead of the others."""
    world = world_in(str(tmp_path))
    world.send(LIMIT)
    longer, shorter = planned(world, Admission())
    line = SteadyLine(world, faults=0.0, calls_left=None)
    with closing(links(longer, world.store, lambda: line, OPTIONS)) as rows:  # type: ignore[arg-type, return-value, type-var]  # as a client
        for _ in range(3):
            next(rows)
            world.send(1)
    assert StagedLog(world.store).view().next_number == 2  # the other's are to come
    world.queue.waiting.clear()
    assert task(world, shorter) == []
    assert StagedLog(world.store).view().next_number == 6


def test_what_an_earlier_read_left_undone_is_closed_by_the_next(tmp_path: Path) -> None:
    world = world_in(str(tmp_path))
    world.send(LIMIT)
    *_, last = planned(world, Admission(messages=LIMIT))
    first = task(world, last)  # the others were never begun
    rest = [body for chain in planned(world, Admission(), times=1) for body in task(world, chain)]
    assert sorted(first + rest) == world.sent
    view = StagedLog(world.store).view()
    assert view.offset(view.end).totals.messages == LIMIT


def test_of_two_reads_at_once_the_earlier_fails(tmp_path: Path) -> None:
    """Its rows would be in both: what it has staged stays in the log."""
    world = world_in(str(tmp_path))
    world.send(5)
    (earlier,) = planned(world, Admission())
    (later,) = planned(world, Admission())
    with pytest.raises(Fenced):
        task(world, earlier)
    assert task(world, later) == world.sent
