"""The stack of the rendezvous: broker, proxy, sweeper and counters."""

from aws_cdk import Stack
from constructs import Construct

from sluice.bundles.assets import Assets
from sluice.constructs import Rendezvous
from sluice.constructs.site import SiteState
from sluice.parameters import Parameters
from sluice.stages import add_stage_prefix
from stacks import DEFAULT_ID


class RendezvousStack(Stack):
    """Stack `SluiceRendezvous`: construct `Rendezvous`, with the state of stack `SluiceState`."""

    def __init__(self, scope: Construct, parameters: Parameters, *, state: SiteState, assets: Assets) -> None:
        super().__init__(
            scope,
            add_stage_prefix("SluiceRendezvous", parameters.stage),
            description="Sluice: the rendezvous over SQS and HTTP",
        )
        self.construct = Rendezvous(
            self, DEFAULT_ID, parameters=parameters, state=state.rendezvous, exchange=state.exchange, assets=assets
        )
