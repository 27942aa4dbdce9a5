"""Does again what fails for a moment, as long as somebody waits for it.

botocore would send the same again, and what is sent may depend on when: a delay does. Nor does it try a queue again
that isn't there: one that has just been made may not be found for a second.
"""

from collections.abc import Callable
from typing import TypeVar

import msgspec

from sluice.errors import DestinationFault
from sluice.rendezvous.ports import NowMs

T = TypeVar("T")

AGAIN_AFTER_MS = 250


class Persistence(msgspec.Struct, frozen=True):
    """Waits by `sleep`, which takes seconds."""

    now_ms: NowMs
    sleep: Callable[[float], None]

    def persist(self, call: Callable[[], T], *, until_ms: int) -> T:
        """Call at least once, and until it succeeds. Raises the `DestinationFault` of the last time before then."""
        while True:
            try:
                return call()
            except DestinationFault:
                if self.now_ms() + AGAIN_AFTER_MS >= until_ms:
                    raise
            self.sleep(AGAIN_AFTER_MS / 1000)
