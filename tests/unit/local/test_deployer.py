"""What is deployed to the embedded cloud, and what isn't as it is there already. CDK's command line is a stand-in."""

import json
import os
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import permutations
from pathlib import Path

import pytest

from sluice.aws.deployment import StackView
from sluice.building.project import Project
from sluice.local.assemblies import MIN_CACHED, compute_assembly_key, delete_old_assemblies, find_cached
from sluice.local.cloud import Cloud
from sluice.local.deployer import Deployer, DeploymentFailed
from sluice.local.sites import Site

PLACE = Site("000000000000", "eu-central-1")
DEV, DEV2 = (Site(PLACE.account, PLACE.region, stage) for stage in ("dev", "dev2"))
THERE = Site("111111111111", "us-east-1")
# Notes its arguments; makes an assembly of one stack, whose template is its context.
CDK = """#!/usr/bin/env python3
import json, os, pathlib, sys
with open({calls!r}, "a") as calls:
    calls.write(json.dumps([*sys.argv[1:], os.getcwd()]) + "\\n")
if sys.argv[1] == "synth":
    context = [each for each in sys.argv if each.startswith("--context")]
    folder = pathlib.Path(sys.argv[sys.argv.index("--output") + 1])
    folder.mkdir()
    stack = {{"type": "aws:cloudformation:stack", "properties": {{"requiresBootstrapStackVersion": 6}}}}
    (folder / "manifest.json").write_text(json.dumps({{"artifacts": {{"SluiceState": stack}}}}))
    (folder / "SluiceState.template.json").write_text(json.dumps([each for each in context if "LogLevel" not in each]))
elif sys.argv[1] == "deploy":
    print("SluiceState: deploying... [1/1]")
    sys.exit({code})
"""


@dataclass
class Clouds:
    """One embedded cloud, as CloudFormation tells of it."""

    folder: Path
    version: int = 1
    code: int = 0
    said: list[str] = field(default_factory=list)
    bootstrapped: str | None = "33"
    cloud: Cloud = field(init=False)

    def __post_init__(self) -> None:
        self.cloud = Cloud(pid=1, endpoint="http://127.0.0.1:1", secret="s", folder=self.folder)

    def stacks(self, *_: object) -> Mapping[str, StackView]:
        found = {"SluiceState": StackView(stack_id="1", outputs={}, status="", changed_ms=self.version)}
        if self.bootstrapped is not None:
            outputs = {"BootstrapVersion": self.bootstrapped}
            found["CDKToolkit"] = StackView(stack_id="2", outputs=outputs, status="", changed_ms=1)
        return found

    def deploy(self, *sites: Site, **context: object) -> Cloud:
        cdk = self.folder / "cdk"
        cdk.write_text(CDK.format(calls=str(self.folder / "calls"), code=self.code))
        cdk.chmod(0o755)
        deployer = Deployer(
            cloud=self.cloud,
            context={f"sluice.{name}": value for name, value in context.items()},
            progress=self.said.append,
            cdk=lambda: cdk,
            stacks_of=self.stacks,
            assemblies=self.folder / "assemblies",
        )
        self.cloud = deployer.deploy(*sites)
        return self.cloud

    def calls(self) -> list[list[str]]:
        """What was called since the last look, in order."""
        log = self.folder / "calls"
        lines = log.read_text().splitlines() if log.exists() else []
        log.write_text("")
        return [json.loads(line) for line in lines]

    def commands(self) -> list[str]:
        return [call[0] for call in self.calls()]


@pytest.fixture
def clouds(tmp_path: Path) -> Clouds:
    return Clouds(tmp_path)


@pytest.mark.parametrize("order", list(permutations([PLACE, DEV, DEV2])))
def test_each_stage_is_synthesized_once_and_a_place_bootstrapped_once(clouds: Clouds, order: tuple[Site, ...]) -> None:
    clouds.bootstrapped = None
    assert clouds.deploy(*order).sites == order
    calls = clouds.calls()
    assert [call[0] for call in calls] == [*["synth"] * 3, "bootstrap", *["deploy"] * 3]
    stages = [{text for text in call if text.startswith("--context=sluice.stage")} for call in calls[:3]]
    assert stages == [{f"--context=sluice.stage={site.stage}"} if site.stage else set() for site in order]
    assert len({call[call.index("--app") + 1] for call in calls[4:]}) == 3


def test_a_site_that_is_as_it_was_deployed_is_left_alone(clouds: Clouds) -> None:
    clouds.deploy(PLACE)
    assert clouds.commands() == ["synth", "deploy"]
    clouds.said.clear()
    assert clouds.deploy(PLACE).sites == (PLACE,)
    assert clouds.commands() == []
    assert clouds.said == [f"{PLACE}: nothing has changed"]
    assert hash(clouds.cloud) == hash(clouds.deploy(PLACE))  # what is about a cloud is found by it


def test_what_another_has_deployed_or_destroyed_since_is_deployed_again(clouds: Clouds) -> None:
    clouds.deploy(PLACE)
    clouds.calls()
    clouds.version = 2
    clouds.deploy(PLACE)
    assert clouds.commands() == ["deploy"]


def test_a_changed_parameter_is_synthesized_and_deployed_and_so_is_the_way_back(clouds: Clouds) -> None:
    clouds.deploy(PLACE)
    clouds.calls()
    clouds.deploy(PLACE, queues=["a"])
    assert clouds.commands() == ["synth", "deploy"]
    clouds.deploy(PLACE)
    assert clouds.commands() == ["deploy"]  # of the first assembly


def test_a_parameter_that_changes_no_template_deploys_nothing(clouds: Clouds) -> None:
    clouds.deploy(PLACE)
    clouds.calls()
    clouds.deploy(PLACE, LogLevel="DEBUG")
    assert clouds.commands() == ["synth"]


def test_a_new_site_is_deployed_and_those_that_are_there_are_not(clouds: Clouds) -> None:
    clouds.deploy(PLACE)
    clouds.calls()
    clouds.deploy(PLACE, THERE)
    [deployed] = clouds.calls()
    assert deployed[0] == "deploy"
    assert clouds.cloud.sites == (PLACE, THERE)


def test_a_place_with_too_old_a_toolkit_is_bootstrapped_again(clouds: Clouds) -> None:
    clouds.bootstrapped = "5"
    clouds.deploy(PLACE)
    assert clouds.commands() == ["synth", "bootstrap", "deploy"]


def test_a_deployment_that_failed_is_due_again_and_says_why(clouds: Clouds) -> None:
    clouds.code = 1
    with pytest.raises(DeploymentFailed, match=r"(?s)cdk deploy failed; all of it is in .*\n.*SluiceState: deploying"):
        clouds.deploy(PLACE)
    clouds.code = 0
    clouds.calls()
    clouds.deploy(PLACE)
    assert clouds.commands() == ["deploy"]


def test_each_stack_is_a_step(clouds: Clouds) -> None:
    clouds.deploy(PLACE)
    assert clouds.said == ["synthesizing the stacks", f"{PLACE}: deploying SluiceState"]


@pytest.mark.parametrize(
    "changed", ["sluice/new.py", "spark/job.py", "cdk.json", "requirements.txt", "geo.mmdb", "sluice/deep/er/x.json"]
)
def test_an_assembly_is_known_by_all_that_a_synth_reads(tmp_path: Path, changed: str) -> None:
    (tmp_path / "sluice" / "deep" / "er").mkdir(parents=True)
    (tmp_path / "spark").mkdir()
    context = {"sluice.rendezvous.geoip_file": "geo.mmdb"}
    before = compute_assembly_key(context, project=Project.clone(tmp_path))
    (tmp_path / changed).write_text("1")
    after = compute_assembly_key(context, project=Project.clone(tmp_path))
    assert before != after
    (tmp_path / "sluice" / "__pycache__").mkdir()
    (tmp_path / "sluice" / "__pycache__" / "x.pyc").write_text("1")
    assert compute_assembly_key(context, project=Project.clone(tmp_path)) == after
    assert compute_assembly_key({**context, "sluice.stage": "dev"}, project=Project.clone(tmp_path)) != after


@pytest.mark.parametrize("value", ["[" + '"sluice-queue", ' * 30 + "]", "x" * 10_000, "a\0b"])
def test_a_value_that_can_name_no_file_is_a_value(tmp_path: Path, value: str) -> None:
    keys = {
        compute_assembly_key({"sluice.federation.queues": each}, project=Project.clone(tmp_path))
        for each in (value, "[]")
    }
    assert len(keys) == 2


def test_old_assemblies_go_but_for_the_newest_and_those_that_are_wanted(tmp_path: Path) -> None:
    for number in range(MIN_CACHED + 3):
        (tmp_path / f"{number}").mkdir()
        os.utime(tmp_path / f"{number}", (number, number))
    assert find_cached("0", tmp_path) is not None
    assert find_cached("gone", tmp_path) is None
    delete_old_assemblies(tmp_path)
    assert {int(each.name) for each in tmp_path.iterdir()} == {0, *range(4, MIN_CACHED + 3)}


def test_ctrl_c_amid_a_command_leaves_nothing_that_the_program_waits_for(tmp_path: Path) -> None:
    cdk = tmp_path / "cdk"
    cdk.write_text("#!/bin/sh\nkill -INT $PPID\n")
    cdk.chmod(0o755)
    cloud = Clouds(tmp_path).cloud
    with pytest.raises(KeyboardInterrupt):
        Deployer(cloud=cloud, cdk=lambda: cdk, assemblies=tmp_path / "assemblies").assembly()
    assert [
        thread for thread in threading.enumerate() if isinstance(thread, threading.Timer) and not thread.daemon
    ] == []
