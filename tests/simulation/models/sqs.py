"""SQS as AWS documents it, standard and FIFO, with what it may do and rarely does.

Its public methods are the API's operations; unknown parameters raise `TypeError` or `Unsupported`.
https://docs.aws.amazon.com/AWSSimpleQueueService/latest/APIReference/Welcome.html
"""

import json
from collections.abc import Callable, Mapping, Sequence
from itertools import count
from typing import Any

from tests.simulation.kernel.faults import Kind
from tests.simulation.models.errors import ServiceError
from tests.simulation.models.policies import lets_in
from tests.simulation.models.queues import IN_FLIGHT_LIMIT, Queue, Stored
from tests.simulation.models.sqs_requests import (
    MAX_BYTES,
    MAX_VISIBILITY_S,
    asked_for,
    check_attributes,
    check_entries,
    check_message,
    check_name,
    check_receive,
    check_visibility,
    size_of,
)

LINGERS = 0.5  # of deletions: they take their time
TAKEN_S = 60.0  # for which a deleted queue's name is taken
GONE = "AWS.SimpleQueueService.NonExistentQueue"

Observer = Callable[[str, Queue, Stored], None]


class Sqs:
    """All queues of the world, of all accounts and regions, by URL. The caller's site says where it makes queues.

    `observers` hear of each message that is `sent`, `received`, `deleted`, `expired`, `dead` (moved to a dead-letter
    queue, named after the move), `vanished` (with its queue) or `lost` (sent to a queue that was deleted already).
    """

    def __init__(self, world: Any) -> None:
        self.world = world
        self.queues: dict[str, Queue] = {}
        self.by_arn: dict[str, Queue] = {}
        self.deleted: dict[str, tuple[float, float, Queue]] = {}  # when, and until when it still answers
        self.observers: list[Observer] = []
        # Until when counts may be old: "within a minute", says
        # https://docs.aws.amazon.com/AWSSimpleQueueService/latest/SQSDeveloperGuide/confirm-queue-is-empty.html
        self.counts_settle_s = 60.0
        self._order = count(1)

    # The operations: queues

    def create_queue(
        self, *, QueueName: str, Attributes: Mapping[str, str] | None = None, tags: Mapping[str, str] | None = None
    ) -> dict[str, Any]:
        given = {str(name): str(value) for name, value in (Attributes or {}).items()}
        check_name(QueueName, given)
        check_attributes(given)
        url, now = self.url(QueueName), self.world.now
        standing = self.queues.get(url)
        if standing is not None:
            if any(standing.settings().get(name) != value for name, value in given.items()):
                raise ServiceError(
                    "QueueAlreadyExists", "A queue already exists with the same name and different value"
                )
            return {"QueueUrl": url}
        if url in self.deleted and now - self.deleted[url][0] < TAKEN_S:
            raise ServiceError("AWS.SimpleQueueService.QueueDeletedRecently", "You must wait 60 seconds")
        self.deleted.pop(url, None)
        self.make(QueueName, given, tags=dict(tags or {}))
        return {"QueueUrl": url}

    def delete_queue(self, *, QueueUrl: str) -> dict[str, Any]:
        queue = self._queue(QueueUrl)
        lingers_s = 0.0
        if self.world.happens(Kind.STALE, LINGERS):
            lingers_s = self.world.chance.random() * self.world.faults.deleted_queue_lingers_s
        self.remove(queue, lingers_s=lingers_s)
        return {}

    def get_queue_url(self, *, QueueName: str) -> dict[str, Any]:
        return {"QueueUrl": self._queue(self.url(QueueName)).url}

    def get_queue_attributes(self, *, QueueUrl: str, AttributeNames: Sequence[str]) -> dict[str, Any]:
        queue, now = self._queue(QueueUrl), self.world.now
        self._expire(queue)
        queue.reveal(now)
        in_flight = sum(message.in_flight for message in queue.messages.values())
        delayed = sum(not each.in_flight and each.visible_at > now for each in queue.messages.values())
        counted = len(queue.messages)
        if self.world.happens(Kind.STALE):
            recent = [each for at, each in queue.counts if now - at < self.counts_settle_s]
            counted = self.world.chance.choice([0, *recent]) if recent else counted
            in_flight, delayed = min(in_flight, counted), 0
        every = {
            **queue.settings(),
            "QueueArn": queue.arn,
            "ApproximateNumberOfMessages": str(max(counted - in_flight - delayed, 0)),
            "ApproximateNumberOfMessagesNotVisible": str(in_flight),
            "ApproximateNumberOfMessagesDelayed": str(delayed),
            "CreatedTimestamp": str(int(queue.made_at)),
            "LastModifiedTimestamp": str(int(queue.made_at)),
        }
        asked = every if "All" in AttributeNames else AttributeNames
        return {"Attributes": {name: every[name] for name in asked if name in every}}

    def set_queue_attributes(self, *, QueueUrl: str, Attributes: Mapping[str, str]) -> dict[str, Any]:
        queue = self._queue(QueueUrl)
        check_attributes(Attributes)
        queue.attributes.update(Attributes)
        queue.configured()
        return {}

    def list_queue_tags(self, *, QueueUrl: str) -> dict[str, Any]:
        tags = self._queue(QueueUrl).tags
        return {"Tags": dict(tags)} if tags else {}

    def tag_queue(self, *, QueueUrl: str, Tags: Mapping[str, str]) -> dict[str, Any]:
        self._queue(QueueUrl).tags.update(Tags)
        return {}

    def list_queues(
        self, *, QueueNamePrefix: str = "", MaxResults: int = 1_000, NextToken: str | None = None
    ) -> dict[str, Any]:
        start = self.url(QueueNamePrefix)
        now, visibility_timeout_s = self.world.now, self.world.faults.new_queue_hidden_s
        urls = sorted(
            url
            for url, queue in self.queues.items()
            if url.startswith(start) and now - queue.made_at >= visibility_timeout_s
        )
        if self.world.happens(Kind.STALE):  # a deleted queue may be listed for a while
            urls = sorted({*urls, *(url for url, (_, until, _) in self.deleted.items() if until > now)})
            urls = [url for url in urls if url.startswith(start)]
        first = int(NextToken or 0)
        page = urls[first : first + MaxResults]
        answer: dict[str, Any] = {"QueueUrls": page} if page else {}
        if first + MaxResults < len(urls):
            answer["NextToken"] = str(first + MaxResults)
        return answer

    # The operations: messages

    def send_message(self, *, QueueUrl: str, **entry: Any) -> dict[str, Any]:
        queue = self._queue(QueueUrl, "SendMessage")
        if size_of(entry) > self._max_bytes(queue):
            raise ServiceError("InvalidParameterValue", "One or more parameters are invalid. Reason: too long")
        return self._send(queue, entry)

    def send_message_batch(self, *, QueueUrl: str, Entries: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        queue = self._queue(QueueUrl, "SendMessage")
        check_entries(Entries)
        if sum(map(size_of, Entries)) > self._max_bytes(queue):
            raise ServiceError("AWS.SimpleQueueService.BatchRequestTooLong", "Batch requests cannot be longer")
        done: list[dict[str, Any]] = []
        failed: list[dict[str, Any]] = []
        for entry in Entries:
            fields = {name: value for name, value in entry.items() if name != "Id"}
            # In a FIFO queue the next of its group would overtake it: a limit that `sluice.batches` names.
            if not queue.fifo and self.world.happens(Kind.THROTTLE):
                failed.append(_failed(entry, BUSY, sender=False))
                continue
            try:
                done.append({"Id": entry["Id"], **self._send(queue, fields)})
            except ServiceError as error:
                failed.append(_failed(entry, error, sender=True))
        answer: dict[str, Any] = {}
        if done:
            answer["Successful"] = done
        return answer | ({"Failed": failed} if failed else {})

    def receive_message(
        self,
        *,
        QueueUrl: str,
        MaxNumberOfMessages: int = 1,
        WaitTimeSeconds: float | None = None,
        VisibilityTimeout: float | None = None,
        MessageSystemAttributeNames: Sequence[str] = (),
        AttributeNames: Sequence[str] = (),
        MessageAttributeNames: Sequence[str] = (),
    ) -> dict[str, Any]:
        queue = self._queue(QueueUrl)
        default_s = float(queue.settings()["ReceiveMessageWaitTimeSeconds"])
        wait_s = default_s if WaitTimeSeconds is None else WaitTimeSeconds
        check_receive(MaxNumberOfMessages, wait_s, VisibilityTimeout)
        if wait_s == 0 and self.world.happens(Kind.REORDER, self.world.faults.reorder / 4):
            return {}  # a short poll asks some of the servers: it may miss what is there
        messages = self._await(queue, MaxNumberOfMessages, wait_s, VisibilityTimeout)
        system = {*MessageSystemAttributeNames, *AttributeNames}
        answers = [asked_for(message.api(), system, MessageAttributeNames) for message in messages]
        return {"Messages": answers} if answers else {}

    def delete_message(self, *, QueueUrl: str, ReceiptHandle: str) -> dict[str, Any]:
        self._delete(self._queue(QueueUrl), ReceiptHandle)
        return {}

    def delete_message_batch(self, *, QueueUrl: str, Entries: Sequence[Mapping[str, str]]) -> dict[str, Any]:
        queue = self._queue(QueueUrl)
        return self._each(Entries, lambda entry: self._delete(queue, entry["ReceiptHandle"]))

    def change_message_visibility(
        self, *, QueueUrl: str, ReceiptHandle: str, VisibilityTimeout: float
    ) -> dict[str, Any]:
        self._show_at(self._queue(QueueUrl), ReceiptHandle, VisibilityTimeout)
        return {}

    def change_message_visibility_batch(self, *, QueueUrl: str, Entries: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        queue = self._queue(QueueUrl)
        return self._each(Entries, lambda each: self._show_at(queue, each["ReceiptHandle"], each["VisibilityTimeout"]))

    # What the world does itself: without faults, and without anybody's call

    def url(self, name: str) -> str:
        """Name a queue of the caller's site."""
        site = self.world.site
        return f"https://sqs.{site.region}.amazonaws.com/{site.account}/{name}"

    def make(
        self, name: str, attributes: Mapping[str, str] | None = None, *, tags: dict[str, str] | None = None
    ) -> Queue:
        """Make a queue at once, at the caller's site."""
        site, url = self.world.site, self.url(name)
        arn = f"arn:aws:sqs:{site.region}:{site.account}:{name}"
        given = dict(attributes or {})
        if name.endswith(".fifo"):
            given["FifoQueue"] = "true"
        queue = Queue(name=name, url=url, arn=arn, attributes=given, made_at=self.world.now, tags=tags or {})
        self.queues[url] = self.by_arn[arn] = queue
        return queue

    def remove(self, queue: Queue, *, lingers_s: float = 0.0) -> None:
        """Delete a queue with what is in it."""
        now = self.world.now
        for message in list(queue.messages.values()):
            self._tell("vanished", queue, message)
        queue.messages.clear()
        del self.queues[queue.url]
        del self.by_arn[queue.arn]
        self.deleted[queue.url] = now, now + lingers_s, queue
        self.world.scheduler.wake(queue.waiters)

    def receive(self, queue: Queue, limit: int, *, visibility_s: float | None = None) -> list[Stored]:
        """Receive what is there, for a trigger or for an API call."""
        now, faulty = self.world.now, self.world.happens
        self._expire(queue)
        if sum(message.in_flight for message in queue.messages.values()) >= IN_FLIGHT_LIMIT:
            if queue.fifo:
                return []
            raise ServiceError("OverLimit", "Too many messages in flight", status=403)
        self._bury(queue)
        taken = queue.take(limit, now, chance=self.world.chance, shuffled=faulty(Kind.REORDER))
        found: list[Stored] = []
        for message in taken:
            queue.hold(message, now + (queue.visibility_s if visibility_s is None else visibility_s), now)
            if not queue.fifo and faulty(Kind.DUPLICATE):
                self._double(queue, message)
            found.append(message)
            self._tell("received", queue, message)
        return found

    def record(self, queue: Queue, message: Stored) -> dict[str, Any]:
        """Spell a received message as Lambda's events have it."""
        return {
            "messageId": message.message_id,
            "receiptHandle": message.handle,
            "body": message.body,
            "attributes": message.all_system(),
            "messageAttributes": {
                name: {part[0].lower() + part[1:]: content for part, content in value.items()}
                for name, value in message.attributes.items()
            },
            "eventSource": "aws:sqs",
            "eventSourceARN": queue.arn,
            "awsRegion": queue.arn.split(":")[3],
        }

    def delete(self, queue: Queue, message: Stored) -> None:
        """Delete a message, for a trigger."""
        if not message.deleted:
            queue.remove(message, self.world.now)
            self._tell("deleted", queue, message)
            self._stir(queue)

    # How

    def _queue(self, url: str, action: str = "") -> Queue:
        """Find a queue, as long as it answers, and who asks may do this; another account, where its policy says so."""
        queue, now = self.queues.get(url), self.world.now
        account = self.world.site.account
        if url.split("/")[3] != account:
            policy = "" if queue is None else queue.attributes.get("Policy", "")
            if not action or not lets_in(policy, account, action):
                raise ServiceError("AccessDenied", "Access to the resource is denied.", status=403)
        if queue is None:
            _, until, gone = self.deleted.get(url, (0.0, 0.0, None))
            if gone is None or now >= until:
                raise ServiceError(GONE, "The specified queue does not exist.")
            return gone
        if now - queue.made_at < self.world.faults.new_queue_hidden_s:
            raise ServiceError(GONE, "The specified queue does not exist.")
        return queue

    def _send(self, queue: Queue, entry: Mapping[str, Any]) -> dict[str, str]:
        check_message(queue, entry)
        now = self.world.now
        group = entry.get("MessageGroupId")
        delay_s = queue.delay_s if queue.fifo else float(entry.get("DelaySeconds", queue.delay_s))
        system: dict[str, str] = {"SenderId": self.world.sender_id}
        if group is not None:
            system["MessageGroupId"] = group
        trace = entry.get("MessageSystemAttributes", {}).get("AWSTraceHeader")
        if trace is not None:
            system["AWSTraceHeader"] = trace["StringValue"]
        deduplication_id = queue.deduplication_id(entry) if queue.fifo else None
        if deduplication_id is not None:
            earlier = queue.repeated(group, deduplication_id, now)
            if earlier is not None:
                return dict(earlier)
            system["MessageDeduplicationId"] = deduplication_id
        order = next(self._order)
        answer = {"MessageId": f"m{order:08d}-0000-4000-8000-000000000000", "MD5OfMessageBody": ""}
        if queue.fifo:
            answer["SequenceNumber"] = system["SequenceNumber"] = f"{order:020d}"
        message = Stored(
            message_id=answer["MessageId"],
            body=entry["MessageBody"],
            attributes=dict(entry.get("MessageAttributes", {})),
            system=system,
            sent_at=now,
            visible_at=now + delay_s,
            order=order,
            group=group,
        )
        if deduplication_id is not None:
            queue.remember(group, deduplication_id, answer, now)
        if queue.url not in self.queues:
            self._tell("lost", queue, message)
            return answer
        queue.add(message, now)
        queue.sent += 1
        self._tell("sent", queue, message)
        self._stir(queue)
        return answer

    def _max_bytes(self, queue: Queue) -> int:
        return int(queue.attributes.get("MaximumMessageSize", MAX_BYTES))

    def _await(self, queue: Queue, limit: int, wait_s: float, visibility_s: float | None) -> list[Stored]:
        scheduler = self.world.scheduler
        until = self.world.now + wait_s
        while True:
            if queue.url in self.queues:
                found = self.receive(queue, limit, visibility_s=visibility_s)
                if found:
                    return found
            if self.world.now >= until:
                return []
            # A long poll ends with what comes, whenever that is; the queue may be deleted meanwhile.
            comes_at = queue.next_visible_s(self.world.now)
            soonest = until if comes_at is None else min(until, max(comes_at, self.world.now + 0.001))
            scheduler.wait(queue.waiters, soonest - self.world.now)
            if queue.url not in self.queues:
                raise ServiceError(GONE, "The specified queue does not exist.")

    def _expire(self, queue: Queue) -> None:
        for message in queue.expired(self.world.now):
            queue.remove(message, self.world.now)
            self._tell("expired", queue, message)

    def _bury(self, queue: Queue) -> None:
        """Move what has been received often enough to the dead letters, before anything of it is received again.

        Id, attributes and counts go along. In a standard queue it stays as old as it was, in a FIFO queue it is new:
        https://docs.aws.amazon.com/AWSSimpleQueueService/latest/SQSDeveloperGuide/setting-up-dead-letter-queue-retention.html
        """
        target = self.by_arn.get(queue.dead_letters_arn)
        if target is None:
            return
        now = self.world.now
        for message in queue.exhausted(now):
            queue.remove(message, now)
            moved = Stored(
                message_id=message.message_id,
                body=message.body,
                attributes=message.attributes,
                system={"DeadLetterQueueSourceArn": queue.arn, **message.system},
                sent_at=message.sent_at,
                visible_at=now,
                order=next(self._order),
                group=message.group,
                receives=message.receives,
                first_received_at=message.first_received_at,
                kept_since=now if target.fifo else message.kept_since,
            )
            target.add(moved, now)
            target.sent += 1
            self._tell("dead", target, moved)
            self._stir(target)

    def _double(self, queue: Queue, message: Stored) -> None:
        """Leave a copy on a server that didn't hear of the receive: it comes again, also after the deletion."""
        now = self.world.now
        copy = Stored(
            message_id=message.message_id,
            body=message.body,
            attributes=message.attributes,
            system=dict(message.system),
            sent_at=message.sent_at,
            visible_at=now + self.world.chance.choice([0.0, 1.0, queue.visibility_s]),
            order=next(self._order),
            group=message.group,
            receives=message.receives - 1,
            first_received_at=message.first_received_at,
            copies=message.copies + 1,
        )
        queue.add(copy, now)
        if copy.visible_at > now:
            copy.in_flight = True
        self._stir(queue)

    def _delete(self, queue: Queue, handle: str) -> None:
        message = queue.handles.get(handle)
        if message is None:
            raise ServiceError("ReceiptHandleIsInvalid", f"The input receipt handle is invalid: {handle[:40]}")
        queue.reveal(self.world.now)
        if message.deleted:
            return
        is_old = message.handle != handle
        if queue.fifo and (is_old or not message.in_flight):
            raise ServiceError("InvalidParameterValue", "Reason: The receipt handle has expired.")
        if is_old and self.world.happens(Kind.STALE):
            return  # "the message might not be deleted", where the handle isn't that of the last receive
        self.delete(queue, message)

    def _show_at(self, queue: Queue, handle: str, timeout_s: float) -> None:
        """Change for how long a message isn't seen.

        Of one that is seen again it changes nothing, and is no error: https://github.com/localstack/localstack/pull/9632
        """
        message, now = queue.handles.get(handle), self.world.now
        if message is None:
            raise ServiceError("ReceiptHandleIsInvalid", f"The input receipt handle is invalid: {handle[:40]}")
        check_visibility(timeout_s)
        queue.reveal(now)
        if message.deleted or message.handle != handle:
            raise ServiceError(
                "InvalidParameterValue", "Message does not exist or is not available for visibility timeout change."
            )
        if not message.in_flight:
            return
        if now + timeout_s > message.received_at + MAX_VISIBILITY_S:
            raise ServiceError("InvalidParameterValue", "Total VisibilityTimeout for the message is beyond the limit")
        # Received again it counts on from here.
        message.visible_at = now + timeout_s
        queue.hidden.append((message.visible_at, message.order, message))
        queue.hidden.sort(key=lambda each: each[:2])
        queue.reveal(now)
        self._stir(queue)

    def _each(self, entries: Sequence[Mapping[str, Any]], do: Callable[[Mapping[str, Any]], None]) -> dict[str, Any]:
        check_entries(entries)
        done, failed = [], []
        for entry in entries:
            if self.world.happens(Kind.THROTTLE):
                failed.append(_failed(entry, BUSY, sender=False))
                continue
            try:
                do(entry)
                done.append({"Id": entry["Id"]})
            except ServiceError as error:
                failed.append(_failed(entry, error, sender=True))
        answer: dict[str, Any] = {}
        if done:
            answer["Successful"] = done
        return answer | ({"Failed": failed} if failed else {})

    def _stir(self, queue: Queue) -> None:
        """Wake those who wait for the queue, and its triggers."""
        if queue.waiters:
            self.world.scheduler.wake(queue.waiters)
        for listener in queue.listeners:
            listener()

    def _tell(self, what: str, queue: Queue, message: Stored) -> None:
        for observer in self.observers:
            observer(what, queue, message)


BUSY = ServiceError("ServiceUnavailable", "busy")


def _failed(entry: Mapping[str, Any], error: ServiceError, *, sender: bool) -> dict[str, Any]:
    return {"Id": entry["Id"], "Code": error.code, "SenderFault": sender, "Message": error.message}


def redrive(dead_letters_arn: str, receives: int) -> str:
    """Spell a redrive policy."""
    return json.dumps({"deadLetterTargetArn": dead_letters_arn, "maxReceiveCount": receives})
