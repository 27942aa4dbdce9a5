"""The CDK stacks, one per module. The functions' code is in `functions`."""

from collections.abc import Mapping

from aws_cdk import App

# CDK leaves this id out of logical ids: https://docs.aws.amazon.com/cdk/v2/guide/identifiers.html
# A deployed site keeps its resources if another construct of the stack creates them, because their ids don't change.
DEFAULT_ID = "Default"


def reproducible_app(context: Mapping[str, object] | None = None, *, outdir: str | None = None) -> App:
    """Return an app without anything that differs from one synth to the next.

    Without arguments, the CDK command line provides the output folder and the context.
    """
    # Stack traces would contain the paths of temporary folders.
    return App(analytics_reporting=False, stack_traces=False, context=context, outdir=outdir)
