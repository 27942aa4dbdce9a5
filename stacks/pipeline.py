"""The stack of the pipeline: jobs on EMR Serverless and the function that starts them."""

from constructs import Construct

from sluice.bundles.assets import Assets
from sluice.bundles.environment import SparkAssets
from sluice.constructs import LandingPipeline
from sluice.constructs.pipeline import PipelineState
from sluice.constructs.references import ReferencedStack
from sluice.constructs.site import SiteState
from sluice.parameters import Parameters
from stacks import DEFAULT_ID


class PipelineStack(ReferencedStack):
    """Stack `SluicePipeline`: construct `LandingPipeline`, with the state of stack `SluiceState`."""

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
        super().__init__(scope, "SluicePipeline", parameters, description="jobs on EMR Serverless")
        self.construct = LandingPipeline(
            self,
            DEFAULT_ID,
            parameters=parameters,
            state=pipeline,
            exchange=state.exchange,
            kms_key_arns=parameters.splitting.kms_key_arns,
            assets=assets,
            spark_assets=spark_assets,
        )
