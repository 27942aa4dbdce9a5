import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace
from typing import Any

import pytest
from botocore.endpoint import DEFAULT_TIMEOUT
from sluice_spark.errors import InvalidOption, QueueBusy, QueueRefused, TooManyInFlight
from sluice_spark.sqs.caller import SIGNATURE_FRESH_S, _SignedRequest, classify_error
from sluice_spark.sqs.client import (
    _OBJECT,
    ATTEMPTS,
    BACK_OFF_LIMIT_S,
    BatchOutcome,
    SqsClient,
    _read,
    compute_backoff_s,
)
from sluice_spark.sqs.received import ReceiptHandles
from sluice_spark.sqs.responses import HttpResponse
from sluice_spark.sqs.signing import Credentials

from tests.spark.clients import client_at, client_of


class Used:
    """A client on the in-memory SQS that records its waits instead of waiting."""

    def __init__(self, sqs: Any) -> None:
        self.url, self.sqs = sqs.queue_url("q"), sqs
        self.waits: list[float] = []
        self.client: SqsClient | None = None

    def run(self, use: Callable[[SqsClient], Awaitable[Any]], answer_within_s: float = 5) -> Any:
        async def sleep(seconds: float) -> None:
            self.waits.append(seconds)

        async def whole() -> Any:
            async with client_of(
                self.sqs, connections=4, sleep=sleep, chance=lambda: 1.0, answer_within_s=answer_within_s
            ) as self.client:
                return await use(self.client)

        return asyncio.run(whole())

    def handles(self) -> list[str]:
        return [m.receipt_handle for m in self.run(lambda client: client.receive(self.url, wait_s=0))]


@pytest.fixture
def used(sqs: Any) -> Used:
    return Used(sqs)


def test_what_is_received_and_deleted_is_gone(used: Used, fill: Callable[[int], None]) -> None:
    fill(7)
    handles = used.handles()
    outcome = used.run(lambda client: client.delete(used.url, handles))
    assert len(handles) == 7
    assert outcome == BatchOutcome()
    assert used.run(lambda c: c.get_attributes(used.url, "ApproximateNumberOfMessagesNotVisible")) == {
        "ApproximateNumberOfMessagesNotVisible": "0"
    }


def test_nothing_to_delete_is_no_call(used: Used) -> None:
    used.run(lambda client: client.delete(used.url, []))
    assert "DeleteMessageBatch" not in used.sqs.calls


def test_only_the_entries_that_failed_are_deleted_again(used: Used, fill: Callable[[int], None]) -> None:
    fill(10)
    handles = used.handles()
    used.sqs.script.add({"action": "DeleteMessageBatch", "how": "partial"})
    outcome = used.run(lambda client: client.delete(used.url, handles))
    assert outcome == BatchOutcome()
    assert used.sqs.queues["q"].known == {}
    assert used.sqs.calls["DeleteMessageBatch"] == 2


def test_a_useless_handle_is_counted_and_not_tried_again(used: Used) -> None:
    outcome = used.run(lambda client: client.delete(used.url, ["nonsense"]))
    assert outcome.expired_handles == ("nonsense",)
    assert used.sqs.calls["DeleteMessageBatch"] == 1


def test_trouble_that_passes_is_waited_out(used: Used) -> None:
    used.sqs.script.add({"action": "GetQueueAttributes", "count": 2, "status": 503})
    used.sqs.script.add({"action": "GetQueueAttributes", "count": 1, "status": 400, "code": "ThrottlingException"})
    # Twice, as what breaks on a kept connection is sent again at once, on a new one.
    used.sqs.script.add({"action": "GetQueueAttributes", "how": "lose", "count": 2})
    assert used.run(lambda client: client.get_attributes(used.url, "QueueArn"))
    assert used.waits == [compute_backoff_s(attempt, 1.0) for attempt in (1, 2, 3, 4)]


def test_trouble_that_stays_is_given_up_after_a_number_of_attempts(used: Used) -> None:
    used.sqs.script.add({"action": "GetQueueAttributes", "count": 100})
    with pytest.raises(QueueBusy, match="InternalError"):
        used.run(lambda client: client.get_attributes(used.url, "QueueArn"))
    assert used.sqs.calls["GetQueueAttributes"] == ATTEMPTS


def test_no_answer_is_a_time_out_that_is_retried(used: Used) -> None:
    used.sqs.script.add({"action": "GetQueueAttributes", "how": "hang"})
    assert used.run(lambda client: client.get_attributes(used.url, "QueueArn"), answer_within_s=0.2)
    assert len(used.waits) == 1


def test_a_send_is_given_up_as_late_as_by_boto3_as_it_would_be_sent_twice() -> None:
    class Recorder:
        def __init__(self) -> None:
            self.within = dict[str, float]()

        def encode_request(self, headers: Mapping[str, str], body: bytes) -> bytes:
            return headers["x-amz-target"].encode()

        async def exchange(self, request: bytes, *, within_s: float, **_: Any) -> HttpResponse:
            self.within[request.decode().removeprefix("AmazonSQS.")] = within_s
            return HttpResponse(200, (), b"{}")

    async def whole() -> None:
        client = client_at("http://localhost", connections=1)
        client._get_caller("q")._transport = recorder  # type: ignore[assignment]  # instead of a network
        await client.call("SendMessageBatch", {"QueueUrl": "q"})
        await client.receive("q", wait_s=20)
        await client.delete("q", ["h"])

    recorder = Recorder()
    asyncio.run(whole())
    assert recorder.within == {"SendMessageBatch": DEFAULT_TIMEOUT, "ReceiveMessage": 30, "DeleteMessageBatch": 10}


@pytest.mark.parametrize("code", ["AccessDenied", "KmsDisabled", "KmsAccessDenied", "InvalidClientTokenId"])
def test_a_refusal_is_raised_at_once(used: Used, code: str) -> None:
    used.sqs.script.add(
        {"action": "GetQueueAttributes", "count": 9, "status": 400, "code": f"com.amazonaws.sqs#{code}"}
    )
    with pytest.raises(QueueRefused, match=code):
        used.run(lambda client: client.get_attributes(used.url, "QueueArn"))
    assert used.waits == []


def test_a_queue_that_is_not_there_is_a_refusal(used: Used) -> None:
    with pytest.raises(QueueRefused, match="QueueDoesNotExist"):
        used.run(lambda client: client.receive(used.url + "-none", wait_s=0))


def test_over_limit_is_its_own_kind(used: Used, fill: Callable[[int], None]) -> None:
    fill(20)
    used.sqs.queues["q"].in_flight_limit = 10
    used.handles()
    with pytest.raises(TooManyInFlight):
        used.handles()


def test_released_messages_are_there_at_once(used: Used, fill: Callable[[int], None]) -> None:
    fill(3)
    handles = used.handles()
    used.run(lambda client: client.make_visible([ReceiptHandles(used.url, handles)]))
    assert len(used.handles()) == 3


def test_an_expired_token_is_asked_for_again(used: Used) -> None:
    used.sqs.script.add({"action": "GetQueueAttributes", "status": 403, "code": "ExpiredToken"})
    assert used.run(lambda client: client.get_attributes(used.url, "QueueArn"))


def test_an_answer_that_is_no_json_is_judged_by_its_status() -> None:
    assert isinstance(classify_error("A", HttpResponse(502, (), b"<html>")), QueueBusy)
    assert isinstance(classify_error("A", HttpResponse(404, (), b"[1]")), QueueRefused)
    assert isinstance(classify_error("A", HttpResponse(429, (), b"")), QueueBusy)


def test_back_off_grows_to_a_limit() -> None:
    waits = [compute_backoff_s(attempt, 1.0) for attempt in range(1, 30)]
    assert waits == sorted(waits)
    assert waits[-1] == BACK_OFF_LIMIT_S
    assert compute_backoff_s(5, 0.0) == 0


def test_a_receives_signature_is_used_again_and_a_deletes_is_not(used: Used) -> None:
    async def use(client: SqsClient) -> list[bytes]:
        kept = []
        for _ in range(3):
            await client.receive(used.url, wait_s=0)
            await client.delete(used.url, ["nonsense"])
            (signed,) = client._get_caller(used.url)._signed.values()
            kept.append(signed.request)
        return kept

    first, *others = used.run(use)
    assert b"x-amz-target: AmazonSQS.ReceiveMessage\r\n" in first
    assert all(other is first for other in others)


def test_a_kept_signature_ends_with_its_key_its_minute_and_a_clock_that_is_set_back() -> None:
    key = Credentials(access_key="AKIA", secret_key="s")
    kept = _SignedRequest(1000.0, key, b"")
    assert kept.is_fresh(key, 1000 + SIGNATURE_FRESH_S - 1)
    assert not kept.is_fresh(key, 1000 + SIGNATURE_FRESH_S)
    assert not kept.is_fresh(key, 1000 - SIGNATURE_FRESH_S)
    assert not kept.is_fresh(replace(key), 1000.0)


def test_one_call_asks_for_the_key_and_the_others_wait(sqs: Any) -> None:
    asked: list[int] = []

    def key() -> Credentials:
        asked.append(1)
        return Credentials(access_key="AKIA", secret_key="s")

    async def whole() -> None:
        async with client_at(sqs.url, key, connections=4) as client:
            await asyncio.gather(*(client.get_attributes(sqs.queue_url("q"), "QueueArn") for _ in range(20)))

    asyncio.run(whole())
    assert len(asked) == 1


def test_leaving_waits_for_a_receive_under_way(sqs: Any, fill: Callable[[int], None]) -> None:
    async def whole() -> int:
        async with client_of(sqs, connections=4) as client:
            receiving = asyncio.ensure_future(client.receive(sqs.queue_url("q"), wait_s=1))
            while not client.requests["ReceiveMessage"]:
                await asyncio.sleep(0)
        assert receiving.done()
        return len(await receiving)

    fill(5)
    assert asyncio.run(whole()) == 5


def test_an_unusable_proxy_is_an_option_error(used: Used, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("http_proxy", "socks5://proxy:1080")
    monkeypatch.setenv("no_proxy", "")
    with pytest.raises(InvalidOption, match=r"endpoint.*socks5://proxy:1080"):
        used.run(lambda client: client.get_attributes(used.url, "QueueArn"))


def test_an_answer_that_is_no_json_object_is_trouble_that_may_pass() -> None:
    for body in (b"<html>", b"[]"):
        with pytest.raises(QueueBusy, match="no JSON"):
            _read("A", body, _OBJECT.decode)
    assert _read("A", b"", _OBJECT.decode) == {}
