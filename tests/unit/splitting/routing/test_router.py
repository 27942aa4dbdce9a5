"""Who gets a message, against an oracle that asks every session in turn."""

import json
from collections.abc import Sequence

import pytest
import regex
from hypothesis import given
from hypothesis import strategies as st
from msgspec import UNSET
from msgspec.structs import replace

from sluice.message import Message, Value
from sluice.splitting.filters import jq
from sluice.splitting.filters.index import Index
from sluice.splitting.filters.texts import Envelope, FilterInput
from sluice.splitting.filters.values import Filter, Mode, Share
from sluice.splitting.routing.router import Fault, FaultKind, Meter, MissingInput, Recipients, Router


def never(program: str, document: str) -> bool | None:
    raise AssertionError("no jq here")


def decide(program: str, document: str) -> bool | None:
    """Programs of these tests are their own outcome, or look for themselves in the document."""
    if program == "endless":
        raise jq.ProgramTimedOut
    return {"true": True, "false": False, "null": None}.get(program, program in document)


def sight(**attributes: str) -> FilterInput:
    return FilterInput.from_message(
        Message(message_id="m", body="b", attributes={n: Value("String", v) for n, v in attributes.items()})
    )


def share(name: str, program: str | None = None, mode: Mode = Mode.STEAL, at: int = 0, **attributes: str) -> Share:
    asked = Filter(attributes=tuple(attributes.items()), jq=program)
    return Share(session_id=name, key=name, started_at_ms=at, filter=asked, mode=mode)


def route(message: FilterInput, *shares: Share, gone: frozenset[str] = frozenset()) -> tuple[str | None, list[str]]:
    found = Router.build(shares, decide=decide).find_recipients(message, gone=gone)
    return found.stealing.session_id if found.stealing else None, [mirror.session_id for mirror in found.mirroring]


# The spec's cases about matching


def test_sessions_a_and_b_and_the_deployed_consumer_share_a_queue() -> None:
    sessions = share("A", client="^a$"), share("B", client="^b$")
    takers = [route(sight(client=client), *sessions)[0] for client in ["a", "b", "c", "C", "B", "A"]]
    assert takers == ["A", "B", None, None, "B", "A"]


@pytest.mark.parametrize("attribute", ["ExtendedPayloadSize", "SQSLargePayloadSize"])
def test_a_payload_in_s3_is_mirrored_only_to_who_asks_for_it(attribute: str) -> None:
    pointer = sight(client="a", **{attribute: "300000"})
    any_message = share("A", mode=Mode.MIRROR, client="a")
    asked = replace(any_message, session_id="B", filter=Filter(attributes=((attribute.lower(), "."),)))
    assert route(pointer, any_message, asked, share("C", client="a")) == ("C", ["B"])
    assert route(pointer, any_message) == (None, [])
    assert route(sight(client="a"), any_message) == (None, ["A"])


@pytest.mark.parametrize(
    ("asked", "taken"),
    [
        (Filter(all_of=("^tenant: blue$",)), True),
        (Filter(all_of=("^Tenant: blue$",)), False),
        (Filter(all_of=("^tenant: Blue$",)), False),
        (Filter(all_of=("(?i)^TENANT: BLUE$",)), True),
        (Filter(all_of=("blue", "^region: eu-")), True),
        (Filter(all_of=("blue", "^region: us-")), False),
        (Filter(any_of=("^region: us-", "blue")), True),
        (Filter(any_of=("^region: us-", "green")), False),
        (Filter(all_of=("blue",), any_of=("green",)), False),
        (Filter(attributes=(("region", "EU"),), all_of=("blue",)), True),
        (Filter(attributes=(("region", "us"),), all_of=("blue",)), False),
        (Filter(all_of=("blue",), jq="false"), False),
        (Filter(all_of=("tenant: blue.region",)), False),
    ],
)
def test_a_line_is_an_attributes_name_and_value_in_their_own_case(asked: Filter, taken: bool) -> None:
    session = Share(session_id="A", key="A", started_at_ms=0, filter=asked)
    assert route(sight(tenant="blue", region="eu-1"), session)[0] == ("A" if taken else None)
    assert route(sight(), session)[0] is None


def test_a_pattern_on_lines_sees_a_notifications_attributes_and_no_binary_one() -> None:
    body = {"Type": "Notification", "TopicArn": "t", "Message": "m"}
    envelope = json.dumps(body | {"MessageAttributes": {"Tenant": {"Type": "String", "Value": "blue"}}})
    message = Message(message_id="m", body=envelope, attributes={"b": Value("Binary", b"blue")})
    session = Share(session_id="A", key="A", started_at_ms=0, filter=Filter(all_of=("^Tenant: blue$",)))
    assert route(FilterInput.from_message(message, envelope=Envelope(sns=True)), session)[0] == "A"
    assert route(FilterInput.from_message(message), session)[0] is None


def test_a_pattern_on_lines_that_times_out_is_a_fault() -> None:
    endless = Share(session_id="A", key="A", started_at_ms=0, filter=Filter(any_of=("^(a|aa)+$", "z")))
    router = Router.build([endless], decide=decide)
    found = router.find_recipients(sight(a="x", z="z", aa="a" * 80 + "!"))
    assert found.stealing == endless
    endless = Share(session_id="A", key="A", started_at_ms=0, filter=Filter(any_of=("(a|aa)+$", "z")))
    found = Router.build([endless], decide=decide).find_recipients(sight(aa="a" * 80 + "!", z="z"))
    assert [fault.kind for fault in found.faults] == [FaultKind.PATTERN_TIMED_OUT]


def test_every_named_attribute_must_match() -> None:
    session = share("A", author="^me$", level="^(beginner|intermediate)$")
    assert route(sight(author="me", level="expert"), session)[0] is None
    assert route(sight(author="me"), session)[0] is None
    assert route(sight(level="beginner", author="me"), session)[0] == "A"


def test_a_session_is_found_within_the_baggage() -> None:
    session = share("A", baggage=".*session=alice.*")
    assert route(sight(baggage="k=v,session=alice,x=1"), session)[0] == "A"
    assert route(sight(baggage="session=bob"), session)[0] is None


def test_an_empty_filter_matches_nothing() -> None:
    assert route(sight(a="b"), share("A")) == (None, [])


def test_a_mirroring_session_and_the_deployed_consumer_both_get_it() -> None:
    assert route(sight(a="b"), share("A", mode=Mode.MIRROR, a="b")) == (None, ["A"])


def test_names_and_values_match_without_regard_to_case_and_the_ends_are_the_texts() -> None:
    assert route(sight(CLIENT="ALICE"), share("A", Client="^alice$"))[0] == "A"
    assert route(sight(client="alice\n"), share("A", client="^alice$"))[0] is None
    assert route(sight(client="ALICE"), share("A", client="(?-i)^alice$"))[0] is None


# Order


def test_the_session_that_started_first_gets_it_and_of_equals_the_lesser_id() -> None:
    assert route(sight(a="b"), share("A", at=2, a="b"), share("B", at=1, a="b"))[0] == "B"
    assert route(sight(a="b"), share("B", at=1, a="."), share("A", at=1, a="b"))[0] == "A"


def test_a_mirroring_session_behind_the_taker_sees_nothing() -> None:
    first = share("A", mode=Mode.MIRROR, at=1, a="b")
    taker = share("B", at=2, a="b")
    last = share("C", mode=Mode.MIRROR, at=3, a="b")
    assert route(sight(a="b"), last, taker, first) == ("B", ["A"])


def test_a_vanished_target_means_the_next_match_or_main() -> None:
    sessions = share("A", at=1, a="b"), share("B", at=2, a="b")
    assert route(sight(a="b"), *sessions, gone=frozenset({"A"}))[0] == "B"
    assert route(sight(a="b"), *sessions, gone=frozenset({"A", "B"}))[0] is None


# Values


def test_a_number_matches_on_its_text_and_a_binary_matches_nothing() -> None:
    attributes = {"n": Value("Number.int", "7"), "b": Value("Binary.x", b"7"), "odd": Value("Binary", "7")}
    message = FilterInput.from_message(Message(message_id="m", body="", attributes=attributes))
    assert route(message, share("A", n="^7$"))[0] == "A"
    assert route(message, share("A", b=""))[0] is None
    assert route(message, share("A", odd=""))[0] is None


def test_an_envelopes_attributes_come_beside_the_messages_own() -> None:
    attributes = '{"a": {"Type": "String", "Value": "x"}}'
    body = f'{{"Type": "Notification", "TopicArn": "t", "Message": "", "MessageAttributes": {attributes}}}'
    message = Message(message_id="m", body=body, attributes={"A": Value("String", "y")})
    assert route(FilterInput.from_message(message, envelope=Envelope(sns=True)), share("A", a="^x$"))[0] == "A"
    assert route(FilterInput.from_message(message, envelope=Envelope(sns=True)), share("A", a="^y$"))[0] == "A"
    assert route(FilterInput.from_message(message), share("A", a="^x$"))[0] is None
    assert (
        route(
            FilterInput.from_message(replace(message, body="no envelope"), envelope=Envelope(sns=True)),
            share("A", a="^y$"),
        )[0]
        == "A"
    )


# jq and faults


def test_both_must_match_and_jq_is_asked_last() -> None:
    assert route(sight(a="b"), share("A", "true", a="b"))[0] == "A"
    assert route(sight(a="b"), share("A", "false", a="b"))[0] is None
    assert route(sight(a="b"), share("A", "null", a="b"))[0] is None
    router = Router.build([share("A", "true", a="x")], decide=never)
    assert router.find_recipients(sight(a="b")) == Recipients()


def test_an_endless_program_is_its_own_sessions_fault_and_traffic_goes_on() -> None:
    sessions = [share("A", "endless", at=1), share("B", at=2, a="b"), share("C", "endless", at=3)]
    found = Router.build(sessions, decide=decide).find_recipients(sight(a="b"))
    assert found.stealing == sessions[1]
    assert found.faults == (Fault("A", FaultKind.JQ_TIMED_OUT),)


def test_a_pattern_that_backtracks_without_end_is_no_match_and_counted() -> None:
    sessions = [share("A", at=1, a="^(a|aa)+$"), share("B", at=2, a="!")]
    found = Router.build(sessions, decide=never).find_recipients(sight(a="a" * 60 + "!"))
    assert found.stealing == sessions[1]
    assert found.faults == (Fault("A", FaultKind.PATTERN_TIMED_OUT),)


def test_a_program_that_cant_be_run_for_now_is_no_match_and_no_time_out() -> None:
    def unable(program: str, document: str) -> bool | None:
        raise jq.NotRunning

    found = Router.build([share("A", "true")], decide=unable).find_recipients(sight(a="b"))
    assert found == Recipients(faults=(Fault("A", FaultKind.JQ_NOT_RUN),))


def test_a_filter_over_its_budget_has_decided_this_message_all_the_same() -> None:
    seconds = iter(range(100))
    meter = Meter(clock=lambda: float(next(seconds)), until=100.0, budget_s=1.5)
    sessions = [share("A", at=1, mode=Mode.MIRROR, a="b"), share("B", at=2, mode=Mode.MIRROR, a="b|c")]
    router = Router.build(sessions, decide=never)
    assert router.find_recipients(sight(a="b"), meter=meter).faults == ()
    found = router.find_recipients(sight(a="b"), meter=meter)
    assert found.mirroring == tuple(sessions)
    assert found.faults == (Fault("A", FaultKind.OVER_BUDGET), Fault("B", FaultKind.OVER_BUDGET))


def test_nothing_is_asked_when_the_time_is_up_and_what_was_asked_is_said() -> None:
    meter = Meter(clock=iter([0.0, 0.0, 0.0, 1.0]).__next__, until=1.0, budget_s=9.0)
    sessions = [share("A", "endless", at=1), share("B", at=2, a="b")]
    found = Router.build(sessions, decide=decide).find_recipients(sight(a="b"), meter=meter)
    assert (found.missing, found.faults) == (MissingInput.TIME, (Fault("A", FaultKind.JQ_TIMED_OUT),))


def test_metadata_is_asked_for_where_a_program_names_it_and_can_matter() -> None:
    names = share("A", "S3Metadata", at=2, a="b")
    waiting = FilterInput.from_message(sight(a="b").message, envelope=Envelope(s3_event=True))
    for sessions, lacks in (
        ([names], MissingInput.METADATA),
        ([share("B", at=1, a="b"), names], None),
        ([share("A", "S3Metadata", a="x")], None),
    ):
        assert Router.build(sessions, decide=decide).find_recipients(waiting).missing is lacks
    found = Router.build([names], decide=decide).find_recipients(waiting.with_metadata({}))
    assert (found.stealing, found.missing) == (names, None)


def test_a_program_that_several_sessions_share_runs_once_a_message() -> None:
    runs: list[str] = []

    def counted(program: str, document: str) -> bool | None:
        runs.append(program)
        return False

    sessions = [share(str(n), "p") for n in range(5)] + [share("x", "p", a="b")]
    Router.build(sessions, decide=counted).find_recipients(sight(a="b"))
    assert runs == ["p"]


# The oracle


def matches(filter_: Filter, message: Message) -> bool:
    """The rule, word by word."""
    if not filter_.attributes and not filter_.all_of and not filter_.any_of and filter_.jq is None:
        return False
    for name, pattern in filter_.attributes:
        found = False
        for own, value in message.attributes.items():
            if own.casefold() == name.casefold() and isinstance(value.content, str):
                true_end = pattern.replace("$", r"\Z")
                found = found or bool(regex.search("(?-f)" + true_end, value.content, regex.V1 | regex.I))
        if not found:
            return False
    lines = [f"{name}: {value.content}" for name, value in message.attributes.items() if isinstance(value.content, str)]
    if not all(in_a_line(pattern, lines) for pattern in filter_.all_of or ()):
        return False
    if filter_.any_of and not any(in_a_line(pattern, lines) for pattern in filter_.any_of):
        return False
    return filter_.jq is None or decide(filter_.jq, jq.build_document(message)) is True


def in_a_line(pattern: str, lines: list[str]) -> bool:
    true_end = pattern.replace("$", r"\Z")
    return any(regex.search("(?-f)" + true_end, line, regex.V1) for line in lines)


def literally(message: Message, shares: Sequence[Share]) -> tuple[Share | None, list[Share]]:
    mirroring: list[Share] = []
    for one in sorted(shares, key=lambda one: (one.started_at_ms, one.session_id)):
        if matches(one.filter, message):
            if one.mode is Mode.STEAL:
                return one, mirroring
            mirroring.append(one)
    return None, mirroring


NAMES = st.sampled_from(["a", "A", "b", "ß", "İ"])
PATTERNS = st.sampled_from(
    ["^a$", "^A$", "^(a|b)$", "a", "ab", "k", "i", "I", "ss", "ß", ".", r"\d", "", "^$", "^a|b$", "(?-i)A",
     "^(?!a)",
     "session=a", "session=(a|b)\\b", "session=alice-of-the-house",
     "(a)?b", "a{0}b", "x+y", r"\.", "abcdefgh", "bcdefg"]
)  # fmt: skip
LINES = st.lists(
    PATTERNS | st.sampled_from(["^a: a$", "^A: ", ": session=alice", "^b: .*abcdefgh", "a: |b: ", "(?i)^A: a$", "x"]),
    min_size=1,
    max_size=3,
).map(tuple)
FILTERS = st.builds(
    Filter,
    attributes=st.lists(st.tuples(NAMES, PATTERNS), max_size=3).map(tuple),
    all_of=st.just(UNSET) | LINES,
    any_of=st.just(UNSET) | LINES,
    jq=st.none() | st.none() | st.sampled_from(["true", "false", "null", "alice"]),
)
SHARES = st.lists(
    st.builds(
        Share,
        session_id=st.text("xyz", min_size=1, max_size=3),
        key=st.just("k"),
        started_at_ms=st.integers(0, 3),
        filter=FILTERS,
        mode=st.sampled_from(Mode),
    ),
    max_size=12,
    unique_by=lambda one: one.session_id,
)
CONTENTS = st.one_of(
    st.text("aAbkiIxy1.\n\u212a\u0130\u0131ß\u017f", max_size=4),
    st.sampled_from(["x,session=a,y", "SESSION=ALICE-OF-THE-HOUSE", "session=b", "abcdefgh", "xABCDEFGhx", "bcdefg"]),
    st.binary(max_size=2),
)
MESSAGES = st.dictionaries(NAMES, CONTENTS, max_size=4).map(
    lambda contents: Message(message_id="m", body="", attributes={n: Value("String", c) for n, c in contents.items()})
)


@given(SHARES, MESSAGES, st.data())
def test_recipients_are_those_of_the_oracle(shares: list[Share], message: Message, data: st.DataObject) -> None:
    gone = (
        frozenset(data.draw(st.lists(st.sampled_from([one.session_id for one in shares])))) if shares else frozenset()
    )
    stealing, mirroring = literally(message, [one for one in shares if one.session_id not in gone])
    found = Router.build(shares, decide=decide).find_recipients(FilterInput.from_message(message), gone=gone)
    assert found == Recipients(stealing=stealing, mirroring=tuple(mirroring))


@given(st.lists(FILTERS.filter(lambda one: not one.matches_nothing), max_size=12), MESSAGES)
def test_the_index_leads_to_every_filter_that_matches(filters: list[Filter], message: Message) -> None:
    candidates = Index.build(filters).find_candidates(FilterInput.from_message(message))
    assert candidates == sorted(set(candidates))
    assert {number for number, one in enumerate(filters) if matches(one, message)} <= set(candidates)


@pytest.mark.parametrize(
    ("attributes", "most"),
    [({"user": "user-17"}, 1), ({"baggage": "k=v,session=dev-17,x=1"}, 3), ({"level": "beginner"}, 0), ({"z": "z"}, 0)],
)
def test_few_of_a_thousand_sessions_are_asked(attributes: dict[str, str], most: int) -> None:
    filters = [
        Filter(attributes=(("level", "^beginner$"), ("user", f"^user-{n}$")))
        if n % 2
        else Filter(attributes=(("baggage", f"session=dev-{n - 1}(,|$)"),))
        for n in range(1_000)
    ]
    filters.append(Filter(attributes=(("baggage", "session=dev-17(,|$)"),)))
    assert len(Index.build(filters).find_candidates(sight(**attributes))) <= most


@pytest.mark.parametrize(("attributes", "most"), [({"baggage": "k=v,session=dev-17,x=1"}, 3), ({"z": "z"}, 0)])
def test_few_of_a_thousand_sessions_with_patterns_on_lines_are_asked(attributes: dict[str, str], most: int) -> None:
    filters = [
        Filter(any_of=(f"^baggage: .*session=dev-{n}(,|$)", f"^tracestate: .*session=dev-{n}(,|$)"))
        if n % 2
        else Filter(all_of=(f"session=dev-{n}(,|$)", "^baggage: "))
        for n in range(1_000)
    ]
    assert len(Index.build(filters).find_candidates(sight(**attributes))) <= most
