"""Sessions, producers and consumers around the deployed splitter."""

import json
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property
from typing import Any

from sluice.aws.operator.control_client import ControlClient
from sluice.splitting.filters.files import parse_filters
from sluice.splitting.jq_compile import compile_problem
from sluice.splitting.operations import (
    AnySession,
    FindSession,
    ListQueues,
    ListSessions,
    QueueView,
    SessionView,
    StartSession,
    StopSession,
)
from tests.deployed import Deployed

ENDED = "Ended"
BATCH = 10
FIFO_SUFFIX = ".fifo"


class Splitting:
    """What a team sees of a site: the control function, and queues by id."""

    def __init__(self, deployed: Deployed) -> None:
        self.deployed = deployed
        self.client = ControlClient.of(deployed.connection)

    @cached_property
    def queues(self) -> dict[str, QueueView]:
        return {queue.queue_id: queue for queue in self.client.ask(ListQueues())}

    def start(self, filters: dict[str, Any], **fields: Any) -> SessionView:
        """A session, ready. `filters` are a filter file's, by queue."""
        asked = parse_filters({"split_queues": filters}, compile_problem=compile_problem)
        session = self.client.ask(StartSession(filters=asked, owner="test", **fields))
        ready = self.until(session.session_id, lambda status: status == "Ready")
        assert isinstance(ready, SessionView)
        return ready

    def until(self, session_id: str, done: Callable[[str], bool], *, within_s: float = 180) -> AnySession:
        deadline = time.monotonic() + within_s
        while True:
            session = self.client.ask(FindSession(session_id=session_id))
            if done(session.status):
                return session
            assert time.monotonic() < deadline, session
            time.sleep(0.2)

    def until_sent(self, session_id: str, number: int, *, within_s: float = 20) -> None:
        """Until the session was sent so many messages."""
        deadline = time.monotonic() + within_s
        while True:
            session = self.client.ask(FindSession(session_id=session_id))
            assert isinstance(session, SessionView)
            if session.messages >= number:
                return
            assert time.monotonic() < deadline, session
            time.sleep(0.2)

    def stop(self, *session_ids: str) -> None:
        """Ends sessions, and waits until nothing is left of them."""
        for session_id in session_ids:
            self.client.ask(StopSession(session_id=session_id))
        for session_id in session_ids:
            self.until(session_id, lambda status: status == ENDED)

    @contextmanager
    def sessions(self, *filters: dict[str, Any]) -> Iterator[list[SessionView]]:
        started = [self.start(each) for each in filters]
        try:
            yield started
        finally:
            for session in started:
                self.client.ask(StopSession(session_id=session.session_id))

    def until_all_ended(self) -> None:
        """Until no session is left, of this test's or an earlier one's."""
        deadline = time.monotonic() + 180
        while sessions := self.client.ask(ListSessions()).sessions:
            assert time.monotonic() < deadline, sessions
            time.sleep(0.5)

    def temporary_queues(self) -> list[str]:
        urls = self.deployed.sqs.list_queues(QueueNamePrefix="sluice-tmp-").get("QueueUrls", [])
        return [url.rsplit("/", 1)[1] for url in urls]

    def send(self, queue_id: str, bodies: Sequence[str], attributes: Callable[[str], dict[str, str]]) -> None:
        """Each body with String attributes; to a FIFO queue all in one group."""
        url = self.queues[queue_id].source
        for start in range(0, len(bodies), BATCH):
            entries = [
                {
                    "Id": str(number),
                    "MessageBody": body,
                    "MessageAttributes": {
                        name: {"DataType": "String", "StringValue": value} for name, value in attributes(body).items()
                    },
                }
                | ({"MessageGroupId": "g", "MessageDeduplicationId": body} if url.endswith(FIFO_SUFFIX) else {})
                for number, body in enumerate(bodies[start : start + BATCH])
            ]
            done = self.deployed.sqs.send_message_batch(QueueUrl=url, Entries=entries)  # type: ignore[arg-type]
            assert not done.get("Failed"), done

    def receive(self, url: str, *, wait_s: int = 0, at_most: int = BATCH) -> list[dict[str, Any]]:
        """Messages that are there, deleted."""
        received = self.deployed.sqs.receive_message(
            QueueUrl=url, MaxNumberOfMessages=at_most, WaitTimeSeconds=wait_s, MessageAttributeNames=["All"]
        ).get("Messages", [])
        if received:
            entries = [{"Id": str(n), "ReceiptHandle": each["ReceiptHandle"]} for n, each in enumerate(received)]
            self.deployed.sqs.delete_message_batch(QueueUrl=url, Entries=entries)  # type: ignore[arg-type]
        return [dict(message) for message in received]

    def bodies(self, url: str, number: int, *, within_s: float = 20) -> list[str]:
        """That many bodies, in the order in which they came; more if more are there."""
        found: list[str] = []
        deadline = time.monotonic() + within_s
        while len(found) < number and time.monotonic() < deadline:
            found += [message["Body"] for message in self.receive(url, wait_s=1)]
        return found + [message["Body"] for message in self.receive(url)]

    def main(self, queue_id: str) -> str:
        return self.queues[queue_id].main


def url_of(session: SessionView, queue_id: str) -> str:
    [url] = [queue.url for queue in session.queues if queue.queue_id == queue_id]
    return str(url)


def by_attribute(name: str, pattern: str, **fields: Any) -> dict[str, Any]:
    return {"message_filter": {name: pattern}, **fields}


def notification(attributes: dict[str, str]) -> str:
    """What an SNS topic puts into a queue."""
    return json.dumps(
        {
            "Type": "Notification",
            "TopicArn": "arn:aws:sns:eu-central-1:000000000000:topic",
            "Message": "text",
            "MessageAttributes": {name: {"Type": "String", "Value": value} for name, value in attributes.items()},
        }
    )
