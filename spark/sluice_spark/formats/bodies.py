"""Unwraps the envelopes of message bodies, and replaces payload pointers by their payloads. Pure.

Spark parses the content: see `sluice_spark.decoding`. If a body can't be opened, column `bad_reason` has the reason,
and the task doesn't fail. The result depends only on the row and the options, so a retried task yields the same rows.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from sluice_spark.formats.envelopes import Dereference, Payload, S3Selection, keep_body, unwrap

ENVELOPE, REASON = "envelope", "bad_reason"

MapBodies = Callable[[Callable[[str], Any], Sequence[str]], Iterable[Any]]  # `map`, or a function with the same result


@dataclass(frozen=True, slots=True, kw_only=True)
class BodyOptions:
    """How bodies are opened: first their `envelopes`, outermost first, then pointers to payloads.

    `quarantine` is the location for bad records; without a quarantine, bad records stay among the rows, with a reason.
    Pointers, in bodies or inside envelopes, may name payloads in `payload_buckets` only.
    """

    envelopes: tuple[str, ...] = ()
    quarantine: str | None = None
    payload_buckets: tuple[str, ...] = ()

    @property
    def keeps_bodies_as_received(self) -> bool:
        """Whether bodies stay as they were received, without a step of this module."""
        return not self.envelopes and not self.payload_buckets

    @property
    def columns(self) -> Sequence[str]:
        """DDL of the columns that opening adds to a message's columns."""
        envelope = [f"{ENVELOPE} map<string, string>"] if self.envelopes else []
        return [] if self.keeps_bodies_as_received else [*envelope, f"{REASON} string"]


def open_rows(
    batch: pa.RecordBatch,
    bodies: BodyOptions,
    choice: S3Selection,
    *,
    dereference: Dereference = keep_body,
    map_bodies: MapBodies = map,
) -> pa.RecordBatch:
    """Open the rows' bodies, and add columns. The result has one row per payload: an envelope may have none or several.

    The payload of a bad body is the body itself. `map_bodies` is `map`, or an equivalent function with concurrent calls
    of `dereference`. Raises its errors except ValueError.
    """

    def unwrap_body(body: str) -> tuple[Sequence[Payload], str | None]:
        try:
            return unwrap(body, bodies.envelopes, choice, dereference), None
        except ValueError as error:
            return [Payload(body, {})], str(error)

    opened = list(map_bodies(unwrap_body, batch.column("body").to_pylist()))
    indexes = [index for index, (inner, _) in enumerate(opened) for _ in inner]
    payloads = [payload for inner, _ in opened for payload in inner]
    reasons = [reason for inner, reason in opened for _ in inner]
    taken = batch.take(pa.array(indexes, pa.int64()))
    names, columns = list(taken.schema.names), list(taken.columns)
    columns[names.index("body")] = pa.array([payload.body for payload in payloads], pa.string())
    if bodies.envelopes:
        names.append(ENVELOPE)
        facts = [list(payload.facts.items()) for payload in payloads]
        columns.append(pa.array(facts, pa.map_(pa.string(), pa.string())))
    return pa.RecordBatch.from_arrays([*columns, pa.array(reasons, pa.string())], names=[*names, REASON])


def split_bad_rows(batch: pa.RecordBatch) -> tuple[pa.RecordBatch, pa.RecordBatch]:
    """Split the rows; returns the good rows, then the bad rows."""
    good = batch.column(REASON).is_null()
    return batch.filter(good), batch.filter(batch.column(REASON).is_valid())
