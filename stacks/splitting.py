"""The stack of splitting: the splitter and the control function."""

from aws_cdk import Stack
from constructs import Construct

from sluice.bundles.assets import Assets
from sluice.constructs import Splitting
from sluice.constructs.site import SiteState
from sluice.parameters import Parameters
from sluice.stages import add_stage_prefix
from stacks import DEFAULT_ID


class SplittingStack(Stack):
    """Stack `SluiceSplitting`: construct `Splitting`, with the state of stack `SluiceState`."""

    def __init__(self, scope: Construct, parameters: Parameters, *, state: SiteState, assets: Assets) -> None:
        super().__init__(
            scope,
            add_stage_prefix("SluiceSplitting", parameters.stage),
            description="Sluice: sessions that share queues",
        )
        self.construct = Splitting(self, DEFAULT_ID, parameters=parameters, state=state.splitting, assets=assets)
