"""Bodies as Spark's own readers have them, and which of them they can't read.

Spark's packages for Avro and Protobuf aren't here: what is handed to their readers is, and Avro's own library.
"""

import base64
import zlib
from contextlib import suppress
from decimal import Decimal
from typing import Any

import pytest
from pyspark.sql import DataFrame, Row
from sluice_spark.decoding import CONTAINER_MARK, END, _append_end_marker_field, _strip_header, decode
from sluice_spark.errors import InvalidOption

SCHEMA = "n int, x decimal(38, 2)"
CONFLUENT = b"\x00\x00\x00\x00\x07"
GLUE = b"\x03\x00" + bytes(16)


def coded(content: bytes) -> str:
    return base64.b64encode(content).decode()


def frame(spark: Any, *bodies: str | None) -> DataFrame:
    """Rows that Spark's driver has itself: a frame of Python's rows starts a job for each action."""
    texts = ("NULL" if body is None else f"X'{body.encode().hex()}'" for body in bodies)
    values = ", ".join(f"(CAST({text} AS STRING))" for text in texts)
    found: DataFrame = spark.sql(f"SELECT * FROM VALUES {values} AS t(body)")
    return found


def rows(spark: Any, *bodies: str | None, format: str = "json", **more: Any) -> list[Row]:  # noqa: A002  as decode's
    if format == "json":
        more["schema"] = SCHEMA
    return decode(frame(spark, *bodies), format, **more).collect()


GOOD = ['{"n": 1, "x": 12345678901234567890123456789012345.67}', "{}", ' {"n": null, "other": []}\n']
BAD = [
    "", " ", "nonsense", "null", "[]", "7", '"s"', '{"n": "7"}', '{"n": 1.5}', '{"n": 3000000000}', '[{"n": 1}]',
    '{"n": 1} {"n": 2}', '{"n": 1}, {"n": 2}', '{"n": 1}, null', '{"n": 1}] rest',
]  # fmt: skip


def test_json_is_what_from_json_makes_of_it(spark: Any) -> None:
    first, second, third, none = rows(spark, *GOOD, None)
    assert first.value.asDict() == {"n": 1, "x": Decimal("12345678901234567890123456789012345.67")}
    assert [row.value.asDict() for row in (second, third)] == [{"n": None, "x": None}] * 2
    assert [(row.bad_record, row.bad_reason) for row in (first, second, third, none)] == [(None, None)] * 4
    assert none.value is None


def test_what_from_json_reads_in_part_or_not_at_all_is_a_bad_record(spark: Any) -> None:
    found = rows(spark, *BAD)
    assert [(row.value, row.bad_record, row.bad_reason) for row in found] == [
        (None, body, "not JSON of the schema") for body in BAD
    ]


def test_a_variant_holds_any_json(spark: Any) -> None:
    found = rows(spark, '{"n": [1, null]}', "null", "7", "nonsense", "1 2", "1, 2", "", None, format="variant")
    assert [row.value and row.value.toJson() for row in found] == ['{"n":[1,null]}', "null", "7", *[None] * 5]
    assert [row.bad_record for row in found] == [None, None, None, "nonsense", "1 2", "1, 2", "", None]


@pytest.mark.parametrize(("header", "begins"), [("confluent", CONFLUENT), ("glue", GLUE), ("none", b"")])
def test_a_header_is_taken_off(spark: Any, header: str, begins: bytes) -> None:
    good, garbled, text = rows(spark, coded(begins + b'{"n": 7}'), coded(begins + b'"\xff"'), "{}", header=header)
    assert (good.value.n, good.bad_reason) == (7, None)
    assert (garbled.value, garbled.bad_reason) == (None, "not JSON of the schema")
    assert (text.bad_record, text.bad_reason) == ("{}", "not base64")


@pytest.mark.parametrize(
    ("header", "reasons"),
    [
        ("confluent", {b"\x01\x00\x00\x00\x07{}": "no Confluent header", b"\x00\x00": "no Confluent header"}),
        (
            "glue",
            {
                CONFLUENT + b"{}": "no Glue header",
                b"\x03\x00{}": "no Glue header",
                b"\x03\x05" + bytes(16) + zlib.compress(b"{}"): "zlib",
            },
        ),
        (None, {CONFLUENT + b"{}": "header='confluent' takes that off", GLUE + b"{}": "header='glue' takes that off"}),
    ],
)
def test_a_header_that_is_not_there_or_not_taken_off_is_named(
    spark: Any, header: str | None, reasons: dict[bytes, str]
) -> None:
    found = rows(spark, *map(coded, reasons), header=header)
    assert [(row.value, row.bad_record) for row in found] == [(None, coded(content)) for content in reasons]
    assert all(reason in row.bad_reason for row, reason in zip(found, reasons.values(), strict=True))


@pytest.mark.parametrize(
    ("format_", "header", "flaws"),
    [
        (
            "avro",
            None,
            {
                b"\x02a": None,
                CONFLUENT + b"\x02a": "header='confluent'",
                GLUE + b"\x02a": "header='glue'",
                CONTAINER_MARK: "an Avro container file",
            },
        ),
        ("avro", "none", {CONFLUENT: None}),
        ("avro", "confluent", {CONFLUENT + b"\x02a": None}),
        ("avro", "glue", {GLUE + CONTAINER_MARK: "an Avro container file"}),
        (
            "protobuf",
            "confluent",
            {CONFLUENT + b"\x00\x08\x07": None, CONFLUENT + b"\x02\x02\x08\x07": "another message"},
        ),
        ("protobuf", None, {CONFLUENT: "header='confluent'"}),
    ],
)
def test_of_binary_bodies_the_content_is_handed_to_the_reader(
    spark: Any, format_: str, header: str | None, flaws: dict[bytes, str | None]
) -> None:
    given = frame(spark, *map(coded, flaws))
    stripped = _strip_header(given.body, format_, header)
    found = given.select(stripped.content.alias("content"), stripped.flaw.alias("flaw")).collect()
    for row, (content, flaw) in zip(found, flaws.items(), strict=True):
        if flaw is None:
            assert row.flaw is None
            assert content.endswith(bytes(row.content))
            assert bytes(row.content).startswith((b"\x02a", b"\x08\x07", CONFLUENT))
        else:
            assert flaw in row.flaw


@pytest.mark.parametrize(
    ("schema", "content", "is_read"),
    [
        ('{"type": "record", "name": "R", "fields": [{"name": "n", "type": ["null", "int"]}]}', b"\x00", True),
        ('{"type": "record", "name": "R", "fields": [{"name": "n", "type": ["null", "int"]}]}', b"\x02\x0e", True),
        ('{"type": "record", "name": "R", "fields": [{"name": "n", "type": ["null", "int"]}]}', b"\x00\x00", False),
        ('{"type": "record", "name": "R", "fields": [{"name": "n", "type": ["null", "int"]}]}', b"\x08", False),
        ('"string"', b"\x02a", True),
        ('"string"', b"\x04a", False),
    ],
)
def test_avro_reads_a_datum_whole_or_its_end_is_not_there(
    spark: Any, schema: str, content: bytes, is_read: bool
) -> None:
    """By Avro's own library, which Spark's reader calls."""
    avro = spark.sparkContext._jvm.org.apache.avro
    reader = avro.generic.GenericDatumReader(avro.Schema.Parser().parse(_append_end_marker_field(schema)))
    decoder = avro.io.DecoderFactory.get().binaryDecoder(bytearray(content + END), None)
    end = b""
    with suppress(Exception):  # as Spark's reader has it
        end = bytes(reader.read(None, decoder).get("end").bytes())
    assert (end == END) == is_read


@pytest.mark.parametrize(
    ("format_", "more", "package"),
    [
        ("avro", {"schema": '"string"'}, "spark-avro"),
        ("protobuf", {"schema": b"", "message": "shop.Order"}, "spark-protobuf"),
    ],
)
def test_what_spark_lacks_it_says(spark: Any, format_: str, more: dict[str, Any], package: str) -> None:
    with pytest.raises(Exception, match=package):
        decode(frame(spark, "AAAA"), format_, **more)


def test_what_the_source_calls_bad_stays_so_and_other_columns_stay(spark: Any) -> None:
    given = spark.sql(
        "SELECT * FROM VALUES (1, '{}', 'not JSON', NULL), "
        """(2, '{"n": 2}', NULL, struct('{"n": 3}' AS line)) AS t(id, body, bad_reason, value)"""
    )
    bad, good = decode(given, "json", SCHEMA).orderBy("id").collect()
    assert (bad.value, bad.bad_record, bad.bad_reason) == (None, "{}", "not JSON")
    assert (good.value.n, good.bad_record) == (2, None)
    without, of_line = decode(given, "json", SCHEMA, column="value.line", into="sale").orderBy("id").collect()
    assert (without.sale, without.bad_record, of_line.sale.n, of_line.value.line) == (None, "{}", 3, '{"n": 3}')
    assert set(of_line.asDict()) == {"id", "body", "value", "sale", "bad_record", "bad_reason"}


@pytest.mark.parametrize(
    ("format_", "more", "named"),
    [
        ("xml", {}, "format"),
        ("json", {}, "schema"),
        ("variant", {"schema": "n int"}, "schema"),
        ("avro", {"schema": "nonsense"}, "schema"),
        ("avro", {"schema": '"string"', "options": {"avroSchemaUrl": "a"}}, "avroSchemaUrl"),
        ("protobuf", {"schema": b""}, "message"),
        ("json", {"schema": "n int", "message": "a"}, "message"),
        ("json", {"schema": "n int", "header": "other"}, "header"),
        ("json", {"schema": "n int", "options": {"mode": "FAILFAST"}}, "mode"),
    ],
)
def test_arguments_that_do_not_fit_are_named(spark: Any, format_: str, more: dict[str, Any], named: str) -> None:
    with pytest.raises(InvalidOption, match=named):
        decode(frame(spark, "{}"), format_, **more)


def test_the_readers_own_options_are_its(spark: Any) -> None:
    (row,) = decode(frame(spark, "{'n': 7}"), "json", "n int", options={"allowSingleQuotes": "true"}).collect()
    assert row.value.n == 7
    (row,) = decode(frame(spark, "{'n': 7}"), "json", "n int", options={"allowSingleQuotes": "false"}).collect()
    assert row.bad_record == "{'n': 7}"
