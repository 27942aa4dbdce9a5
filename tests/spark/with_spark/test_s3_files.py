"""Notifications of S3: a row for each object, staged once, and its content by Spark's own readers, as the guide says.

The objects are files: Spark's readers take any file system's paths, and this Spark has no S3.
"""

import gzip
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

SCHEMA = "id bigint, name string, day date, bad_record string"


def record(key: str, number: int = 0) -> dict[str, Any]:
    """What S3 would send."""
    held = {"key": key, "size": 1, "eTag": "e", "sequencer": f"{number:X}"}
    return {"eventName": "ObjectCreated:Put", "s3": {"bucket": {"name": "bucket"}, "object": held}}


def notify(sqs: Any, *records: Any) -> None:
    sqs.queues["q"].fill([json.dumps({"Records": records})], time.time())


@pytest.fixture
def objects(spark: Any, sqs: Any, tmp_path: Path) -> Callable[[], Any]:
    """A bounded read of the queue, as the stream's batches are."""
    place = {"queueUrl": sqs.queue_url("q"), "endpoint": sqs.url, "stagingLocation": str(tmp_path / "staging")}
    return lambda: spark.read.format("sqs").options(**place, waitTimeSeconds="1", envelope="s3").load().collect()


def test_each_object_is_a_row_once_over_messages_and_restarts(sqs: Any, objects: Callable[[], Any]) -> None:
    sqs.queues["q"].fill(['{"Event": "s3:TestEvent"}'], time.time())
    notify(sqs, record("first"))
    notify(sqs, record("first"), record("second"))
    assert sorted(row.envelope["key"] for row in objects()) == ["first", "second"]
    notify(sqs, record("second"))
    notify(sqs, record("first"), record("second", 1))
    assert [row.envelope["key"] for row in objects()] == ["second"]
    assert set(sqs.queues["q"].counts(time.time()).values()) == {0}


def test_spark_s_own_reader_reads_what_they_name(
    spark: Any, sqs: Any, objects: Callable[[], Any], tmp_path: Path
) -> None:
    contents = {
        "in/day=2026-01-02/first.csv": b"id,name\n1,a\nx,b\n",
        "in/day=2026-01-03/second.csv.gz": gzip.compress(b"id,name\n2,c\n"),
    }
    for number, (key, content) in enumerate(contents.items()):
        (tmp_path / key).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / key).write_bytes(content)
        notify(sqs, record(key, number))
    paths = [str(tmp_path / row.envelope["key"]) for row in objects()]
    reader = spark.read.schema(SCHEMA).options(header=True, columnNameOfCorruptRecord="bad_record")
    found = reader.option("basePath", str(tmp_path / "in")).csv(paths)
    rows = found.selectExpr("id", "name", "string(day)", "bad_record", "_metadata.file_name").collect()
    assert sorted(map(tuple, rows), key=lambda row: row[1]) == [
        (1, "a", "2026-01-02", None, "first.csv"),
        (None, "b", "2026-01-02", "x,b", "first.csv"),
        (2, "c", "2026-01-03", None, "second.csv.gz"),
    ]


@pytest.mark.parametrize("schema", ["v variant", "body string"])
def test_a_schema_of_other_columns_is_refused_before_anything_is_received(
    spark: Any, sqs: Any, fill: Any, tmp_path: Path, schema: str
) -> None:
    fill(10)
    given = {"queueUrl": sqs.queue_url("q"), "endpoint": sqs.url, "stagingLocation": str(tmp_path / "staging")}
    with pytest.raises(Exception, match="option 'schema': the columns are message_id string, body string"):
        spark.read.format("sqs").options(**given).schema(schema).load().collect()
    assert sum(sqs.queues["q"].counts(time.time()).values()) == 10
