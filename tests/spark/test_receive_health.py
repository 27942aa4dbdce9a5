"""A source that receives nothing says so, and doesn't do so for ever."""

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import botocore.exceptions
import botocore.session
import pytest
from botocore.credentials import DeferredRefreshableCredentials
from sluice_spark.errors import NothingReceived, QueueBusy, QueueRefused
from sluice_spark.log.latest import ReceiverStatus, read_status, write_status
from sluice_spark.log.planning import Position
from sluice_spark.log.staging import StagedLog
from sluice_spark.log.store import FileStore
from sluice_spark.options import Options
from sluice_spark.source.receive_health import QUIET_S, ReceiveHealth
from sluice_spark.source.receiver import Receiver
from sluice_spark.sqs.access import Identity, build_credentials_source
from sluice_spark.sqs.client import SqsClient
from sluice_spark.sqs.signing import Credentials

from tests.spark.clients import KEY, client_at

WITHIN_S = 30
PATIENCE_S = 0.4
BUSY = QueueBusy("ReceiveMessage", "Timeout", "no answer")


def until(condition: Callable[[], Any]) -> None:
    deadline = time.monotonic() + WITHIN_S
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def client(url: str, key: Callable[[], Credentials] = lambda: KEY) -> Callable[[], SqsClient]:
    return lambda: client_at(url, key, connections=4, chance=lambda: 0.1)


def receiver(
    sqs: Any, staging: Path, made: Callable[[], SqsClient], *, until_empty: bool = False, **more: Any
) -> Receiver:
    staged = StagedLog(FileStore(staging))
    staged.take_over(staged.find_oldest_position())
    given = {"queue_urls": (sqs.queue_url("q"),), "connections": 2, "wait_s": 1, "delete": False, **more}
    found = Receiver(staged, made, Options(**given), until_empty=until_empty)
    found.start(staged.log.end)
    return found


def failed(receiver: Receiver) -> NothingReceived:
    receiver.join(WITHIN_S)
    with pytest.raises(NothingReceived) as error:
        receiver.check()
    return error.value


def test_an_endpoint_where_nobody_listens_fails_the_query(sqs: Any, tmp_path: Path) -> None:
    error = failed(receiver(sqs, tmp_path, client("http://127.0.0.1:9"), failure_timeout_s=PATIENCE_S))
    assert error.queue_url == sqs.queue_url("q")
    assert "ConnectionRefusedError" in error.reason


def test_credentials_that_are_gone_for_good_fail_the_query(sqs: Any, tmp_path: Path) -> None:
    def gone() -> Credentials:
        raise QueueBusy("GetCredentials", "CredentialRetrievalError", "no answer from the instance's metadata")

    error = failed(receiver(sqs, tmp_path, client(sqs.url, gone), failure_timeout_s=PATIENCE_S))
    assert "CredentialRetrievalError" in error.reason


def test_a_token_that_has_expired_and_is_not_refreshed_fails_the_query(sqs: Any, tmp_path: Path) -> None:
    sqs.script.add({"action": "ReceiveMessage", "status": 403, "code": "ExpiredToken", "count": 1_000_000})
    assert "ExpiredToken" in failed(receiver(sqs, tmp_path, client(sqs.url), failure_timeout_s=PATIENCE_S)).reason


def test_trouble_that_passes_fails_nothing(sqs: Any, fill: Callable[[int], None], tmp_path: Path) -> None:
    sqs.script.add({"action": "ReceiveMessage", "status": 500, "count": 5})
    fill(20)
    whole = receiver(sqs, tmp_path, client(sqs.url), failure_timeout_s=WITHIN_S, until_empty=True)
    whole.join(WITHIN_S)
    whole.check()
    assert whole.staged.log.count_backlog(Position(0)).messages == 20


@pytest.mark.parametrize("after_commit", [False, True])
def test_a_refused_receive_ends_the_receiver_at_once(
    sqs: Any, fill: Callable[[int], None], tmp_path: Path, *, after_commit: bool
) -> None:
    """A policy that is changed while the query runs: the messages received before are staged or back in the queue."""
    fill(20)
    sqs.script.add({"action": "ReceiveMessage", "status": 403, "code": "AccessDenied", "count": 1_000_000, "skip": 2})
    refused = receiver(sqs, tmp_path, client(sqs.url), delete=True, after_commit=after_commit, failure_timeout_s=None)
    refused.join(WITHIN_S)
    assert not refused.is_running
    with pytest.raises(QueueRefused, match="AccessDenied"):
        refused.check()
    assert sqs.calls["ReceiveMessage"] <= 4
    held = sqs.queues["q"].counts(time.time())["ApproximateNumberOfMessagesNotVisible"]
    assert held == (refused.staged.log.count_backlog(Position(0)).messages if after_commit else 0)


@pytest.mark.parametrize("skip", [0, 1])
def test_a_refused_heartbeat_ends_the_receiver(
    sqs: Any, fill: Callable[[int], None], tmp_path: Path, skip: int
) -> None:
    fill(5)
    sqs.queues["q"].visibility_s = 1
    refusal = {"action": "ChangeMessageVisibilityBatch", "status": 403, "code": "AccessDenied"}
    sqs.script.add({**refusal, "count": 1_000_000, "skip": skip})
    refused = receiver(sqs, tmp_path, client(sqs.url), delete=True, after_commit=True)
    refused.join(WITHIN_S)
    with pytest.raises(QueueRefused, match="AccessDenied"):
        refused.check()
    assert refused.staged.log.count_backlog(Position(0)).messages == (5 if skip else 0)


def test_too_many_in_flight_is_an_answer_and_no_failure(sqs: Any, fill: Callable[[int], None], tmp_path: Path) -> None:
    fill(20)
    sqs.queues["q"].in_flight_limit = 0
    waiting = receiver(sqs, tmp_path, client(sqs.url), failure_timeout_s=PATIENCE_S)
    until(lambda: sqs.calls["ReceiveMessage"] > 3)
    waiting.join(2 * PATIENCE_S)
    waiting.check()
    waiting.stop()
    waiting.join(WITHIN_S)


def test_what_botocore_cannot_refresh_may_be_asked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused() -> dict[str, str]:
        raise botocore.exceptions.CredentialRetrievalError(provider="iam-role", error_msg="gone")

    expired = DeferredRefreshableCredentials(refused, "iam-role")
    monkeypatch.setattr(botocore.session.Session, "get_credentials", lambda _: expired)
    now = build_credentials_source(Identity(), region="eu-west-1")
    with pytest.raises(QueueBusy, match="gone"):
        now()


def test_a_queue_that_fails_is_told_of_though_another_works() -> None:
    reception = ReceiveHealth(["a", "b"], began=0.0)
    reception.record_success("a", 100.0, 10)
    reception.record_failure("b", 90.0, BUSY)
    assert reception.state(100.0) == "failing"
    assert "no answer" in reception.reason
    assert reception.seconds_since_success(100.0) == 100.0
    reception.check(99.0, 10.0)
    with pytest.raises(NothingReceived, match="from b has worked for 10 s"):
        reception.check(100.0, 10.0)
    reception.check(1e9, None)


def test_it_receives_is_quiet_and_is_well_again() -> None:
    reception = ReceiveHealth(["a"], began=0.0)
    assert reception.state(0.0) == "idle"
    reception.record_success("a", 1.0, 3)
    assert reception.state(2.0) == "receiving"
    reception.record_failure("a", 2.0, BUSY)
    assert (reception.state(2.0), reception.failed_receives) == ("failing", 1)
    reception.record_success("a", 3.0, 0)
    assert (reception.state(3.0), reception.reason) == ("receiving", "")
    assert reception.state(1.0 + QUIET_S) == "idle"


def test_the_newest_status_alone_stays(tmp_path: Path) -> None:
    store = FileStore(tmp_path)
    assert read_status(store) is None
    for at_ms in (1_000, 2_000, 3_000):
        write_status(store, ReceiverStatus(at_ms=at_ms, began_ms=0, state="idle"))
    assert read_status(store) == ReceiverStatus(at_ms=3_000, began_ms=0, state="idle")
    assert len(store.list_names("status")) == 1


def test_a_receiver_says_what_it_does(sqs: Any, fill: Callable[[int], None], tmp_path: Path) -> None:
    fill(30)
    working = receiver(sqs, tmp_path, client(sqs.url))
    store = FileStore(tmp_path)
    until(lambda: read_status(store))
    status = read_status(store)
    assert status is not None
    assert (status.state, status.staged_messages, status.waiting) == ("receiving", 30, 0)
    assert status.staged_bytes == 30 * 6
    assert status.requests >= 4
    assert status.oldest_ms is not None
    sqs.script.add({"action": "ReceiveMessage", "status": 500, "count": 1_000_000})
    until(lambda: (found := read_status(store)) and found.state == "failing")
    status = read_status(store)
    assert status is not None
    assert status.receives_failed > 0
    assert "InternalError" in status.reason
    working.stop()
    sqs.script.add({"action": "ReceiveMessage", "status": 500, "count": 0})
    working.join(WITHIN_S)
