import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sluice_spark.log.latest import ReceiverStatus
from sluice_spark.log.planning import Offset, Position, Totals
from sluice_spark.metrics.measures import (
    UNITS,
    ProgressSample,
    QueryMetrics,
    Reading,
    convert_receiver_status,
    emf_lines,
    measure_idle,
    measure_trigger,
    parse_offset,
)


def offset(messages: int, size: int = 0, failed: int = 0) -> Offset:
    return Offset(position=Position(1), totals=Totals(messages=messages, size=size), deletions_failed=failed)


def sample(end: Offset, at_ms: int = 2_000, **more: Any) -> ProgressSample:
    return ProgressSample(**{"started_ms": at_ms - 1_000, "ended_ms": at_ms, "start": None, "end": end, **more})


def test_the_first_progress_counts_from_the_log_and_rates_its_own_trigger() -> None:
    _, values = measure_trigger(sample(offset(300, 3_000, 2), start=offset(100, 1_000)), None)
    assert values == {
        "numRecordsIn": 300,
        "numBytesIn": 3_000,
        "numRecordsInErrors": 0,
        "numSqsDeletionsFailed": 2,
        "sourceIdleTime": 0,
        "numRecordsInPerSecond": 200,
        "numBytesInPerSecond": 2_000,
    }


def test_rates_are_means_since_the_progress_before() -> None:
    before, _ = measure_trigger(sample(offset(100, 1_000)), None)
    _, values = measure_trigger(sample(offset(500, 5_000), at_ms=6_000), before)
    assert (values["numRecordsInPerSecond"], values["numBytesInPerSecond"]) == (100, 1_000)


def test_the_idle_time_grows_until_records_come() -> None:
    reading, _ = measure_trigger(sample(offset(100), at_ms=2_000), None)
    reading, values = measure_trigger(sample(offset(100), at_ms=5_000), reading)
    assert values["sourceIdleTime"] == 3_000
    reading, values = measure_idle(9_000, reading)
    assert (values["sourceIdleTime"], values["numRecordsIn"], values["numRecordsInPerSecond"]) == (7_000, 100, 0)
    _, values = measure_trigger(sample(offset(101), at_ms=10_000), reading)
    assert values["sourceIdleTime"] == 0


def test_lags_are_of_the_last_message_and_stay_until_the_next() -> None:
    times = {"errors": 1, "sent_at": 1_200, "received_at": 1_500}
    reading, values = measure_trigger(sample(offset(1), observed=times), None)
    assert (values["currentFetchEventTimeLag"], values["currentEmitEventTimeLag"]) == (300, 800)
    nothing = {"errors": 0, "sent_at": None, "received_at": None}
    reading, values = measure_trigger(sample(offset(1), at_ms=9_000, observed=nothing), reading)
    assert (values["currentFetchEventTimeLag"], values["currentEmitEventTimeLag"]) == (300, 800)
    assert values["numRecordsInErrors"] == 1


def test_what_was_not_observed_is_not_reported() -> None:
    _, values = measure_trigger(sample(offset(1)), None)
    assert not {"currentFetchEventTimeLag", "pendingRecords"} & set(values)


def test_bad_records_stand_in_the_offset_but_those_of_the_batch_itself() -> None:
    reading, values = measure_trigger(sample(replace(offset(10), errors=4)), None)
    assert values["numRecordsInErrors"] == 4
    reading, values = measure_trigger(sample(replace(offset(20), errors=5), observed={"errors": 2}), reading)
    assert values["numRecordsInErrors"] == 7
    _, values = measure_trigger(sample(replace(offset(20), errors=5)), reading)
    assert values["numRecordsInErrors"] == 7


def test_what_is_staged_and_not_read_is_pending() -> None:
    _, values = measure_trigger(sample(offset(10), latest=offset(25)), None)
    assert values["pendingRecords"] == 15


@given(st.lists(st.tuples(st.integers(0, 50), st.integers(0, 3), st.integers(0, 5_000)), min_size=1))
def test_counters_never_fall_and_every_metric_has_a_unit(steps: Sequence[tuple[int, int, int]]) -> None:
    reading: Reading | None = None
    end, at_ms, known, seen = offset(0), 1_000, 0, list[Mapping[str, float]]()
    for messages, errors, later_ms in steps:
        at_ms += later_ms
        end = offset(end.totals.messages + messages, end.totals.size + 7 * messages, end.deletions_failed + errors)
        reading, values = measure_trigger(
            sample(replace(end, errors=known), at_ms=at_ms, observed={"errors": errors}), reading
        )
        known += errors
        seen.append(values)
        assert set(values) <= set(UNITS)
        assert all(value >= 0 for value in values.values())
    for name in ("numRecordsIn", "numBytesIn", "numSqsDeletionsFailed", "numRecordsInErrors"):
        counts = [values[name] for values in seen]
        assert counts == sorted(counts)
    assert seen[-1]["numRecordsInErrors"] == sum(errors for _, errors, _ in steps)


def test_offsets_are_read_as_json_and_as_pyspark_writes_them() -> None:
    found = offset(5, 50, 1)
    assert parse_offset(json.dumps(found.json())) == parse_offset(str(found.json())) == found


@pytest.mark.parametrize("text", [None, "", "null", "-", '{"a": 1}', "[1]", "{", "__import__('os')", 7])
def test_offsets_of_other_sources_are_passed_over(text: Any) -> None:
    assert parse_offset(text) is None


def test_an_emf_line_is_one_document_that_names_what_it_carries() -> None:
    lines = list[str]()
    values = {"numRecordsIn": 5, "numBytesInPerSecond": 2.5}
    emf_lines("N", write=lines.append)(QueryMetrics(query="q", source=0, at_ms=1_700_000_000_000, values=values))
    (text,) = lines
    assert "\n" not in text
    assert json.loads(text) == {
        "_aws": {
            "Timestamp": 1_700_000_000_000,
            "CloudWatchMetrics": [
                {
                    "Namespace": "N",
                    "Dimensions": [["Query", "Source"]],
                    "Metrics": [
                        {"Name": "numRecordsIn", "Unit": "Count"},
                        {"Name": "numBytesInPerSecond", "Unit": "Bytes/Second"},
                    ],
                }
            ],
        },
        "Query": "q",
        "Source": "0",
        "numRecordsIn": 5,
        "numBytesInPerSecond": 2.5,
    }


def test_emf_lines_go_to_stdout(capsys: pytest.CaptureFixture[str]) -> None:
    at_ms = int(datetime(2026, 9, 1, tzinfo=UTC).timestamp() * 1000)
    emf_lines()(QueryMetrics(query="orders", source=1, at_ms=at_ms, values={"numRecordsIn": 1}))
    document = json.loads(capsys.readouterr().out)
    assert (document["Query"], document["Source"], document["numRecordsIn"]) == ("orders", "1", 1)


def test_what_the_receiver_says_is_measured() -> None:
    first = ReceiverStatus(
        at_ms=60_000, began_ms=0, state="receiving", requests=1_000, staged_bytes=7, staged_messages=2
    )
    later = replace(first, at_ms=120_000, requests=1_500, waiting=9, oldest_ms=300, receives_failed=1)
    assert convert_receiver_status(later) == {
        "numReceivesFailed": 1,
        "timeSinceLastReceive": 0,
        "stagedRecords": 2,
        "stagedBytes": 7,
        "waitingRecords": 9,
        "oldestRecordAge": 300,
        "numRequests": 1_500,
    }
    assert set(convert_receiver_status(later)) <= set(UNITS)
