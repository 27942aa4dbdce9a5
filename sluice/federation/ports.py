"""What federation asks of AWS. Adapters are in `sluice.aws`, fakes in the tests; both keep these promises."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import msgspec

from sluice.dead_letter_reasons import Reason
from sluice.errors import DestinationFault
from sluice.federation.links.links import Endpoint, Link
from sluice.message import DeadLetter, Message

NowMs = Callable[[], int]
MAX_CHANGE_BYTES = 380 * 1024  # of a change as it is stored: an item has 400 KB, keys and all


class PeerUnreachable(DestinationFault):
    """A call to a peer failed in a way that may pass."""

    dead_letter_reason = Reason.PEER_UNREACHABLE


class PeerRefused(DestinationFault):
    """A peer's queue isn't there, or may not be sent to: it needs somebody to put it right."""

    dead_letter_reason = Reason.PEER_REFUSED


class Document(Protocol):
    """A small database of one value: bytes with a version, replaced as a whole. Reads are strongly consistent."""

    def version(self) -> int:
        """One small read; 0 before the first save."""

    def load(self) -> tuple[bytes | None, int]:
        """Return the bytes and their version; None before the first save."""

    def save(self, content: bytes, *, after: int) -> bool:
        """Write version `after` + 1; False where somebody else has written since `after`."""


class News(msgspec.Struct, frozen=True, kw_only=True):
    """What has come after a version. `changes` lead to `version`, one by one.

    They begin at the version that was asked for; or, where that is too long ago, or none was, at `base`, the version
    of `snapshot`, which is None for a site where there never was one.
    """

    version: int
    changes: Sequence[bytes] = ()
    base: int | None = None
    snapshot: bytes | None = None


class ChangeLog(Protocol):
    """A value kept as a snapshot and what changed after it: a version is one change. Reads are strongly consistent."""

    def since(self, version: int | None) -> News:
        """Read what has come since a version, or all there is; where nothing has, one small read."""

    def append(self, change: bytes, *, after: int) -> bool:
        """Write version `after` + 1; False where somebody else has written since. `change` has `MAX_CHANGE_BYTES`."""

    def save(self, snapshot: bytes, *, after: int, version: int) -> bool:
        """Write a snapshot of `version`, in place of the changes up to it; False where somebody else was faster.

        It is of version `after`, or a version of its own, `after` + 1. Changes that come meanwhile stay.
        """

    @property
    def is_long(self) -> bool:
        """Whether there are so many changes, as of the last read or write, that a snapshot should take their place."""


class SiteQueues(Protocol):
    """Queues of this site's account and region, by name. Raises `CallFailed`."""

    def url(self, name: str) -> str:
        """Return a queue's URL."""

    def arn(self, name: str) -> str:
        """Return a queue's ARN."""

    def send_batch(self, name: str, entries: Sequence[dict[str, Any]]) -> Mapping[str, str]:
        """Send up to ten entries; the ids of those that SQS refused, with its reason. Raises `QueueGone`."""

    def create(self, name: str, attributes: Mapping[str, str], tags: Mapping[str, str]) -> None:
        """Make a queue, or find it where it is there with the same attributes."""

    def set_attributes(self, name: str, attributes: Mapping[str, str]) -> None:
        """Change these of a queue's attributes; the others stay. Raises `QueueGone`."""

    def delete(self, name: str) -> None:
        """Delete a queue; one that doesn't exist is no error."""

    def configure(self, name: str, attributes: Mapping[str, str]) -> bool:
        """Let a queue have these attributes, and no policy: whether it lacked some. Raises `QueueGone`."""

    def count(self, name: str) -> int:
        """Messages in it, in flight and delayed ones too, as SQS counts them: a minute late. Raises `QueueGone`."""

    def receive_batch(self, name: str) -> Sequence[Message]:
        """Up to ten messages, at once. Raises `QueueGone`."""

    def delete_batch(self, name: str, messages: Sequence[Message]) -> None:
        """Delete received messages."""


class MappingPace(msgspec.Struct, frozen=True, kw_only=True):
    """How many messages a function gets at once, and how many functions side by side; None for no limit."""

    batch_size: int
    max_concurrency: int | None = None


class Mappings(Protocol):
    """Event source mappings of the bridge function. Raises `CallFailed`."""

    def create(self, queue: str, pace: MappingPace, *, on: bool) -> str:
        """Return the id of a mapping for the queue with this name; one that is there already is taken."""

    def pace(self, mapping: str, queue: str, pace: MappingPace) -> None:
        """Let the queue's mapping, while it goes on, read with this pace. Raises `MappingGone`."""

    def switch(self, mapping: str, *, on: bool) -> None:
        """Enable or disable it. Raises `MappingGone`."""

    def is_on(self, mapping: str) -> bool:
        """Whether it is enabled, or about to be. Raises `MappingGone`."""

    def delete(self, queue: str) -> None:
        """Delete the queue's mapping; none is no error."""


class MappingGone(DestinationFault):
    """The mapping doesn't exist, or no longer."""

    dead_letter_reason = Reason.MAPPING_GONE


class Peers(Protocol):
    """Queues of peer sites. Raises `PeerUnreachable` or `PeerRefused`."""

    def tell(self, link: Link, endpoint: Endpoint, body: str) -> None:
        """Send to the peer's control queue, in order for each link."""

    def send_batch(
        self, link: Link, endpoint: Endpoint, url: str, entries: Sequence[dict[str, Any]]
    ) -> Mapping[str, str]:
        """Send up to ten entries to the peer's queue; the ids of those that SQS refused, with its reason."""


class DeadLetters(Protocol):
    """Where they go."""

    def bury(self, letter: DeadLetter) -> None:
        """Send the message there with the reason. Raises `CallFailed`."""
