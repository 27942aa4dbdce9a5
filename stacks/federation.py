"""The stack of federation: exchange, bridge and links functions."""

from aws_cdk import Stack
from constructs import Construct

from sluice.bundles.assets import Assets
from sluice.constructs import Exchange
from sluice.constructs.site import SiteState
from sluice.parameters import Parameters
from sluice.stages import add_stage_prefix
from stacks import DEFAULT_ID


class FederationStack(Stack):
    """Stack `SluiceFederation`: construct `Exchange`, with the state of stack `SluiceState`."""

    def __init__(self, scope: Construct, parameters: Parameters, *, state: SiteState, assets: Assets) -> None:
        super().__init__(
            scope,
            add_stage_prefix("SluiceFederation", parameters.stage),
            description="Sluice: exchanges, links and routes between sites",
        )
        self.construct = Exchange(self, DEFAULT_ID, parameters=parameters, state=state.exchange, assets=assets)
