"""What is in a bucket before its first notification is staged once, whatever is notified or dies meanwhile."""

import json
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from urllib.parse import quote_plus

import botocore.session
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sluice_spark.errors import InvalidOption, ObjectRefused, SluiceSparkError
from sluice_spark.formats.envelopes import LISTED, S3Choice, notification_body, unwrap
from sluice_spark.log.latest import read_progress
from sluice_spark.log.notifications import Backfill, NotificationDeduplicator
from sluice_spark.log.segments import list_segments, read_rows, segment_name
from sluice_spark.log.staging import StagedLog
from sluice_spark.log.store import FileStore
from sluice_spark.options import Options, parse_options
from sluice_spark.source.backfill import MARGIN_S, BackfillRunner
from sluice_spark.source.receiver import Receiver
from sluice_spark.sqs.received import Message, Received
from sluice_spark.sqs.signing import Credentials

from tests.spark.clients import client_of, table

CHOICE = S3Choice()
KEY = Credentials(access_key="A", secret_key="s")
PLACE = "s3://uploads/in/"
PAGE = 2  # objects; a step has ten pages


@pytest.fixture
def s3() -> Iterator[Any]:
    s3_server = pytest.importorskip("tests.spark.s3_server", reason="needs moto: make test-spark has it")
    with s3_server.running() as server:
        client: Any = botocore.session.Session().create_client("s3", region_name="us-east-1", endpoint_url=server.url)
        client.create_bucket(Bucket="uploads")
        yield client


def put(s3: Any, *names: str) -> list[str]:
    """Their eTags."""
    return [s3.put_object(Bucket="uploads", Key=f"in/{name}", Body=name.encode())["ETag"].strip('"') for name in names]


def notification(name: str, etag: str, at: datetime, sequencer: str = "01") -> str:
    held = {"key": quote_plus(f"in/{name}"), "eTag": etag, "sequencer": sequencer}
    record = {"eventName": "ObjectCreated:Put", "eventTime": at.isoformat()}
    return json.dumps({"Records": [{**record, "s3": {"bucket": {"name": "uploads"}, "object": held}}]})


def ran(
    folder: Path, s3: Any, sqs: Any, *, store: FileStore | None = None, place: str = PLACE, ending_after: int = 10**9
) -> StagedLog:
    """A driver's bounded run: the bucket first, then the queue until it is empty."""
    store = store or FileStore(folder)
    made = read_progress(store)
    notified = NotificationDeduplicator(["s3"], CHOICE, backfill=made.backfill if made else None)
    staged = StagedLog(store, notified)
    staged.take_over(staged.oldest())
    asked = iter(range(10**9))

    class Ended(BackfillRunner):
        """A driver that is told to end after some steps."""

        async def run(self, staged: StagedLog, *, room: Any, ending: Any) -> None:
            await super().run(staged, room=room, ending=lambda: ending() or next(asked) >= ending_after)

    backfilling = Ended(place, store, notified, ["s3"], lambda: s3, page_objects=PAGE)
    options = Options(queue_urls=(sqs.queue_url("q"),), connections=2, wait_s=1)
    receiver = Receiver(
        staged, lambda: client_of(sqs, connections=4), options, until_empty=True, backfilling=backfilling
    )
    receiver.start(staged.log.end)
    receiver.join(120)
    receiver.check()
    return staged


def staged_keys(folder: Path) -> list[str]:
    store = FileStore(folder)
    bodies = [
        body
        for number in sorted(list_segments(store))
        for body in read_rows(store.read(segment_name(number))).column("body").to_pylist()
    ]
    return [each.facts["key"].removeprefix("in/") for body in bodies for each in unwrap(body, ["s3"], CHOICE)]


def test_the_bucket_comes_first_and_each_object_once(tmp_path: Path, s3: Any, sqs: Any) -> None:
    names = [f"{number:03d} ü+%.csv" for number in range(45)]
    tags = put(s3, *names)
    s3.put_object(Bucket="uploads", Key="elsewhere/a", Body=b"")
    s3.put_object(Bucket="uploads", Key="in/folder/", Body=b"")
    now = datetime.now(UTC)
    told = [notification(name, tag, now - timedelta(hours=1)) for name, tag in zip(names[:5], tags, strict=False)]
    told += [notification(names[5], tags[5], now), notification("later", "t", now + timedelta(hours=1))]
    sqs.queues["q"].fill(told, time.time())
    ran(tmp_path, s3, sqs)
    assert staged_keys(tmp_path) == [*names, "later"]
    assert set(sqs.queues["q"].counts(time.time()).values()) == {0}


def test_it_is_listed_once_over_restarts(tmp_path: Path, s3: Any, sqs: Any) -> None:
    put(s3, "a", "b")
    ran(tmp_path, s3, sqs)
    (tag,) = put(s3, "c")
    sqs.queues["q"].fill([notification("c", tag, datetime.now(UTC))], time.time())
    ran(tmp_path, s3, sqs)
    assert staged_keys(tmp_path) == ["a", "b", "c"]


def test_a_driver_that_is_told_to_end_leaves_the_rest_to_the_next(tmp_path: Path, s3: Any, sqs: Any) -> None:
    names = [f"{number:03d}" for number in range(3 * 10 * PAGE + 1)]
    put(s3, *names)
    first = ran(tmp_path, s3, sqs, ending_after=1)
    assert first.log.offset(first.log.end).totals.messages == 10 * PAGE
    ran(tmp_path, s3, sqs)
    assert staged_keys(tmp_path) == names


class Dying(FileStore):
    """A store whose driver dies just before it notes a step."""

    def __init__(self, root: Path, step: int) -> None:
        super().__init__(root)
        self._step = step

    def publish(self, name: str, content: pa.Buffer) -> None:
        if name.startswith(f"backfill/{self._step:020d}"):
            raise ObjectRefused("killed")
        super().publish(name, content)


@pytest.mark.parametrize("step", [0, 1, 2, 3])
def test_a_driver_that_dies_between_stage_and_note_doubles_nothing(
    tmp_path: Path, s3: Any, sqs: Any, step: int
) -> None:
    names = [f"{number:03d}" for number in range(2 * 10 * PAGE + 1)]
    put(s3, *names)
    with pytest.raises(SluiceSparkError, match="killed"):
        ran(tmp_path, s3, sqs, store=Dying(tmp_path, step))
    ran(tmp_path, s3, sqs)
    assert staged_keys(tmp_path) == names


def test_an_empty_bucket_is_listed_too(tmp_path: Path, s3: Any, sqs: Any) -> None:
    ran(tmp_path, s3, sqs)
    made = read_progress(FileStore(tmp_path))
    assert made is not None
    assert made.until is not None


def test_a_log_that_was_begun_otherwise_is_refused(tmp_path: Path, s3: Any, sqs: Any) -> None:
    ran(tmp_path / "a", s3, sqs)
    with pytest.raises(InvalidOption, match="s3Backfill"):
        ran(tmp_path / "a", s3, sqs, place="s3://uploads/other/")
    staged = StagedLog(FileStore(tmp_path / "b"))
    staged.take_over(staged.oldest())
    staged.append(table([Received("q", [Message(message_id="m", body="x")])]))
    with pytest.raises(InvalidOption, match="s3Backfill"):
        ran(tmp_path / "b", s3, sqs)


@pytest.mark.parametrize("envelopes", [["s3"], ["sns", "s3"], ["eventbridge", "s3"], ["eventbridge", "sns", "s3"]])
def test_what_is_listed_comes_as_the_others_come(envelopes: Sequence[str]) -> None:
    facts = {"bucket": "b", "key": "a b/ü+%=.csv", "size": "7", "eTag": "e", "eventTime": "2026-01-02T03:04:05+00:00"}
    (found,) = unwrap(notification_body(facts, envelopes), envelopes, CHOICE)
    assert {name: found.facts[name] for name in facts} == facts
    assert found.facts["event"] == LISTED


@pytest.mark.parametrize(
    ("option", "given"),
    [
        ("s3Backfill", {"s3Backfill": "uploads", "s3Format": "csv", "envelope": "s3", "schema": "a int"}),
        ("s3Backfill", {"s3Backfill": PLACE, "envelope": "s3"}),
        ("s3MaxAge", {"s3MaxAge": "7d", "envelope": "s3"}),
        ("s3MaxAge", {"s3MaxAge": "old", "s3Format": "csv", "envelope": "s3", "schema": "a int"}),
    ],
)
def test_options_that_do_not_go_together_are_named(option: str, given: dict[str, str]) -> None:
    with pytest.raises(InvalidOption, match=option):
        parse_options({"queueUrl": "http://h/1/q", "stagingLocation": "/x", **given})


# What is notified, against what is listed

KEYS = "abcd"
PUTS = st.lists(st.tuples(st.sampled_from(KEYS), st.integers(0, 1000)), max_size=12)


@given(PUTS, st.lists(st.integers(200, 800), min_size=len(KEYS), max_size=len(KEYS)), st.integers(0, 12))
def test_no_content_is_staged_twice_and_none_is_left_out(
    puts: list[tuple[str, int]], looks: list[int], restart: int
) -> None:
    """A model of the bucket: each put makes other content, and a page of the list, one key, shows what is there then.

    Times are seconds; the list takes longer than its margins. Notifications come in any order of keys, after the list.
    """
    looks = sorted(looks)
    times = sorted({at for _, at in puts})
    puts = sorted({at: (key, at) for key, at in puts}.values(), key=lambda each: each[1])  # one at a time
    assert [at for _, at in puts] == times
    now = {key: [at for name, at in puts if name == key] for key in KEYS}
    backfill = Backfill(bucket="uploads", prefix="in/", since=looks[0] - MARGIN_S, until=looks[-1] + MARGIN_S)
    notified = NotificationDeduplicator(["s3"], CHOICE, backfill=backfill)
    staged: Counter[tuple[str, int]] = Counter()
    found = []
    for key, look in zip(KEYS, looks, strict=True):
        if before := [at for at in now[key] if at <= look]:
            staged[key, before[-1]] += 1
            modified = datetime.fromtimestamp(before[-1], UTC).isoformat()
            facts = {"bucket": "uploads", "key": f"in/{key}", "eTag": str(before[-1]), "size": "1"}
            found.append({**facts, "event": LISTED, "eventTime": modified})
    notified.remember_listed(found)
    bodies = [notification_body(facts, ["s3"]) for facts in found]
    for number, (key, at) in enumerate(puts):
        if number == restart:
            known = notified.identities(bodies)
            notified = NotificationDeduplicator(["s3"], CHOICE, backfill=backfill)
            notified.restore(known)
        fresh, _ = notified.split_new([Received("q", [Message(message_id="m", body=told(key, at))])])
        staged[key, at] += len(fresh)
        bodies += [told(key, at)] * len(fresh)
    assert all(count <= 1 for count in staged.values())
    assert all(staged[key, ats[-1]] == 1 for key, ats in now.items() if ats)  # what is there in the end


def told(key: str, at: int) -> str:
    return notification(key, str(at), datetime.fromtimestamp(at, UTC), sequencer=str(at))
