"""The CDK stacks, a file each: what is deployed, and with which rights. The functions' code is in `functions`."""

from collections.abc import Mapping

from aws_cdk import App, CrossStackReferences, ReferenceStrength

# CDK leaves this id out of logical ids: https://docs.aws.amazon.com/cdk/v2/guide/identifiers.html
# So a deployed site keeps its resources if another construct in its stack creates them.
DEFAULT_ID = "Default"


def reproducible_app(context: Mapping[str, object] | None = None, *, outdir: str | None = None) -> App:
    """Return an app without anything that differs from one synth to the next.

    Without arguments, the CDK command line says where the assembly goes and provides the context.
    """
    # Stack traces contain the paths of temporary folders.
    app = App(analytics_reporting=False, stack_traces=False, context=context, outdir=outdir)
    # CloudFormation refuses to delete an export while another stack imports it, so no queue could be removed. It
    # deletes an output.
    CrossStackReferences.of(app).consume(ReferenceStrength.WEAK)
    return app
