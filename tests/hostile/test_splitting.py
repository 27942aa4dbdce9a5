"""Whatever producers, owners of sessions and operators send: main has its messages, and a bad filter ends alone."""

import json
from collections.abc import Iterator
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from sluice.message import Value
from sluice.splitting.filters import patterns
from sluice.splitting.filters.index import derive_required_literals
from sluice.splitting.filters.jq import ProgramTimedOut
from sluice.splitting.jq_runner import JqRunner, compile_problem
from sluice.splitting.operations import ControlOperation
from sluice.splitting.sessions.state import SESSIONS, SPLITS, TEMPORARY_QUEUES, Session, Split, TemporaryQueue
from tests.hostile.events import record
from tests.hostile.hostile_values import any_texts, attributes, bent, documents, spelled, sqs_texts
from tests.hostile.limits import DEADLINE_S, MIB, in_child, told, within
from tests.hostile.splitting_entries import ANYTHING, Sessions, Splitter, asked, filters, message, queued, share, stored
from tests.many_cases import some_of
from tests.splitting_fakes import meets_need

FILE: dict[str, Any] = {
    "split_queues": {
        "q": {"queue_type": "SQS", "queue_mode": "mirror", "message_filter": {"a": "^x$"}, "jq_filter": ".Body == 1"},
        "*": {"message_filter": {"b": "y|z"}},
        "r": {"filter": {"any_of": [{"metadata": "^a: x$"}, {"metadata": "y"}]}},
        "s": {"filter": {"metadata": "x"}},
    }
}
WHOLE = {"target": "t", "feature": {"env": {}, **FILE}}
LISTED = {"split_queues": [{"queue_id": "q", "message_filter": {"a": "x"}}]}
FILTER = {"attributes": [["a", "^x$"], ["b", "y"]], "all_of": ["^a: x"], "any_of": ["x", "y"], "jq": ".Body == 1"}
ASKED: list[dict[str, Any]] = [
    {
        "op": "start",
        "filters": {"q": {"filter": FILTER, "mode": "mirror"}},
        "owner": "me",
        "key": "k",
        "time_limit_s": 9,
    },
    {"op": "stop", "session_id": "s", "reason": "r"},
    {"op": "heartbeat", "session_id": "s"},
    {"op": "find", "session_id": "s"},
    {"op": "release", "queue_id": "q"},
    {"op": "take steps", "agent": "a", "clusters": ["c"]},
    {
        "op": "report steps",
        "agent": "a",
        "reports": [{"queue_id": "q", "place": 0, "queue": "s", "outcome": "failed", "text": "t", "code": "Forbidden"}],
    },
    *({"op": op} for op in ("show", "tick", "sweep")),
]
SESSION = Session(session_id="x", key="k", owner="me", started_at_ms=1, filters={}, heartbeat_at_ms=1)
STORED: list[Any] = [
    json.loads(SESSIONS.text(SESSION)),
    json.loads(SPLITS.text(Split(queue_id="q", source="s", static=True))),
    json.loads(TEMPORARY_QUEUES.text(TemporaryQueue(name="n", queue_id="q"))),
]
pieces = st.sampled_from(
    [
        *("a", "b", "x", ".", "^", "$", "|", "(", ")", "(?:", "(?=", "(?<!", "(?P<n>", "(?i)", "(?-f)", "(?x)", "(?#"),
        *("[", "]", "[^", "[[:alpha:]]", "[a--b]", "a-z", "*", "+", "?", "{2,}", "{1000}", "{,9}", "*+", "??", "\\"),
        *(r"\1", r"\g<n>", r"(?P=n)", r"\p{Lu}", r"\N{DOLLAR SIGN}", r"\X", r"\b", r"\R", "(?R)", "(?1)", r"\L<n>"),
        *("{e}", "{e<=3}", "(?b)", "(?e)", "(?V0)", "\u0130", "\u1e9e", "\ufb03", "\U0001f469", "#", "\n", r"\K", "&&"),
    ]
)
programs = st.lists(
    st.sampled_from(
        [
            *(
                ".",
                "..",
                ".a",
                "[",
                "]",
                "{",
                "}",
                "(",
                ")",
                "|",
                ",",
                "?",
                "//",
                "and",
                "not",
                "true",
                "false",
                "null",
            ),
            *("def f: f; f", "recurse(.)", "range(9)", "limit(3;repeat(1))", "input", "$ENV", "env", "halt", "error"),
            *(
                '"\\(1)"',
                "tojson",
                "fromjson",
                "@base64d",
                "try",
                "catch",
                "as $x",
                "reduce",
                "foreach",
                "label $x",
                "1e999",
            ),
            *(
                'test("(a*)*b")',
                "implode",
                "getpath([1e9])",
                "splits(1)",
                "ltrimstr(1)",
                "\x00",
                "\u20ac",
                "import",
                "-",
            ),
        ]
    ),
    max_size=12,
).map(" ".join)


@given(attributes("a", "A", "sluice-session"), sqs_texts.filter(bool))
def test_main_has_every_message_as_it_came(given_: Any, body: str) -> None:
    folded = {name.casefold() for name, value in given_.items() if not value.data_type.startswith("Binary")}
    expected = "to queue-mirror, main" if "a" in folded else "to main"
    assert told(lambda given: message(body, given), given_) == expected


@given(st.one_of(bent(FILE), bent(LISTED), bent(WHOLE), documents))
def test_a_filter_file_is_taken_or_the_place_is_named(document: Any) -> None:
    text = json.dumps(document)
    assert told(lambda content: filters(content, ending=".json"), text.encode()).startswith(("queues: ", "refused: "))


@given(st.one_of(bent(FILE).map(yaml.safe_dump), spelled(bent(FILE)), any_texts, st.text("&*!<:-[]{}|>'\"%@ \n\tab01")))
def test_a_filter_file_in_yaml_is_taken_or_the_place_is_named(text: str) -> None:
    assert told(filters, text.encode(errors="surrogatepass")).startswith(("queues: ", "refused: "))


@given(st.data())
def test_what_an_owner_asks_is_done_or_refused(data: st.DataObject) -> None:
    request = data.draw(bent(data.draw(st.sampled_from(ASKED))))
    if isinstance(request, dict | list):
        assert told(asked, request).startswith(("result", "refused: "))
    assert told(queued, data.draw(spelled(st.just(request)))).startswith(("done", "dead letter: Malformed: "))


def test_every_operation_is_among_those_that_are_bent() -> None:
    known = {arg.__struct_config__.tag for arg in ControlOperation.__args__}
    assert {each["op"] for each in ASKED} == known


@given(st.one_of(spelled(st.sampled_from(STORED).flatmap(bent)), any_texts))
def test_an_item_of_the_registry_is_read_or_it_is_said_why_not(text: str) -> None:
    assert told(stored, text).count("; ") >= 3  # of four kinds, one after the other


# Patterns


@given(
    st.lists(pieces, max_size=12).map("".join),
    st.sampled_from(["", "a" * 50 + "!", "ab" * 50, "\ufb03\u0130"]),
    st.booleans(),
)
def test_a_pattern_is_refused_or_a_search_by_it_ends(pattern: str, text: str, exact_case: bool) -> None:
    if patterns.find_problem(pattern, exact_case=exact_case) is not None:
        return
    try:
        found = patterns.matches(pattern, text, exact_case=exact_case)
    except patterns.PatternTimedOut:
        return
    # What the index takes a pattern to need, a text that has it meets.
    assert not found or meets_need(text, derive_required_literals(pattern))


@pytest.mark.parametrize(
    "pattern",
    some_of(
        [
            *(
                "^(a|aa)+$",
                "(a+)+b",
                "(.*a){20}b",
                "(?b)(?:aaaaaa){e}$",
                "((((a*)*)*)*)*b",
                "(?:a?){500}a{500}b",
                "(?=(a+)+b)c",
            ),
            *(
                "(.)*",
                "((.)(.)(.)(.))*\\1b",
                "(?:(?:(?:a{1,100}){1,100}){1,100}){1,100}b",
                "(a)(?R)*b",
                "(?s).*?.*?.*?.*?b",
            ),
        ],
        every=3,
    ),
)
def test_a_search_of_a_mebibyte_ends_within_its_memory(pattern: str) -> None:
    """`in_child`, as the library's memory is its own."""
    code = (
        "from sluice.splitting.filters import patterns\n"
        f"text = 'a' * {MIB - 100} + '!'\n"
        f"assert patterns.find_problem({pattern!r}) is None\n"
        f"try: print(patterns.matches({pattern!r}, text))\n"
        "except patterns.PatternTimedOut: print('timed out')"
    )
    ended = in_child(code, megabytes=512)
    assert (ended.code, ended.op in {"True", "False", "timed out"}) == (0, True), ended


@pytest.mark.parametrize(
    "pattern",
    some_of(
        [
            *("(" * 4_096, "[" * 4_096, "a{1000}" * 580, "(?:" * 1_300 + ")" * 196, "[a-z]" * 800, "|" * 4_096),
            *("(a|b)" * 800, "(?i:(?-i:" * 400, "\\" * 4_095, "(?#" * 1_300, "$" * 4_096, "[[[[" * 1_000, "{" * 4_096),
        ],
        every=3,
    ),
)
def test_a_pattern_of_the_greatest_length_is_compiled_or_refused(pattern: str) -> None:
    if patterns.find_problem(pattern) is None:
        derive_required_literals(pattern)


# Programs


@pytest.fixture
def runner() -> Iterator[JqRunner]:
    running = JqRunner(time_limit_s=0.4)
    yield running
    running.close()


@pytest.mark.parametrize(
    ("program", "end"),
    some_of(
        [
            ("def f: f; f", "still running"),
            ("[range(1e9)] | length > 0", ""),
            ("last(range(1e18)) | true", "still running"),
            ("[recurse(.)] | true", ""),
            ('[limit(1e9; repeat("x"))] | true', ""),
            ('"" | until(false; . + "x") | true', ""),
            ("[] | .[1e8] = 1 | true", ""),
            ('input_line_number as $x | ("a" * 5000 | test("(a|b|ab)*c"))', None),
            ("reduce range(300000) as $i (0; [.]) | tojson | true", None),
            ('"[" * 20000 | fromjson | true', None),
            ('[range(1000)] | map(tostring) | join("") | true', None),
            ("halt", None),
            ('"x" | halt_error', None),
            ("[inputs] | false", None),
            ('"1e1000000" | tonumber | true', None),
            ("[55296, 1114112] | implode | true", None),
            ("[range(0; 1e4)] | combinations(2) | false", None),
        ],
        every=3,
    ),
)
def test_a_program_decides_or_is_ended_and_the_next_one_runs(runner: JqRunner, program: str, end: str | None) -> None:
    document = json.dumps({"Body": "x" * 1_000})
    if end is None:
        runner.time_limit_s = DEADLINE_S  # it ends by itself, also where others have the processors
        assert runner(program, document) in {True, False, None}
    else:
        with pytest.raises(ProgramTimedOut, match=end or None):
            runner(program, document)
    runner.time_limit_s = DEADLINE_S
    assert runner("true", "null") is True


@given(programs)
def test_a_program_is_refused_or_compiles(program: str) -> None:
    said = compile_problem(program)
    assert said is None or "\n" not in said


@pytest.mark.parametrize(
    "program",
    some_of(
        [
            *("(" * 8_000 + "1" + ")" * 8_000, "[" * 8_000 + "]" * 8_000, '"\\(' * 4_000 + "1" + ')"' * 4_000),
            *(
                "reduce . as $x (0;" * 800 + "1" + ")" * 800,
                "def f: " * 1_600 + "1" + ";f" * 1_600,
                "try " * 4_000 + "1",
            ),
            *(
                ". as " + "[" * 4_000 + "$a" + "]" * 4_000 + " | $a",
                ". as [$a] ?// $a | " * 800 + "1",
                "." + "?" * 4_000,
            ),
            *("label $x | " * 1_400 + "1", '{"a":' * 2_500 + "1" + "}" * 2_500),
        ],
        every=4,
    ),
)
def test_a_program_of_the_greatest_length_compiles_or_is_refused_within_its_memory(program: str) -> None:
    """In a process of its own: the compiler is C, and has its own stack."""
    code = "from sluice.splitting.jq_runner import compile_problem; print(compile_problem(sys.stdin.read()) or 'well')"
    ended = in_child(code, program[:16_384], megabytes=512)
    assert (ended.code, bool(ended.op)) == (0, True), ended


def test_a_program_sees_a_message_of_a_mebibyte_of_every_kind(runner: JqRunner) -> None:
    runner.time_limit_s = DEADLINE_S
    body = '\u20ac\U0001f469\n"\\' * 60_000
    assert runner(f".Body | length == {len(body)}", json.dumps({"Body": body})) is True


# Batches


def test_a_batch_with_bombs_for_its_filters_is_split_all_the_same() -> None:
    shares = (ANYTHING, share("greedy", "(.)*"), share("deep", "((((a*)*)*)*)*b"))
    site = Splitter(shares=shares)
    bodies = [f"{place}" for place in range(20)]
    own = {"a": Value("String", "a" * 1_000)}
    assert site.take(*(record(body, own, queue="source", place=int(body)) for body in bodies)) == []
    assert site.client.bodies("queue-mirror") == bodies
    assert sorted(site.client.bodies("main") + site.client.bodies("queue-greedy")) == sorted(bodies)


@pytest.mark.parametrize("attributes_", [0, 1, 9, 10])
def test_a_message_of_the_greatest_size_is_split_as_it_came(attributes_: int) -> None:
    own = {f"a{number}": Value("String", "v") for number in range(1, attributes_)}
    own |= {"a": Value("String", "v")} if attributes_ else {}
    size = sum(len(name) + len("String") + 1 for name in own)
    expected = "to queue-mirror, main" if attributes_ else "to main"
    assert message("b" * (MIB - size), own) == expected


@pytest.mark.parametrize("body", ["[" * MIB, '{"Type":"Notification",' + " " * (MIB - 100), '"Notification"' * 74_000])
def test_a_notification_of_a_mebibyte_takes_bounded_memory(body: str) -> None:
    assert within(32, lambda: told(message, body[:MIB])) == "to main"


def test_a_batch_of_the_control_queue_fails_where_it_is_hostile() -> None:
    site = Sessions()
    bodies = ["[" * 100_000, '{"op": "tick"}', '{"op": "stop", "session_id": "gone"}', '{"op": 1e999999}']
    said = [each for body in bodies for each in site.take(body)]
    assert [each.partition(":")[0] for each in said] == ["dead letter"] * len(said)
    assert len(site.client.taken) == 2
