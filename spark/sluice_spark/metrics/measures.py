"""Metrics of a query, with the names of FLIP-477 and FLIP-33, computed from its progress. Pure: no Spark, no clock.

The source's offsets contain the cumulative counters, so restarts don't reset them. Values that only tasks know (the
last batch's bad records, messages' times) come from an observation, which `listener.observe_metrics` adds to the frame.
"""

import ast
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import orjson

from sluice_spark.errors import InvalidOffset
from sluice_spark.log.latest import ReceiverStatus
from sluice_spark.log.planning import Offset

OBSERVATION = "sluice_sqs"  # name of Spark's observation
ERRORS, SENT_AT, RECEIVED_AT = "errors", "sent_at", "received_at"  # columns of the observation

UNITS: Mapping[str, str] = {
    "numRecordsIn": "Count",
    "numRecordsInPerSecond": "Count/Second",
    "numRecordsInErrors": "Count",
    "numBytesIn": "Bytes",
    "numBytesInPerSecond": "Bytes/Second",
    "sourceIdleTime": "Milliseconds",
    "currentFetchEventTimeLag": "Milliseconds",
    "currentEmitEventTimeLag": "Milliseconds",
    "pendingRecords": "Count",
    "numSqsDeletionsFailed": "Count",
    "numReceivesFailed": "Count",
    "timeSinceLastReceive": "Milliseconds",
    "stagedRecords": "Count",
    "stagedBytes": "Bytes",
    "waitingRecords": "Count",
    "oldestRecordAge": "Milliseconds",
    "numRequests": "Count",
}
NAMESPACE = "Sluice/Spark"


@dataclass(frozen=True, slots=True, kw_only=True)
class QueryMetrics:
    """Metrics of one SQS source at one time. `values` lacks unknown metrics."""

    query: str
    source: int
    at_ms: int
    values: Mapping[str, float]
    state: str = ""  # The receiver's state: receiving, idle or failing; "" if unknown
    reason: str = ""  # why the receiver is failing


@dataclass(frozen=True, slots=True, kw_only=True)
class ProgressSample:
    """One source's part of a query's progress. The times are the trigger's start and end, in epoch milliseconds."""

    started_ms: int
    ended_ms: int
    start: Offset | None
    end: Offset
    latest: Offset | None = None
    observed: Mapping[str, Any] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """The previous measurement, for comparison with the next sample."""

    at_ms: int
    end: Offset
    busy_ms: int  # duration of the last batch with records
    errors: int = 0
    lags: Mapping[str, float]


def parse_offset(text: Any) -> Offset | None:
    """Parse an SQS source's offset in a progress; None for other sources. Its text is JSON, or a Python dict's repr."""
    if not text or not isinstance(text, str):
        return None
    try:
        try:
            values = json.loads(text)
        except json.JSONDecodeError:
            values = ast.literal_eval(text)
        return Offset.parse(values) if isinstance(values, Mapping) else None
    except (InvalidOffset, SyntaxError, ValueError):
        return None


def measure_trigger(sample: ProgressSample, previous: Reading | None) -> tuple[Reading, Mapping[str, float]]:
    """Measure after a trigger. Returns the reading for the next measurement, and the metrics.

    Rates are averages since the previous reading. The first rates are averages over the trigger.
    """
    since = previous.end if previous else (sample.start or sample.end)
    since_ms = previous.at_ms if previous else sample.started_ms
    seconds = max(sample.ended_ms - since_ms, 1) / 1000
    records = max(0, sample.end.totals.messages - since.totals.messages)
    size = max(0, sample.end.totals.size - since.totals.size)
    observed = sample.observed or {}
    reading = Reading(
        at_ms=sample.ended_ms,
        end=sample.end,
        busy_ms=sample.ended_ms if records or not previous else previous.busy_ms,
        # An offset counts the errors before its batch. Without a batch, a progress has the last batch's offset.
        errors=max(sample.end.errors + int(observed.get(ERRORS) or 0), previous.errors if previous else 0),
        lags=_compute_lags(sample) or (previous.lags if previous else {}),
    )
    rates = {"numRecordsInPerSecond": records / seconds, "numBytesInPerSecond": size / seconds}
    values = _compute_values(reading, rates)
    if sample.latest is not None:
        values["pendingRecords"] = max(0, sample.latest.totals.messages - sample.end.totals.messages)
    return reading, values


def measure_idle(at_ms: int, previous: Reading) -> tuple[Reading, Mapping[str, float]]:
    """Compute the metrics of an idle query: counters stay, rates are zero, the idle time grows."""
    reading = replace(previous, at_ms=max(at_ms, previous.at_ms))
    zero_rates = {"numRecordsInPerSecond": 0.0, "numBytesInPerSecond": 0.0}
    return reading, _compute_values(reading, zero_rates)


def _compute_values(reading: Reading, rates: Mapping[str, float]) -> dict[str, float]:
    return {
        "numRecordsIn": reading.end.totals.messages,
        "numBytesIn": reading.end.totals.size,
        "numRecordsInErrors": reading.errors,
        "numSqsDeletionsFailed": reading.end.deletions_failed,
        "sourceIdleTime": reading.at_ms - reading.busy_ms,
        **rates,
        **reading.lags,
    }


def _compute_lags(sample: ProgressSample) -> dict[str, float]:
    """Compute how old a batch's last message was when it was received, and when the batch ended."""
    observed = sample.observed or {}
    sent, received = observed.get(SENT_AT), observed.get(RECEIVED_AT)
    if sent is None:
        return {}
    lags: dict[str, float] = {"currentEmitEventTimeLag": max(0, sample.ended_ms - sent)}
    if received is not None:
        lags["currentFetchEventTimeLag"] = max(0, received - sent)
    return lags


def convert_receiver_status(status: ReceiverStatus) -> Mapping[str, float]:
    """Convert the receiver's status to metrics."""
    values = {
        "numReceivesFailed": status.receives_failed,
        "timeSinceLastReceive": status.since_good_ms,
        "stagedRecords": status.staged_messages,
        "stagedBytes": status.staged_bytes,
        "numRequests": status.requests,
        "waitingRecords": status.waiting,
        "oldestRecordAge": status.oldest_ms,
    }
    return {name: value for name, value in values.items() if value is not None}


def emf_lines(
    namespace: str = NAMESPACE,
    dimensions: Mapping[str, str] | None = None,
    write: Callable[[str], object] | None = None,
) -> Callable[[QueryMetrics], None]:
    """Return an `emit` function for `MetricsListener`: one EMF line for each source, to stdout unless `write` is given.

    Dimensions are Query (its name, else its id), Source (its index in the query), and the given `dimensions`.
    """
    constant = dict(dimensions or {})

    def emit(metrics: QueryMetrics) -> None:
        health = {"State": metrics.state, "Reason": metrics.reason} if metrics.state else {}
        named = {**constant, "Query": metrics.query, "Source": str(metrics.source)}
        listed = [{"Name": name, "Unit": UNITS[name]} for name in metrics.values]
        directive = {"Namespace": namespace, "Dimensions": [sorted(named)], "Metrics": listed}
        about = {"Timestamp": metrics.at_ms, "CloudWatchMetrics": [directive]}
        text = orjson.dumps({"_aws": about, **named, **health, **metrics.values}).decode()
        write(text) if write else print(text, flush=True)  # noqa: T201  a log stream is where it goes

    return emit
