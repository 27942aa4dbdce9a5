import base64
import io
import json
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from sluice_spark.errors import InvalidOption
from sluice_spark.formats.deserialisation import Deserialisation, added_columns, deserialised, parser, split
from sluice_spark.formats.envelopes import S3Choice
from sluice_spark.log.notes import quarantine
from sluice_spark.log.planning import Slice
from sluice_spark.log.store import FileStore

KIND = pa.struct(
    [
        ("n", pa.int32()), ("s", pa.string()), ("d", pa.date32()), ("t", pa.timestamp("us", tz="UTC")),
        ("x", pa.decimal128(9, 2)), ("b", pa.binary()), ("l", pa.list_(pa.int64())),
        ("m", pa.map_(pa.string(), pa.float64())), ("o", pa.struct([("deep", pa.bool_())])),
    ]
)  # fmt: skip
PLAIN = S3Choice()
JSON = Deserialisation(format="json", schema="n int")


def shout(body: str) -> dict[str, str]:
    if not body:
        raise LookupError("silence")
    return {"s": body.upper()}


def rows(bodies: list[str], wanted: Deserialisation = JSON, choice: S3Choice = PLAIN) -> list[dict[str, Any]]:
    batch = pa.RecordBatch.from_pydict({"message_id": [str(n) for n in range(len(bodies))], "body": bodies})
    found: list[dict[str, Any]] = deserialised(batch, wanted, choice, {"value": KIND}, parser(wanted)).to_pylist()
    return found


def test_json_becomes_typed_values() -> None:
    body = {
        "n": 7, "s": "é", "d": "2026-01-02", "t": "2026-01-02T03:04:05Z", "x": "1.25", "b": "AAE=", "l": [1, None],
        "m": {"k": 1}, "o": {"deep": True}, "unknown": 1,
    }  # fmt: skip
    (row,) = rows([json.dumps(body)])
    assert row["bad_record"] is None
    assert row["value"] == {
        "n": 7, "s": "é", "d": date(2026, 1, 2), "t": datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC), "x": Decimal("1.25"),
        "b": b"\x00\x01", "l": [1, None], "m": [("k", 1.0)], "o": {"deep": True},
    }  # fmt: skip


@pytest.mark.parametrize("number", ["0", "0.0", "-1.25", '"1.25"', "null"])
def test_a_decimal_is_any_number_exactly(number: str) -> None:
    (row,) = rows([f'{{"x": {number}, "m": {{"k": null}}, "o": null, "l": null}}'])
    text = number.strip('"')
    assert row["bad_record"] is None
    assert row["value"]["x"] == (None if text == "null" else Decimal(text))
    assert (row["value"]["m"], row["value"]["o"], row["value"]["l"]) == ([("k", None)], None, None)


@pytest.mark.parametrize(
    "body",
    ["", "nonsense", "[]", "7", "null", '{"n": "7"}', '{"n": 1.5}', '{"n": true}', '{"n": 3000000000}', '{"s": 1}',
     '{"d": "soon"}', '{"t": 1}', '{"x": "much"}', '{"b": "?"}', '{"l": {}}', '{"m": []}', '{"o": 1}'],
)  # fmt: skip
def test_a_bad_record_has_a_reason_and_harms_no_other(body: str) -> None:
    good, bad, also_good = rows(['{"n": 1}', body, '{"n": 2}'])
    assert (good["value"]["n"], also_good["value"]["n"]) == (1, 2)
    assert (bad["value"], bad["body"]) == (None, body)
    assert bad["bad_record"]


def test_a_function_of_ones_own_may_raise_anything() -> None:
    wanted = Deserialisation(format=f"{__name__}:shout", schema="s string")
    batch = pa.RecordBatch.from_pydict({"message_id": ["1", "2"], "body": ["a", ""]})
    found = deserialised(batch, wanted, S3Choice(), {"value": KIND}, shout).to_pylist()
    assert (found[0]["value"]["s"], found[1]["bad_record"]) == ("A", "LookupError: silence")


@pytest.mark.parametrize("name", ["no.such:thing", "json:nothing", "json:__doc__"])
def test_a_function_that_is_not_there_is_said_at_plan_time(name: str) -> None:
    with pytest.raises(InvalidOption, match="format"):
        added_columns(Deserialisation(format=name, schema="a int"))


def test_an_envelope_with_several_objects_gives_as_many_rows() -> None:
    def record(key: str) -> dict[str, Any]:
        return {"eventName": "ObjectCreated:Put", "s3": {"bucket": {"name": "b"}, "object": {"key": key}}}

    bodies = [json.dumps({"Records": [record("one"), record("two")]}), '{"Event": "s3:TestEvent"}', "broken"]
    found = rows(bodies, Deserialisation(envelopes=("s3",)))
    assert [dict(row["envelope"]).get("key") for row in found] == ["one", "two", None]
    assert [row["message_id"] for row in found] == ["0", "0", "2"]
    assert found[2]["body"] == "broken"
    assert "not JSON" in found[2]["bad_record"]


def test_bad_records_go_to_a_place_of_their_own_once(tmp_path: Any) -> None:
    batch = pa.RecordBatch.from_pydict({"body": ['{"n": 1}', "x", "y"]})
    good, bad = split(deserialised(batch, JSON, S3Choice(), {"value": KIND}, parser(JSON)))
    store = FileStore(tmp_path)
    for _ in range(2):
        quarantine(store, Slice(3, 0, 3), bad)
    assert (good.num_rows, [pq.read_metadata(file).num_rows for file in tmp_path.glob("*-2.parquet")]) == (1, [2])


AVRO = {
    "type": "record",
    "name": "R",
    "fields": [{"name": "n", "type": ["null", "int"]}, {"name": "s", "type": "string"}],
}

AVRO_EXTRA = "fastavro is the package's extra: pip install ./spark[avro]"


def test_avro_columns_follow_its_schema() -> None:
    pytest.importorskip("fastavro", reason=AVRO_EXTRA)
    wanted = Deserialisation(format="avro", schema=json.dumps(AVRO))
    assert list(added_columns(wanted)) == ["value struct<`n`: int, `s`: string>", "bad_record string"]


def test_avro_comes_as_base64_of_a_datum_or_a_container() -> None:
    fastavro = pytest.importorskip("fastavro", reason=AVRO_EXTRA)
    datum, container = io.BytesIO(), io.BytesIO()
    fastavro.schemaless_writer(datum, AVRO, {"n": 7, "s": "a"})
    fastavro.writer(container, AVRO, [{"n": None, "s": "b"}])
    bodies = [base64.b64encode(each.getvalue()).decode() for each in (datum, container)]
    found = rows([*bodies, "AAAA", "?"], Deserialisation(format="avro", schema=json.dumps(AVRO)))
    assert [(row["value"]["n"], row["value"]["s"]) for row in found[:2]] == [(7, "a"), (None, "b")]
    assert all(row["bad_record"] for row in found[2:])


@pytest.mark.parametrize("schema", ["nonsense", "[]", '{"type": "enum"}'])
def test_what_is_no_avro_record_is_said_at_plan_time(schema: str) -> None:
    with pytest.raises(InvalidOption, match="schema"):
        added_columns(Deserialisation(format="avro", schema=schema))
