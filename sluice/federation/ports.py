"""Values and errors in which the shells and their adapters in `sluice.aws` speak. Pure."""

from collections.abc import Callable, Sequence

import msgspec

from sluice.dead_letter_reasons import Reason
from sluice.errors import DestinationFault

NowMs = Callable[[], int]
MAX_CHANGE_BYTES = 380 * 1024  # of a change as it is stored: an item has 400 KB, keys and all


class PeerUnreachable(DestinationFault):
    """A call to a peer failed in a way that may pass."""

    dead_letter_reason = Reason.PEER_UNREACHABLE


class PeerRefused(DestinationFault):
    """A peer's queue isn't there, or may not be sent to: it needs somebody to put it right."""

    dead_letter_reason = Reason.PEER_REFUSED


class News(msgspec.Struct, frozen=True, kw_only=True):
    """What has come after a version. `changes` lead to `version`, one by one.

    They begin at the version that was asked for; or, where that is too long ago, or none was, at `base`, the version
    of `snapshot`, which is None for a site where there never was one.
    """

    version: int
    changes: Sequence[bytes] = ()
    base: int | None = None
    snapshot: bytes | None = None


class MappingPace(msgspec.Struct, frozen=True, kw_only=True):
    """How many messages a function gets at once, and how many functions side by side; None for no limit."""

    batch_size: int
    max_concurrency: int | None = None


class MappingGone(DestinationFault):
    """The mapping doesn't exist, or no longer."""

    dead_letter_reason = Reason.MAPPING_GONE
