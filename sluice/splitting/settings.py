"""Settings of the functions that split, from their environment variables: apart, so that other bundles lack them."""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass

from sluice.settings import Variables
from sluice.splitting.routing.configs import SplitConfig
from sluice.splitting.routing.names import TAG_CHARACTERS


@dataclass(frozen=True, slots=True, kw_only=True)
class SplitterSettings:
    """Settings of the splitter function."""

    table: str
    dead_letters_url: str
    control_queue_url: str
    by_source: Mapping[str, SplitConfig]

    @classmethod
    def read(cls, environment: Mapping[str, str]) -> "SplitterSettings":
        """From the function's environment."""
        variables = Variables(environment)
        return cls(
            table=variables.text("SPLITTING_TABLE"),
            dead_letters_url=variables.text("DEAD_LETTERS_URL"),
            control_queue_url=variables.text("CONTROL_QUEUE_URL"),
            by_source={config.source: config for config in variables.parsed("SPLIT_QUEUES", parse_split_queues)},
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ControlSettings:
    """Settings of the control function. `deployment` is the tag in the names of its temporary queues."""

    table: str
    dead_letters_url: str
    control_queue_url: str
    deployment: str
    by_id: Mapping[str, SplitConfig]

    @classmethod
    def read(cls, environment: Mapping[str, str]) -> "ControlSettings":
        """From the function's environment."""
        variables = Variables(environment)
        return cls(
            table=variables.text("SPLITTING_TABLE"),
            dead_letters_url=variables.text("DEAD_LETTERS_URL"),
            control_queue_url=variables.text("CONTROL_QUEUE_URL"),
            deployment=deployment_tag(variables.text("SPLITTING_TABLE")),
            by_id={config.queue_id: config for config in variables.parsed("SPLIT_QUEUES", parse_split_queues)},
        )


def parse_split_queues(text: str) -> tuple[SplitConfig, ...]:
    """The split queues as the stack writes them: a JSON list of objects with the fields of `SplitConfig`."""
    return tuple(SplitConfig(**fields) for fields in json.loads(text))


def deployment_tag(table: str) -> str:
    """What tells a deployment's temporary queues from another's: its table's name is unique, and so is its hash."""
    return hashlib.sha256(table.encode()).hexdigest()[:TAG_CHARACTERS]
