"""The stack of operations: dashboards, alarms and the budget."""

from collections.abc import Sequence

from constructs import Construct

from sluice.constructs import Operations
from sluice.constructs.references import ReferencedStack
from sluice.constructs.site_construct import SiteConstruct
from sluice.parameters import Parameters
from stacks import DEFAULT_ID
from stacks.state import StateStack


class OperationsStack(ReferencedStack):
    """Stack `SluiceOperations`: construct `Operations`, which watches the constructs of the other stacks."""

    def __init__(
        self, scope: Construct, parameters: Parameters, *, state: StateStack, watched: Sequence[SiteConstruct]
    ) -> None:
        super().__init__(scope, "SluiceOperations", parameters, description="dashboards and alarms")
        self.construct = Operations(self, DEFAULT_ID, parameters=parameters, watched=watched, topic=state.alarms_topic)
