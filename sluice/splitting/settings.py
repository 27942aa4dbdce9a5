"""Settings of the functions that split, from their environment variables: apart, so that other bundles lack them."""

import hashlib
from collections.abc import Mapping

from sluice.settings import Settings
from sluice.splitting.routing.configs import SplitConfig
from sluice.splitting.routing.names import TAG_CHARACTERS


class SplitterSettings(Settings, frozen=True, kw_only=True):
    """Settings of the splitter function."""

    table: str
    dead_letters_url: str
    control_queue_url: str
    split_queues: tuple[SplitConfig, ...]

    @property
    def by_source(self) -> Mapping[str, SplitConfig]:
        """The split queues by their sources' names."""
        return {config.source: config for config in self.split_queues}


class ControlSettings(SplitterSettings, frozen=True, kw_only=True):
    """Settings of the control function."""

    @property
    def by_id(self) -> Mapping[str, SplitConfig]:
        """The split queues by their ids."""
        return {config.queue_id: config for config in self.split_queues}

    @property
    def deployment(self) -> str:
        """What tells a deployment's temporary queues from another's: its table's name is unique, and so is its hash."""
        return hashlib.sha256(self.table.encode()).hexdigest()[:TAG_CHARACTERS]
