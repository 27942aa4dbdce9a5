"""Whatever is in an object that a notification names: its records, or a bad one with the reason, in bounded memory."""

import codecs
import gzip
import io
import json
import random

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sluice_spark.formats.s3_files import BATCH_ROWS, CSV, PARQUET, TEXT, S3Files, read_records

from tests.hostile.hostile_values import bent, documents
from tests.hostile.limits import MIB, in_child
from tests.many_cases import some_of

KIND = pa.struct(
    [
        ("line", pa.string()),
        ("a", pa.string()),
        ("n", pa.int64()),
        ("at", pa.timestamp("us", tz="UTC")),
        ("b", pa.binary()),
    ]
)
WELL = {"a": "x", "n": 1, "at": "2026-01-01T00:00:00Z", "b": "AA=="}
ENDINGS = ["", ".gz", ".bz2", ".zst", ".lz4"]
FLIPS = 150


def read(content: bytes, key: str, format_: str) -> tuple[int, list[str]]:
    """How many records, and the reasons of bad ones. A batch has no more than it may."""
    number, reasons = 0, []
    for part in read_records(io.BytesIO(content), key, S3Files(format=format_), KIND):
        assert len(part.values) == len(part.reasons) <= BATCH_ROWS
        number += len(part.reasons)
        reasons += [reason for reason in part.reasons if reason is not None]
    return number, reasons


@given(st.lists(st.one_of(bent(WELL), documents).map(lambda each: json.dumps(each).encode()) | st.binary(), max_size=5))
def test_a_line_of_text_is_a_record_or_a_bad_one(lines: list[bytes]) -> None:
    content = b"\n".join(lines)
    number, _ = read(content, "k.json", TEXT)
    content = content.removeprefix(codecs.BOM_UTF8)
    assert number == sum(1 for line in content.split(b"\n") if line and not (line + b"\n").isspace())


@given(st.text(max_size=60).map(str.encode) | st.binary(max_size=60), st.booleans())
def test_csv_is_records_or_bad_ones(content: bytes, header: bool) -> None:
    well = b"l,x,1,2026-01-01T00:00:00Z,AA==\n"
    files = S3Files(format=CSV, csv_header=header)
    head = b"line,a,n,at,b\n" if header else b""
    parts = list(read_records(io.BytesIO(head + well + content), "k.csv", files, KIND))
    assert parts[0].reasons[0] is None  # what comes after a record doesn't harm it


@given(st.sampled_from([CSV, TEXT, PARQUET]), st.sampled_from(ENDINGS), st.binary())
def test_an_object_that_is_none_is_a_bad_record_and_no_error(format_: str, ending: str, content: bytes) -> None:
    number, reasons = read(content, f"k{ending}", format_)
    assert len(reasons) <= number <= len(content) + 1


@pytest.mark.parametrize(
    "key",
    ["n=x/k", "n=%FF/k", "at=NaN/k", "n=1e999999/k", f"n={'9' * 5_000}/k", "a=%00/k", "n=__HIVE_DEFAULT_PARTITION__/k"],
)
def test_a_key_says_the_columns_or_why_it_cannot(key: str) -> None:
    number, reasons = read(json.dumps(WELL).encode(), key, TEXT)
    assert number == 1
    assert all(reason.startswith(("partition column ", "line 1: ")) for reason in reasons)


@pytest.mark.parametrize(("ending", "format_"), some_of([(".gz", TEXT), (".gz", CSV)], every=2))
def test_a_line_that_unpacks_without_end_takes_bounded_memory(ending: str, format_: str) -> None:
    """Arrow's memory isn't Python's: a process of its own has only so much."""
    code = (
        "sys.path.insert(0, 'spark')\n"
        "from tests.hostile.test_objects import bomb, read\n"
        f"print(read(bomb(64), 'k{ending}', {format_!r}))"
    )
    ended = in_child(code, megabytes=1_024)
    assert (ended.code, ended.said) == (0, "(1, ['line 1: longer than 16777216 bytes'])"), ended


def bomb(mebibytes: int) -> bytes:
    """So many zeros in one line."""
    return b"".join(gzip.compress(b"\0" * MIB) for _ in range(mebibytes))


def test_a_parquet_object_with_bits_wrong_ends_nothing() -> None:
    """In a process of its own, as Arrow is C++; which bits, is always the same."""
    code = (
        "sys.path.insert(0, 'spark')\n"
        "from tests.hostile.test_objects import FLIPS, flipped, read\n"
        "for number in range(FLIPS): read(flipped(number), 'k', 'parquet')\n"
        "print('alive')"
    )
    ended = in_child(code, megabytes=4_096)
    assert (ended.code, ended.said) == (0, "alive"), ended


def flipped(number: int) -> bytes:
    """A Parquet file with one to three bits turned."""
    made, luck = io.BytesIO(), random.Random(number)
    pq.write_table(pa.table({"a": ["x", "y"] * 20, "n": list(range(40))}), made)
    content = bytearray(made.getvalue())
    for _ in range(luck.randint(1, 3)):
        content[luck.randrange(len(content))] ^= 1 << luck.randrange(8)
    return bytes(content)
