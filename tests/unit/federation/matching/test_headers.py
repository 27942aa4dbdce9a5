"""Headers bindings against messages, and the index against a literal oracle."""

from collections.abc import Iterable, Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sluice.errors import BadBinding
from sluice.federation.matching.headers import HeaderConditions, HeadersIndex
from sluice.federation.matching.indexes import NO_QUEUES, Publication, add_queue, collect_queues, remove_queue
from sluice.federation.matching.typed_values import TypedValue, collect_headers, have_same_values, to_stored
from sluice.message import Value

Headers = Mapping[str, TypedValue]


def matches(arguments: Headers, headers: Headers) -> bool:
    return found(indexed([(arguments, "0")]), headers) == {"0"}


def indexed(bindings: Iterable[tuple[Headers, str]]) -> HeadersIndex:
    index = HeadersIndex()
    for arguments, member in bindings:
        index.add(member, {"": to_stored(arguments)})
    return index


def found(index: HeadersIndex, headers: Headers) -> set[str]:
    return index.find_queues(Publication(exchange="amq.match", key="", headers=headers))


def oracle(arguments: Headers, headers: Headers) -> bool:
    """The rules word by word."""
    asked = [name for name in arguments if name != "x-match" and not name.startswith("qpid.")]
    met = [name in headers and _agree(arguments[name], headers[name]) for name in asked]
    return all(met) if arguments["x-match"] == "all" else any(met)


def _agree(wanted: TypedValue, found: TypedValue) -> bool:
    return wanted is None or (type(wanted) is type(found) and wanted == found)


def test_all_wants_every_header_and_any_wants_one() -> None:
    both: dict[str, TypedValue] = {"a": 1, "b": "x"}
    assert matches({"x-match": "all", **both}, {**both, "c": 3})
    assert not matches({"x-match": "all", **both}, {"a": 1})
    assert matches({"x-match": "any", **both}, {"a": 1})
    assert not matches({"x-match": "any", **both}, {"a": 2, "c": 1})


@pytest.mark.parametrize("headers", [{}, {"a": 1}])
def test_all_alone_matches_everything_and_any_alone_nothing(headers: Headers) -> None:
    assert matches({"x-match": "all"}, headers)
    assert not matches({"x-match": "any"}, headers)


@pytest.mark.parametrize("match", ["all", "any"])
def test_a_void_value_means_present(match: str) -> None:
    assert matches({"x-match": match, "a": None}, {"a": "whatever"})
    assert matches({"x-match": match, "a": None}, {"a": None})
    assert not matches({"x-match": match, "a": None}, {"b": 1})


def test_all_wants_every_void_header_there() -> None:
    asked = {"x-match": "all", "a": None, "b": None, "c": 1}
    assert matches(asked, {"a": 0, "b": "", "c": 1})
    assert not matches(asked, {"a": 0, "c": 1})
    assert not matches(asked, {"b": 0, "c": 1})


@pytest.mark.parametrize("match", ["all", "any"])
@pytest.mark.parametrize(
    ("wanted", "found"), [(2, "2"), (2, 2.0), (2.0, 2), (1, True), (True, 1), (True, False), ("x", b"x"), (0, None)]
)
def test_values_of_different_types_differ(match: str, wanted: TypedValue, found: TypedValue) -> None:
    assert not matches({"x-match": match, "a": wanted}, {"a": found})


@pytest.mark.parametrize("value", [2, -7, 10**30, 2.5, "", "2", True, False, b"", b"\x00"])
def test_a_value_matches_itself(value: TypedValue) -> None:
    assert matches({"x-match": "all", "a": value}, {"a": value})
    assert matches({"x-match": "any", "a": value}, {"a": value})


def test_integers_of_sqs_match_by_value() -> None:
    headers = collect_headers(
        {"n": Value("Number", "+007"), "f": Value("Number", "2.0"), "s": Value("String", "2")}, {}
    )
    assert headers == {"n": 7, "f": 2.0, "s": "2"}
    assert matches({"x-match": "all", "n": 7}, headers)
    assert not matches({"x-match": "all", "f": 2}, headers)
    assert not matches({"x-match": "all", "s": 2}, headers)


def test_typed_headers_win_over_attributes() -> None:
    assert collect_headers({"a": Value("String", "true"), "b": Value("Binary", b"x")}, {"a": True}) == {
        "a": True,
        "b": b"x",
    }


def test_qpid_arguments_do_not_count_and_other_x_ones_do() -> None:
    assert matches({"x-match": "all", "qpid.fed.op": "B", "qpid.x": None}, {})
    assert not matches({"x-match": "all", "x-other": 1}, {})
    assert matches({"x-match": "all", "x-other": 1}, {"x-other": 1})


@pytest.mark.parametrize(("said", "plain"), [(None, "all"), ("all-with-x", "all"), ("any-with-x", "any")])
@pytest.mark.parametrize("headers", [{}, {"a": 1}, {"a": 1, "x-b": 2}])
def test_rabbitmqs_matches_and_none_are_taken(said: str | None, plain: str, headers: Headers) -> None:
    """RabbitMQ matches all without `x-match`; `x-` headers count here with every match, as with its `-with-x`."""
    asked: dict[str, TypedValue] = {"a": 1, "x-b": 2}
    suffixed: dict[str, TypedValue] = {} if said is None else {"x-match": said}
    assert matches({**suffixed, **asked}, headers) is matches({"x-match": plain, **asked}, headers)


@pytest.mark.parametrize("arguments", [{"x-match": "All"}, {"x-match": None}, {"x-match": 1}, {"x-match": "-with-x"}])
def test_x_match_must_be_all_or_any(arguments: Headers) -> None:
    with pytest.raises(BadBinding):
        HeaderConditions.from_arguments(arguments)


def test_arguments_are_the_same_by_type_and_value() -> None:
    assert have_same_values({"a": 1, "b": None}, {"b": None, "a": 1})
    assert not have_same_values({"a": 1}, {"a": True})
    assert not have_same_values({"a": 1}, {"a": 1.0})
    assert not have_same_values({"a": 1}, {"a": 1, "b": None})


VALUES = st.none() | st.sampled_from([True, False, 0, 1, 2, 1.0, 2.0, "1", "2", "", b"1"])
HEADERS = st.dictionaries(st.sampled_from(["a", "b", "c", "x-d", "qpid.e"]), VALUES, max_size=5)
ARGUMENTS = st.builds(
    lambda match, asked: {"x-match": match, **asked},
    st.sampled_from(["all", "any"]),
    st.dictionaries(st.sampled_from(["a", "b", "c", "x-d", "qpid.e"]), VALUES, max_size=4),
)


@given(st.lists(ARGUMENTS, max_size=30), HEADERS)
def test_the_index_finds_what_the_oracle_finds(bindings: list[Headers], headers: Headers) -> None:
    index = indexed((arguments, str(number)) for number, arguments in enumerate(bindings))
    hit = {str(number) for number, arguments in enumerate(bindings) if oracle(arguments, headers)}
    assert found(index, headers) == hit


ALIKE = st.sampled_from([1, True, 1.0, "1", None])
ASKED = st.builds(
    lambda match, asked: {"x-match": match, **asked},
    st.sampled_from(["all", "any"]),
    st.dictionaries(st.sampled_from("abc"), ALIKE, max_size=3),
)
MEMBERS = st.sampled_from(["0", "1", "22", "333"])
FOUND = st.dictionaries(st.sampled_from("abc"), ALIKE)


def remove(index: HeadersIndex, arguments: Headers, member: str) -> None:
    index.remove(member, {"": to_stored(arguments)})


@given(st.lists(st.tuples(ASKED, MEMBERS), max_size=12), st.data(), FOUND)
def test_conditions_that_are_removed_leave_what_there_was_without_them(
    asked: list[tuple[Headers, str]], data: st.DataObject, headers: Headers
) -> None:
    gone = data.draw(st.lists(st.sampled_from(range(len(asked))), unique=True)) if asked else []
    index = indexed(asked)
    for place in gone:
        remove(index, *asked[place])
    kept = [each for place, each in enumerate(asked) if place not in gone]
    assert found(index, headers) == found(indexed(kept), headers)
    for each in kept:
        remove(index, *each)
    assert not any(getattr(index, slot) for slot in HeadersIndex.__slots__)


@given(st.lists(MEMBERS), MEMBERS)
def test_a_member_is_one_as_often_as_it_was_added(added: list[str], member: str) -> None:
    members = NO_QUEUES
    for each in added:
        members = add_queue(members, each)
    for number in range(added.count(member), -1, -1):
        gathered = set[str]()
        collect_queues(members, gathered)
        assert (member in gathered) is bool(number)
        if number:
            members = remove_queue(members, member)
    with pytest.raises(KeyError):
        remove_queue(members, member)
