import json
import zlib
from typing import Annotated

import msgspec
import pytest
from msgspec import Meta

from sluice import codec
from sluice.codec import Format, Struct
from sluice.errors import BadConfiguration, BadSnapshot, Malformed


class Leaf(Struct, frozen=True, kw_only=True):
    name: Annotated[str, Meta(max_length=5)]
    tags: frozenset[str] = frozenset()


class Tree(Struct, frozen=True, kw_only=True):
    leaves: tuple[Leaf, ...] = ()


TREES = Format(kind="tree", version=2, type=Tree)
TREE = Tree(leaves=(Leaf(name="a", tags=frozenset({"y", "x"})),))
TEXT = '{"kind":"tree","version":2,"value":{"leaves":[{"name":"a","tags":["x","y"]}]}}'


def test_a_stored_value_says_its_kind_and_version() -> None:
    assert TREES.text(TREE) == TEXT
    assert TREES.from_text(TEXT) == TREE


def test_packed_it_is_the_same_text_compressed() -> None:
    assert zlib.decompress(TREES.pack(TREE)) == TEXT.encode()
    assert TREES.unpack(TREES.pack(TREE)) == TREE


def test_another_version_stops_the_reader() -> None:
    with pytest.raises(BadSnapshot, match="tree of version 3: this program reads tree of 2"):
        TREES.from_text(TEXT.replace('"version":2', '"version":3'))


def test_another_kind_stops_the_reader() -> None:
    with pytest.raises(BadSnapshot, match="bush of version 2: this program reads tree of 2"):
        TREES.from_text(TEXT.replace('"tree"', '"bush"'))


@pytest.mark.parametrize(
    "packed",
    [b"", b"nothing", zlib.compress(TEXT.encode())[:-1], zlib.compress(b"{"), zlib.compress(b"[" * 100_000)],
)
def test_damaged_bytes_are_a_bad_snapshot(packed: bytes) -> None:
    with pytest.raises(BadSnapshot, match=r"^tree: "):
        TREES.unpack(packed)


def test_what_is_too_large_is_never_inflated(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(codec, "MAX_BYTES", 10)
    with pytest.raises(BadSnapshot, match="too large"):
        TREES.unpack(TREES.pack(TREE))


def test_what_its_reader_would_refuse_is_not_packed_to_be_saved() -> None:
    long = Tree(leaves=(Leaf(name="a"), Leaf(name="longer than five")))
    with pytest.raises(BadConfiguration, match=r"tree isn't saved.*length <= 5.*\$\.leaves\[1\]\.name"):
        TREES.pack_checked(long)
    assert TREES.pack_checked(TREE) == TREES.pack(TREE)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ('{"leaves": [{"name": "a", "colour": "red"}]}', r"unknown field `colour`.*\$\.leaves\[0\]"),
        ('{"leaves": [{"name": 5}]}', r"Expected `str`, got `int`.*\$\.leaves\[0\]\.name"),
        ('{"leaves": [{"name": "sixsix"}]}', r"length <= 5.*\$\.leaves\[0\]\.name"),
        ('{"leaves": [{}]}', "missing required field `name`"),
        ("{", "Input data was truncated"),
        ('{"leaves": "\ud800"}', ""),
    ],
)
def test_what_is_malformed_names_the_place(text: str, reason: str) -> None:
    with pytest.raises(Malformed, match=f"(?s)a tree: .*{reason}"):
        codec.decode(text, Tree, of="a tree")


def test_a_document_that_is_read_already_is_checked_as_well() -> None:
    assert codec.convert(json.loads('{"leaves": [{"name": "a", "tags": ["y", "x"]}]}'), Tree, of="a tree") == TREE
    with pytest.raises(Malformed, match=r"a tree: .*colour"):
        codec.convert({"leaves": [{"name": "a", "colour": "red"}]}, Tree, of="a tree")


def test_values_are_changed_by_replace_alone() -> None:
    assert msgspec.structs.replace(TREE, leaves=()) == Tree()
    with pytest.raises(AttributeError):
        TREE.leaves = ()  # type: ignore[misc]  # that is what is tried
