"""JSON and YAML nested within the limit are read, and beyond it refused, however deep the caller's stack is."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sluice.documents import MAX_DEPTH, NestedTooDeep, check_depth, read_json
from sluice.operator.documents import BadFile, read_document, read_document_with_lines, read_documents
from sluice.splitting.filters.dialect import MAX_LEVELS
from sluice.splitting.filters.index import derive_required_literals
from sluice.splitting.filters.patterns import find_problem

STACKS = pytest.mark.parametrize("calls", [0, 450], ids=["shallow", "deep"])


def within(calls: int, call: Callable[[], object]) -> object:
    """Call from a stack that is so many calls deeper."""
    return within(calls - 1, call) if calls else call()


def refusal(calls: int, call: Callable[[], object]) -> str:
    """What is said of what is refused there."""
    with pytest.raises((BadFile, NestedTooDeep)) as refused:
        within(calls, call)
    return str(refused.value)


def nested(levels: int, opening: str = "[", closing: str = "]", inner: str = "") -> str:
    return opening * levels + inner + closing * levels


@STACKS
def test_json_is_read_up_to_the_limit_and_refused_where_it_goes_beyond(calls: int) -> None:
    text = nested(MAX_DEPTH)
    assert within(calls, lambda: json.dumps(read_json(text))) == text
    assert refusal(calls, lambda: read_json("\n" + nested(MAX_DEPTH + 1))) == (
        f"nested too deep, more than {MAX_DEPTH} levels: line 2 column {MAX_DEPTH + 1} (char {MAX_DEPTH + 1})"
    )
    assert "nested too deep" in refusal(calls, lambda: read_json(nested(100_000, '{"a":', "}", "1")))


@pytest.mark.parametrize("encoding", ["utf-8", "utf-16", "utf-32"])
def test_bytes_in_any_encoding_of_json_have_the_limit(encoding: str) -> None:
    hidden = nested(
        MAX_DEPTH + 1, '["\u2200\u5b5d", ', "]", "1"
    )  # characters that have bytes of a quote and of brackets
    with pytest.raises(NestedTooDeep):
        read_json(hidden.encode(encoding))


JSON = st.recursive(
    st.text('a[]{}"\\') | st.none(), lambda inner: st.lists(inner) | st.dictionaries(st.text('[]{"\\'), inner)
)


def depth(value: object) -> int:
    parts = value.values() if isinstance(value, dict) else value if isinstance(value, list) else None
    return 0 if parts is None else 1 + max(map(depth, parts), default=0)


@given(JSON)
def test_levels_are_those_of_arrays_and_objects_and_not_of_what_strings_hold(value: object) -> None:
    room = MAX_DEPTH - depth(value)
    check_depth("[" * room + json.dumps(value) + "]" * room)
    with pytest.raises(NestedTooDeep):
        check_depth("[" * (room + 1) + json.dumps([value]) + "]" * (room + 1))


@pytest.mark.parametrize("text", ['"' * 1_000_000, '"\\' * 500_000, '\\"' * 500_000, "[]" * 500_000])
def test_no_text_takes_more_than_one_pass(text: str) -> None:
    check_depth("[" * MAX_DEPTH + "]" * MAX_DEPTH + text)


@STACKS
@pytest.mark.parametrize(
    ("opening", "closing"), [("[", "]"), ("{a: ", "}"), ("? [", "]"), ("- ", "")], ids=["list", "map", "key", "block"]
)
def test_a_file_is_refused_in_the_line_where_it_goes_beyond(
    calls: int, opening: str, closing: str, tmp_path: Path
) -> None:
    file = tmp_path / "f.yaml"
    file.write_text("a: 1\nb:\n  " + nested(MAX_DEPTH + 100, opening, closing, "1"))
    for read in (lambda: read_document_with_lines(file), lambda: read_documents(file)):
        said = refusal(calls, read)
        assert f"nested too deep, more than {MAX_DEPTH} levels in " in said
        assert "line 3, column " in said


@STACKS
def test_a_file_is_read_up_to_the_limit(calls: int, tmp_path: Path) -> None:
    file = tmp_path / "f.yaml"
    file.write_text("a: " + nested(MAX_DEPTH - 1))
    read = within(calls, lambda: read_documents(file))
    located = within(calls, lambda: read_document_with_lines(file)[0])
    assert read == [located]
    assert depth(located) == MAX_DEPTH


@STACKS
def test_what_aliases_repeat_counts_where_it_is_repeated(calls: int, tmp_path: Path) -> None:
    file = tmp_path / "f.yaml"
    file.write_text("a0: &a0 []\n" + "\n".join(f"a{n}: &a{n} [*a{n - 1}]" for n in range(1, 500)))
    said = refusal(calls, lambda: read_document(file))
    assert f"nested too deep, more than {MAX_DEPTH} levels in " in said
    assert f"line {MAX_DEPTH}, " in said


def test_what_contains_itself_is_refused_and_an_alias_in_the_next_document_is_not(tmp_path: Path) -> None:
    file = tmp_path / "f.yaml"
    file.write_text("a: &a [[*a]]")
    said = refusal(0, lambda: read_document(file))
    assert "the alias 'a' is within what it repeats" in said
    file.write_text("a: &a [1]\nb: *a\n---\na: &a [2]\nb: *a")
    assert read_documents(file) == [
        {"a": [1], "b": [1]},
        {"a": [2], "b": [2]},
    ]


@STACKS
@pytest.mark.parametrize(("opening", "closing"), [("(", ")"), ("(?:a|", ")*"), ("(?=", ")"), ("[", "]"), ("[^", "]")])
def test_a_pattern_is_taken_up_to_the_limit_and_refused_where_it_goes_beyond(
    calls: int, opening: str, closing: str
) -> None:
    good, bad = nested(MAX_LEVELS, opening, closing, "b"), nested(MAX_LEVELS + 1, opening, closing, "b")
    assert within(calls, lambda: (find_problem(good), derive_required_literals(good) is not None)) == (None, True)
    at = 0 if opening.startswith("[") else MAX_LEVELS * len(opening)
    assert (
        within(calls, lambda: find_problem(bad))
        == f"doesn't compile: nests more than {MAX_LEVELS} groups and classes at position {at}"
    )
    assert within(calls, lambda: derive_required_literals(bad).is_whole) is False


def test_what_a_pattern_only_quotes_is_no_level() -> None:
    for pattern in (r"\(" * 60, "(?#" + "(" * 60 + ")", "[()]" * 60, "(a)" * 60, r"[\[(\]]" * 60):
        assert find_problem(pattern) is None
