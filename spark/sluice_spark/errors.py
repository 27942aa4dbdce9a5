"""All errors of this package, grouped by cause.

Spark pickles errors between processes, so an error's text is built from its arguments.
"""


class SluiceSparkError(Exception):
    """Base class of the package's errors."""


class InvalidOption(SluiceSparkError):
    """An option is unknown, missing or malformed: the user must correct the option."""

    def __init__(self, option: str, why: str) -> None:
        super().__init__(option, why)
        self.option, self.why = option, why

    def __str__(self) -> str:
        return f"option {self.option!r}: {self.why}"


class InvalidColumn(SluiceSparkError):
    """A column of a frame to write is unknown, missing or of a wrong type: the user must correct the frame."""

    def __init__(self, column: str, why: str) -> None:
        super().__init__(column, why)
        self.column, self.why = column, why

    def __str__(self) -> str:
        return f"column {self.column!r}: {self.why}"


class RowsNotSent(SluiceSparkError):
    """Rows couldn't be converted to messages, or SQS refused them. The text names rows and reasons, no content."""


class NothingReceived(SluiceSparkError):
    """Every receive from a queue has failed for longer than `failOnReceiveErrorAfter`."""

    def __init__(self, queue_url: str, for_s: float, reason: str) -> None:
        super().__init__(queue_url, for_s, reason)
        self.queue_url, self.for_s, self.reason = queue_url, for_s, reason

    def __str__(self) -> str:
        return f"no receive from {self.queue_url} has worked for {self.for_s:.0f} s; the last: {self.reason}"


class QueueError(SluiceSparkError):
    """A call to SQS failed. `code` is SQS's error code, or the name of the network error."""

    def __init__(self, action: str, code: str, message: str, request_id: str = "") -> None:
        super().__init__(action, code, message, request_id)
        self.action, self.code = action, code

    def __str__(self) -> str:
        action, code, message, request_id = self.args
        return f"{action}: {code}: {message}" + (f" (request {request_id})" if request_id else "")


class QueueRefused(QueueError):
    """SQS refuses the call: no permission, no such queue, or KMS fails. The user must correct this; retries fail."""


class QueueBusy(QueueError):
    """SQS or the network failed temporarily: a retry may help."""


class TooManyInFlight(QueueError):
    """120,000 messages are in flight: receiving continues once some are deleted or visible again."""


class LogError(SluiceSparkError):
    """The staged log can't be read or written."""


class SegmentTaken(LogError):
    """Another writer has published an object under this name before."""


class Fenced(LogError):
    """Another driver has taken over this staging location: this driver must stop."""


class SegmentMissing(LogError):
    """The log doesn't contain this segment, or no longer does. Missing segments are never skipped."""


class UnknownFormat(LogError):
    """Stored data have a format or version that this package can't read."""


class InvalidOffset(SluiceSparkError):
    """The checkpoint contains an offset of another source, or of a later version of this package."""


class ObjectError(SluiceSparkError):
    """A payload in S3 couldn't be read or removed."""


class ObjectUnreadable(ObjectError):
    """A payload in S3 is gone, too large, archived, or encrypted with a customer key: the message is a bad record."""


class ObjectRefused(ObjectError):
    """S3 refuses access or doesn't respond: the task fails, and Spark retries it."""
