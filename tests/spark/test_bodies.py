"""Bodies out of their envelopes, and those that can't be."""

import json
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from sluice_spark.formats.bodies import BodyOptions, open_rows, split_bad_rows
from sluice_spark.formats.envelopes import S3Selection
from sluice_spark.log.bad_records import quarantine
from sluice_spark.log.planning import Slice
from sluice_spark.log.store import FileStore


def opened(bodies: list[str], envelope: str) -> pa.RecordBatch:
    batch = pa.RecordBatch.from_pydict({"message_id": [str(n) for n in range(len(bodies))], "body": bodies})
    return open_rows(batch, BodyOptions(envelopes=(envelope,)), S3Selection())


def test_an_envelope_with_several_objects_gives_as_many_rows() -> None:
    def record(key: str) -> dict[str, Any]:
        return {"eventName": "ObjectCreated:Put", "s3": {"bucket": {"name": "b"}, "object": {"key": key}}}

    bodies = [json.dumps({"Records": [record("one"), record("two")]}), '{"Event": "s3:TestEvent"}', "broken"]
    found = opened(bodies, "s3").to_pylist()
    assert [dict(row["envelope"]).get("key") for row in found] == ["one", "two", None]
    assert [row["message_id"] for row in found] == ["0", "0", "2"]
    assert found[2]["body"] == "broken"
    assert "not JSON" in found[2]["bad_reason"]


def test_bad_records_go_to_a_place_of_their_own_once(tmp_path: Any) -> None:
    good, bad = split_bad_rows(opened(['{"Type": "Notification", "Message": "m"}', "x", "y"], "sns"))
    store = FileStore(tmp_path)
    for _ in range(2):
        quarantine(store, Slice(3, 0, 3), bad)
    assert (good.num_rows, [pq.read_metadata(file).num_rows for file in tmp_path.glob("*-2.parquet")]) == (1, [2])
