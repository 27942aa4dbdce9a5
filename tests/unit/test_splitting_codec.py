"""The registry's values as texts and back: whatever the lifecycle can hold comes back equal, and nothing else does."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sluice.splitting.filters.files import Filter, Mode, QueueFilter
from sluice.splitting.sessions.codec import (
    FORMAT,
    UnknownFormat,
    decode_filters,
    decode_queue,
    decode_session,
    decode_split,
    encode,
    encode_filters,
)
from sluice.splitting.sessions.lifecycle import Phase, QueueState, Session, Split, Status, TemporaryQueue

TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
TIMES = st.integers(min_value=0, max_value=2**53)
FILTERS = st.dictionaries(
    TEXTS,
    st.builds(
        QueueFilter,
        filter=st.builds(
            Filter, attributes=st.lists(st.tuples(TEXTS, TEXTS), max_size=3).map(tuple), jq=st.none() | TEXTS
        ),
        mode=st.sampled_from(Mode),
    ),
    max_size=3,
)
SPLITS = st.builds(
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
)
SESSIONS = st.builds(
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
)
QUEUES = st.builds(
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


@given(SPLITS)
def test_a_split_comes_back_as_it_was(split: Split) -> None:
    decoded = decode_split(encode(split))
    assert decoded == split
    assert isinstance(decoded.phase, Phase)


@given(SESSIONS)
def test_a_session_comes_back_as_it_was(session: Session) -> None:
    decoded = decode_session(encode(session))
    assert decoded == session
    assert isinstance(decoded.status, Status)
    # Filters are keys of the router: a list in place of a tuple would be equal to nothing and hash to nothing.
    assert {hash(each.filter) for each in decoded.filters.values()} == {
        hash(each.filter) for each in session.filters.values()
    }


@given(QUEUES)
def test_a_queue_comes_back_as_it_was(queue: TemporaryQueue) -> None:
    decoded = decode_queue(encode(queue))
    assert decoded == queue
    assert isinstance(decoded.state, QueueState)


@given(FILTERS)
def test_filters_come_back_as_they_were_through_plain_json(filters: dict[str, QueueFilter]) -> None:
    assert decode_filters(json.loads(json.dumps(encode_filters(filters)))) == filters


@given(FILTERS)
def test_equal_values_give_equal_texts(filters: dict[str, QueueFilter]) -> None:
    """What is equal isn't written again, so the order of a mapping must not matter."""
    session = _session(filters)
    turned = _session(dict(reversed(filters.items())))
    assert encode(session) == encode(turned)


@pytest.mark.parametrize("written", [None, 0, FORMAT + 1, "1"])
def test_another_format_is_refused(written: Any) -> None:
    fields = json.loads(encode(QUEUE)) | {"format": written}
    with pytest.raises(UnknownFormat, match="format"):
        decode_queue(json.dumps(fields))


@pytest.mark.parametrize("text", ["", "no JSON", '{"format": 1'])
def test_what_is_no_json_is_refused(text: str) -> None:
    with pytest.raises(ValueError):  # noqa: PT011 - the decoder's own words
        decode_queue(text)


def test_a_state_that_nobody_knows_is_refused() -> None:
    fields = json.loads(encode(QUEUE)) | {"state": "evaporated"}
    with pytest.raises(ValueError, match="evaporated"):
        decode_queue(json.dumps(fields))


def _session(filters: dict[str, QueueFilter]) -> Session:
    return Session(session_id="s", key="k", owner="me", started_at_ms=0, filters=filters, heartbeat_at_ms=0)
