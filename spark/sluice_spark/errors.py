"""Every error of this package, grouped by whose it is.

Spark sends errors across processes: what one is made of are its arguments, and what it says is made of them.
"""


class SluiceSparkError(Exception):
    """The root."""


class InvalidOption(SluiceSparkError):
    """The user's: an option that is unknown, missing or malformed."""

    def __init__(self, option: str, why: str) -> None:
        super().__init__(option, why)
        self.option, self.why = option, why

    def __str__(self) -> str:
        return f"option {self.option!r}: {self.why}"


class InvalidColumn(SluiceSparkError):
    """The user's: a column of a frame to write that is unknown, missing or of another type."""

    def __init__(self, column: str, why: str) -> None:
        super().__init__(column, why)
        self.column, self.why = column, why

    def __str__(self) -> str:
        return f"column {self.column!r}: {self.why}"


class RowsNotSent(SluiceSparkError):
    """Rows that are no messages, or that SQS refused. Says their places and why, never their content."""


class NothingReceived(SluiceSparkError):
    """Every receive from a queue has failed for longer than the user wants to wait: a key or an endpoint is gone."""

    def __init__(self, queue_url: str, for_s: float, reason: str) -> None:
        super().__init__(queue_url, for_s, reason)
        self.queue_url, self.for_s, self.reason = queue_url, for_s, reason

    def __str__(self) -> str:
        return f"no receive from {self.queue_url} has worked for {self.for_s:.0f} s; the last: {self.reason}"


class QueueError(SluiceSparkError):
    """SQS did not do what was asked. `code` is its code, or the name of what broke on the way."""

    def __init__(self, action: str, code: str, message: str, request_id: str = "") -> None:
        super().__init__(action, code, message, request_id)
        self.action, self.code = action, code

    def __str__(self) -> str:
        action, code, message, request_id = self.args
        return f"{action}: {code}: {message}" + (f" (request {request_id})" if request_id else "")


class QueueRefused(QueueError):
    """The user's: access, no such queue, KMS. Asking again won't help."""


class QueueBusy(QueueError):
    """SQS's or the network's: asking again may help."""


class TooManyInFlight(QueueError):
    """120,000 messages are in flight: receiving goes on once some are deleted or visible again."""


class LogError(SluiceSparkError):
    """The staged log can't be read or written."""


class SegmentTaken(LogError):
    """Another writer published under this name."""


class Fenced(LogError):
    """Another driver has taken over this staging location: this one must stop."""


class SegmentMissing(LogError):
    """The log has no such segment, or no longer: it is never skipped over."""


class UnknownFormat(LogError):
    """A format or version that this package can't read."""


class InvalidOffset(SluiceSparkError):
    """An offset in the checkpoint that isn't ours, or of a later version."""


class ObjectError(SluiceSparkError):
    """An object that a notification of S3 names wasn't read."""


class ObjectGone(ObjectError):
    """It was removed, or overwritten since: the option s3Missing says what follows."""


class ObjectUnreadable(ObjectError):
    """It is too large, archived, or has a key of its own, which won't change: a bad record."""


class ObjectRefused(ObjectError):
    """S3 refuses access, or doesn't answer: fails the task, which Spark tries again."""
