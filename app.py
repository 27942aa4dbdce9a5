"""The CDK app: reads the parameters in cdk.json, adds the stacks, and runs the checks of every synth.

A synth reads only the project's files and the app's context: no environment variable, no AWS call, no clock. The same
files therefore give the same assembly, which can be deployed to any account and region.
"""

import sys

from aws_cdk import App, Validations
from cdk_nag import AwsSolutionsChecks

from sluice.building.project import PROJECT
from sluice.bundles.assets import Assets
from sluice.bundles.environment import SparkAssets
from sluice.constructs.site_construct import SiteConstruct
from sluice.errors import BadConfiguration
from sluice.parameters import Parameters
from stacks import create_reproducible_app
from stacks.federation import FederationStack
from stacks.operations import OperationsStack
from stacks.pipeline import PipelineStack
from stacks.rendezvous import RendezvousStack
from stacks.splitting import SplittingStack
from stacks.state import StateStack


def add_stacks(app: App) -> None:
    """Add every stack of a site, with cdk-nag's AWS Solutions checks. Raises `BadConfiguration`."""
    parameters = Parameters.from_context(app.node.get_all_context())
    kept = StateStack(app, parameters)
    state, assets = kept.site, Assets(PROJECT)
    watched: list[SiteConstruct] = [
        RendezvousStack(app, parameters, state=state, assets=assets).construct,
        SplittingStack(app, parameters, state=state, assets=assets).construct,
        FederationStack(app, parameters, state=state, assets=assets).construct,
    ]
    if state.pipeline is not None:
        pipeline = PipelineStack(
            app,
            parameters,
            state=state,
            pipeline=state.pipeline,
            assets=assets,
            spark_assets=SparkAssets(PROJECT),
        )
        watched.append(pipeline.construct)
    OperationsStack(app, parameters, state=kept, watched=watched)
    Validations.of(app).add_plugins(AwsSolutionsChecks(app))


def main() -> None:
    """Write the assembly to the folder that the CDK command line names."""
    app = create_reproducible_app()
    try:
        add_stacks(app)
    except BadConfiguration as error:
        sys.exit(str(error))
    app.synth()


if __name__ == "__main__":
    main()
