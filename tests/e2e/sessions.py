"""Sessions, producers and consumers around the deployed splitter."""

import json
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property
from typing import Any

from sluice.aws.operator.control_client import ControlClient
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
    def queues(self) -> dict[str, dict[str, Any]]:
        return {queue["queue_id"]: queue for queue in self.client.ask("list")["queues"]}

    def start(self, filters: dict[str, Any], **fields: Any) -> dict[str, Any]:
        """A session, ready."""
        session = self.client.ask("start", filters={"split_queues": filters}, owner="test", **fields)
        return self.until(session["session_id"], lambda status: status == "Ready")

    def until(self, session_id: str, done: Callable[[str], bool], *, within_s: float = 180) -> dict[str, Any]:
        deadline = time.monotonic() + within_s
        while True:
            session = self.client.ask("status", session_id=session_id)
            if done(session["status"]):
                return session
            assert time.monotonic() < deadline, session
            time.sleep(0.2)

    def until_sent(self, session_id: str, number: int, *, within_s: float = 20) -> None:
        """Until the session was sent so many messages."""
        deadline = time.monotonic() + within_s
        while (sent := self.client.ask("status", session_id=session_id)["messages"]) < number:
            assert time.monotonic() < deadline, sent
            time.sleep(0.2)

    def stop(self, *session_ids: str) -> None:
        """Ends sessions, and waits until nothing is left of them."""
        for session_id in session_ids:
            self.client.ask("stop", session_id=session_id)
        for session_id in session_ids:
            self.until(session_id, lambda status: status == ENDED)

    @contextmanager
    def sessions(self, *filters: dict[str, Any]) -> Iterator[list[dict[str, Any]]]:
        started = [self.start(each) for each in filters]
        try:
            yield started
        finally:
            for session in started:
                self.client.ask("stop", session_id=session["session_id"])

    def until_all_ended(self) -> None:
        """Until no session is left, of this test's or an earlier one's."""
        deadline = time.monotonic() + 180
        while sessions := self.client.ask("status")["sessions"]:
            assert time.monotonic() < deadline, sessions
            time.sleep(0.5)

    def temporary_queues(self) -> list[str]:
        urls = self.deployed.sqs.list_queues(QueueNamePrefix="sluice-tmp-").get("QueueUrls", [])
        return [url.rsplit("/", 1)[1] for url in urls]

    def send(self, queue_id: str, bodies: Sequence[str], attributes: Callable[[str], dict[str, str]]) -> None:
        """Each body with String attributes; to a FIFO queue all in one group."""
        url = self.queues[queue_id]["source"]
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
        url: str = self.queues[queue_id]["main"]
        return url


def url_of(session: dict[str, Any], queue_id: str) -> str:
    [url] = [queue["url"] for queue in session["queues"] if queue["queue_id"] == queue_id]
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
