"""The stack of splitting: the splitter and the control function."""

from constructs import Construct

from sluice.bundles.assets import Assets
from sluice.constructs import Splitting
from sluice.constructs.references import ReferencedStack
from sluice.constructs.site import SiteState
from sluice.parameters import Parameters
from stacks import DEFAULT_ID


class SplittingStack(ReferencedStack):
    """Stack `SluiceSplitting`: construct `Splitting`, with the state of stack `SluiceState`."""

    def __init__(self, scope: Construct, parameters: Parameters, *, state: SiteState, assets: Assets) -> None:
        super().__init__(scope, "SluiceSplitting", parameters, description="sessions that share queues")
        self.construct = Splitting(self, DEFAULT_ID, parameters=parameters, state=state.splitting, assets=assets)
