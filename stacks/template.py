"""Writes a site as one CloudFormation template, to deploy without CDK: `python -m stacks.template FOLDER`.

`make template` writes `sluice.template.json`, and its assets as archives in the same folder. The template needs no CDK
bootstrap and no context: a parameter names the bucket that has the archives. All other values are from cdk.json.
"""

import json
import shutil
import sys
import zipfile
from collections.abc import Mapping
from pathlib import Path
from tempfile import TemporaryDirectory

from aws_cdk import CfnParameter, DefaultStackSynthesizer, Stack, Validations
from aws_cdk import aws_lambda as lambda_
from aws_cdk import aws_logs as logs
from aws_cdk import aws_sns as sns
from cdk_nag import AwsSolutionsChecks
from constructs import Construct

from sluice.building.project import PROJECT
from sluice.constructs import Site
from sluice.parameters import LogLevel, Parameters, parameter_schemas
from stacks import create_reproducible_app

NAME = "Sluice"
TEMPLATE = "sluice.template.json"
README = Path(__file__).with_suffix(".md")  # This file says how to deploy the template.
EPOCH = (1980, 1, 1, 0, 0, 0)  # A zip archive can store no earlier time.


class TemplateStack(Stack):
    """A whole site in one stack. Choices of a deployment are CloudFormation parameters."""

    def __init__(self, scope: Construct, parameters: Parameters) -> None:
        synthesizer = DefaultStackSynthesizer(
            file_assets_bucket_name="${AssetsBucket}", generate_bootstrap_version_rule=False
        )
        super().__init__(scope, NAME, synthesizer=synthesizer, description="Sluice: a site in one stack")
        CfnParameter(self, "AssetsBucket", description="The bucket, in this region, that has the archives")
        topic = CfnParameter(self, "AlarmsTopicArn", description="The SNS topic that alarms notify")
        days = CfnParameter(
            self,
            "LogRetentionDays",
            type="Number",
            default=str(parameters.log_retention_days),
            allowed_values=[str(days) for days in parameter_schemas()["sluice.log_retention_days"]["enum"]],
        )
        level = CfnParameter(
            self, "LogLevel", default=parameters.log_level.value, allowed_values=[level.value for level in LogLevel]
        )
        alarms_topic = sns.Topic.from_topic_arn(self, "Topic", topic.value_as_string)
        site = Site(self, "Site", parameters=parameters, alarms_topic=alarms_topic)
        for part in (site.rendezvous, site.splitting, site.exchange, site.pipeline, site.operations):
            if part is not None:
                part.finish()
        for child in self.node.find_all():
            if isinstance(child, logs.CfnLogGroup):
                child.retention_in_days = days.value_as_number
            elif isinstance(child, lambda_.CfnFunction):
                child.add_property_override("Environment.Variables.POWERTOOLS_LOG_LEVEL", level.value_as_string)


def write(folder: Path, context: Mapping[str, object] | None = None) -> None:
    """Write template, archives and instructions. The same sources give files with the same bytes."""
    folder.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory() as work:
        app = create_reproducible_app(context, outdir=work)
        stack = TemplateStack(app, Parameters.from_context(context or {}))
        Validations.of(app).add_plugins(AwsSolutionsChecks(app))
        assembly = app.synth()
        template = assembly.get_stack_by_name(stack.stack_name).template
        (folder / TEMPLATE).write_text(json.dumps(template, indent=1, sort_keys=True) + "\n")
        assets = json.loads((Path(assembly.directory) / f"{NAME}.assets.json").read_text())["files"]
        for asset in assets.values():
            source = Path(assembly.directory) / asset["source"]["path"]
            [place] = asset["destinations"].values()
            target = folder / place["objectKey"]
            if source.suffix == ".json":  # The template, itself an asset, was written above.
                continue
            if asset["source"]["packaging"] == "file":
                shutil.copy(source, target)
                continue
            with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as archive:
                for path in sorted(file for file in source.rglob("*") if file.is_file()):
                    entry = zipfile.ZipInfo(path.relative_to(source).as_posix(), EPOCH)
                    entry.external_attr, entry.compress_type = 0o644 << 16, zipfile.ZIP_DEFLATED
                    archive.writestr(entry, path.read_bytes())
    shutil.copy(README, folder / "README.md")


def main(folder: Path) -> None:
    """Write the template's files with cdk.json's parameters, and print the instructions."""
    write(folder, json.loads((PROJECT.workspace / "cdk.json").read_text())["context"])
    sys.stdout.write(f"{folder / 'README.md'}:\n\n{README.read_text()}")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
