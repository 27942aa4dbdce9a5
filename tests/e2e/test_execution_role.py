"""Sites that CloudFormation deploys, changes and deletes as a role with just the rights that the guide lists for it."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from sluice.aws.connections import connect_environment
from sluice.building.interpreters import cdk
from sluice.local.cloud import Cloud, clean_environment, start_cloud
from sluice.local.deployer import UNATTENDED, Deployer, DeploymentFailed, list_stacks
from sluice.local.sites import DEFAULT_SITE, Site
from sluice.operator.permissions import EXECUTION_ROLE, build_policy

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]
STAGED = replace(DEFAULT_SITE, stage="dev")
ELSEWHERE = replace(DEFAULT_SITE, region="us-east-1")
PARAMETERS: Mapping[str, object] = {
    "sluice.rendezvous.keep_state": False,
    "sluice.operations.alarm_email": "somebody@example.com",
    "sluice.federation.peer_accounts": ["111111111111"],
    "sluice.federation.access": "role",
}
CHANGED: Mapping[str, object] = {
    "sluice.rendezvous.keep_state": False,
    "sluice.splitting.queues": [{"queue_id": "pipeline"}, {"queue_id": "orders", "fifo": True}],
}


@pytest.fixture(scope="module")
def cloud(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cloud]:
    """Its CloudFormation has just the rights of the role that a deployment passes to it."""
    running = start_cloud(tmp_path_factory.mktemp("acting"), ends_with_us=True, server="tests.harsh.acting_cloud")
    try:
        yield running
    finally:
        running.stop()


def run_cdk(cloud: Cloud, site: Site, *arguments: str) -> None:
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])
    environment = clean_environment() | cloud.environment(site) | UNATTENDED | {"PATH": path}
    command = [str(cdk()), *arguments, "--no-notices"]
    done = subprocess.run(
        command, cwd=cloud.folder, env=environment, capture_output=True, text=True, check=False, timeout=600
    )
    assert done.returncode == 0, done.stdout + done.stderr


def bootstrap(cloud: Cloud, site: Site, *denied: Mapping[str, Any]) -> None:
    """As the guide has it, with the policy that it lists, and with what is denied besides."""
    policy = build_policy([EXECUTION_ROLE], partition="aws", region=site.region, account=site.account, stage=site.stage)
    document = {**policy, "Statement": [*policy["Statement"], *denied]}
    iam = connect_environment(cloud.environment(site)).client("iam")
    made = iam.create_policy(PolicyName=f"deployed-{site.region}", PolicyDocument=json.dumps(document))
    policies = ("--cloudformation-execution-policies", made["Policy"]["Arn"])
    run_cdk(cloud, site, "bootstrap", f"aws://{site.account}/{site.region}", *policies)


def test_a_site_needs_no_more_to_be_deployed_changed_and_deleted(cloud: Cloud) -> None:
    bootstrap(cloud, STAGED)
    for parameters in (PARAMETERS, CHANGED):
        deployer = Deployer(cloud=cloud, context=parameters)
        deployer.deploy(STAGED)
    assert {name for name in list_stacks(cloud, STAGED) if name.startswith("dev-Sluice")}
    run_cdk(cloud, STAGED, "destroy", "--all", "--force", "--app", str(deployer.assembly(STAGED.stage).folder))
    assert set(list_stacks(cloud, STAGED)) == {"CDKToolkit"}


def test_stacks_read_each_others_names_as_that_role(cloud: Cloud) -> None:
    names = "arn:aws:ssm:*:*:parameter/SluiceState/*"
    bootstrap(cloud, ELSEWHERE, {"Effect": "Deny", "Action": "ssm:GetParameters", "Resource": names})
    with pytest.raises(DeploymentFailed, match="not authorized to perform ssm:GetParameters"):
        Deployer(cloud=cloud, context=PARAMETERS).deploy(ELSEWHERE)
