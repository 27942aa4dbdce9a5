"""Unwraps the envelopes of message bodies, and replaces payload pointers by their payloads. Pure.

Spark parses the content: see `sluice_spark.decoding`. A body that can't be opened has a reason in
`bad_reason` and never fails its task. The result depends only on the row and the options, so a retried task yields
the same rows.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from sluice_spark.formats.envelopes import Dereference, Payload, S3Choice, keep_body, unwrap

ENVELOPE, REASON = "envelope", "bad_reason"

MapBodies = Callable[[Callable[[str], Any], Sequence[str]], Iterable[Any]]  # `map`, or a function like it


@dataclass(frozen=True, slots=True, kw_only=True)
class BodyOptions:
    """How bodies are opened: first their `envelopes`, outermost first, then pointers to payloads.

    `quarantine` is the location for bad records; without it, a column has the reason. `payload_buckets` are the buckets
    from which payloads may be fetched for pointers, in bodies or inside envelopes.
    """

    envelopes: tuple[str, ...] = ()
    quarantine: str | None = None
    payload_buckets: tuple[str, ...] = ()

    @property
    def as_received(self) -> bool:
        """Whether rows stay as they were received."""
        return not self.envelopes and not self.payload_buckets

    @property
    def columns(self) -> Sequence[str]:
        """DDL of the columns besides a message's own columns."""
        envelope = [f"{ENVELOPE} map<string, string>"] if self.envelopes else []
        return [] if self.as_received else [*envelope, f"{REASON} string"]


def open_rows(
    batch: pa.RecordBatch,
    bodies: BodyOptions,
    choice: S3Choice,
    *,
    follow: Dereference = keep_body,
    each: MapBodies = map,
) -> pa.RecordBatch:
    """Open the rows' bodies, and add columns. An envelope with no or several payloads gives as many rows.

    The payload of a bad body is the body itself. `each` is `map`, or a function like it that runs several calls of
    `follow` at once. Raises the errors of `follow` except ValueError.
    """

    def inside(body: str) -> tuple[Sequence[Payload], str | None]:
        try:
            return unwrap(body, bodies.envelopes, choice, follow), None
        except ValueError as error:
            return [Payload(body, {})], str(error)

    opened = list(each(inside, batch.column("body").to_pylist()))
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
    """Split the rows into good and bad rows, in this order."""
    good = batch.column(REASON).is_null()
    return batch.filter(good), batch.filter(batch.column(REASON).is_valid())
