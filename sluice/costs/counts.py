"""What messages and a site at rest take of AWS, as `python -m benchmarks.cost --write` counted it last."""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from datetime import date
from pathlib import Path

from sluice.costs.prices import Used

FILE = Path(__file__).with_name("counts.json")


@dataclass(frozen=True, slots=True, kw_only=True)
class Counts:
    """`messages` is what one of each kind takes; `minute` what all schedules' calls of a minute ask for at rest.

    `metrics` are published at rest; `land_msgs_per_s` is what a land job carries with a driver and an executor.
    """

    on: date
    messages: Mapping[str, Used]
    minute: Used
    metrics: int
    land_msgs_per_s: float

    @classmethod
    def read(cls) -> "Counts":
        """Read those that were kept."""
        found = json.loads(FILE.read_text())
        return cls(**{**found, "on": date.fromisoformat(found["on"])})

    def keep(self) -> None:
        """Write the file."""
        FILE.write_text(json.dumps(asdict(self) | {"on": self.on.isoformat()}, indent=2) + "\n")
