"""Sessions, producers and consumers around the deployed splitter."""

import json
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import cached_property
from typing import Any

from sluice.aws.items import number, query_pages, text
from sluice.aws.splitting.registry_store import SPLITTERS, DynamoRegistryStore
from sluice.errors import RequestRefused
from sluice.operator.functions import ControlClient
from sluice.splitting.filters.files import parse_filters
from sluice.splitting.jq_runner import compile_problem
from sluice.splitting.operations import (
    AnySession,
    FindSession,
    QueueView,
    SessionView,
    ShowSplitting,
    StartSession,
    StopSession,
)
from sluice.splitting.sessions.state import ALIVE, SPLITTER_LEASE_S
from tests.deployed import BATCH, Deployed, delete_all, send_all
from tests.waiting import wait_until

ENDED = "Ended"
FIFO_SUFFIX = ".fifo"
TEST = "test"  # the attribute that says whose a message is


class Splitting:
    """What a team sees of a site: the control function, and queues by id.

    What it sends says in an attribute whose it is, and it receives nothing else: what an earlier test has sent may
    come once more at any time. Nor does it receive again what SQS delivers twice.
    """

    def __init__(self, deployed: Deployed) -> None:
        self.deployed = deployed
        self.client = ControlClient.connect(deployed.connection)
        self.begin()

    def begin(self) -> None:
        """From now on whatever was sent before is another's."""
        self._test = uuid.uuid4().hex
        self._received: set[str] = set()

    @cached_property
    def queues(self) -> dict[str, QueueView]:
        return {queue.queue_id: queue for queue in self.client.ask(ShowSplitting()).queues}

    def start(self, filters: dict[str, Any], **fields: Any) -> SessionView:
        """A session, ready. `filters` are a filter file's, by queue."""
        return self.until_ready(self.ask_for(filters, **fields))

    def ask_for(self, filters: dict[str, Any], **fields: Any) -> str:
        """Asks for a session, which is begun; its id."""
        asked = parse_filters({"split_queues": filters}, compile_problem=compile_problem)
        return self.client.ask(StartSession(filters=asked, owner="test", **fields)).session_id

    def until_ready(self, session_id: str) -> SessionView:
        """The session once it is ready."""
        ready = self.until(session_id, lambda status: status == "Ready")
        assert isinstance(ready, SessionView)
        return ready

    def until(self, session_id: str, done: Callable[[str], bool], *, within_s: float = 180) -> AnySession:
        find = FindSession(session_id=session_id)
        return wait_until(lambda: self.client.ask(find), lambda session: done(session.status), within_s=within_s)

    def until_sent(self, session_id: str, number: int, *, within_s: float = 120) -> None:
        """Until the session was sent so many messages."""

        def was_sent(session: AnySession) -> bool:
            assert isinstance(session, SessionView)
            return session.messages >= number

        find = FindSession(session_id=session_id)
        wait_until(lambda: self.client.ask(find), was_sent, within_s=within_s)

    def stop(self, *session_ids: str) -> None:
        """Ends sessions, and waits until nothing is left of them. No batch may be under way: see `end_leases`."""
        for session_id in session_ids:
            self.client.ask(StopSession(session_id=session_id))
        for session_id in session_ids:

            def has_ended(status: str) -> bool:
                self.end_leases()
                return status == ENDED

            self.until(session_id, has_ended)

    def ask_all_to_stop(self) -> None:
        """Asks all sessions to end that earlier tests have left, without waiting for their end."""
        for session in self.client.ask(ShowSplitting()).sessions:
            if session.status in ALIVE:
                with suppress(RequestRefused):  # it has just ended by itself
                    self.client.ask(StopSession(session_id=session.session_id))

    def end_leases(self) -> None:
        """Ends the leases of splitters at rest, by dating their announcements back.

        A session's queues stay until every splitter has announced that it has seen the session's end, or was silent for
        its lease. A splitter without messages is silent, and its lease is half a minute. That the queues wait for it is
        proved in `tests/unit/splitting/sessions/test_lifecycle.py`. Only for tests whose messages have all arrived.
        """
        version = self._registry.read_version()
        for page in query_pages(self.deployed.dynamodb, self._registry.table, SPLITTERS):
            for item in page:
                seen, at_ms = number(item, "version"), number(item, "at")
                if seen < version:
                    self._registry.announce_version(
                        text(item, "sk"), version=seen, at_ms=at_ms - SPLITTER_LEASE_S * 1000
                    )

    @cached_property
    def _registry(self) -> DynamoRegistryStore:
        control = self.deployed.functions.get_function_configuration(FunctionName=self.client.function)
        return DynamoRegistryStore(self.deployed.dynamodb, control["Environment"]["Variables"]["TABLE"])

    @contextmanager
    def sessions(self, *filters: dict[str, Any]) -> Iterator[list[SessionView]]:
        asked = [self.ask_for(each) for each in filters]
        started = [self.until_ready(each) for each in asked]
        try:
            yield started
        finally:
            for session in started:
                self.client.ask(StopSession(session_id=session.session_id))

    def ready_one(self) -> SessionView:
        """The one session that is ready, once it is: a command has started it."""

        def list_ready() -> list[SessionView]:
            return [session for session in self.client.ask(ShowSplitting()).sessions if session.status == "Ready"]

        [ready] = wait_until(list_ready, within_s=120)
        return ready

    def until_all_ended(self) -> None:
        """Until no session is left, of this test's or an earlier one's."""

        def list_left() -> Sequence[SessionView]:
            if sessions := self.client.ask(ShowSplitting()).sessions:
                self.end_leases()
            return sessions

        wait_until(list_left, lambda sessions: not sessions, within_s=180)

    def temporary_queues(self) -> list[str]:
        urls = self.deployed.sqs.list_queues(QueueNamePrefix="sluice-tmp-").get("QueueUrls", [])
        return [url.rsplit("/", 1)[1] for url in urls]

    def send(self, queue_id: str, bodies: Sequence[str], attributes: Callable[[str], dict[str, str]]) -> None:
        """Each body with String attributes; to a FIFO queue all in one group."""
        url = self.queues[queue_id].source
        entries = [
            {
                "MessageBody": body,
                "MessageAttributes": self.ours(
                    {name: {"DataType": "String", "StringValue": value} for name, value in attributes(body).items()}
                ),
            }
            | ({"MessageGroupId": "g", "MessageDeduplicationId": body} if url.endswith(FIFO_SUFFIX) else {})
            for body in bodies
        ]
        send_all(self.deployed.sqs, url, entries)

    def ours(self, attributes: dict[str, Any]) -> dict[str, Any]:
        """A message's attributes, and whose it is."""
        return attributes | {TEST: {"DataType": "String", "StringValue": self._test}}

    def receive(self, url: str, *, wait_s: int = 0, at_most: int = BATCH) -> list[dict[str, Any]]:
        """Messages that are there, deleted."""
        received = self.deployed.sqs.receive_message(
            QueueUrl=url, MaxNumberOfMessages=at_most, WaitTimeSeconds=wait_s, MessageAttributeNames=["All"]
        ).get("Messages", [])
        delete_all(self.deployed.sqs, url, received)
        return [dict(message) for message in received if self._is_new(message)]

    def _is_new(self, message: Any) -> bool:
        """Whether it is ours, which isn't told any further, and wasn't received before."""
        test = message.get("MessageAttributes", {}).pop(TEST, {}).get("StringValue")
        is_new = test == self._test and message["MessageId"] not in self._received
        self._received.add(message["MessageId"])
        return is_new

    def bodies(self, url: str, number: int, *, within_s: float = 60) -> list[str]:
        """That many bodies, in the order in which they came; more if more are there."""
        found = self.messages(url, number, within_s=within_s)
        return [message["Body"] for message in (*found, *self._new_ones(self.receive(url), found, url))]

    def messages(self, url: str, number: int, *, within_s: float = 60, at_most: int = BATCH) -> list[dict[str, Any]]:
        """That many messages, in the order in which they came, or more where more come at once."""
        found: list[dict[str, Any]] = []
        deadline = time.monotonic() + within_s
        while len(found) < number and time.monotonic() < deadline:
            found += self._new_ones(self.receive(url, wait_s=1, at_most=at_most), found, url)
        return found

    @staticmethod
    def _new_ones(more: list[dict[str, Any]], found: list[dict[str, Any]], url: str) -> list[dict[str, Any]]:
        """Of a standard queue each body counts once: the splitter may have been delivered it twice."""
        if url.endswith(FIFO_SUFFIX):
            return more
        by_body = {message["Body"]: message for message in reversed(more)}
        known = {message["Body"] for message in found}
        return [message for body, message in reversed(by_body.items()) if body not in known]

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
