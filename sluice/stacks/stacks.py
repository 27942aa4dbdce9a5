"""Our own deployment of a site: the constructs, each in a stack, and what is kept in a stack that outlives the others.

A stack's one construct has the id `Default`, which CDK leaves out of logical ids: a site that is deployed keeps its
resources, whichever construct makes them.
"""

from collections.abc import Sequence

from aws_cdk import Stack
from constructs import Construct

from sluice.constructs import Exchange, LandingPipeline, Operations, Rendezvous, Splitting
from sluice.constructs.operations import alarms_topic
from sluice.constructs.pipeline import PipelineState
from sluice.constructs.site import SiteState
from sluice.constructs.site_construct import SiteConstruct
from sluice.stacks.bundles.assets import Assets
from sluice.stacks.bundles.environment import SparkAssets
from sluice.stacks.parameters import Parameters
from sluice.stages import staged

ONLY = "Default"  # https://docs.aws.amazon.com/cdk/v2/guide/identifiers.html


class StateStack(Stack):
    """Stack `SluiceState`: what outlives a deployment of functions, tables, and the queues between functions."""

    def __init__(self, scope: Construct, parameters: Parameters) -> None:
        super().__init__(
            scope, staged("SluiceState", parameters.stage), description="Sluice: state that is kept, and queues"
        )
        self.site = SiteState.made(self, parameters, ours=True)
        self.alarms_topic = alarms_topic(self, parameters)


class RendezvousStack(Stack):
    """Stack `SluiceRendezvous`."""

    def __init__(self, scope: Construct, parameters: Parameters, *, state: SiteState, assets: Assets) -> None:
        super().__init__(
            scope, staged("SluiceRendezvous", parameters.stage), description="Sluice: the rendezvous over SQS and HTTP"
        )
        self.made = Rendezvous(
            self, ONLY, parameters=parameters, state=state.rendezvous, exchange=state.exchange, assets=assets
        )


class SplittingStack(Stack):
    """Stack `SluiceSplitting`."""

    def __init__(self, scope: Construct, parameters: Parameters, *, state: SiteState, assets: Assets) -> None:
        super().__init__(
            scope, staged("SluiceSplitting", parameters.stage), description="Sluice: sessions that share queues"
        )
        self.made = Splitting(self, ONLY, parameters=parameters, state=state.splitting, assets=assets)


class FederationStack(Stack):
    """Stack `SluiceFederation`."""

    def __init__(self, scope: Construct, parameters: Parameters, *, state: SiteState, assets: Assets) -> None:
        super().__init__(
            scope,
            staged("SluiceFederation", parameters.stage),
            description="Sluice: exchanges, links and routes between sites",
        )
        self.made = Exchange(self, ONLY, parameters=parameters, state=state.exchange, assets=assets)


class PipelineStack(Stack):
    """Stack `SluicePipeline`."""

    def __init__(
        self,
        scope: Construct,
        parameters: Parameters,
        *,
        state: SiteState,
        pipeline: PipelineState,
        assets: Assets,
        spark_assets: SparkAssets,
    ) -> None:
        super().__init__(
            scope, staged("SluicePipeline", parameters.stage), description="Sluice: jobs on EMR Serverless"
        )
        self.made = LandingPipeline(
            self,
            ONLY,
            parameters=parameters,
            state=pipeline,
            exchange=state.exchange,
            kms_key_arns=parameters.splitting.kms_key_arns,
            assets=assets,
            spark_assets=spark_assets,
        )


class OperationsStack(Stack):
    """Stack `SluiceOperations`."""

    def __init__(
        self, scope: Construct, parameters: Parameters, *, state: StateStack, watched: Sequence[SiteConstruct]
    ) -> None:
        super().__init__(
            scope, staged("SluiceOperations", parameters.stage), description="Sluice: dashboards and alarms"
        )
        self.made = Operations(self, ONLY, parameters=parameters, watched=watched, topic=state.alarms_topic)
