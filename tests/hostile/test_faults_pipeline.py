"""Faults of the pipeline that hostile bodies and objects show: each is expected to fail until it is mended.

What may take all memory, or never end, runs in a process of its own, as Spark's Python workers do.
"""

import base64
import gzip
import io
import json
import zlib
from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pytest
from sluice_spark.formats.s3_files import S3Files, records

from tests.hostile.limits import MIB, Ended, in_child

SCHEMA = {"type": "record", "name": "r", "fields": [{"name": "a", "type": ["null", "string"], "default": None}]}
SYNC = b"\0" * 16  # between the blocks of a container
MEGABYTES = 1_024  # of address space: Python, Arrow and fastavro take a quarter
CPU_S = 2
OBJECT_BYTES = 256 * 1024  # as an option has it here
KIND = pa.struct([("a", pa.string())])


def number(value: int) -> bytes:
    """An Avro long."""
    zigzag, coded = value << 1, b""
    while zigzag > 0x7F:
        zigzag, coded = zigzag >> 7, coded + bytes([zigzag & 0x7F | 0x80])
    return coded + bytes([zigzag])


def text(value: bytes) -> bytes:
    return number(len(value)) + value


def container(fields: Sequence[dict[str, Any]], block: bytes, *, codec: bytes = b"null") -> str:
    """A body that is an Avro object container with one record: it brings its writer's schema along."""
    schema = json.dumps({"type": "record", "name": "r", "fields": fields}).encode()
    head = number(2) + text(b"avro.schema") + text(schema) + text(b"avro.codec") + text(codec) + number(0)
    return base64.b64encode(b"Obj\x01" + head + SYNC + number(1) + text(block) + SYNC).decode()


def deserialised(body: str, *, cpu_s: int = CPU_S) -> Ended:
    """What the source makes of one body in a batch, with another one behind it."""
    code = (
        "sys.path.insert(0, 'spark')\n"
        "import pyarrow as pa\n"
        "from sluice_spark.formats.deserialisation import Deserialisation, parser\n"
        f"parse = parser(Deserialisation(format='avro', schema={json.dumps(SCHEMA)!r}))\n"
        "try: parse(sys.stdin.read())\n"
        "except MemoryError: print('all memory was taken')\n"
        "except Exception as error: print('bad record:', error)\n"
        "else: print('read')"
    )
    return in_child(code, body, megabytes=MEGABYTES, cpu_s=cpu_s)


def test_a_body_with_a_schema_of_its_own_is_read() -> None:
    ended = deserialised(container([{"name": "a", "type": ["null", "string"]}], number(1) + text(b"x")))
    assert (ended.code, ended.said) == (0, "read"), ended


@pytest.mark.xfail(strict=True, reason="an Avro body of 200 bytes with a schema of its own keeps its task without end")
def test_a_body_that_says_it_has_a_billion_nothings_ends() -> None:
    """An item that takes no bytes may be there any number of times; each is skipped by itself."""
    nothings = [{"name": "x", "type": {"type": "array", "items": "null"}}]
    assert deserialised(container(nothings, number(1 << 40) + number(0))).code == 0


@pytest.mark.xfail(strict=True, reason="an Avro body whose schema is itself ends the Python worker, and its job")
def test_a_body_whose_schema_is_itself_is_a_bad_record() -> None:
    assert deserialised(container([{"name": "x", "type": "r"}], b"")).code == 0


@pytest.mark.xfail(strict=True, reason="an Avro body of a mebibyte unpacks to a gibibyte")
def test_a_body_that_unpacks_without_measure_is_a_bad_record() -> None:
    packer = zlib.compressobj(9, zlib.DEFLATED, -15)
    block = packer.compress(b"\0" * MIB) + packer.flush(zlib.Z_FULL_FLUSH)  # which needs nothing from before
    packed = block * 500 + packer.flush()
    body = container([{"name": "x", "type": "bytes"}], packed, codec=b"deflate")
    assert len(body) < MIB
    assert deserialised(body, cpu_s=20).said.startswith("bad record: ")


@pytest.mark.xfail(strict=True, reason="a Parquet object of a kilobyte is read into gigabytes: encoded sizes bound it")
def test_a_parquet_object_of_a_kilobyte_takes_bounded_memory() -> None:
    """One value of a mebibyte in the dictionary, and many rows that say it."""
    code = (
        "sys.path.insert(0, 'spark')\n"
        "import io, resource, pyarrow as pa, pyarrow.parquet as pq\n"
        "from sluice_spark.formats.s3_files import S3Files, records\n"
        "made = io.BytesIO()\n"
        "pq.write_table(pa.table({'a': ['x' * 2**20] * 150}), made, compression='zstd')\n"
        "del pq; whole = made.getvalue(); assert len(whole) < 2_000\n"
        "pa.default_memory_pool().release_unused()\n"
        "most = 0\n"
        "for part in records(io.BytesIO(whole), 'k', S3Files(format='parquet'), pa.struct([('a', pa.string())])):\n"
        "    most = max(most, part.values.nbytes)\n"
        "print(most // 2**20)"
    )
    ended = in_child(code, megabytes=3 * MEGABYTES)
    assert ended.code == 0
    assert int(ended.said) <= 64


@pytest.mark.xfail(strict=True, reason="a packed object may unpack to any size: what is limited is its size as stored")
def test_a_packed_object_is_read_up_to_a_limit() -> None:
    line = json.dumps({"a": "x" * 10_000}).encode() + b"\n"
    number_of_lines = 100 * OBJECT_BYTES // len(line)
    packed = gzip.compress(line * number_of_lines)
    assert len(packed) < OBJECT_BYTES
    files = S3Files(format="json", object_bytes=OBJECT_BYTES)
    taken = sum(len(part.reasons) for part in records(io.BytesIO(packed), "k.json.gz", files, KIND))
    assert taken < number_of_lines
