"""The stack of federation: exchange, bridge and links functions."""

from constructs import Construct

from sluice.bundles.assets import Assets
from sluice.constructs import Exchange
from sluice.constructs.references import ReferencedStack
from sluice.constructs.site import SiteState
from sluice.parameters import Parameters
from stacks import DEFAULT_ID


class FederationStack(ReferencedStack):
    """Stack `SluiceFederation`: construct `Exchange`, with the state of stack `SluiceState`."""

    def __init__(self, scope: Construct, parameters: Parameters, *, state: SiteState, assets: Assets) -> None:
        super().__init__(scope, "SluiceFederation", parameters, description="exchanges, links and routes between sites")
        self.construct = Exchange(self, DEFAULT_ID, parameters=parameters, state=state.exchange, assets=assets)
