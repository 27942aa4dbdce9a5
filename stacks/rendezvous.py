"""The stack of the rendezvous: broker, proxy, sweeper and counters."""

from constructs import Construct

from sluice.bundles.assets import Assets
from sluice.constructs import Rendezvous
from sluice.constructs.references import ReferencedStack
from sluice.constructs.site import SiteState
from sluice.parameters import Parameters
from stacks import DEFAULT_ID


class RendezvousStack(ReferencedStack):
    """Stack `SluiceRendezvous`: construct `Rendezvous`, with the state of stack `SluiceState`."""

    def __init__(self, scope: Construct, parameters: Parameters, *, state: SiteState, assets: Assets) -> None:
        super().__init__(scope, "SluiceRendezvous", parameters, description="the rendezvous over SQS and HTTP")
        self.construct = Rendezvous(
            self, DEFAULT_ID, parameters=parameters, state=state.rendezvous, exchange=state.exchange, assets=assets
        )
