"""Which queues can be split, as they are configured. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from sluice.splitting.routing.names import FIFO_SUFFIX


@dataclass(frozen=True, slots=True, kw_only=True)
class SplitConfig:
    """A queue that can be split. `source` and `main` are queue names."""

    queue_id: str
    source: str
    main: str
    sns: bool = False
    s3_event: bool = False
    drain_timeout_s: int | None = None
    tags: Mapping[str, str] = field(default_factory=dict)

    @property
    def fifo(self) -> bool:
        """Whether the queues are."""
        return self.source.endswith(FIFO_SUFFIX)
