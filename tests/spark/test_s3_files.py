"""Objects that notifications name, from moto's S3 to rows: formats, partition columns, what is bad, what is gone."""

import bz2
import gzip
import io
import json
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from functools import partial
from typing import Any

import boto3
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from botocore.config import Config
from botocore.exceptions import EndpointConnectionError
from hypothesis import given
from hypothesis import strategies as st
from sluice_spark.errors import InvalidOption, ObjectGone, ObjectRefused, ObjectUnreadable
from sluice_spark.formats import s3_files
from sluice_spark.formats.envelopes import S3Choice
from sluice_spark.formats.s3_files import (
    BATCH_ROWS,
    Records,
    S3Files,
    check_columns,
    parse_partition_values,
    read_records,
)
from sluice_spark.formats.s3_objects import fetch_object, open_objects
from sluice_spark.formats.s3_rows import read_object_rows
from sluice_spark.log.bad_records import quarantine
from sluice_spark.log.planning import Slice
from sluice_spark.log.store import FileStore
from sluice_spark.options import parse_options
from sluice_spark.sqs.access import Identity

KIND = pa.struct([("id", pa.int32()), ("name", pa.string()), ("day", pa.date32())])
CSV = S3Files(format="csv")
WITH_HEADER = S3Files(format="csv", csv_header=True)
TEXT = S3Files(format="text")
LINES = pa.struct([("line", pa.string()), ("day", pa.date32())])
PARQUET = S3Files(format="parquet")
BUCKET = "bucket"


class Bucket:
    """A bucket, and the notifications that S3 would send."""

    def __init__(self, url: str) -> None:
        path = Config(s3={"addressing_style": "path"})
        self.client = boto3.client("s3", endpoint_url=url, region_name="eu-west-1", config=path)
        self.client.create_bucket(Bucket=BUCKET, CreateBucketConfiguration={"LocationConstraint": "eu-west-1"})

    def put(self, key: str, content: bytes) -> dict[str, Any]:
        answer = self.client.put_object(Bucket=BUCKET, Key=key, Body=content)
        version = {"versionId": answer["VersionId"]} if "VersionId" in answer else {}
        return notification(key, eTag=answer["ETag"].strip('"'), **version)


def notification(key: str, event: str = "ObjectCreated:Put", **held: Any) -> dict[str, Any]:
    return {"eventName": event, "s3": {"bucket": {"name": BUCKET}, "object": {"key": key, **held}}}


@pytest.fixture
def server() -> Iterator[Any]:
    s3_server = pytest.importorskip("tests.spark.s3_server", reason="needs moto: make test-spark has it")
    with s3_server.running() as found:
        yield found


@pytest.fixture
def bucket(server: Any) -> Bucket:
    return Bucket(server.url)


Read = Callable[..., list[dict[str, Any]]]


@pytest.fixture
def batches(server: Any) -> Callable[..., list[pa.RecordBatch]]:
    """The rows of messages with these records each, as a task reads them."""

    def read(files: S3Files, *messages: Any, kind: pa.DataType = KIND, **choice: Any) -> list[pa.RecordBatch]:
        bodies = [each if isinstance(each, str) else json.dumps({"Records": [each]}) for each in messages]
        batch = pa.RecordBatch.from_pydict({"message_id": [str(n) for n in range(len(bodies))], "body": bodies})
        client = open_objects(Identity(), region="eu-west-1", endpoint=server.url)
        get = partial(fetch_object, client, limit=files.object_bytes)
        return list(read_object_rows(batch, ("s3",), S3Choice(**choice), files=files, kind=kind, get=get))

    return read


@pytest.fixture
def read(batches: Callable[..., list[pa.RecordBatch]]) -> Read:
    return lambda *given, **more: [row for batch in batches(*given, **more) for row in batch.to_pylist()]


def values(rows: list[dict[str, Any]]) -> list[Any]:
    assert [row["bad_reason"] for row in rows] == [None] * len(rows)
    return [tuple(row["value"].values()) for row in rows]


def parquet(**columns: Any) -> bytes:
    sink = io.BytesIO()
    pq.write_table(pa.table(columns), sink)
    return sink.getvalue()


def content_of(files: S3Files, content: bytes, kind: pa.DataType = KIND, key: str = "f") -> list[Records]:
    return list(read_records(io.BytesIO(content), key, files, kind))


def flat(found: list[Records]) -> list[tuple[Any, str | None]]:
    return [pair for each in found for pair in zip(each.values.to_pylist(), each.reasons, strict=True)]


# From objects to rows


@pytest.mark.parametrize(
    ("files", "content"),
    [
        (CSV, b"1,a\r\n2,\n"),
        (WITH_HEADER, b"name,more,id\na,x,1\n,y,2\n"),
        (S3Files(format="csv", csv_delimiter=";"), b'1;"a"\n\n2;'),
        (PARQUET, parquet(name=["a", None], id=pa.array([1, 2], pa.int64()))),
    ],
)
def test_a_row_for_each_record_with_the_keys_partition_columns(
    bucket: Bucket, read: Read, files: S3Files, content: bytes
) -> None:
    at = bucket.put("in/day=2026-01-02/x=1/f", content)
    rows = read(files, at)
    assert values(rows) == [(1, "a", date(2026, 1, 2)), (2, None, date(2026, 1, 2))]
    assert {row["message_id"] for row in rows} == {"0"}
    assert {(dict(row["envelope"])["key"], row["body"]) for row in rows} == {
        ("in/day=2026-01-02/x=1/f", json.dumps(at, separators=(",", ":")))
    }


@pytest.mark.parametrize(("suffix", "pack"), [("gz", gzip.compress), ("GZ", gzip.compress), ("bz2", bz2.compress)])
def test_packed_objects_are_unpacked_by_their_suffix(
    bucket: Bucket, read: Read, suffix: str, pack: Callable[[bytes], bytes]
) -> None:
    at = bucket.put(f"f.csv.{suffix}", pack(b"1,a,\n") + pack(b"2,b,\n"))
    assert values(read(CSV, at)) == [(1, "a", None), (2, "b", None)]


@pytest.mark.parametrize("key", ["f.gz.parquet", "f.parquet.gz"])
def test_parquet_says_itself_how_it_is_packed(bucket: Bucket, read: Read, key: str) -> None:
    assert values(read(PARQUET, bucket.put(key, parquet(id=[1])))) == [(1, None, None)]


def test_objects_follow_each_other_and_small_ones_share_a_batch(bucket: Bucket, batches: Any) -> None:
    found = batches(CSV, *(bucket.put(f"f{number}", f"{number},a,".encode()) for number in range(5)))
    assert [row["value"]["id"] for row in found[0].to_pylist()] == [0, 1, 2, 3, 4]
    assert len(found) == 1


def test_an_empty_object_has_no_rows(bucket: Bucket, read: Read) -> None:
    assert [read(files, bucket.put("f", b"")) for files in (CSV, WITH_HEADER, TEXT)] == [[], [], []]


def test_a_key_is_read_as_s3_encodes_it(bucket: Bucket, read: Read) -> None:
    at = bucket.put("in/name=a b%3Ac/é+1.csv", b"1,")
    at["s3"]["object"]["key"] = "in/name%3Da+b%253Ac/%C3%A9%2B1.csv"
    assert values(read(CSV, at)) == [(1, "a b:c", None)]


def test_a_removed_object_is_a_row_without_a_value(bucket: Bucket, read: Read) -> None:
    gone, tagged = notification("f", "ObjectRemoved:Delete"), notification("f", "ObjectTagging:Put")
    (first, second) = read(CSV, gone, tagged, removed=True)
    assert (first["value"], first["bad_reason"], second["value"], second["bad_reason"]) == (None,) * 4
    assert read(CSV, gone) == []


def test_a_bad_notification_is_one_bad_record_and_harms_no_other(bucket: Bucket, read: Read) -> None:
    good, bad = read(CSV, bucket.put("f", b"1,a,"), "nonsense")
    assert (good["value"]["id"], bad["value"], bad["bad_reason"][:8]) == (1, None, "not JSON")
    assert read(CSV, '{"Event": "s3:TestEvent"}') == []


def test_a_large_object_comes_in_batches_the_same_each_time(bucket: Bucket, batches: Any) -> None:
    count = 3 * BATCH_ROWS + 7
    at = bucket.put("f.csv.gz", gzip.compress(b"".join(b"%d,name %d,2026-01-02\n" % (n, n) for n in range(count))))
    found = batches(CSV, at)
    assert [batch.num_rows for batch in found] == [BATCH_ROWS] * 3 + [7]
    assert [n for batch in found for n in batch.column("value").field("id").to_pylist()] == list(range(count))
    assert all(again.equals(batch) for again, batch in zip(batches(CSV, at), found, strict=True))


# What is gone, or can't be had


def test_a_missing_object_is_a_bad_record_nothing_or_an_error(bucket: Bucket, read: Read) -> None:
    there = bucket.put("f", b"1,a,")
    missing = notification("no")
    good, bad = read(CSV, there, missing)
    assert (good["value"]["id"], bad["value"]) == (1, None)
    assert bad["bad_reason"] == "s3://bucket/no is gone: NoSuchKey"
    assert len(read(S3Files(format="csv", missing="ignore"), there, missing)) == 1
    with pytest.raises(ObjectGone, match="s3://bucket/no is gone"):
        read(S3Files(format="csv", missing="fail"), there, missing)


def test_an_object_that_was_overwritten_since_is_not_read(bucket: Bucket, read: Read) -> None:
    first = bucket.put("f", b"1,a,")
    second = bucket.put("f", b"2,b,")
    old, new = read(CSV, first, second)
    assert (old["value"], old["bad_reason"]) == (None, "s3://bucket/f was overwritten since")
    assert new["value"]["id"] == 2


def test_a_version_is_read_though_it_was_overwritten_and_until_it_is_removed(bucket: Bucket, read: Read) -> None:
    bucket.client.put_bucket_versioning(Bucket=BUCKET, VersioningConfiguration={"Status": "Enabled"})
    first = bucket.put("f", b"1,a,")
    bucket.put("f", b"2,b,")
    bucket.client.delete_object(Bucket=BUCKET, Key="f")
    assert values(read(CSV, first)) == [(1, "a", None)]
    bucket.client.delete_object(Bucket=BUCKET, Key="f", VersionId=first["s3"]["object"]["versionId"])
    assert read(CSV, first)[0]["bad_reason"] == "s3://bucket/f is gone: NoSuchVersion"


def test_an_object_beyond_the_limit_is_a_bad_record(bucket: Bucket, read: Read) -> None:
    at = bucket.put("f", b"1,a,\n" * 10)
    assert len(read(S3Files(format="csv", object_bytes=50), at)) == 10
    (row,) = read(S3Files(format="csv", object_bytes=49), at)
    assert row["bad_reason"] == "s3://bucket/f has 50 bytes, s3MaxObjectBytes is 49"


@pytest.mark.parametrize("name", ["arn:aws:s3:eu-west-1:123456789012:accesspoint/a", "no/bucket", ""])
def test_a_name_that_no_bucket_has_is_a_bad_record(read: Read, name: str) -> None:
    at = notification("f")
    at["s3"]["bucket"]["name"] = name
    assert "not a bucket's name" in read(CSV, at)[0]["bad_reason"]


class Refusing:
    """A client that is answered with an error."""

    def __init__(self, answer: Exception) -> None:
        self.answer, self.calls = answer, 0

    def get_object(self, **_: Any) -> Mapping[str, Any]:
        self.calls += 1
        raise self.answer


def refused(code: str) -> Exception:
    from botocore.exceptions import ClientError  # noqa: PLC0415  this function's alone

    return ClientError({"Error": {"Code": code, "Message": "said S3"}}, "GetObject")


@pytest.mark.parametrize(
    ("answer", "kind"),
    [
        (refused("AccessDenied"), ObjectRefused),
        (refused("SlowDown"), ObjectRefused),
        (refused("KMS.DisabledException"), ObjectRefused),
        (EndpointConnectionError(endpoint_url="http://x"), ObjectRefused),
        (refused("InvalidObjectState"), ObjectUnreadable),
        (refused("NoSuchBucket"), ObjectGone),
    ],
)
def test_what_s3_says_fails_the_task_only_where_trying_again_may_help(answer: Exception, kind: type) -> None:
    with pytest.raises(kind, match="s3://bucket/f"):
        fetch_object(Refusing(answer), {"bucket": BUCKET, "key": "f"}, 1)


def test_a_body_that_breaks_off_is_fetched_again_and_not_for_ever() -> None:
    client = Refusing(EndpointConnectionError(endpoint_url="http://x"))
    with pytest.raises(ObjectRefused):
        fetch_object(client, {"bucket": BUCKET, "key": "f"}, 1)
    assert client.calls == 3


def test_a_role_is_assumed_to_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its key signs the requests for objects, and is fetched when first needed."""
    moto = pytest.importorskip("moto", reason="STS in memory")
    monkeypatch.delenv("AWS_PROFILE", raising=False)
    with moto.mock_aws():
        role = Identity(role_arns=("arn:aws:iam::123456789012:role/reader",))
        client = open_objects(role, region="eu-west-1", endpoint=None)
        client.create_bucket(Bucket=BUCKET, CreateBucketConfiguration={"LocationConstraint": "eu-west-1"})
        client.put_object(Bucket=BUCKET, Key="f", Body=b"1")
        assert fetch_object(client, {"bucket": BUCKET, "key": "f"}, 9).read() == b"1"
        assert client._request_signer._credentials.method == "assume-role"
        assert client._request_signer._credentials.get_frozen_credentials().access_key != "AKIATEST"


# Content


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"1,a\n", "line 2: 2 columns, 3 are expected"),
        (b"1,a,,\n", "line 2: 4 columns, 3 are expected"),
        (b"x,a,\n", "line 2: column 'id': Failed to parse string"),
        (b"3000000000,a,\n", "line 2: column 'id': Failed"),
        (b"1,a,soon\n", "line 2: column 'day': Failed"),
        (b'1,"a"b,\n', "line 2: ',' expected"),
        (b"1,\xff,\n", "line 2: 'utf-8' codec"),
    ],
)
def test_a_bad_line_says_where_and_why_and_harms_no_other(content: bytes, reason: str) -> None:
    good = b"%d,a,2026-01-02\n"
    first, bad, last = flat(content_of(CSV, good % 1 + content + good % 2))
    expected = {"name": "a", "day": date(2026, 1, 2)}
    assert (first, last) == (({"id": 1, **expected}, None), ({"id": 2, **expected}, None))
    assert bad[0] is None
    assert str(bad[1]).startswith(reason)


def test_a_quoted_field_may_span_lines_and_the_number_is_the_first_ones() -> None:
    found = flat(content_of(CSV, b'1,"a\nb",\nx,"\n\n",\ny,,\n'))
    assert found[0] == ({"id": 1, "name": "a\nb", "day": None}, None)
    assert [reason.partition(":")[0] for _, reason in found[1:] if reason] == ["line 3", "line 6"]


def test_a_quote_that_never_ends_is_a_bad_line() -> None:
    (_, (value, reason)) = flat(content_of(CSV, b'1,a,\n2,"a,\n3,b,\n'))
    assert (value, reason) == (None, "line 2: unexpected end of data")


def test_a_text_has_a_record_a_line_whatever_is_in_it() -> None:
    found = flat(content_of(TEXT, b'\xef\xbb\xbf{"id": 1}\r\n\n  \n\xff\n last', LINES, key="day=2026-01-02/f"))
    day = date(2026, 1, 2)
    assert [value for value, _ in found] == [{"line": '{"id": 1}', "day": day}, None, {"line": " last", "day": day}]
    assert str(found[1][1]).startswith("line 4: 'utf-8' codec")


def test_a_text_has_its_lines_in_a_column() -> None:
    check_columns(TEXT, LINES)
    for kind in (KIND, pa.struct([("line", pa.int32())])):
        with pytest.raises(InvalidOption, match="line string"):
            check_columns(TEXT, kind)


@pytest.mark.parametrize(("files", "column"), [(CSV, "id"), (TEXT, "line")])
def test_a_line_that_is_too_long_is_passed_over(monkeypatch: pytest.MonkeyPatch, files: S3Files, column: str) -> None:
    monkeypatch.setattr(s3_files, "LINE_LIMIT", 20)
    good = b"1,a,\n"
    found = flat(content_of(files, good + b"x" * 100 + b"\n" + good, KIND if files is CSV else LINES))
    value = {"id": 1, "line": "1,a,"}[column]
    assert [row and row[column] for row, _ in found] == [value, None, value]
    assert found[1][1] == "line 2: longer than 20 bytes"


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"a,b\n1,2\n", "line 1: the header has no column of the schema: a, b"),
        (b"id,id\n1,2\n", "line 1: the header names a column twice"),
        (b"id,\xff\n1,2\n", "line 1: 'utf-8' codec"),
    ],
)
def test_a_header_that_can_not_be_is_one_bad_record(content: bytes, reason: str) -> None:
    ((value, found),) = flat(content_of(WITH_HEADER, content))
    assert value is None
    assert found is not None
    assert found.startswith(reason)


def test_a_byte_order_mark_is_no_part_of_the_first_name() -> None:
    assert flat(content_of(WITH_HEADER, b"\xef\xbb\xbfid,name\n1,a\n"))[0][0]["id"] == 1


@pytest.mark.parametrize(
    ("files", "content", "key"),
    [
        (CSV, b"not gzip", "f.gz"),
        (PARQUET, b"not Parquet", "f"),
        (PARQUET, b"", "f"),
        (PARQUET, parquet(id=[1])[:-9], "f"),
        (PARQUET, parquet(other=[1]), "f"),
        (PARQUET, parquet(id=[[1]]), "f"),
    ],
)
def test_a_file_that_can_not_be_read_is_one_bad_record(files: S3Files, content: bytes, key: str) -> None:
    ((value, reason),) = flat(content_of(files, content, key=key))
    assert value is None
    assert reason is not None
    assert reason.startswith("the object can't be read from here on: ")


def test_what_comes_before_the_break_is_read() -> None:
    """Arrow unpacks in blocks: how much is read before a cut isn't ours to say."""
    whole = gzip.compress(b"".join(b"%d,%d,\n" % (n, n * 7919) for n in range(50_000)))
    found = flat(content_of(CSV, whole[: len(whole) // 2], key="f.gz"))
    assert "can't be read from here on" in str(found[-1][1])
    assert [value["id"] for value, reason in found if not reason] == list(range(len(found) - 1))
    assert len(found) > 10_000


@given(
    st.sampled_from([CSV, WITH_HEADER, TEXT, PARQUET]),
    st.sampled_from(["f", "f.gz", "f.bz2", "f.zst", "f.lz4", "day=x/f"]),
    st.one_of(st.binary(), st.text('01a,"\n\r{}[]:- ').map(str.encode)),
    st.integers(0, 400),
    st.booleans(),
)
def test_any_content_is_records_or_bad_records(
    files: S3Files, key: str, content: bytes, cut: int, packed: bool
) -> None:
    if files is PARQUET and packed:
        content = parquet(id=[1, 2], name=["a", "b"])[:-cut]
    elif packed and key.endswith(".gz"):
        content = gzip.compress(content * 9)[:-cut]
    for value, reason in flat(content_of(files, content, key=key)):
        assert (value is None) == (reason is not None)


def test_types_of_text_are_the_schemas() -> None:
    kind = pa.struct(
        [
            ("b", pa.bool_()), ("f", pa.float64()), ("x", pa.decimal128(9, 2)), ("t", pa.timestamp("us", tz="UTC")),
            ("u", pa.timestamp("us", tz="UTC")), ("y", pa.binary()), ("s", pa.string()),
        ]
    )  # fmt: skip
    line = b"true,1.5,1.25,2026-01-02T03:04:05Z,2026-01-02 03:04:05,AAE=,007\n"
    at = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
    ((value, reason),) = flat(content_of(CSV, line, kind))
    assert reason is None
    assert tuple(value.values()) == (True, 1.5, Decimal("1.25"), at, at, b"\x00\x01", "007")


def test_parquet_columns_are_fitted_and_rows_that_do_not_fit_are_bad() -> None:
    nanos = pa.array([1_700_000_000_123_456_789] * 3, pa.timestamp("ns"))
    content = parquet(
        id=pa.array([1, 3_000_000_000, 2], pa.int64()), at=nanos, d=pa.array(["a"] * 3).dictionary_encode()
    )
    kind = pa.struct([("id", pa.int32()), ("at", pa.timestamp("us", tz="UTC")), ("d", pa.string())])
    good, bad, also_good = flat(content_of(PARQUET, content, kind))
    assert (good[0]["id"], good[0]["at"].microsecond, good[0]["d"], also_good[0]["id"]) == (1, 123_456, "a", 2)
    assert bad == (None, "row 2: column 'id': Integer value 3000000000 not in range: -2147483648 to 2147483647")


def test_wide_rows_come_in_smaller_batches() -> None:
    content = parquet(id=range(100), name=[f"{n}" + "x" * 2**20 for n in range(100)])
    found = content_of(PARQUET, content)
    assert {len(each.reasons) for each in found[:-1]} <= {3, 4}
    assert [value["id"] for value, _ in flat(found)] == list(range(100))


def test_nested_columns_come_from_parquet() -> None:
    kind = pa.struct([("o", pa.struct([("a", pa.int64()), ("b", pa.string())])), ("l", pa.list_(pa.int64()))])
    row = {"o": {"a": 1, "b": None}, "l": [1, None]}
    content = parquet(o=pa.array([{"a": 1}]), l=pa.array([[1, None]]))
    assert flat(content_of(PARQUET, content, kind)) == [(row, None)]
    with pytest.raises(InvalidOption, match="schema"):
        check_columns(CSV, kind)


@pytest.mark.parametrize(("files", "content"), [(CSV, b",a,\n"), (PARQUET, parquet(id=[None], name=["a"]))])
def test_a_column_that_must_not_be_null_makes_a_bad_record(files: S3Files, content: bytes) -> None:
    kind = pa.struct([pa.field("id", pa.int32(), nullable=False), pa.field("name", pa.string()), ("day", pa.date32())])
    ((value, reason),) = flat(content_of(files, content, kind))
    assert value is None
    assert str(reason).startswith(("line 1: ", "row 1: "))
    assert "'id'" in str(reason)


@pytest.mark.parametrize(
    ("files", "content"), [(WITH_HEADER, b"z\n1\n2\n"), (TEXT, b"{}\n{}"), (PARQUET, parquet(z=[1, 2]))]
)
def test_all_columns_may_be_the_keys(files: S3Files, content: bytes) -> None:
    found = content_of(files, content, pa.struct([("n", pa.int64())]), key="n=7/f")
    assert flat(found) == [({"n": 7}, None)] * 2


# Partition columns


def test_partition_columns_are_typed_unescaped_and_null_by_hives_word() -> None:
    kind = pa.struct([("n", pa.int64()), ("s", pa.string()), ("z", pa.string()), ("e", pa.string())])
    found = parse_partition_values("a=1/n=007/s=x%2Fy%3D1/z=__HIVE_DEFAULT_PARTITION__/e=/n=8", kind)
    assert {name: value.as_py() for name, value in found.items()} == {"n": 7, "s": "x/y=1", "z": None, "e": None}


def test_a_partition_column_that_is_not_of_its_type_makes_the_object_one_bad_record() -> None:
    ((value, reason),) = flat(content_of(CSV, b"1,a\n2,b\n", key="day=soon/f"))
    assert (value, str(reason).partition(":")[0]) == (None, "partition column 'day'")


@given(st.dictionaries(st.sampled_from("abc"), st.text(min_size=1).filter(lambda text: text.isprintable())))
def test_what_hive_escapes_comes_back(named: dict[str, str]) -> None:
    from urllib.parse import quote  # noqa: PLC0415  the oracle's alone

    kind = pa.struct([(name, pa.string()) for name in "abc"])
    key = "".join(f"{name}={quote(value, safe='')}/" for name, value in named.items()) + "f"
    assert {name: value.as_py() for name, value in parse_partition_values(key, kind).items()} == named


# Quarantine and options


def test_each_piece_of_a_slice_has_its_quarantine_file(tmp_path: Any) -> None:
    rows = pa.RecordBatch.from_pydict({"body": ["a", "b"]})
    for piece in (0, 1, 1):
        quarantine(FileStore(tmp_path), Slice(1, 0, 5), rows, 0, piece)
    assert [pq.read_metadata(file).num_rows for file in tmp_path.glob("*-2.parquet")] == [2, 2]


GIVEN = {"stagingLocation": "/s", "envelope": "sns,s3", "schema": "id int"}


def test_options_are_parsed_in_any_case() -> None:
    given = {**GIVEN, "S3FORMAT": "CSV", "s3missing": "Ignore", "s3CsvHeader": "true", "s3CsvDelimiter": "tab"}
    more = {"s3MaxObjectBytes": "1g", "s3Endpoint": "http://127.0.0.1:9000"}
    assert parse_options({**given, **more}).files == S3Files(
        format="csv", schema="id int", missing="ignore", csv_header=True, csv_delimiter="\t", object_bytes=2**30,
        endpoint="http://127.0.0.1:9000",
    )  # fmt: skip


def test_the_columns_are_those_of_the_objects() -> None:
    pytest.importorskip("pyspark", reason="make test-spark has it")
    from sluice_spark.data_source import SqsDataSource  # noqa: PLC0415  may be missing here

    added = SqsDataSource({**GIVEN, "s3Format": "csv", "badRecords": "/bad"}).schema().rpartition("trace_header")[2]
    assert added == " string, envelope map<string, string>, value struct<id int>, bad_reason string"


@pytest.mark.parametrize(
    ("given", "named"),
    [
        ({"s3Format": "xml"}, "s3Format"),
        ({"s3Format": "csv", "envelope": "sns"}, "s3Format"),
        ({"s3Format": "csv", "envelope": "none"}, "s3Format"),
        ({"s3Format": "csv", "s3Missing": "maybe"}, "s3Missing"),
        ({"s3Format": "csv", "s3CsvDelimiter": "::"}, "s3CsvDelimiter"),
        ({"s3Format": "csv", "s3CsvDelimiter": '"'}, "s3CsvDelimiter"),
        ({"s3Format": "csv", "s3MaxObjectBytes": "0"}, "s3MaxObjectBytes"),
        ({"s3Format": "csv", "s3Endpoint": "somewhere"}, "s3Endpoint"),
        ({"s3Format": "text", "s3CsvHeader": "true"}, "s3CsvHeader"),
        ({"s3Missing": "fail", "schema": None}, "s3Missing"),
        ({"s3Endpoint": "http://x", "schema": None}, "s3Endpoint"),
        ({"s3Format": "csv", "schema": None}, "schema"),
        ({"s3Format": "none"}, "schema"),
    ],
)
def test_a_bad_option_is_named(given: dict[str, Any], named: str) -> None:
    options = {name: value for name, value in {**GIVEN, **given}.items() if value is not None}
    with pytest.raises(InvalidOption) as error:
        parse_options(options)
    assert error.value.option == named


def test_an_object_that_was_older_than_the_limit_is_no_row(bucket: Bucket, server: Any) -> None:
    """By what the notification and SQS say: it is the same whenever it is read."""
    received = datetime(2026, 1, 10, tzinfo=UTC)
    ages = {"day": 1, "week": 7, "month": 30}
    bodies = []
    for name, days in ages.items():
        told = bucket.put(name, b'{"id": 1}') | {"eventTime": (received - timedelta(days=days)).isoformat()}
        bodies.append(json.dumps({"Records": [told]}))
    bodies.append(json.dumps({"Records": [bucket.put("timeless", b'{"id": 1}')]}))
    bodies.append("nonsense")
    given = {"message_id": list("abcde"), "body": bodies, "first_received_at": [received] * len(bodies)}
    client = open_objects(Identity(), region="eu-west-1", endpoint=server.url)
    files = S3Files(format="text", max_age_s=7 * 86_400)
    get = partial(fetch_object, client, limit=files.object_bytes)
    batch = pa.RecordBatch.from_pydict(given)
    found = read_object_rows(batch, ("s3",), S3Choice(), files=files, kind=LINES, get=get)
    assert [row["message_id"] for part in found for row in part.to_pylist()] == ["a", "b", "d", "e"]
