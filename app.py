"""The CDK app: reads the parameters in cdk.json, adds the stacks, and runs the checks of every synth.

A synth reads the project's files and its context and nothing else: no environment variable, no AWS call, no clock. The
same files therefore give the same assembly, which can be deployed to any account and region.
"""

import sys

from aws_cdk import App, Stack, Validations
from cdk_nag import AwsSolutionsChecks

from sluice.building.project import PROJECT
from sluice.bundles.assets import Assets
from sluice.bundles.environment import SparkAssets
from sluice.constructs import Exchange, LandingPipeline, Operations, Rendezvous, Splitting
from sluice.constructs.operations import alarms_topic
from sluice.constructs.site import SiteState
from sluice.constructs.site_construct import SiteConstruct
from sluice.errors import BadConfiguration
from sluice.parameters import Parameters
from sluice.stages import add_stage_prefix
from stacks import reproducible_app

# CDK leaves this id out of logical ids: https://docs.aws.amazon.com/cdk/v2/guide/identifiers.html
# So a deployed site keeps its resources if another construct in its stack creates them.
DEFAULT_ID = "Default"


def add_stacks(app: App) -> None:
    """Add every stack of a site, checked by the rules of AWS Solutions. Raises `BadConfiguration`."""
    parameters = Parameters.from_context(app.node.get_all_context())
    assets = Assets(PROJECT)

    def stack(name: str, description: str) -> Stack:
        return Stack(app, add_stage_prefix(name, parameters.stage), description=f"Sluice: {description}")

    kept = stack("SluiceState", "state that is kept, and queues")
    state = SiteState.create(kept, parameters, ours=True)
    topic = alarms_topic(kept, parameters)
    watched: list[SiteConstruct] = [
        Rendezvous(
            stack("SluiceRendezvous", "the rendezvous over SQS and HTTP"),
            DEFAULT_ID,
            parameters=parameters,
            state=state.rendezvous,
            exchange=state.exchange,
            assets=assets,
        ),
        Splitting(
            stack("SluiceSplitting", "sessions that share queues"),
            DEFAULT_ID,
            parameters=parameters,
            state=state.splitting,
            assets=assets,
        ),
        Exchange(
            stack("SluiceFederation", "exchanges, links and routes between sites"),
            DEFAULT_ID,
            parameters=parameters,
            state=state.exchange,
            assets=assets,
        ),
    ]
    if state.pipeline is not None:
        pipeline = LandingPipeline(
            stack("SluicePipeline", "jobs on EMR Serverless"),
            DEFAULT_ID,
            parameters=parameters,
            state=state.pipeline,
            exchange=state.exchange,
            kms_key_arns=parameters.splitting.kms_key_arns,
            assets=assets,
            spark_assets=SparkAssets(PROJECT),
        )
        watched.append(pipeline)
    operations = stack("SluiceOperations", "dashboards and alarms")
    Operations(operations, DEFAULT_ID, parameters=parameters, watched=watched, topic=topic)
    Validations.of(app).add_plugins(AwsSolutionsChecks(app))


def main() -> None:
    """Write the assembly to the folder that the CDK command line names."""
    app = reproducible_app()
    try:
        add_stacks(app)
    except BadConfiguration as error:
        sys.exit(str(error))
    app.synth()


if __name__ == "__main__":
    main()
