import io
import os
import pickle
import sys
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

import pytest
from sluice_spark.errors import InvalidOption
from sluice_spark.options import parse_options

MINIMUM = {"queueUrl": "https://sqs.eu-west-1.amazonaws.com/1/q", "stagingLocation": "/tmp/log"}


def test_how_long_failing_receives_are_waited_for_is_a_time_or_never() -> None:
    given = {"queueUrl": "https://sqs.eu-west-1.amazonaws.com/123456789012/q", "stagingLocation": "/s"}
    assert parse_options(given).failure_timeout_s == 600
    assert parse_options({**given, "failOnReceiveErrorAfter": "5m"}).failure_timeout_s == 300
    assert parse_options({**given, "failOnReceiveErrorAfter": "never"}).failure_timeout_s is None
    with pytest.raises(InvalidOption, match="failOnReceiveErrorAfter"):
        parse_options({**given, "failOnReceiveErrorAfter": "soon"})


def test_names_are_taken_in_any_case() -> None:
    options = parse_options(
        {
            "QUEUEURL": MINIMUM["queueUrl"],
            "staginglocation": "s3://b/p/",
            "maxBytesPerTrigger": "64m",
            "Retention": "2h",
        }
    )
    assert options.queue_urls == (MINIMUM["queueUrl"],)
    assert (options.staging_location, options.read_limit.size, options.retention_s) == ("s3://b/p", 64 * 2**20, 7200)


def test_several_queues() -> None:
    assert parse_options({**MINIMUM, "queueUrl": "http://h/1/a, http://h/1/b"}).queue_urls == (
        "http://h/1/a",
        "http://h/1/b",
    )


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("queueUrl", "q"),
        ("queueUrl", ""),
        ("queueUrl", "http://h/1/a,http://h/1/a"),
        ("stagingLocation", "here"),
        ("stagingLocation", "hdfs://name/p"),
        ("stagingLocation", "gs://"),
        ("maxConnections", "0"),
        ("maxConnections", "many"),
        ("waitTimeSeconds", "0"),
        ("waitTimeSeconds", "21"),
        ("visibilityTimeout", "-1"),
        ("maxBytesPerTrigger", "2 pints"),
        ("maxMessagesPerTrigger", "0"),
        ("retention", "1 fortnight"),
        ("deleteMode", "later"),
        ("mode", "executors"),
        ("roleArn", "me"),
        ("roleArn", "arn:aws:iam::123456789012:role/a,arn:aws:iam::123456789012:role/b"),
        ("roleArn", "arn:aws:iam::123456789012:role/a,arn:aws:iam::210987654321:role/b"),
        ("region", "us-east-1"),
        ("maxMessagePerTrigger", "1"),
        ("rateLimit", "0"),
        ("rateLimit", "fast"),
        ("format", "json"),
        ("schema", "a int"),
        ("badRecords", "somewhere"),
        ("badRecords", "/bad"),
        ("envelope", "paper"),
        ("envelope", "s3,sns"),
        ("s3Glob", "*.csv"),
        ("s3Removed", "perhaps"),
    ],
)
def test_a_complaint_names_its_option(option: str, value: str) -> None:
    with pytest.raises(InvalidOption, match=option) as caught:
        parse_options({**MINIMUM, option: value})
    assert str(pickle.loads(pickle.dumps(caught.value))) == str(caught.value)


def test_a_staging_location_is_needed() -> None:
    with pytest.raises(InvalidOption, match="stagingLocation"):
        parse_options({"queueUrl": MINIMUM["queueUrl"]})


def test_queues_of_several_regions_have_no_endpoint_in_common() -> None:
    urls = ",".join(f"https://sqs.{region}.amazonaws.com/123456789012/q" for region in ("eu-west-1", "us-east-1"))
    assert len(parse_options({**MINIMUM, "queueUrl": urls}).queue_urls) == 2
    with pytest.raises(InvalidOption, match=r"endpoint.*eu-west-1, us-east-1"):
        parse_options({**MINIMUM, "queueUrl": urls, "endpoint": "https://vpce"})
    with pytest.raises(InvalidOption, match=r"region.*us-east-1"):
        parse_options({**MINIMUM, "queueUrl": urls, "region": "eu-west-1"})


def test_of_several_roles_each_is_for_its_account() -> None:
    urls = ",".join(f"https://sqs.eu-west-1.amazonaws.com/{account}/q" for account in ("123456789012", "210987654321"))
    roles = "arn:aws:iam::123456789012:role/a, arn:aws:iam::210987654321:role/b"
    options = parse_options({**MINIMUM, "queueUrl": urls, "roleArn": roles})
    assert [options.identity.for_queue(url).role_arn for url in options.queue_urls] == roles.split(", ")
    with pytest.raises(InvalidOption, match="roleArn"):
        parse_options({**MINIMUM, "queueUrl": urls, "roleArn": roles, "payloadBuckets": "payloads"})


def test_a_fifo_queue_goes_on_only_once_messages_are_deleted() -> None:
    with pytest.raises(InvalidOption, match="deleteMode"):
        parse_options({**MINIMUM, "queueUrl": "http://h/1/a.fifo", "deleteMode": "none"})


def test_payload_options() -> None:
    options = parse_options({**MINIMUM, "ENVELOPE": "sns, S3", "s3glob": "*.json"})
    assert options.bodies.envelopes == ("sns", "s3")
    assert options.s3.glob == "*.json"


@pytest.mark.parametrize("option", ["mode", "format", "descriptorFile", "s3Format", "s3Backfill"])
def test_what_is_not_offered_any_more_is_unknown(option: str) -> None:
    with pytest.raises(InvalidOption, match=f"'{option}': unknown; there are"):
        parse_options({**MINIMUM, option: "json"})


@pytest.mark.parametrize("envelope", ["none", "sns"])
def test_a_schema_of_the_users_is_the_sources_or_is_refused_before_anything_is_received(envelope: str) -> None:
    types = pytest.importorskip("pyspark.sql.types", reason="make test-spark has it")
    data_source = pytest.importorskip("sluice_spark.data_source")
    text, number, time = types.StringType(), types.IntegerType(), types.TimestampType()
    attribute = types.StructType().add("type", text).add("string", text).add("binary", types.BinaryType())
    columns = {
        "message_id": text, "body": text, "attributes": types.MapType(text, attribute), "message_group_id": text,
        "message_deduplication_id": text, "sequence_number": text, "sent_at": time, "first_received_at": time,
        "receive_count": number, "sender_id": text, "queue_url": text, "trace_header": text,
        "dead_letter_queue_source_arn": text,
    }  # fmt: skip
    if envelope != "none":
        columns |= {"envelope": types.MapType(text, text), "bad_reason": text}
    source = data_source.SqsDataSource({**MINIMUM, "envelope": envelope})

    def read(columns: dict[str, Any]) -> None:
        schema = types.StructType([types.StructField(*column) for column in columns.items()])
        source.reader(schema)
        source.streamReader(schema)

    read(columns)
    wrong = [{**columns, "body": types.VariantType()}, {**columns, "receive_count": types.LongType()}]
    for other in [*wrong, {"v": types.VariantType()}, {"body": text}, {**columns, "more": text}]:
        with pytest.raises(InvalidOption, match="'schema': the columns are message_id string, body string"):
            read(other)


@pytest.mark.parametrize("method", ["schema", "reader", "streamReader", "writer", "streamWriter"])
@pytest.mark.parametrize("of_spark", [True, False])
def test_a_malformed_option_is_one_line_in_a_notebook(
    method: str, of_spark: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As Spark's worker reports it, with what Spark puts around it: a user's own process keeps its stacks."""
    util, types = pytest.importorskip("pyspark.util"), pytest.importorskip("pyspark.sql.types")
    data_source = pytest.importorskip("sluice_spark.data_source")
    program = ModuleType("__main__")
    program.__spec__ = ModuleSpec("pyspark.daemon" if of_spark else "notebook", None)
    monkeypatch.setitem(sys.modules, "__main__", program)
    monkeypatch.setattr(os, "environ", {})
    source = data_source.SqsDataSource({**MINIMUM, "nope": "1"})
    schema = types.StructType([types.StructField("body", types.StringType())])
    arguments = {"schema": (), "reader": (schema,), "streamReader": (schema,)}.get(method, (schema, False))
    reported = io.BytesIO()
    try:
        getattr(source, method)(*arguments)
    except InvalidOption as error:
        util.handle_worker_exception(error, reported)
    text = reported.getvalue()[8:].decode()  # after a mark and the length
    assert text.startswith("sluice_spark.errors.InvalidOption: option " if of_spark else "Traceback")
    assert (len(text.splitlines()) == 1) is of_spark
