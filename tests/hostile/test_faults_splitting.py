"""Faults of splitting that hostile input has shown: each is expected to fail until it is mended."""

import json
from typing import Any

import pytest

from sluice.aws.splitting.queues import S3Metadata
from sluice.cli.splitting.filters import read_filters
from sluice.codec import encode
from sluice.errors import BadFilter
from sluice.message import Value
from sluice.splitting.filters.jq import TIME_LIMIT_S, ProgramTimedOut
from sluice.splitting.filters.patterns import TIME_LIMIT_S as PATTERN_LIMIT_S
from sluice.splitting.jq_runner import JqRunner
from sluice.splitting.operations import StartSession
from sluice.splitting.splitter import BATCH_MS
from tests.hostile.events import record
from tests.hostile.limits import Ended, in_child
from tests.hostile.splitting_entries import Sessions, Splitter, share
from tests.hostile.strict_sqs import takes

BATCH = 1_000  # the splitter's, by default
BACKTRACKS = r"^(a|aa)+$"
MEGABYTES = 256  # that a program may have: a quarter of what the function has


def test_a_program_that_never_ends_leaves_the_batch_its_time() -> None:
    """Were it asked anew for each message, a second each, the batch would never come to its end."""
    asked = []

    def endless(program: str, document: str) -> bool | None:
        asked.append(program)
        raise ProgramTimedOut(f"still running after {TIME_LIMIT_S} s")

    site = Splitter(shares=(share("s", jq="def f: f; f"),), decide=endless)
    site.take(*(record(str(place), queue="source", place=place) for place in range(BATCH)))
    assert len(site.client.bodies("main")) == BATCH
    assert len(asked) * TIME_LIMIT_S * 1_000 < BATCH_MS


def test_a_pattern_that_backtracks_without_end_leaves_the_batch_its_time() -> None:
    """If each message cost its time limit, a whole batch would take 50 s."""
    number = 12
    text = {"a": Value("String", "a" * 60 + "!")}
    site = Splitter(shares=(share("s", BACKTRACKS),))
    site.take(*(record(str(place), text, queue="source", place=place) for place in range(number)))
    assert len(site.client.bodies("main")) == number
    of_a_batch = site.outcome.counts["FilterFaults"] / number * BATCH
    assert of_a_batch * PATTERN_LIMIT_S * 1_000 < BATCH_MS


@pytest.mark.parametrize(("bucket", "key"), [("a bucket", "k"), ("", "k"), ("bucket", ""), ("arn:aws:s3:::b", "k")])
def test_an_s3_event_that_names_an_impossible_object_fails_alone_if_at_all(bucket: str, key: str) -> None:
    named = {"eventSource": "aws:s3", "s3": {"bucket": {"name": bucket}, "object": {"key": key}}}
    asks = share("s", jq=".S3Metadata.author == 1")
    site = Splitter(shares=(asks,), decide=lambda _, document: "author" in document, metadata=S3Metadata())
    site.take(
        record(json.dumps({"Records": [named]}), queue="source", place=0), record("well", queue="source", place=1)
    )
    assert "well" in site.client.bodies("main")


def test_a_program_has_so_much_memory_and_no_more() -> None:
    runner = JqRunner(time_limit_s=20)
    try:
        runner("true", "null")
        child = runner._child
        assert child is not None
        with pytest.raises(ProgramTimedOut, match="want of memory"):
            runner(f'("x" * {MEGABYTES * 2**20 // 2} | length), true', "null")
    finally:
        runner.close()


def test_compiling_a_program_takes_so_much_memory_and_no_more() -> None:
    """Jq works out constants when it compiles; the function would be killed, and whoever else it serves with it."""
    assert compiled(f'"x" * {2 * MEGABYTES * 2**20} | length').code == 0


def compiled(program: str) -> Ended:
    code = f"from sluice.splitting.jq_runner import compile_problem; print(compile_problem({program!r}))"
    return in_child(code, megabytes=MEGABYTES)


def test_another_program_compiles_with_so_much() -> None:
    assert compiled(".a == 1").op == "None"


@pytest.mark.parametrize("place", ["message_filter", "queue"])
def test_a_filter_that_is_no_unicode_is_refused(tmp_path: Any, place: str) -> None:
    queue, pattern = ("q", "\\ud800") if place == "message_filter" else ("\\ud800", "a")
    file = tmp_path / "f.json"
    file.write_text(f'{{"split_queues": {{"{queue}": {{"message_filter": {{"a": "{pattern}"}}}}}}}}')
    try:
        filters, _ = read_filters(file, [])
    except BadFilter:
        return
    encode(StartSession(filters=filters, owner="me"))


def test_a_filter_file_that_multiplies_itself_is_refused() -> None:
    """PyYAML copies what is merged: nine lines are a hundred million pairs."""
    lines = ["a0: &a0 {x: y}"]
    lines += [f"a{n}: &a{n} {{<<: [{', '.join([f'*a{n - 1}'] * 10)}]}}" for n in range(1, 9)]
    code = (
        "from pathlib import Path; import tempfile; from sluice.errors import BadFilter\n"
        "from sluice.cli.splitting.filters import read_filters\n"
        "file = Path(tempfile.mkdtemp()) / 'f.yaml'; file.write_text(sys.stdin.read())\n"
        "try: read_filters(file, [])\n"
        "except BadFilter: print('refused')"
    )
    assert in_child(code, "\n".join(lines), megabytes=512, cpu_s=2).op == "refused"


@pytest.mark.parametrize("said", [5, None, True, {"Records": 5}, {"Records": []}, {"Records": [{}]}])
def test_an_invocation_that_is_no_request_is_refused(said: Any) -> None:
    assert "error" in Sessions().ask(said)


def test_an_id_of_a_queue_is_text() -> None:
    from sluice.errors import BadParameter  # noqa: PLC0415 - with the next
    from sluice.parameters import Parameters  # noqa: PLC0415 - the stacks' models take a second to make

    with pytest.raises(BadParameter):
        Parameters.from_context({"sluice": {"splitting": {"queues": [{"queue_id": "a\x00b"}]}}})
    assert not takes("\x00")
