"""No queue is waited at by the real clock."""

from tests.long_polls import kept_short

kept_short()
