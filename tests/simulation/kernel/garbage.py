"""A run makes much and leaves little: at Python's own threshold, 700, a sixth of its time is the collector's."""

import gc

THRESHOLD = 50_000


def collect_seldom() -> None:
    """Have the collector of this process pass over new objects less often."""
    gc.set_threshold(THRESHOLD)
