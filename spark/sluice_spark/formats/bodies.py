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

    Raises the errors of `follow` except ValueError.
    """
    indexes, payloads, reasons = open_bodies(
        batch.column("body").to_pylist(), bodies.envelopes, choice, follow=follow, each=each
    )
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


def open_bodies(
    bodies: Sequence[str],
    envelopes: Sequence[str],
    choice: S3Choice,
    *,
    follow: Dereference = keep_body,
    each: MapBodies = map,
) -> tuple[list[int], list[Payload], list[str | None]]:
    """Open the bodies. Returns body indexes, payloads and reasons; the payload of a bad body is the body itself.

    `each` is `map`, or a function like it that runs several calls of `follow` at once.
    """

    def inside(body: str) -> tuple[Sequence[Payload], str | None]:
        try:
            return unwrap(body, envelopes, choice, follow), None
        except ValueError as error:
            return [Payload(body, {})], str(error)

    indexes: list[int] = []
    payloads: list[Payload] = []
    reasons: list[str | None] = []
    for index, (body_payloads, reason) in enumerate(each(inside, bodies)):
        indexes += [index] * len(body_payloads)
        payloads += body_payloads
        reasons += [reason] * len(body_payloads)
    return indexes, payloads, reasons
