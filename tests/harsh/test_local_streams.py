"""Triggers by DynamoDB's streams, as ministack has them once it is patched."""

import json
from collections.abc import Iterator
from typing import Any

import pytest
from ministack.services import lambda_svc

from sluice.local.patches.streams import StreamPoller
from tests.harsh.two_clouds import TwoClouds, two_clouds

TOLD = {"eventName": ["INSERT"], "dynamodb": {"Keys": {"pk": {"S": ["told"]}}}}


class Stream:
    """A table with a stream, and a trigger whose function answers in turn: None is an error."""

    def __init__(self, clouds: TwoClouds, **options: Any) -> None:
        self.call = clouds.embedded
        clouds.make_table("table")
        view = {"StreamEnabled": True, "StreamViewType": "NEW_AND_OLD_IMAGES"}
        described = self.call("update_table", TableName="table", StreamSpecification=view)["TableDescription"]
        self.mapping = {
            "UUID": described["LatestStreamLabel"],
            "EventSourceArn": described["LatestStreamArn"],
            "FunctionName": "function",
            "BatchSize": 4,
            "StartingPosition": "TRIM_HORIZON",
            "FunctionResponseTypes": ["ReportBatchItemFailures"],
            **options,
        }
        self.reading = StreamPoller(self.mapping)
        self.batches: list[list[str]] = []
        self.answers: list[list[str] | None] = []
        self.given_up: list[str] = []

    def put(self, *names: str, pk: str = "told") -> None:
        for name in names:
            self.call("put_item", TableName="table", Item={"pk": {"S": pk}, "sk": {"S": name}})

    def read(self) -> bool:
        """Look once, though a moment ago something failed."""
        lambda_svc._esm_backoff_until.clear()
        return self.reading.read()

    def execute(self, _function: Any, event: Any) -> Any:
        records = {
            record["dynamodb"]["Keys"]["sk"]["S"]: record["dynamodb"]["SequenceNumber"] for record in event["Records"]
        }
        self.batches.append(list(records))
        answer = self.answers.pop(0) if self.answers else []
        if answer is None:
            return {"error": True, "body": {}}
        failures = [{"itemIdentifier": records.get(name, name)} for name in answer]
        return {"body": json.dumps({"batchItemFailures": failures})}


@pytest.fixture
def clouds(patched: None, monkeypatch: pytest.MonkeyPatch) -> Iterator[TwoClouds]:
    with two_clouds("dynamodb") as both:
        yield both


@pytest.fixture
def stream(clouds: TwoClouds, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> Stream:
    made = Stream(clouds, **getattr(request, "param", {}))
    monkeypatch.setattr(lambda_svc, "_get_func_record_for_qualifier", lambda *_: ({"config": {}}, {}))
    monkeypatch.setattr(lambda_svc, "_dispatch_esm_batch", lambda _, work, *given: work(*given))
    monkeypatch.setattr(lambda_svc, "_execute_function", made.execute)
    monkeypatch.setattr(
        lambda_svc, "_send_ddb_stream_failure_record", lambda *given: made.given_up.append(str(given[-1]))
    )
    return made


def test_a_stream_is_read_from_its_beginning_in_batches_and_in_order(stream: Stream) -> None:
    stream.put(*"abcdef")
    assert [stream.read() for _ in range(3)] == [True, True, False]
    assert stream.batches == [list("abcd"), list("ef")]


def test_from_the_first_that_is_reported_the_batch_comes_again(stream: Stream) -> None:
    stream.put(*"abcd")
    stream.answers = [["d", "c"], None, []]
    while stream.read():
        pass
    assert stream.batches == [list("abcd"), list("cd"), list("cd")]


def test_what_is_reported_and_is_no_record_is_all_of_the_batch(stream: Stream) -> None:
    stream.put(*"ab")
    stream.answers = [["x"], []]
    while stream.read():
        pass
    assert stream.batches == [list("ab"), list("ab")]


@pytest.mark.parametrize("stream", [{"BisectBatchOnFunctionError": True}], indirect=True)
def test_a_batch_that_fails_whole_is_halved(stream: Stream) -> None:
    stream.put(*"abcd")
    stream.answers = [None, None, []]
    while stream.read():
        pass
    assert stream.batches == [list("abcd"), list("ab"), list("a"), list("bcd")]


@pytest.mark.parametrize("stream", [{"MaximumRetryAttempts": 2}], indirect=True)
def test_a_batch_is_given_up_after_so_many_attempts(stream: Stream) -> None:
    stream.put(*"ab")
    stream.answers = [["b"], ["b"], ["b"]]
    while stream.read():
        pass
    assert stream.batches == [list("ab"), list("b"), list("b")]
    assert stream.given_up == ["RetryAttemptsExhausted"]
    stream.put("c")
    assert stream.read()
    assert stream.batches[-1] == ["c"]


@pytest.mark.parametrize("stream", [{"FilterCriteria": {"Filters": [{"Pattern": json.dumps(TOLD)}]}}], indirect=True)
def test_what_no_filter_lets_through_is_passed_over(stream: Stream) -> None:
    stream.put("a")
    stream.put("b", pk="another")
    stream.put("a")  # a change that changes nothing is no record
    stream.put("c")
    while stream.read():
        pass
    assert stream.batches == [["a", "c"]]


@pytest.mark.parametrize("stream", [{"MaximumBatchingWindowInSeconds": 60}], indirect=True)
def test_a_batch_waits_to_be_filled(stream: Stream) -> None:
    stream.put(*"abc")
    assert not stream.read()
    stream.put("d")
    assert stream.read()
    assert stream.batches == [list("abcd")]
