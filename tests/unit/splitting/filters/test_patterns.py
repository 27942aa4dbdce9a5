"""The pattern dialect, and that what a pattern is said to need is needed."""

import re
from typing import Any
from unittest import mock

import pytest
import regex
from hypothesis import assume, example, given
from hypothesis import strategies as st
from regex import _regex_core

from sluice.splitting.filters.dialect import tokens
from sluice.splitting.filters.index import RequiredLiterals, derive_required_literals, fold
from sluice.splitting.filters.patterns import PatternTimedOut, find_problem, matches, replace_end_anchors
from tests.splitting_fakes import meets_need

FLAGS = regex.VERSION1 | regex.IGNORECASE


@pytest.mark.parametrize(
    ("pattern", "text", "found"),
    [
        ("^a$", "a\n", False),
        ("^a$", "A", True),
        ("a", "xax", True),
        ("^a$", "b\na", False),
        ("(?m)^a$", "b\na\n", True),
        ("(?-i)^a$", "A", False),
        ("(?-i:A)b", "AB", True),
        ("[$]", "a$", True),
        (r"\$", "$", True),
        ("^(?=.*b)(?!.*c)a", "ab", True),
        (r"^(\w)\1$", "Aa", True),
        (r"^(?P<x>\w)(?P=x)$", "aa", True),
        (r"^\p{Greek}+$", "αβγ", True),
        ("(?x) a $ # it ends $\n", "a\n", False),
        ("ss", "ß", False),
        (".*session=alice.*", "k=v,session=alice,x=1", True),
        (".*session=alice.*", "session=bob", False),
    ],
)
def test_the_dialect(pattern: str, text: str, found: bool) -> None:
    assert find_problem(pattern) is None
    assert matches(pattern, text) is found


@pytest.mark.parametrize("pattern", ["(", "a{3,1}", "(?V0)a", "[", "*", "(" * 1_500 + ")" * 1_500, "a" * 5_000])
def test_what_does_not_compile_says_why(pattern: str) -> None:
    assert find_problem(pattern)


def test_a_pattern_that_backtracks_without_end_times_out() -> None:
    with pytest.raises(PatternTimedOut):
        matches("^(a|aa)+$", "a" * 60 + "!", time_limit_s=0.01)


PIECES = st.sampled_from(
    [*"ab$^|()[]{}?*+.#x1,- \n\\&~", r"\$", r"\Z", "(?m)", "(?-m)", "(?m:", "(?x)", "(?-x)", "(?x:", "(?:", "(?=",
     "(?!", "(?<=", "(?<n>", "(?P<n>", "(?P=n)",
     "(?>", "(?|", "(?#", "(?(1)", "(?i)", "(?-i)", "(?s)", "[^", "[]", "[[a]", "--", "&&", "||", "~~",
     r"\p{L}", r"\x41", "{2}",
     "{e}", "{1,2}", "(?r)", "(?mr)", "(*F)"]
)  # fmt: skip
PATTERNS = st.lists(PIECES, max_size=12).map("".join)
TEXTS = st.text("aAbBkKsSiI$^\n,-]\u212a\u017f\u0130\u0131ß", max_size=8)


def with_the_parser_mended(pattern: str) -> "regex.Pattern[str]":
    """The library's own parser, with the one node replaced: what `replace_end_anchors` stands in for."""
    core: Any = _regex_core
    ends = {"EndOfStringLine": core.EndOfString, "EndOfStringLineU": core.EndOfString}
    with mock.patch.multiple(_regex_core, **ends):
        return regex.compile("(?-f)" + pattern, FLAGS, cache_pattern=False)


@given(PATTERNS, TEXTS)
@example("[]$]$", "$\n")
@example("[a--]$]$", "a\n")
@example("(?m:a$)b|a$", "a\n")
@example("a(?m)|b$", "b\n")
@example("(?#$)a$", "a\n")
def test_each_dollar_is_the_end_of_the_text_as_the_parser_itself_would_have_it(pattern: str, text: str) -> None:
    try:
        oracle = with_the_parser_mended(pattern)
    except (regex.error, ValueError, RecursionError, KeyError, IndexError, TypeError, AttributeError):
        assume(False)
    ours = regex.compile("(?-f)" + replace_end_anchors(pattern), FLAGS, cache_pattern=False)
    assert bool(ours.search(text, timeout=1)) == bool(oracle.search(text, timeout=1))


@given(PATTERNS)
def test_tokens_are_the_pattern(pattern: str) -> None:
    assert "".join(token.text for token in tokens(pattern)) == pattern


REPEATS = st.sampled_from(["?", "*", "+", "{2}", "{0,1}", "{,2}", "+?", "{1,}"])
SHAPES = st.recursive(
    st.sampled_from([*"abksiA.^$ß\n", "[ab]", r"\w", r"\$", r"\b", r"\p{L}", "(?i)", "(?-i)", "(?m)", "ab"]),
    lambda inner: st.one_of(
        st.lists(inner, min_size=1, max_size=4).map("".join),
        st.lists(inner, min_size=1, max_size=3).map(lambda parts: "(" + "|".join(parts) + ")"),
        inner.map("(?:{})".format),
        inner.map("(?={})".format),
        inner.map("(?<!{})".format),
        st.tuples(inner.map("(?:{})".format), REPEATS).map("".join),
        st.tuples(st.sampled_from("abki"), st.sampled_from(["?", "*", "+", "{2}", "{e<=1}"])).map("".join),
    ),
    max_leaves=8,
)  # fmt: skip


@given(st.one_of(SHAPES, SHAPES.map("^{}$".format), PATTERNS), TEXTS, st.booleans())
@example("^(a|b)$", "A", False)
@example("^$", "", False)
@example("k", "\u212a", False)
@example(r"\p{L}", "a", False)
@example("i", "\u0130", False)
@example("I", "\u0131", False)
@example("a(?#x)*b", "b", False)
@example("a(?i)*b", "b", True)
@example("(?i)k", "\u212a", True)
def test_a_text_in_which_a_pattern_is_found_meets_its_need(pattern: str, text: str, exact_case: bool) -> None:
    if find_problem(pattern, exact_case=exact_case) is not None:
        assume(False)
    try:
        found = matches(pattern, text, exact_case=exact_case)
    except PatternTimedOut:
        assume(False)
    if found:
        assert meets_need(text, derive_required_literals(pattern))


def test_folding_covers_all_that_the_dialect_takes_for_an_ascii_character() -> None:
    everything = "".join(chr(code) for code in range(0x110000) if not 0xD800 <= code < 0xE000)
    for character in map(chr, range(128)):
        taken = regex.findall("(?-f)" + regex.escape(character), everything, FLAGS)
        assert {fold(one) for one in taken} == {fold(character)}, character


@pytest.mark.parametrize(
    ("pattern", "need"),
    [
        ("^Alice$", RequiredLiterals(("alice",), is_whole=True)),
        ("^(beginner|intermediate)$", RequiredLiterals(("beginner", "intermediate"), is_whole=True)),
        (r"^a\.b\|c$", RequiredLiterals(("a.b|c",), is_whole=True)),
        (".*session=alice.*", RequiredLiterals(("session=alice",))),
        (r"session=(alice|bob)\b", RequiredLiterals(("session=",))),
        (r"^tenant-\d+$", RequiredLiterals(("tenant-",))),
        (r"session=dev-17(,|$)", RequiredLiterals(("session=dev-17",))),
        ("^a$|^b$", RequiredLiterals()),
        ("ab?c+d{2}", RequiredLiterals()),
        (r"\d+", RequiredLiterals()),
        (r"\p{L}\x41", RequiredLiterals()),
        ("^feature/[a-z]+-17$", RequiredLiterals()),
        ("a|.", RequiredLiterals()),
        ("(?x) a b", RequiredLiterals()),
        ("(?:alice){e<=1}", RequiredLiterals()),
    ],
)
def test_needs_of_what_people_write(pattern: str, need: RequiredLiterals) -> None:
    assert derive_required_literals(pattern) == need


def test_patterns_of_python_that_look_alike_are_not_mistaken() -> None:
    # Python's own `$` is the trap this dialect avoids.
    assert re.search("^a$", "a\n")
    assert not matches("^a$", "a\n")
