"""Every error of this package.

SluiceSparkError
├── InvalidOption             the user's: the option is named
├── InvalidColumn             the user's: no message can be made of it
├── RowsNotSent               the user's rows, by place: no messages, or refused by SQS one by one
├── QueueError                SQS's answer, translated once
│   ├── QueueRefused          the user's: access, no such queue, KMS. Never retried
│   ├── QueueBusy             SQS's or the network's: retried with back-off
│   └── TooManyInFlight       OverLimit: waits until messages are deleted
├── NothingReceived           no receive has worked for failOnReceiveErrorAfter: credentials or an endpoint are gone
├── LogError                  the staged log's
│   ├── SegmentTaken          another writer published this number
│   ├── Fenced                another driver writes this log: this one must stop
│   ├── SegmentMissing        an offset names a segment that is gone: never skipped over
│   ├── OutOfTime             a task held its messages too long to publish them: it releases them, and begins again
│   └── UnknownFormat         written by a version that this one can't read
├── ObjectError               of an object that a notification of S3 names
│   ├── ObjectGone            removed, or overwritten since: the option s3Missing says what follows
│   ├── ObjectUnreadable      too large, archived, with a key of its own: a bad record
│   └── ObjectRefused         access, or S3 doesn't answer: fails the task, which Spark tries again
└── InvalidOffset             not an offset of ours
"""


class SluiceSparkError(Exception):
    """The root."""


class InvalidOption(SluiceSparkError):
    """An option that is unknown, missing or malformed."""

    def __init__(self, option: str, why: str) -> None:
        super().__init__(f"option {option!r}: {why}")
        self.option, self.why = option, why

    def __reduce__(self) -> tuple[type["InvalidOption"], tuple[str, str]]:
        """Pickle both arguments: Spark sends errors across processes, and the default would call this with one."""
        return type(self), (self.option, self.why)


class InvalidColumn(SluiceSparkError):
    """A column of a frame to write that is unknown, missing or of another type."""

    def __init__(self, column: str, why: str) -> None:
        super().__init__(f"column {column!r}: {why}")
        self.column, self.why = column, why

    def __reduce__(self) -> tuple[type["InvalidColumn"], tuple[str, str]]:
        """Pickle both arguments, as InvalidOption does."""
        return type(self), (self.column, self.why)


class NothingReceived(SluiceSparkError):
    """Every receive from a queue has failed, for longer than the user wants to wait."""

    def __init__(self, queue_url: str, for_s: float, reason: str) -> None:
        super().__init__(f"no receive from {queue_url} has worked for {for_s:.0f} s; the last: {reason}")
        self.queue_url, self.for_s, self.reason = queue_url, for_s, reason

    def __reduce__(self) -> tuple[type["NothingReceived"], tuple[str, float, str]]:
        """Pickle the arguments, as InvalidOption does."""
        return type(self), (self.queue_url, self.for_s, self.reason)


class RowsNotSent(SluiceSparkError):
    """Rows that are not in the queue. Says their places and why, never what is in them."""


class QueueError(SluiceSparkError):
    """SQS did not do what was asked. `code` is its code, or the name of what broke on the way."""

    def __init__(self, action: str, code: str, message: str, *, request_id: str = "") -> None:
        super().__init__(f"{action}: {code}: {message}" + (f" (request {request_id})" if request_id else ""))
        self.action, self.code, self.message, self.request_id = action, code, message, request_id


class QueueRefused(QueueError):
    """Asking again won't help."""


class QueueBusy(QueueError):
    """Asking again may help."""


class TooManyInFlight(QueueError):
    """120,000 messages are in flight: receiving goes on once some are deleted or visible again."""


class LogError(SluiceSparkError):
    """The staged log can't be read or written."""


class SegmentTaken(LogError):
    """The name to publish under exists."""


class Fenced(LogError):
    """Another driver has taken over this staging location."""


class SegmentMissing(LogError):
    """The log has no such segment, or no longer."""


class OutOfTime(LogError):
    """Others might have received the messages before they could be published."""


class UnknownFormat(LogError):
    """A format or version that this package can't read."""


class ObjectError(SluiceSparkError):
    """An object that wasn't read."""


class ObjectGone(ObjectError):
    """What the notification named is no longer there."""


class ObjectUnreadable(ObjectError):
    """There, but of no use, and that won't change."""


class ObjectRefused(ObjectError):
    """S3 refused, or didn't answer."""


class InvalidOffset(SluiceSparkError):
    """An offset in the checkpoint that isn't ours, or of a later version."""
