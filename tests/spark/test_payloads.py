"""Bodies that are elsewhere: pointers of SQS's Extended Client, as its libraries write them."""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import botocore.session
import pyarrow as pa
import pytest
from botocore.exceptions import BotoCoreError, ClientError, EndpointConnectionError
from hypothesis import given
from hypothesis import strategies as st
from sluice_spark.errors import InvalidOption, ObjectRefused, ObjectUnreadable
from sluice_spark.formats.payloads import PARALLEL_FETCHES, parse_pointer, split_by_pointers
from sluice_spark.formats.s3_objects import Pointer, fetch_object, open_s3_client
from sluice_spark.log.staging import StagedLog
from sluice_spark.log.store import FileStore
from sluice_spark.options import parse_options
from sluice_spark.sqs.access import Identity
from sluice_spark.sqs.received import Received, parse_messages

from tests.spark.clients import table

JAVA = "software.amazon.payloadoffloading.PayloadS3Pointer"
EARLIER = "com.amazon.sqs.javamessaging.MessageS3Pointer"
SIZE = {"ExtendedPayloadSize": {"DataType": "Number", "StringValue": "7"}}
OTHER = {"kind": {"DataType": "String", "StringValue": "k"}}


def pointer(key: str, bucket: str = "payloads", name: str = JAVA) -> str:
    return json.dumps([name, {"s3BucketName": bucket, "s3Key": key}])


def sns(inner: str) -> str:
    return json.dumps({"Type": "Notification", "TopicArn": "t", "Message": inner})


@pytest.mark.parametrize(
    "body",
    [
        pointer("k"),
        pointer("k", name=EARLIER),
        f'["{JAVA}",{{"s3BucketName":"payloads","s3Key":"k"}}]',
    ],
)
def test_a_pointer_of_either_library_is_one(body: str) -> None:
    assert parse_pointer(body) == Pointer("payloads", "k")


@pytest.mark.parametrize(
    "body",
    [
        "",
        "S3Pointer",
        f'["{JAVA}"]',
        f'["{JAVA}", {{"s3BucketName": "b"}}]',
        f'["{JAVA}", {{"s3BucketName": "b", "s3Key": 7}}]',
        f'["{JAVA}", ["s3BucketName", "s3Key"]]',
        pointer("k", name="a.nother.S3Pointer"),
        f'{{"said": "{JAVA}"}}',
    ],
)
def test_any_other_body_is_itself(body: str) -> None:
    assert parse_pointer(body) is None


VALUES = st.recursive(st.none() | st.integers() | st.text(max_size=4), lambda inner: st.lists(inner, max_size=3))


@given(st.sampled_from([JAVA, EARLIER, "x"]), VALUES, VALUES)
def test_whatever_a_body_says_it_is_a_pointer_or_itself(name: str, bucket: Any, key: Any) -> None:
    body = json.dumps([name, {"s3BucketName": bucket, "s3Key": key}])
    texts = isinstance(bucket, str) and isinstance(key, str) and name != "x"
    assert parse_pointer(body) == (Pointer(bucket, key) if texts else None)


@pytest.mark.parametrize("pointers", [0, 1, PARALLEL_FETCHES, PARALLEL_FETCHES + 1, 3 * PARALLEL_FETCHES])
def test_few_payloads_are_held_at_once_and_no_row_is_left(pointers: int) -> None:
    bodies = [body for number in range(pointers) for body in ("a", pointer(str(number)), "b")] + ["c"]
    cut = [part.column(0).to_pylist() for part in split_by_pointers(pa.RecordBatch.from_pydict({"body": bodies}))]
    assert [body for part in cut for body in part] == bodies
    assert all(sum("S3Pointer" in body for body in part) <= PARALLEL_FETCHES for part in cut)


@pytest.mark.parametrize(
    ("option", "given"),
    [
        ("payloadBuckets", {"payloadBuckets": "a,"}),
        ("payloadBuckets", {"payloadBuckets": "payloads", "envelope": "s3"}),
        ("s3MaxObjectBytes", {"payloadBuckets": "payloads", "s3MaxObjectBytes": "1g"}),
        ("s3MaxObjectBytes", {"s3MaxObjectBytes": "1m"}),
        ("s3Endpoint", {"s3Endpoint": "http://h"}),
    ],
)
def test_what_does_not_go_together_is_named(option: str, given: dict[str, str]) -> None:
    with pytest.raises(InvalidOption, match=option):
        parse_options({"queueUrl": "http://h/1/q", "stagingLocation": "/x", **given})


# With S3


@pytest.fixture
def url() -> Iterator[str]:
    s3_server = pytest.importorskip("tests.spark.s3_server", reason="needs moto: make test-spark has it")
    with s3_server.running() as server:
        yield server.url


@pytest.fixture
def s3(url: str) -> Any:
    client: Any = botocore.session.Session().create_client("s3", region_name="us-east-1", endpoint_url=url)
    for bucket in ("payloads", "others"):
        client.create_bucket(Bucket=bucket)
        for key in ("whole", "second"):
            client.put_object(Bucket=bucket, Key=key, Body=json.dumps({"n": key}).encode())
    client.put_object(Bucket="payloads", Key="bytes", Body=b"\xff")
    return client


class Refusing:
    """A client that is answered with an error."""

    def __init__(self, answer: Exception) -> None:
        self.answer, self.calls = answer, 0

    def get_object(self, **_: Any) -> Mapping[str, Any]:
        self.calls += 1
        raise self.answer


def refused(code: str) -> Exception:
    return ClientError({"Error": {"Code": code, "Message": "said S3"}}, "GetObject")


UNREACHED: BotoCoreError = EndpointConnectionError(endpoint_url="http://x")


@pytest.mark.parametrize(
    ("answer", "kind"),
    [
        (refused("AccessDenied"), ObjectRefused),
        (refused("SlowDown"), ObjectRefused),
        (refused("KMS.DisabledException"), ObjectRefused),
        (UNREACHED, ObjectRefused),
        (refused("InvalidObjectState"), ObjectUnreadable),
        (refused("NoSuchBucket"), ObjectUnreadable),
    ],
)
def test_what_s3_says_fails_the_task_only_where_trying_again_may_help(answer: Exception, kind: type) -> None:
    with pytest.raises(kind, match="s3://payloads/f"):
        fetch_object(Refusing(answer), Pointer("payloads", "f"), 1)


def test_a_body_that_breaks_off_is_fetched_again_and_not_for_ever() -> None:
    client = Refusing(UNREACHED)
    with pytest.raises(ObjectRefused):
        fetch_object(client, Pointer("payloads", "f"), 1)
    assert client.calls == 3


def test_a_payload_above_the_limit_is_not_read(s3: Any) -> None:
    size = len(fetch_object(s3, Pointer("payloads", "whole"), 1000))
    with pytest.raises(ObjectUnreadable, match=f"has {size} bytes, s3MaxObjectBytes is {size - 1}"):
        fetch_object(s3, Pointer("payloads", "whole"), size - 1)


@pytest.mark.parametrize("pointer", [Pointer("arn:aws:s3:::b", "k"), Pointer("", "k"), Pointer("payloads", "")])
def test_a_pointer_that_names_no_possible_object_is_unreadable(s3: Any, pointer: Pointer) -> None:
    with pytest.raises(ObjectUnreadable):
        fetch_object(s3, pointer, 1000)


def test_a_role_is_assumed_to_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its key signs the requests for objects, and is fetched when first needed."""
    moto = pytest.importorskip("moto", reason="STS in memory")
    monkeypatch.delenv("AWS_PROFILE", raising=False)
    with moto.mock_aws():
        role = Identity(role_arns=("arn:aws:iam::123456789012:role/reader",))
        client = open_s3_client(role, region="us-east-1", endpoint=None)
        client.create_bucket(Bucket="payloads")
        client.put_object(Bucket="payloads", Key="f", Body=b"1")
        assert fetch_object(client, Pointer("payloads", "f"), 9) == b"1"
        assert client._request_signer._credentials.method == "assume-role"
        assert client._request_signer._credentials.get_frozen_credentials().access_key != "AKIATEST"


def staged(folder: Path, *bodies: str) -> StagedLog:
    log = StagedLog(FileStore(folder))
    log.take_over(log.find_oldest_position())
    messages = [
        {"MessageId": str(number), "Body": body, "ReceiptHandle": "h", "MessageAttributes": SIZE | OTHER}
        for number, body in enumerate(bodies)
    ]
    log.append(table([Received("http://h/1/q", parse_messages(json.dumps({"Messages": messages}).encode()))]))
    return log


def rows(folder: Path, url: str, **more: str) -> list[dict[str, Any]]:
    """As a task reads them."""
    pytest.importorskip("pyspark", reason="make test-spark has it")
    from sluice_spark.data_source import SqsDataSource  # noqa: PLC0415  as above
    from sluice_spark.source.readers import SqsReader  # noqa: PLC0415  as above

    given = {"stagingLocation": str(folder), "payloadBuckets": "payloads", "s3Endpoint": url, **more}
    assert SqsDataSource(given).schema().endswith("bad_reason string")
    reader = SqsReader(parse_options(given))
    parts = reader.partitions()
    return [row for part in parts for batch in reader.read(part) for row in batch.to_pylist()]


@pytest.mark.usefixtures("s3")
def test_the_payload_stands_in_the_pointer_s_place(url: str, tmp_path: Path) -> None:
    staged(tmp_path, pointer("whole"), '{"n": "here"}', pointer("second", name=EARLIER))
    found = rows(tmp_path, url)
    assert [row["body"] for row in found] == ['{"n": "whole"}', '{"n": "here"}', '{"n": "second"}']
    assert [name for row in found for name, _ in row["attributes"]] == ["kind"] * 3


@pytest.mark.usefixtures("s3")
def test_also_where_a_topic_is_between(url: str, tmp_path: Path) -> None:
    staged(tmp_path / "a", pointer("whole"), "S3Pointer")
    assert [(row["body"], row["bad_reason"]) for row in rows(tmp_path / "a", url)] == [
        ('{"n": "whole"}', None),
        ("S3Pointer", None),
    ]
    staged(tmp_path / "b", sns(pointer("second")), pointer("whole"))
    first, second = rows(tmp_path / "b", url, envelope="sns")
    assert (first["body"], first["bad_reason"]) == ('{"n": "second"}', None)
    assert second["bad_reason"].startswith("not an SNS notification")


@pytest.mark.usefixtures("s3")
def test_what_is_not_to_be_had_is_a_bad_record_and_its_pointer_stays(url: str, tmp_path: Path) -> None:
    bodies = [pointer("nothing"), pointer("whole", bucket="others"), pointer("bytes"), pointer("whole")]
    staged(tmp_path, *bodies)
    *bad, good = rows(tmp_path, url)
    for row, body, reason in zip(bad, bodies, ("gone", "payloadBuckets", "utf-8"), strict=False):
        assert reason in row["bad_reason"]
        assert row["body"] == body
        assert [name for name, _ in row["attributes"]] == ["ExtendedPayloadSize", "kind"]
    assert (good["body"], good["bad_reason"]) == ('{"n": "whole"}', None)
