"""What splitting asks of AWS. Adapters are in `sluice.aws.splitting`, fakes in the tests; both keep these promises."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Protocol

from sluice.message import Message
from sluice.splitting.consumers.targets import Target
from sluice.splitting.filters.texts import S3Object
from sluice.splitting.sessions.state import Registry, Session

NowMs = Callable[[], int]
NowS = Callable[[], float]  # seconds of a clock that only goes on: for how long something takes
# Empty where there can be no such object, or it is gone or may not be read. Raises `CallFailed` for what may pass.
ObjectMetadata = Callable[[S3Object], Mapping[str, str]]


class TargetQueues(Protocol):
    """The queues that a splitter sends to, by name, in its own account and region."""

    def send_batch(self, name: str, entries: Sequence[dict[str, Any]]) -> Mapping[str, str]:
        """Send up to ten entries; the ids of those that SQS refused, with its code, a colon, its words.

        Raises `QueueGone` for a queue that doesn't exist and `CallFailed` for what else goes wrong with all of them.
        """


class RegistryStore(Protocol):
    """Where the registry is. Reads are strongly consistent."""

    def version(self) -> int:
        """Read the registry's version: one small read."""

    def load(self) -> tuple[Registry, int]:
        """Read all of it, with the revision under which it may be replaced."""

    def session(self, session_id: str) -> Session | None:
        """Read one session as it was saved: a small read, however many there are."""

    def revision(self) -> int:
        """Read the revision under which it may be replaced: one small read."""

    def refreshed(self, registry: Registry) -> Registry:
        """Read what no revision tells of, splitters and heartbeats, into what else is known."""

    def save(self, before: Registry, after: Registry, *, revision: int) -> int | None:
        """Write what differs, all or nothing; the revision then, None where others have written since `revision`."""

    def announce(self, splitter_id: str, *, version: int, at_ms: int) -> None:
        """Note what a splitter routes by, outside of any revision."""

    def heartbeat(self, session_id: str, *, at_ms: int) -> None:
        """Note that a session's owner is there, outside of any revision."""

    def count(self, session_id: str, number: int, *, at_ms: int) -> None:
        """Add to the number of messages that a session was sent."""

    def counts(self) -> Mapping[str, int]:
        """Read that number, by session id."""

    def note_ended(self, session_id: str, reason: str, *, at_ms: int) -> None:
        """Remember for a while why a session ended, when it leaves the registry."""

    def ended_reason(self, session_id: str) -> str | None:
        """Read why it ended, None where nobody remembers."""

    def claim_tick(self, *, due_at_ms: int, now_ms: int) -> bool:
        """Whether the caller is to arm a tick for then; False where one is armed that comes as soon."""


class ControlledQueues(Protocol):
    """Temporary queues as the control function deals with them. Raises `CallFailed`."""

    def describe(self, name: str) -> tuple[Mapping[str, str], Mapping[str, str]]:
        """Read a queue's attributes and tags. Raises `QueueGone`."""

    def create(self, name: str, attributes: Mapping[str, str], tags: Mapping[str, str]) -> None:
        """Make a queue, or find it where it is there with the same attributes."""

    def delete(self, name: str) -> None:
        """Delete a queue; one that doesn't exist is no error."""

    def receive_batch(self, name: str) -> Sequence[Message]:
        """Receive up to ten messages, without waiting for more. Raises `QueueGone`."""

    def delete_batch(self, name: str, messages: Sequence[Message]) -> None:
        """Delete received messages."""

    def count(self, name: str) -> int:
        """Count its messages, in flight and delayed ones too, as SQS counts them: a minute late. Raises `QueueGone`."""

    def names(self, prefix: str) -> Iterator[str]:
        """Yield the names of all queues that begin so."""


class SplitterTriggers(Protocol):
    """What has the splitter read the sources of queues whose consumers are re-pointed. Raises `CallFailed`."""

    def is_on(self, trigger_id: str) -> bool | None:
        """Whether a trigger is on; None while it changes."""

    def switch(self, trigger_id: str, *, on: bool) -> None:
        """Begin to switch a trigger, which isn't changing."""


class Consumers(Protocol):
    """What says which queue a consumer reads. Queues are by name. Raises `BadConsumer` and `CallFailed`."""

    def original(self, target: Target, *, queue: str) -> str:
        """Read what it is while it reads this queue: to be kept before `point` is called first. Changes nothing."""

    def point(self, target: Target, original: str, *, queue: str, instead_of: str) -> bool:
        """Let it read a queue instead of another, either way; True once every reader is there.

        Never waits: whoever gets False, or an error, calls again, also after a crash. What others have changed of it
        meanwhile stays; where they have changed nothing, the way back ends in exactly what it was.
        """

    def reads(self, target: Target, *, queue: str) -> bool:
        """Whether it is to read this queue, as it is configured now. Changes nothing. Raises `CallFailed` alone."""
