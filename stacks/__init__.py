"""The CDK stacks, one per module. The functions' code is in folder `functions`."""

from collections.abc import Mapping

from aws_cdk import App

# CDK omits this id from logical ids: https://docs.aws.amazon.com/cdk/v2/guide/identifiers.html
# Resource ids therefore don't depend on which construct of a stack creates a resource, and a deployed site keeps it.
DEFAULT_ID = "Default"


def create_reproducible_app(context: Mapping[str, object] | None = None, *, outdir: str | None = None) -> App:
    """Return a CDK app that is the same at every synth.

    Without arguments, the CDK command line provides the output folder and the context.
    """
    # Stack traces would contain paths of temporary folders.
    return App(analytics_reporting=False, stack_traces=False, context=context, outdir=outdir)
