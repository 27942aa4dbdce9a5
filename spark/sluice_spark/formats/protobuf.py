"""Protobuf by a descriptor file: columns and values of one message, without code that protoc made.

The file is a FileDescriptorSet: `protoc --include_imports --descriptor_set_out=FILE …`. Its content travels with the
options, so that executors needn't have the file, and a retried task reads with the same.
"""

import importlib
from base64 import b64decode
from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from functools import lru_cache
from typing import Any

from sluice_spark.errors import InvalidOption

NAMES_SHOWN = 10  # of a file's messages, where the one that is asked for isn't among them
# Of FieldDescriptor.type: https://protobuf.dev/reference/protobuf/google.protobuf/#field-descriptor-proto
GROUP, MESSAGE, ENUM, UINT64, FIXED64 = 10, 11, 14, 4, 6
_DDL = {
    1: "double", 2: "float", 3: "bigint", 4: "decimal(20, 0)", 5: "int", 6: "decimal(20, 0)", 7: "bigint",
    8: "boolean", 9: "string", 12: "binary", 13: "bigint", 14: "string", 15: "int", 16: "bigint", 17: "int",
    18: "bigint",
}  # fmt: skip
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_WRAPPERS = frozenset(
    f"google.protobuf.{kind}Value"
    for kind in ("Double", "Float", "Int64", "UInt64", "Int32", "UInt32", "Bool", "String", "Bytes")
)
_KNOWN_DDL = {"google.protobuf.Timestamp": "timestamp", "google.protobuf.Duration": "interval day to second"}

Read = Callable[[Any], Any]


def columns(descriptors: bytes, name: str) -> str:
    """DDL of a message's fields, in their order.

    Raises InvalidOption for what is no descriptor file, has no such message, or one that holds itself.
    """
    return _fields(_message(descriptors, name).DESCRIPTOR, ())


def parser(descriptors: bytes, name: str) -> Callable[[str], Mapping[str, Any]]:
    """Make the function from a body, in base64, to its message's fields. Raises InvalidOption as `columns`."""
    kind = _message(descriptors, name)
    read = _struct(kind.DESCRIPTOR)

    def parse(body: str) -> Mapping[str, Any]:
        found: Mapping[str, Any] = read(kind.FromString(b64decode(body, validate=True)))
        return found

    return parse


@lru_cache(maxsize=16)  # executors' workers are reused, and a pool takes its time
def _message(descriptors: bytes, name: str) -> Any:
    """Make the message's class."""
    try:
        descriptor_pb2 = importlib.import_module("google.protobuf.descriptor_pb2")
        pools = importlib.import_module("google.protobuf.descriptor_pool")
        factory = importlib.import_module("google.protobuf.message_factory")
    except ImportError as error:
        raise InvalidOption("format", "protobuf needs protobuf where the driver and the executors run") from error
    pool = pools.DescriptorPool()
    try:
        files = descriptor_pb2.FileDescriptorSet.FromString(descriptors).file
        for file in files:
            pool.Add(file)
    except Exception as error:  # protobuf's versions raise several, of which some have no common root
        raise InvalidOption(
            "descriptorFile", f"no whole descriptor set (protoc --include_imports --descriptor_set_out): {error}"
        ) from error
    try:
        return factory.GetMessageClass(pool.FindMessageTypeByName(name))
    except KeyError as error:
        own = [file for file in files if file.package != "google.protobuf"]
        there = [f"{file.package}.{each.name}".lstrip(".") for file in own for each in file.message_type]
        shown = ", ".join(there[:NAMES_SHOWN]) + (", …" if len(there) > NAMES_SHOWN else "")
        raise InvalidOption("messageName", f"{name!r} is none of {shown or 'no messages'}") from error


def _fields(descriptor: Any, within: tuple[str, ...]) -> str:
    if descriptor.full_name in within:
        raise InvalidOption("messageName", f"{descriptor.full_name} holds itself, which no column type can say")
    if not descriptor.fields:
        raise InvalidOption("messageName", f"{descriptor.full_name} has no fields, and so no column type")
    return ", ".join(f"`{field.name}`: {_ddl(field, (*within, descriptor.full_name))}" for field in descriptor.fields)


def _ddl(field: Any, within: tuple[str, ...]) -> str:
    if _is_map(field):
        key, value = (field.message_type.fields_by_name[name] for name in ("key", "value"))
        return f"map<{_ddl_of_one(key, within)}, {_ddl_of_one(value, within)}>"
    one = _ddl_of_one(field, within)
    return f"array<{one}>" if field.is_repeated else one


def _ddl_of_one(field: Any, within: tuple[str, ...]) -> str:
    if field.type not in {MESSAGE, GROUP}:
        return _DDL[field.type]
    kind = field.message_type
    if kind.full_name in _WRAPPERS:
        return _DDL[kind.fields_by_name["value"].type]
    return _KNOWN_DDL.get(kind.full_name) or f"struct<{_fields(kind, within)}>"


def _is_map(field: Any) -> bool:
    return field.type == MESSAGE and bool(field.message_type.GetOptions().map_entry)


def _struct(descriptor: Any) -> Read:
    """Fields that have a presence are null without; others have their type's default."""
    readers = [(field.name, field.has_presence, _reader(field)) for field in descriptor.fields]

    def read(message: Any) -> Mapping[str, Any]:
        return {
            name: None if present and not message.HasField(name) else of_field(getattr(message, name))
            for name, present, of_field in readers
        }

    return read


def _reader(field: Any) -> Read:
    if _is_map(field):
        of_value = _reader_of_one(field.message_type.fields_by_name["value"])
        return lambda values: {key: of_value(values[key]) for key in values}
    one = _reader_of_one(field)
    return (lambda values: [one(value) for value in values]) if field.is_repeated else one


def _reader_of_one(field: Any) -> Read:
    if field.type == ENUM:
        names = {value.number: value.name for value in field.enum_type.values}
        return lambda number: names.get(number, str(number))  # of a later version of the schema
    if field.type in {UINT64, FIXED64}:
        return Decimal
    return _reader_of_message(field.message_type) if field.type in {MESSAGE, GROUP} else lambda value: value


def _reader_of_message(kind: Any) -> Read:
    if kind.full_name == "google.protobuf.Timestamp":
        return lambda at: _EPOCH + _time(at)
    if kind.full_name == "google.protobuf.Duration":
        return _time
    if kind.full_name in _WRAPPERS:
        of_value = _reader_of_one(kind.fields_by_name["value"])
        return lambda wrapper: of_value(wrapper.value)
    return _struct(kind)


def _time(value: Any) -> timedelta:
    """Cut to Spark's microseconds."""
    return timedelta(seconds=value.seconds, microseconds=value.nanos // 1000)
