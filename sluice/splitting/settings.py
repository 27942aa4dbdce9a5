"""Settings of the splitter and the control function, from their environment variables."""

import hashlib
from collections.abc import Mapping
from typing import ClassVar

import msgspec

from sluice.settings import Settings
from sluice.splitting.consumers.targets import Target
from sluice.splitting.consumers.temporary_queues import TAG_CHARACTERS
from sluice.splitting.filters.texts import Envelope
from sluice.splitting.policies import Policy
from sluice.stages import add_stage_prefix


class SplitConfig(Envelope, frozen=True, kw_only=True):
    """A queue that can be split, with the envelope of its messages. `source` and `main` are queue names.

    If the deployed consumer is re-pointed, `main` is None: the consumer reads the source, or during sessions a
    temporary main queue.
    """

    queue_id: str
    source: str
    main: str | None = None
    drain_timeout_s: int | None = None
    tags: Mapping[str, str] = msgspec.field(default_factory=dict)


class SplitterSettings(Settings, frozen=True, kw_only=True):
    """Settings of the splitter function."""

    STORED_FIELDS: ClassVar[frozenset[str]] = frozenset({"split_queues"})

    table: str
    dead_letters_url: str
    control_queue_url: str
    split_queues: tuple[SplitConfig, ...]

    @property
    def by_source(self) -> Mapping[str, SplitConfig]:
        """Return the split queues by the names of their source queues."""
        return {config.source: config for config in self.split_queues}


class Repointed(msgspec.Struct, frozen=True, kw_only=True):
    """The consumers of a split queue to re-point, in order.

    `trigger_id` is the splitter's event source mapping from the queue, which is disabled while there are no sessions.
    """

    queue_id: str
    trigger_id: str
    targets: tuple[Target, ...]


class ControlSettings(SplitterSettings, frozen=True, kw_only=True):
    """Settings of the control function."""

    STORED_FIELDS: ClassVar[frozenset[str]] = frozenset({"split_queues", "repointed", "policies"})

    counts_settle_s: int
    stage: str | None = None
    repointed: tuple[Repointed, ...] = ()
    policies: tuple[Policy, ...] = ()

    @property
    def splits(self) -> Mapping[str, SplitConfig]:
        """Return the split queues by their queue ids."""
        return {config.queue_id: config for config in self.split_queues}

    @property
    def deployment(self) -> str:
        """Return the tag of the deployment's temporary queues: a hash of its table's name, so that tags are unique."""
        return add_stage_prefix(hashlib.sha256(self.table.encode()).hexdigest()[:TAG_CHARACTERS], self.stage)
