"""Protobuf by a descriptor file, as protoc writes it; made here without protoc."""

from base64 import b64encode
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sluice_spark.errors import InvalidOption
from sluice_spark.formats import protobuf
from sluice_spark.formats.deserialisation import Deserialisation, deserialised, parser
from sluice_spark.formats.envelopes import S3Choice
from sluice_spark.options import parsed

pb = pytest.importorskip("google.protobuf.descriptor_pb2", reason="an extra: pip install ./spark[protobuf]")
F = pb.FieldDescriptorProto
MINIMUM = {"queueUrl": "https://sqs.eu-west-1.amazonaws.com/1/q", "stagingLocation": "/tmp/log", "format": "protobuf"}
KIND = pa.struct(
    [
        ("id", pa.int64()), ("name", pa.string()), ("price", pa.float64()), ("big", pa.decimal128(20, 0)),
        ("state", pa.string()), ("at", pa.timestamp("us", tz="UTC")), ("took", pa.duration("us")),
        ("raw", pa.binary()), ("tags", pa.list_(pa.string())), ("stock", pa.map_(pa.string(), pa.int32())),
        ("lines", pa.list_(pa.struct([("sku", pa.string())]))), ("note", pa.string()), ("gift", pa.bool_()),
    ]
)  # fmt: skip


def well_known(name: str) -> Any:
    """A file that protoc brings along."""
    import importlib  # noqa: PLC0415 - beside what may be missing

    file = pb.FileDescriptorProto()
    importlib.import_module(f"google.protobuf.{name}_pb2").DESCRIPTOR.CopyToProto(file)
    return file


def field(message: Any, number: int, name: str, kind: int, of: str = "", **more: Any) -> None:
    given = {"label": F.LABEL_OPTIONAL, **({"type_name": of} if of else {}), **more}
    message.field.add(name=name, number=number, type=kind, **given)


def files(*, complete: bool = True) -> Any:
    """`shop.Order`, with a field of each sort, and `shop.Node`, which holds itself."""
    found = pb.FileDescriptorSet()
    if complete:
        found.file.extend([well_known(name) for name in ("timestamp", "duration", "wrappers")])
    imports = [f"google/protobuf/{name}.proto" for name in ("timestamp", "duration", "wrappers")]
    file = found.file.add(name="shop.proto", package="shop", syntax="proto3", dependency=imports)
    state = file.enum_type.add(name="State")
    for number, name in enumerate(("NEW", "SENT")):
        state.value.add(name=name, number=number)
    order = file.message_type.add(name="Order")
    line = order.nested_type.add(name="Line")
    field(line, 1, "sku", F.TYPE_STRING)
    entry = order.nested_type.add(name="StockEntry")
    field(entry, 1, "key", F.TYPE_STRING)
    field(entry, 2, "value", F.TYPE_INT32)
    entry.options.map_entry = True
    order.oneof_decl.add(name="_note")
    for number, (name, kind, of, more) in enumerate(
        [
            ("id", F.TYPE_INT64, "", {}),
            ("name", F.TYPE_STRING, "", {}),
            ("price", F.TYPE_DOUBLE, "", {}),
            ("big", F.TYPE_UINT64, "", {}),
            ("state", F.TYPE_ENUM, ".shop.State", {}),
            ("at", F.TYPE_MESSAGE, ".google.protobuf.Timestamp", {}),
            ("took", F.TYPE_MESSAGE, ".google.protobuf.Duration", {}),
            ("raw", F.TYPE_BYTES, "", {}),
            ("tags", F.TYPE_STRING, "", {"label": F.LABEL_REPEATED}),
            ("stock", F.TYPE_MESSAGE, ".shop.Order.StockEntry", {"label": F.LABEL_REPEATED}),
            ("lines", F.TYPE_MESSAGE, ".shop.Order.Line", {"label": F.LABEL_REPEATED}),
            ("note", F.TYPE_STRING, "", {"oneof_index": 0, "proto3_optional": True}),
            ("gift", F.TYPE_MESSAGE, ".google.protobuf.BoolValue", {}),
        ],
        start=1,
    ):
        field(order, number, name, kind, of, **more)
    node = file.message_type.add(name="Node")
    field(node, 1, "next", F.TYPE_MESSAGE, ".shop.Node")
    file.message_type.add(name="Empty")
    return found


CONTENT = files().SerializeToString()


def body(fill: Callable[[Any], None] = lambda order: None) -> str:
    order = protobuf._message(CONTENT, "shop.Order")()
    fill(order)
    return b64encode(order.SerializeToString()).decode()


def rows(*bodies: str) -> list[dict[str, Any]]:
    wanted = Deserialisation(format="protobuf", descriptors=CONTENT, message="shop.Order")
    batch = pa.RecordBatch.from_pydict({"message_id": [str(n) for n in range(len(bodies))], "body": list(bodies)})
    found: list[dict[str, Any]] = deserialised(batch, wanted, S3Choice(), {"value": KIND}, parser(wanted)).to_pylist()
    return found


def test_a_message_s_fields_are_columns() -> None:
    assert protobuf.columns(CONTENT, "shop.Order") == (
        "`id`: bigint, `name`: string, `price`: double, `big`: decimal(20, 0), `state`: string, `at`: timestamp, "
        "`took`: interval day to second, `raw`: binary, `tags`: array<string>, `stock`: map<string, int>, "
        "`lines`: array<struct<`sku`: string>>, `note`: string, `gift`: boolean"
    )


def test_a_message_becomes_typed_values() -> None:
    def fill(order: Any) -> None:
        order.id, order.name, order.price, order.big, order.state, order.raw = 7, "é", 1.25, 2**64 - 1, 1, b"\x00"
        order.at.seconds, order.at.nanos, order.took.seconds = 1_700_000_000, 123_456_789, -90
        order.tags.extend(["a", "b"])
        order.stock["x"] = 3
        order.lines.add(sku="s")
        order.note, order.gift.value = "", False

    (row,) = rows(body(fill))
    assert row["bad_record"] is None
    assert row["value"] == {
        "id": 7, "name": "é", "price": 1.25, "big": Decimal(2**64 - 1), "state": "SENT",
        "at": datetime(2023, 11, 14, 22, 13, 20, 123_456, UTC), "took": timedelta(seconds=-90), "raw": b"\x00",
        "tags": ["a", "b"], "stock": [("x", 3)], "lines": [{"sku": "s"}], "note": "", "gift": False,
    }  # fmt: skip


def test_what_is_not_said_is_null_or_its_type_s_default() -> None:
    (row,) = rows(body())
    null = {name for name, value in row["value"].items() if value is None}
    assert null == {"at", "took", "note", "gift"}
    assert (row["value"]["id"], row["value"]["state"], row["value"]["lines"]) == (0, "NEW", [])


def test_a_value_of_a_later_schema_is_its_number() -> None:
    def fill(order: Any) -> None:
        order.state = 9

    (row,) = rows(body(fill))
    assert row["value"]["state"] == "9"


@pytest.mark.parametrize("given", ["no base64!", b64encode(b"\xff\xff").decode(), "{}"])
def test_what_is_no_message_is_a_bad_record(given: str) -> None:
    first, second = rows(given, body())
    assert (first["value"], bool(first["bad_record"]), second["bad_record"]) == (None, True, None)


@pytest.mark.parametrize(
    ("content", "name", "option"),
    [
        (b"\xff", "shop.Order", "descriptorFile"),
        (b"", "shop.Order", "messageName"),
        (CONTENT, "Order", "messageName.*shop.Order, shop.Node"),
        (CONTENT, "shop.Node", "messageName.*holds itself"),
        (CONTENT, "shop.Empty", "messageName.*no fields"),
        (files(complete=False).SerializeToString(), "shop.Order", "include_imports"),
    ],
)
def test_what_can_not_be_read_so_is_said_at_plan_time(content: bytes, name: str, option: str) -> None:
    with pytest.raises(InvalidOption, match=option):
        protobuf.columns(content, name)


def test_the_file_is_read_once_where_the_query_is_planned(tmp_path: Path) -> None:
    (tmp_path / "shop.desc").write_bytes(CONTENT)
    options = parsed({**MINIMUM, "descriptorFile": str(tmp_path / "shop.desc"), "messageName": "shop.Order"})
    assert options.deserialisation.descriptors == CONTENT


@pytest.mark.parametrize(
    ("option", "given"),
    [
        ("descriptorFile", {"messageName": "shop.Order"}),
        ("descriptorFile", {"messageName": "shop.Order", "descriptorFile": "/nowhere/shop.desc"}),
        ("messageName", {"messageName": "a b"}),
        ("messageName", {"messageName": "shop.Order", "format": "raw"}),
        ("schema", {"schema": "a int"}),
    ],
)
def test_options_that_do_not_go_together_are_named(option: str, given: dict[str, str]) -> None:
    with pytest.raises(InvalidOption, match=option):
        parsed({**MINIMUM, **given})


@given(st.binary(max_size=64))
def test_whatever_bytes_there_are_they_are_a_value_or_a_bad_record(content: bytes) -> None:
    (row,) = rows(b64encode(content).decode())
    assert (row["value"] is None) == (row["bad_record"] is not None)
