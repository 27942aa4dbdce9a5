"""What becomes of payloads in S3 once no segment names them any more: they stay, or go before the segments do."""

import logging
from collections.abc import Sequence
from functools import partial

from sluice_spark.formats.payloads import pointers_of
from sluice_spark.formats.s3_objects import removed
from sluice_spark.log.segment_files import Going, left, segment_name
from sluice_spark.log.segments import rows_of
from sluice_spark.log.store import Store
from sluice_spark.options import Options
from sluice_spark.source.objects import objects_of

log = logging.getLogger(__name__)


def payloads_going(options: Options, store: Store) -> Going:
    """Find what is to be done before segments are removed.

    A payload goes first: if we die between the two, the segment is read once more, and the payload is gone already.
    """
    return partial(_payloads_removed, options, store) if options.payload_delete else left


def _payloads_removed(options: Options, store: Store, numbers: Sequence[int]) -> None:
    """Remove what the segments point to. Raises ObjectRefused: then the segments stay too."""
    wanted = options.deserialisation
    for number in numbers:
        keys: dict[str, list[str]] = {}
        for body in rows_of(store.read(segment_name(number))).column("body").to_pylist():
            for pointer in pointers_of(body, wanted.envelopes):
                if pointer.bucket in wanted.payload_buckets:
                    keys.setdefault(pointer.bucket, []).append(pointer.key)
        for bucket, names in keys.items():
            removed(objects_of(options), bucket, names)
            log.info("%d payloads of segment %d are removed from %s", len(names), number, bucket)
