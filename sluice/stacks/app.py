"""The CDK app: its parameters, its stacks, and the checks that every synth runs.

A synth reads the project's files and its context and nothing else: no environment variable, no AWS call, no clock. So
it gives the same assembly every time, and one assembly can be deployed to any account and region.
"""

import sys
from collections.abc import Mapping

from aws_cdk import App, CrossStackReferences, ReferenceStrength, Validations
from cdk_nag import AwsSolutionsChecks

from sluice.constructs.site_construct import SiteConstruct
from sluice.errors import BadConfiguration
from sluice.project import PROJECT
from sluice.stacks.bundles.assets import Assets
from sluice.stacks.bundles.environment import SparkAssets
from sluice.stacks.parameters import Parameters
from sluice.stacks.stacks import (
    FederationStack,
    OperationsStack,
    PipelineStack,
    RendezvousStack,
    SplittingStack,
    StateStack,
)


def new_app(context: Mapping[str, object] | None = None, *, outdir: str | None = None) -> App:
    """Give an app whose assembly has nothing that differs from one synth to the next.

    Without arguments, the CDK command line says where the assembly goes and gives the context.
    """
    # Traces have the paths of temporary folders.
    app = App(analytics_reporting=False, stack_traces=False, context=context, outdir=outdir)
    # An export can't go while another stack imports it: no queue could be taken out. An output can.
    CrossStackReferences.of(app).consume(ReferenceStrength.WEAK)
    return app


def add_stacks(app: App) -> None:
    """Add everything that is deployed, checked by AWS Solutions' rules."""
    parameters = Parameters.read(app.node.get_all_context())
    kept = StateStack(app, parameters)
    state, assets = kept.site, Assets(PROJECT)
    watched: list[SiteConstruct] = [
        RendezvousStack(app, parameters, state=state, assets=assets).made,
        SplittingStack(app, parameters, state=state, assets=assets).made,
        FederationStack(app, parameters, state=state, assets=assets).made,
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
        watched.append(pipeline.made)
    OperationsStack(app, parameters, state=kept, watched=watched)
    Validations.of(app).add_plugins(AwsSolutionsChecks(app))


def main() -> None:
    """Write the assembly to where the CDK command line asks for it."""
    app = new_app()
    try:
        add_stacks(app)
    except BadConfiguration as error:
        sys.exit(str(error))
    app.synth()


if __name__ == "__main__":
    main()
