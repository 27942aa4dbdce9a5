"""Our stacks synthesized in this process, as the CDK command line would with cdk.json and `-c`."""

import fcntl
import json
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from aws_cdk.cx_api import CloudAssembly

from app import add_stacks
from sluice.building.project import Project
from sluice.bundles.assets import Assets, BundleTarget
from sluice.bundles.environment import SparkAssets, get_image_target
from sluice.parameters import Architecture, Parameters
from sluice.stages import add_stage_prefix
from stacks import create_reproducible_app
from tests.timeouts import end_the_process

PROJECT = Path(__file__).parents[2]
CONTEXT: Mapping[str, Any] = json.loads((PROJECT / "cdk.json").read_text())["context"]
Resource = Mapping[str, Any]
KEY_ARN = "arn:aws:kms:eu-central-1:123456789012:key/k"
# Parameters of which none touches another's: one synth for all tests of what one of them does.
OTHERWISE: Mapping[str, object] = {
    "sluice.log_level": "ERROR",
    "sluice.log_retention_days": "7",
    "sluice.rendezvous.counters_window_s": 7,
    "sluice.rendezvous.offers_queue_name": "my-broker",
    "sluice.rendezvous.keep_state": "false",
    "sluice.rendezvous.broker_memory_mb": 1024,
    "sluice.rendezvous.counters_memory_mb": 512,
    "sluice.rendezvous.client_memory_mb": 150,
    "sluice.rendezvous.proxy_memory_mb": 300,
    "sluice.rendezvous.sweeper_memory_mb": 200,
    "sluice.rendezvous.broker_max_concurrency": 7,
    "sluice.rendezvous.client_max_concurrency": 40,
    "sluice.rendezvous.proxy_max_concurrency": 250,
    "sluice.splitting.kms_key_arns": [KEY_ARN],
    "sluice.splitting.s3_bucket_arns": ["arn:aws:s3:::bucket"],
    "sluice.federation.tag": "frankfurt",
    "sluice.federation.profile": "throughput",
    "sluice.federation.batching_window_s": 300,
    "sluice.pipeline.worker_vcpu": 2,
    "sluice.pipeline.worker_memory_gb": 8,
    "sluice.pipeline.max_executors": 7,
    "sluice.pipeline.trigger_s": 5,
    "sluice.pipeline.assume_role_arns": ["arn:aws:iam::123456789012:role/theirs"],
    "sluice.pipeline.statistics_at": "null",
    "sluice.pipeline.compaction_at": "23:59",
    "sluice.operations.budget_usd": 50,
    "sluice.operations.tracing": True,
    "sluice.operations.alarm_topic_arn": "arn:aws:sns:eu-central-1:123456789012:theirs",
}
# CDK's own validation of templates takes each process eight seconds to start, and only warns.
os.environ["CDK_VALIDATION"] = "false"


def find_referred(value: object) -> str | None:
    """The logical id of another stack's resource that an expression finds in that stack's document, as its `Ref`."""
    match value:
        case {"Fn::Select": [0, {"Fn::Split": [";", {"Fn::Select": [1, {"Fn::Split": [str(key), {"Ref": str()}]}]}]}]}:
            return key.removeprefix(";").removesuffix("=")
    return None


@dataclass(frozen=True, slots=True)
class Templates:
    """The templates of one synth."""

    state: Mapping[str, Any]
    rendezvous: Mapping[str, Any]
    splitting: Mapping[str, Any]
    federation: Mapping[str, Any]
    pipeline: Mapping[str, Any]  # empty where there is none
    operations: Mapping[str, Any]
    stage: str | None = None

    def of_type(self, kind: str) -> dict[str, Resource]:
        """The properties of every resource of a type, by logical id, of the state and the rendezvous."""
        found = {**self.state["Resources"], **self.rendezvous["Resources"]}
        return {id_: resource.get("Properties", {}) for id_, resource in found.items() if resource["Type"] == kind}

    def one(self, kind: str, prefix: str = "") -> Resource:
        """The only resource of a type whose logical id begins so."""
        (properties,) = [found for id_, found in self.of_type(kind).items() if id_.startswith(prefix)]
        return properties


def pytest_itemcollected(item: pytest.Item) -> None:
    """All of them speak with jsii's one process."""
    end_the_process(item)


@pytest.fixture(scope="session")
def layer() -> Path:
    """The layer's folder. It and all else that a synth builds is built by pip where it isn't yet, by one worker."""
    assets, target = Assets(Project.clone(PROJECT)), BundleTarget.of(Architecture.ARM64)
    build = PROJECT / "build"
    build.mkdir(exist_ok=True)
    with (build / ".suite").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        assets.layer(assets.bundle("functions", "splitter"), target)
        spark, image = (
            SparkAssets(Project.clone(PROJECT)),
            get_image_target(Architecture.ARM64, CONTEXT["sluice"]["pipeline"]["python"]),
        )
        spark.environment(image), spark.driver(image)
        return assets.layer(assets.bundle("functions"), target).folder


@pytest.fixture(scope="session")
def synth(layer: Path, tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Templates]:
    """Synthesizes with parameters on top of cdk.json's: `synth(**{"sluice.rendezvous.x": 1})`."""
    outdir = str(tmp_path_factory.mktemp("cdk"))  # one for all: the packages of Spark's jobs are copied there but once
    synthesized: dict[str, Templates] = {}  # by parameters, as JSON: no test changes a template

    def synthesize(**parameters: object) -> Templates:
        key = json.dumps(parameters, sort_keys=True)
        if key not in synthesized:
            made = create_reproducible_app({**CONTEXT, **parameters}, outdir=outdir)
            add_stacks(made)
            stage = Parameters.from_context({**CONTEXT, **parameters}).stage
            synthesized[key] = read_synthesized(made.synth(), stage)
        return synthesized[key]

    return synthesize


def read_synthesized(assembly: CloudAssembly, stage: str | None) -> Templates:
    """Reads the templates that a synth wrote."""
    deployed = {stack.stack_name for stack in assembly.stacks}

    def template(stack: str) -> Any:
        name = add_stage_prefix(stack, stage)
        file = Path(assembly.directory) / f"{name}.template.json"
        return json.loads(file.read_text()) if name in deployed else {}

    return Templates(
        state=template("SluiceState"),
        rendezvous=template("SluiceRendezvous"),
        splitting=template("SluiceSplitting"),
        federation=template("SluiceFederation"),
        pipeline=template("SluicePipeline"),
        operations=template("SluiceOperations"),
        stage=stage,
    )


@pytest.fixture(scope="session")
def templates(synth: Callable[..., Templates]) -> Templates:
    """With cdk.json's parameters."""
    return synth()


@pytest.fixture(scope="session")
def otherwise(synth: Callable[..., Templates]) -> Templates:
    """With many of them otherwise."""
    return synth(**OTHERWISE)
