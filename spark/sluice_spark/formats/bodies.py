"""What a body becomes before Spark has it: out of its envelopes, with its payload fetched. Pure.

What a body means is Spark's to read: see `sluice_spark.decoding`. A body that can't be opened has a reason in
`bad_reason`; it never fails its task. What a row becomes follows from the row and the options alone, so a task tried
again gives the same.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from sluice_spark.formats.envelopes import Follow, S3Choice, Unwrapped, itself, unwrapped

ENVELOPE, VALUE, REASON = "envelope", "value", "bad_reason"

Each = Callable[[Callable[[str], Any], Sequence[str]], Iterable[Any]]  # `map`, or as it


@dataclass(frozen=True, slots=True, kw_only=True)
class Bodies:
    """How bodies are opened: first their `envelopes`, outermost first.

    `quarantine`: where bad records go instead of the column. `payload_buckets`: whence payloads come to which bodies,
    or what envelopes hold, are pointers.
    """

    envelopes: tuple[str, ...] = ()
    quarantine: str | None = None
    payload_buckets: tuple[str, ...] = ()

    @property
    def as_received(self) -> bool:
        """Whether rows are as they were received."""
        return not self.envelopes and not self.payload_buckets

    @property
    def columns(self) -> Sequence[str]:
        """DDL of the columns beside a message's own."""
        envelope = [f"{ENVELOPE} map<string, string>"] if self.envelopes else []
        return [] if self.as_received else [*envelope, f"{REASON} string"]


def open_rows(
    batch: pa.RecordBatch, bodies: Bodies, choice: S3Choice, *, follow: Follow = itself, each: Each = map
) -> pa.RecordBatch:
    """Open the rows' bodies, and add columns; fewer or more rows where an envelope holds none or several.

    Raises what `follow` raises, but ValueError.
    """
    indexes, payloads, reasons = opened(
        batch.column("body").to_pylist(), bodies.envelopes, choice, follow=follow, each=each
    )
    taken = batch.take(pa.array(indexes, pa.int64()))
    names, columns = list(taken.schema.names), list(taken.columns)
    columns[names.index("body")] = pa.array([each.body for each in payloads], pa.string())
    if bodies.envelopes:
        names.append(ENVELOPE)
        columns.append(facts_of(payloads))
    return pa.RecordBatch.from_arrays([*columns, pa.array(reasons, pa.string())], names=[*names, REASON])


def split(batch: pa.RecordBatch) -> tuple[pa.RecordBatch, pa.RecordBatch]:
    """Part the good rows from the bad, which come second."""
    good = batch.column(REASON).is_null()
    return batch.filter(good), batch.filter(batch.column(REASON).is_valid())


def opened(
    bodies: Sequence[str], envelopes: Sequence[str], choice: S3Choice, *, follow: Follow = itself, each: Each = map
) -> tuple[list[int], list[Unwrapped], list[str | None]]:
    """Open the bodies: payloads, each with the index of its body, and why it is none: then it is the body itself.

    `each`: `map`, or one that has `follow` wait for several at once.
    """

    def inside(body: str) -> tuple[Sequence[Unwrapped], str | None]:
        try:
            return unwrapped(body, envelopes, choice, follow), None
        except ValueError as error:
            return [Unwrapped(body, {})], str(error)

    indexes: list[int] = []
    payloads: list[Unwrapped] = []
    reasons: list[str | None] = []
    for index, (found, reason) in enumerate(each(inside, bodies)):
        indexes += [index] * len(found)
        payloads += found
        reasons += [reason] * len(found)
    return indexes, payloads, reasons


def facts_of(payloads: Sequence[Unwrapped]) -> pa.Array:
    """Make the column `envelope`."""
    return pa.array([list(each.facts.items()) for each in payloads], pa.map_(pa.string(), pa.string()))
