"""The registry's values as texts and back: whatever the lifecycle can hold comes back equal, and nothing else does."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import UNSET

from sluice.codec import decode, encode
from sluice.errors import BadSnapshot
from sluice.splitting.filters.values import Filter, Mode, QueueFilter
from sluice.splitting.sessions.state import (
    SESSIONS,
    SPLITS,
    TEMPORARY_QUEUES,
    Phase,
    QueueState,
    Session,
    Split,
    Status,
    TemporaryQueue,
)

TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
TIMES = st.integers(min_value=0, max_value=2**53)
LINES = st.just(UNSET) | st.lists(TEXTS, min_size=1, max_size=3).map(tuple)
FILTERS = st.dictionaries(
    TEXTS,
    st.builds(
        QueueFilter,
        filter=st.builds(
            Filter,
            attributes=st.lists(st.tuples(TEXTS, TEXTS), max_size=3).map(tuple),
            all_of=LINES,
            any_of=LINES,
            jq=st.none() | TEXTS,
        ),
        mode=st.sampled_from(Mode),
    ),
    max_size=3,
)
ANY_SPLIT = st.builds(
    Split,
    queue_id=TEXTS,
    source=TEXTS,
    static=st.booleans(),
    main=st.none() | TEXTS,
    consumer_at=st.none() | TEXTS,
    drain_timeout_s=st.none() | TIMES,
    phase=st.sampled_from(Phase),
    phase_since_ms=TIMES,
    quiet_since_ms=st.none() | TIMES,
    released_at_version=TIMES,
    is_drain_over=st.booleans(),
    not_moved=TEXTS,
    lingers_until_ms=TIMES,
)
ANY_SESSION = st.builds(
    Session,
    session_id=TEXTS,
    key=TEXTS,
    owner=TEXTS,
    started_at_ms=TIMES,
    filters=FILTERS,
    heartbeat_at_ms=TIMES,
    time_limit_s=st.none() | TIMES,
    status=st.sampled_from(Status),
    reason=TEXTS,
    changed_at_version=TIMES,
    changed_at_ms=TIMES,
    ended_at_ms=st.none() | TIMES,
    name=TEXTS,
    linger_s=TIMES,
)
ANY_QUEUE = st.builds(
    TemporaryQueue,
    name=TEXTS,
    queue_id=TEXTS,
    session_id=st.none() | TEXTS,
    mirror=st.booleans(),
    state=st.sampled_from(QueueState),
    condemned=st.booleans(),
    returned=TIMES,
)
QUEUE = TemporaryQueue(name="tmp", queue_id="q")


@given(ANY_SPLIT)
def test_a_split_comes_back_as_it_was(split: Split) -> None:
    decoded = SPLITS.from_text(SPLITS.text(split))
    assert decoded == split
    assert isinstance(decoded.phase, Phase)


@given(ANY_SESSION)
def test_a_session_comes_back_as_it_was(session: Session) -> None:
    decoded = SESSIONS.from_text(SESSIONS.text(session))
    assert decoded == session
    assert isinstance(decoded.status, Status)
    # Filters are keys of the router: a list in place of a tuple would be equal to nothing and hash to nothing.
    assert {hash(each.filter) for each in decoded.filters.values()} == {
        hash(each.filter) for each in session.filters.values()
    }


@given(ANY_QUEUE)
def test_a_queue_comes_back_as_it_was(queue: TemporaryQueue) -> None:
    decoded = TEMPORARY_QUEUES.from_text(TEMPORARY_QUEUES.text(queue))
    assert decoded == queue
    assert isinstance(decoded.state, QueueState)


@given(FILTERS)
def test_filters_come_back_as_they_were_through_plain_json(filters: dict[str, QueueFilter]) -> None:
    assert decode(json.dumps(json.loads(encode(filters))), dict[str, QueueFilter], of="filters") == filters


@given(FILTERS)
def test_equal_values_give_equal_texts(filters: dict[str, QueueFilter]) -> None:
    """What is equal isn't written again, so the order of a mapping must not matter."""
    session = _session(filters)
    turned = _session(dict(reversed(filters.items())))
    assert SESSIONS.text(session) == SESSIONS.text(turned)


@pytest.mark.parametrize("written", [None, 0, TEMPORARY_QUEUES.version + 1, "1"])
def test_another_format_is_refused(written: Any) -> None:
    fields = json.loads(TEMPORARY_QUEUES.text(QUEUE)) | {"version": written}
    with pytest.raises(BadSnapshot, match="version"):
        TEMPORARY_QUEUES.from_text(json.dumps(fields))


@pytest.mark.parametrize("text", ["", "no JSON", '{"kind": "temporary queue", "version": 1'])
def test_what_is_no_json_is_refused(text: str) -> None:
    with pytest.raises(BadSnapshot, match="temporary queue: "):
        TEMPORARY_QUEUES.from_text(text)


def test_a_state_that_nobody_knows_is_refused() -> None:
    text = TEMPORARY_QUEUES.text(QUEUE)
    with pytest.raises(BadSnapshot, match="evaporated"):
        TEMPORARY_QUEUES.from_text(text.replace("planned", "evaporated"))


@pytest.mark.parametrize(
    "asked",
    [
        Filter(attributes=tuple((str(number), "a") for number in range(65))),
        Filter(attributes=(("a", "x" * 4_097),)),
        Filter(jq="x" * 16_385),
        Filter(any_of=("a",) * 65),
        Filter(all_of=("x" * 4_097,)),
    ],
)
def test_filters_over_their_limits_are_refused_by_who_reads_them(asked: Filter) -> None:
    with pytest.raises(BadSnapshot, match=r"session: Expected .* of length <="):
        SESSIONS.from_text(SESSIONS.text(_session({"q": QueueFilter(filter=asked)})))


def test_a_filter_without_patterns_on_lines_is_written_as_ever() -> None:
    """Programs before them read it, and are told of no field that they don't know."""
    assert json.loads(encode(Filter(attributes=(("a", "b"),)))) == {"attributes": [["a", "b"]], "jq": None}


def _session(filters: dict[str, QueueFilter]) -> Session:
    return Session(session_id="s", key="k", owner="me", started_at_ms=0, filters=filters, heartbeat_at_ms=0)
