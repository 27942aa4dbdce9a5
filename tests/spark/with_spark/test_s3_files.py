"""Notifications of S3 to a table of the objects' records: one query, with a restart, on moto's S3."""

import gzip
import json
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import boto3
import pytest
from botocore.config import Config

BUCKET = "bucket"
SCHEMA = "id int, name string, day date"


@pytest.fixture
def s3() -> Iterator[Any]:
    s3_server = pytest.importorskip("tests.spark.s3_server", reason="needs moto: make test-spark has it")
    with s3_server.running() as server:
        path = Config(s3={"addressing_style": "path"})
        server.client = boto3.client("s3", endpoint_url=server.url, region_name="eu-west-1", config=path)
        where = {"LocationConstraint": "eu-west-1"}
        server.client.create_bucket(Bucket=BUCKET, CreateBucketConfiguration=where)
        yield server


def put(s3: Any, key: str, content: bytes) -> dict[str, Any]:
    """The record that S3 would send."""
    tag = s3.client.put_object(Bucket=BUCKET, Key=key, Body=content)["ETag"].strip('"')
    held = {"key": key, "size": len(content), "eTag": tag, "sequencer": f"{time.time_ns():X}"}
    event = {"eventName": "ObjectCreated:Put", "eventTime": datetime.now(UTC).isoformat()}
    return {**event, "s3": {"bucket": {"name": BUCKET}, "object": held}}


def notify(sqs: Any, *records: Any) -> None:
    sqs.queues["q"].fill([json.dumps({"Records": records})], time.time())


def gets(s3: Any) -> list[str]:
    """The objects that were read."""
    asked = [path.rpartition("/")[2] for method, path, _ in s3.requests if method == "GET"]
    return [name for name in asked if "list-type" not in name]


@pytest.fixture
def options(sqs: Any, s3: Any, tmp_path: Path) -> dict[str, str]:
    place = {"queueUrl": sqs.queue_url("q"), "endpoint": sqs.url, "stagingLocation": str(tmp_path / "staging")}
    return {
        **place,
        "waitTimeSeconds": "1",
        "envelope": "s3",
        "s3Format": "csv",
        "schema": SCHEMA,
        "s3Endpoint": s3.url,
    }


@pytest.mark.slow
def test_each_object_is_read_once_over_the_bucket_messages_and_a_restart(
    spark: Any, sqs: Any, s3: Any, options: dict[str, str], tmp_path: Path
) -> None:
    options["s3Backfill"] = f"s3://{BUCKET}/in/"
    put(s3, "in/day=2026-01-01/zero.csv", b"0,z\n")

    def run(rows: int) -> None:
        frame = spark.readStream.format("sqs").options(**options).load()
        writer = frame.writeStream.format("parquet").option("checkpointLocation", str(tmp_path / "checkpoint"))
        query = writer.start(str(tmp_path / "out"))
        try:
            deadline = time.monotonic() + 120
            while len(table()) < rows or any(sqs.queues["q"].counts(time.time()).values()):
                assert time.monotonic() < deadline
                assert query.exception() is None
                query.processAllAvailable()
        finally:
            query.stop()

    def table() -> list[Any]:
        value = "struct<id: int, name: string, day: date>"
        given = f"message_id string, envelope map<string, string>, value {value}, bad_reason string"
        return list(spark.read.schema(given).parquet(str(tmp_path / "out")).collect())

    sqs.queues["q"].visibility_s = 3  # of what a receive took that the first run no longer awaits
    first = put(s3, "in/day=2026-01-02/first.csv", b"1,a\nx,b\n2,c\n")
    second = put(s3, "in/day=2026-01-03/second.csv.gz", gzip.compress(b"3,d\n"))
    sqs.queues["q"].fill(['{"Event": "s3:TestEvent"}'], time.time())
    notify(sqs, first)
    notify(sqs, first, second)
    run(5)
    third = put(s3, "in/third.csv", b"4,e,2026-01-04\n")
    gone = put(s3, "in/gone.csv", b"5,f,\n")
    s3.client.delete_object(Bucket=BUCKET, Key="in/gone.csv")
    notify(sqs, second)
    notify(sqs, first, third, gone)
    run(7)

    good = sorted((row.value.id, row.value.name, str(row.value.day)) for row in table() if row.bad_reason is None)
    assert good == [
        (0, "z", "2026-01-01"), (1, "a", "2026-01-02"), (2, "c", "2026-01-02"), (3, "d", "2026-01-03"),
        (4, "e", "2026-01-04"),
    ]  # fmt: skip
    bad = sorted(row.bad_reason for row in table() if row.bad_reason)
    assert [reason.partition(":")[0] for reason in bad] == ["line 2", "s3"]
    assert bad[1] == "s3://bucket/in/gone.csv is gone: NoSuchKey"
    assert sorted(gets(s3)) == ["first.csv", "gone.csv", "second.csv.gz", "third.csv", "zero.csv"]
    assert set(sqs.queues["q"].counts(time.time()).values()) == {0}


def test_bad_records_go_to_a_table_and_a_bounded_read_sees_the_log_again(
    spark: Any, sqs: Any, s3: Any, options: dict[str, str], tmp_path: Path
) -> None:
    lines = b"".join(b"%d,a,\n" % number if number % 1000 else b"bad\n" for number in range(10_000))
    notify(sqs, put(s3, "f.csv", lines))
    given = {**options, "badRecords": str(tmp_path / "bad")}
    assert spark.read.format("sqs").options(**given).load().selectExpr("sum(value.id)").collect()[0][0] == sum(
        number for number in range(10_000) if number % 1000
    )
    bad = spark.read.parquet(str(tmp_path / "bad")).collect()
    assert sorted(int(row.bad_reason.split()[1].strip(":")) for row in bad) == [1000 * n + 1 for n in range(10)]
    again = {name: value for name, value in options.items() if name not in {"queueUrl", "endpoint"}}
    assert spark.read.format("sqs").options(**again).load().count() == 10_000


def test_a_missing_object_fails_the_query_where_that_is_asked_for(
    spark: Any, sqs: Any, options: dict[str, str]
) -> None:
    notify(sqs, {"eventName": "ObjectCreated:Put", "s3": {"bucket": {"name": BUCKET}, "object": {"key": "no"}}})
    with pytest.raises(Exception, match="s3://bucket/no is gone: NoSuchKey"):
        spark.read.format("sqs").options(**options, s3Missing="fail").load().collect()


def test_nested_columns_of_csv_are_refused(spark: Any, options: dict[str, str]) -> None:
    given = {**options, "schema": "a array<int>"}
    with pytest.raises(Exception, match="CSV has no nested columns: a"):
        spark.read.format("sqs").options(**given).load().collect()
