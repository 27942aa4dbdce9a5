"""Event source mappings of the splitter: `sluice.splitting.ports.SplitterTriggers`."""

from collections.abc import Callable
from typing import TYPE_CHECKING

import msgspec

from sluice.aws.clients import calls

if TYPE_CHECKING:  # boto3-stubs are for the type checker: bundles don't hold them
    from mypy_boto3_lambda import LambdaClient

STEADY = {"Enabled": True, "Disabled": False}  # all other states pass


class LambdaSplitterTriggers(msgspec.Struct, frozen=True):
    """Through a client, which is made when a queue needs it: most sites have none."""

    client: Callable[[], "LambdaClient"]

    def is_on(self, trigger_id: str) -> bool | None:
        """Whether a mapping is on; None while it changes, when Lambda refuses to change it. Raises `CallFailed`."""
        with calls("GetEventSourceMapping"):
            state = self.client().get_event_source_mapping(UUID=trigger_id)["State"]
        return STEADY.get(state)

    def switch(self, trigger_id: str, *, on: bool) -> None:
        """Begin to switch a mapping. Raises `CallFailed`."""
        with calls("UpdateEventSourceMapping"):
            self.client().update_event_source_mapping(UUID=trigger_id, Enabled=on)
