"""No queue is waited at by the real clock."""

from tests.long_polls import answered_at_once

answered_at_once()
