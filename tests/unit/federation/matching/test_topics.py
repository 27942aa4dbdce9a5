"""Topic patterns against keys, and the index against a literal oracle."""

from collections.abc import Iterable
from itertools import product

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from sluice.federation.matching.indexes import Publication
from sluice.federation.matching.topics import TopicIndex

SPECIFIED = [
    "a", "b", "a.b", "b.c", "a.b.c.d", "b.c.d.e", "a.*", "a.#", "a.*.#", "#.b", "*.b", "*.#.b", "a.*.b", "a.#.b",
    "a.*.#.b", "*.b.*", "#.b.#",
]  # fmt: skip


def matches(pattern: str, key: str) -> bool:
    return found(indexed([(pattern, "0")]), key) == {"0"}


def indexed(patterns: Iterable[tuple[str, str]]) -> TopicIndex:
    index = TopicIndex()
    for pattern, member in patterns:
        index.add(member, {pattern: {}})
    return index


def found(index: TopicIndex, key: str) -> set[str]:
    return index.find_queues(Publication(exchange="amq.topic", key=key))


def oracle(pattern: str, key: str) -> bool:
    """The rules word by word, with all the backtracking they invite."""
    return _oracle(pattern.split("."), key.split("."))


def _oracle(pattern: list[str], key: list[str]) -> bool:
    if not pattern:
        return not key
    head, *rest = pattern
    if head == "#":
        return any(_oracle(rest, key[skipped:]) for skipped in range(len(key) + 1))
    return bool(key) and head in {"*", key[0]} and _oracle(rest, key[1:])


@pytest.mark.parametrize(
    ("pattern", "key"),
    [
        ("*", ""), ("*", "a"), ("*.*", "."), ("a.#", "a"), ("a.#", "a."), ("a.#", "a.b"), ("*.x", ".x"),
        ("a.#.b", "a.b"), ("a.#.b", "a..x.y.zz.b"), ("*.*.*.#", "x.y.z"), ("#", ""), ("#", "a.b.c"), ("", ""),
    ],
)  # fmt: skip
def test_a_pattern_matches_as_specified(pattern: str, key: str) -> None:
    assert matches(pattern, key)
    assert oracle(pattern, key)


@pytest.mark.parametrize(
    ("pattern", "key"),
    [("*", "."), ("a.#", "ab"), ("a.#.b", "a.b."), ("*.*.*.#", "x.y"), ("", "a"), ("a", "a."), ("a*", "ab")],
)
def test_a_pattern_does_not_match_as_specified(pattern: str, key: str) -> None:
    assert not matches(pattern, key)
    assert not oracle(pattern, key)


@pytest.mark.parametrize(
    ("key", "hit"),
    [
        ("a.b", {"a.b", "a.*", "a.#", "a.*.#", "#.b", "#.b.#", "*.#.b", "*.b", "a.#.b"}),
        ("b", {"b", "#.b", "#.b.#"}),
        ("x.y.z.b.a.b.c", {"#.b.#"}),
    ],
)
def test_the_specified_bindings_hit_as_specified(key: str, hit: set[str]) -> None:
    assert found(indexed((pattern, pattern) for pattern in SPECIFIED), key) == hit


def test_a_wildcard_is_one_only_as_a_whole_token() -> None:
    assert matches("a*.b#", "a*.b#")
    assert not matches("a*.b#", "ax.by")


@pytest.mark.parametrize(
    ("pattern", "in_order"),
    [
        ("#.#", "#"), ("#.*", "*.#"), ("#.*.#.*", "*.*.#"), ("a.#.*.#.b.*.#", "a.*.#.b.*.#"), ("a.*", "a.*"),
        ("", ""), ("..", ".."), ("#a.#.#", "#a.#"),
    ],
)  # fmt: skip
def test_wildcards_in_a_row_match_in_any_order(pattern: str, in_order: str) -> None:
    for tokens in range(1, 6):
        for key in map(".".join, product(["", "a", "b", "#a"], repeat=tokens)):
            assert matches(pattern, key) == matches(in_order, key) == oracle(pattern, key)


TOKENS = st.sampled_from(["", "a", "b", "*", "#", "a*"])
PATTERNS = st.lists(TOKENS, min_size=1, max_size=6).map(".".join)
KEYS = st.lists(st.sampled_from(["", "a", "b", "*", "#", "c"]), min_size=1, max_size=7).map(".".join)


@given(st.lists(PATTERNS, max_size=30), KEYS)
@example(["#.a.#"], "a.a.a")
def test_the_index_finds_what_the_oracle_finds(patterns: list[str], key: str) -> None:
    index = indexed((pattern, pattern) for pattern in patterns)
    assert found(index, key) == {pattern for pattern in patterns if oracle(pattern, key)}


def test_hostile_patterns_cost_no_backtracking() -> None:
    # The oracle would take some 2^200 steps.
    assert not matches(".".join(["#", "a"] * 100 + ["b"]), ".".join(["a"] * 256))


def test_a_key_visits_few_of_many_patterns() -> None:
    index = indexed((f"a.*.{number}.#", str(number)) for number in range(10_000))
    assert found(index, "a.x.77.y") == {"77"}


REPEATED = st.lists(st.sampled_from(["a", "b", "", "*", "#"]), min_size=1, max_size=4).map(".".join)


@given(st.lists(st.tuples(REPEATED, st.sampled_from(["0", "1", "22", "333"])), max_size=12), st.data(), REPEATED)
def test_patterns_that_are_removed_leave_what_there_was_without_them(
    patterns: list[tuple[str, str]], data: st.DataObject, key: str
) -> None:
    gone = data.draw(st.lists(st.sampled_from(range(len(patterns))), unique=True)) if patterns else []
    index = indexed(patterns)
    for place in gone:
        pattern, member = patterns[place]
        index.remove(member, {pattern: {}})
    kept = [each for place, each in enumerate(patterns) if place not in gone]
    assert found(index, key) == found(indexed(kept), key)
    for pattern, member in kept:
        index.remove(member, {pattern: {}})
    assert index._root.is_empty
