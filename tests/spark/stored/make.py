"""Values of every kind that the Spark packages store, as they write it: `python -m tests.spark.stored.make FOLDER`.

Run once for each version of a format, into a new folder beside the others; what is there stays as it is, and
test_stored reads it. What a table's log is, Delta Lake's protocol says.
"""

import json
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[3] / "spark"))

import pyarrow as pa
from sluice_spark.log.bad_records import quarantine, write_error_count
from sluice_spark.log.latest import ReceiverStatus, write_status
from sluice_spark.log.planning import Offset, Position, Slice, Totals
from sluice_spark.log.segments import EMPTY, Header, build_rows, publish
from sluice_spark.log.store import FileStore
from sluice_spark.sqs.received import Received, parse_messages

QUEUE = "https://sqs.eu-west-1.amazonaws.com/123456789012/orders.fifo"
SYSTEM = {
    "MessageGroupId": "g",
    "MessageDeduplicationId": "d",
    "SequenceNumber": "18870000000000000001",
    "SentTimestamp": "1700000000000",
    "ApproximateFirstReceiveTimestamp": "1700000001000",
    "ApproximateReceiveCount": "2",
    "SenderId": "AIDA",
    "AWSTraceHeader": "Root=1-00000000-000000000000000000000000",
    "DeadLetterQueueSourceArn": "arn:aws:sqs:eu-west-1:123456789012:source.fifo",
}
ATTRIBUTES = {
    "colour": {"DataType": "String", "StringValue": "red"},
    "blob": {"DataType": "Binary", "BinaryValue": "AAE="},
}
MESSAGES = (
    {"MessageId": "m-1", "Body": "one", "Attributes": SYSTEM, "MessageAttributes": ATTRIBUTES},
    {"MessageId": "m-2", "Body": "zwö"},
)
OFFSET = Offset(
    position=Position(3, 2),
    totals=Totals(messages=12, size=345),
    deletions_failed=1,
    errors=2,
    errors_counted_to=Position(3),
)


def main(folder: Path) -> None:
    """Write them all."""
    staging = FileStore(folder / "staging")
    received = [Received(QUEUE, parse_messages(json.dumps({"Messages": MESSAGES}).encode()))]
    publish(staging, Header(number=0, epoch=0, writer="w0", published_ms=1_700_000_002_000), EMPTY)
    own = Header(number=1, epoch=0, writer="w0", published_ms=1_700_000_003_000, messages=2, size=7, deletions_failed=1)
    publish(staging, own, pa.Table.from_batches([build_rows(received)]))
    write_status(
        staging,
        ReceiverStatus(
            at_ms=1_700_000_005_000, began_ms=1_700_000_000_000, state="failing", reason="Timeout", requests=7
        ),
    )
    write_error_count(staging, Slice(1, 0, 2), errors=1)
    bad = pa.RecordBatch.from_pydict({"body": ["{"], "bad_record": ["not JSON"]})
    quarantine(staging, Slice(1, 0, 2), bad)
    (folder / "offset.json").write_text(json.dumps(OFFSET.json()))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
