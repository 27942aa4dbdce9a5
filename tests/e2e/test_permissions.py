"""Every command as a user who has exactly the rights that the table of permissions lists for it, under enforced IAM."""

import json
import os
import shlex
import sys
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from botocore.exceptions import ClientError
from typer.testing import CliRunner, Result

from sluice.aws.clients import now_ms
from sluice.aws.connections import ENDPOINT_VARIABLE, LEADING, connect_environment
from sluice.aws.dead_letters import SOURCE
from sluice.aws.deployment import STACK, read_stack_output
from sluice.aws.rendezvous.clients import ClientUser
from sluice.building.project import PROJECT
from sluice.cli.program import app
from sluice.console.requests import Topic
from sluice.console.sites import WatchedSite
from sluice.console.watching import READERS, WatchedSites
from sluice.operations import READER
from sluice.operator.accounts import ConcurrencyLimits
from sluice.operator.deployments import find_removed_queues, find_taken_names, read_registry
from sluice.operator.permissions import FREE, ROWS, build_policy
from sluice.operator.site_names import SiteName
from sluice.operator.site_status import SiteClient, read_site
from tests.deployed import SETTLES_WITHIN_S, UNKNOWN_KEY, Deployed, retry_until_accepted

pytestmark = pytest.mark.slow  # each command is a program of its own, as a user of its own

QUEUE, OTHER, NEW = (f"sluice-queue-permissions-{name}" for name in ("one", "two", "new"))
OTHERS = tuple(name for name in os.environ if LEADING.fullmatch(name))
NOT_YET = UNKNOWN_KEY | {"AccessDenied", "AccessDeniedException"}
REFUSED = ("AccessDenied", "not authorized")
NOT_RUN = {
    "deploy": "CDK's command line acts as the bootstrap's roles; see test_a_deployer_may_look_for_queues",
    "destroy": "as deploy",
    "console": "see test_the_console_reads_a_site",
    "status": "see test_the_status_of_a_site_is_whole",
    "rendezvous creds": "other tests need the keys; see test_an_operator_may_make_and_delete_keys",
    "rendezvous offer": "needs a proxy that answers",
    "rendezvous proxy": "calls the broker's URL, without credentials",
    "split agent": "needs a Kubernetes cluster",
    "split run --lambda": "needs a function with a handler on this machine",
    **dict.fromkeys(
        (f"pipeline {name}" for name in ("start", "stop", "drain", "status", "logs", "run-local")),
        "the embedded cloud has no jobs function: a site's jobs run on this machine",
    ),
}
RECEIVE = (
    "import boto3, os; queue = boto3.client('sqs'); url = os.environ['SLUICE_QUEUE_URL'];"
    "queue.receive_message(QueueUrl=url); queue.get_queue_attributes(QueueUrl=url)"
)
# By command, what it is run as; and what it says where it can't succeed, as the function that it asked refuses it.
RUNS: Mapping[str, Sequence[tuple[str, str]]] = {
    "publish": [("publish . amq.topic a.key hello", "")],
    "consume": [(f"consume . {QUEUE} --count 1 --wait 20 --keep", ""), (f"consume . {QUEUE} --count 1 --wait 20", "")],
    "rendezvous status": [("rendezvous status", "")],
    "split list": [("split list", "")],
    "split status": [("split status", ""), ("split status nobody", "nobody")],
    "split start": [("split start --filter standard:client=^nobody$ --time-limit 1", "TimeLimitExceeded")],
    "split run": [(f"split run --filter standard:client=^nobody$ -- {sys.executable} -c {shlex.quote(RECEIVE)}", "")],
    "split stop": [("split stop nobody", "nobody")],
    "split release": [("split release nobody", "no such queue")],
    "split tail": [("split tail --no-follow", "no such message")],
    "split register": [
        (
            "split register permitted --source-arn {arn} --consumer-follows --project {folder} --dry-run",
            "not registered",
        )
    ],
    "exchange list": [("exchange list .", "")],
    "exchange add": [("exchange add . permissions direct", "")],
    "exchange del": [("exchange del . permissions", "")],
    "binding list": [("binding list .", "")],
    "binding add": [(f"binding add . amq.direct {QUEUE} key", "")],
    "binding add --create": [(f"binding add . amq.direct {NEW} key --create", "")],
    "binding del": [(f"binding del . amq.direct {QUEUE} key", ""), (f"binding del . amq.direct {NEW} key", "")],
    "peer list": [("peer list .", "")],
    "peer add": [("peer add . --address {address}", "no peer of its own")],
    "peer del": [("peer del . nobody", "no such peer")],
    "link list": [("link list .", "")],
    "link address": [("link address .", "")],
    "link add": [("link add . .", "linked to itself")],
    "link del": [("link del . nobody", "no link goes")],
    **{f"link {name}": [(f"link {name} . nobody", "no such link")] for name in ("pause", "resume", "drain", "retry")},
    "route list": [("route list .", "")],
    "route map": [("route map .", "")],
    "route status": [("route status . nobody", "no such route")],
    "route add": [("route add . . amq.topic key", "linked to itself")],
    "route change": [("route change . nobody --ttl 1", "no such route")],
    "route del": [("route del . . amq.topic key", "no such route")],
    "route flush": [("route flush .", "")],
    "route redrive": [("route redrive . nobody", "no such route")],
    **{
        f"route {name}": [(f"route {name} . nobody", "no such route")] for name in ("pause", "resume", "drain", "retry")
    },
    "queue create": [(f"queue create . {NEW}", "")],
    "queue list": [("queue list .", "")],
    "queue move": [(f"queue move . {QUEUE} {OTHER} --count 1", "")],
    "queue delete": [(f"queue delete . {OTHER} --force", "")],
    "queue add": [("queue add . . amq.topic q", "linked to itself")],
    "queue del": [("queue del . . amq.topic q", "no such route")],
    "dynamic paths": [("dynamic paths .", "")],
    "dynamic add": [("dynamic add . . amq.topic", "linked to itself")],
    "dynamic del": [("dynamic del . . amq.topic", "no such route")],
    "topology export": [("topology export .", "")],
    "topology plan": [("topology plan {topology}", "")],
    "topology apply": [("topology apply {topology} --yes", "")],
    "dlq list": [("dlq list", "")],
    "dlq show": [("dlq show federation", "")],
    "dlq redrive": [(f"dlq redrive federation --source {QUEUE} --count 1", "")],
    "dlq purge": [(f"dlq purge federation --source {QUEUE} --yes", "")],
}


class Operators:
    """Users of the site's account, each with the policy of some commands."""

    def __init__(self, deployed: Deployed) -> None:
        self.deployed = deployed
        self.iam = deployed.client("iam")
        self.names: list[str] = []

    def environment(self, *commands: str) -> Mapping[str, str]:
        """The variables of a new user's key, once key and policy act."""
        name = f"operator-{uuid.uuid4().hex[:8]}"
        site = self.deployed.site
        policy = build_policy(commands, partition="aws", region=site.region, account=site.account, stage=site.stage)
        self.iam.create_user(UserName=name)
        self.names.append(name)
        self.iam.put_user_policy(UserName=name, PolicyName="commands", PolicyDocument=json.dumps(policy))
        key = self.iam.create_access_key(UserName=name)["AccessKey"]
        variables = {
            "AWS_ACCESS_KEY_ID": key["AccessKeyId"],
            "AWS_SECRET_ACCESS_KEY": key["SecretAccessKey"],
            "AWS_REGION": site.region,
            "AWS_DEFAULT_REGION": site.region,
            ENDPOINT_VARIABLE: self.deployed.endpoint,
        }
        client = connect_environment(variables).client("cloudformation")
        retry_until_accepted(lambda: client.describe_stacks(StackName=STACK), passing=NOT_YET)
        return variables

    def delete_all(self) -> None:
        for name in self.names:
            for key in self.iam.list_access_keys(UserName=name)["AccessKeyMetadata"]:
                self.iam.delete_access_key(UserName=name, AccessKeyId=key["AccessKeyId"])
            self.iam.delete_user_policy(UserName=name, PolicyName="commands")
            self.iam.delete_user(UserName=name)

    def run(self, command: str, text: str) -> Result:
        """Run a command line as a new user with the rights of one command."""
        variables = {**dict.fromkeys(OTHERS, ""), **self.environment(command)}
        return CliRunner().invoke(app, shlex.split(text), env=variables)


@pytest.fixture(scope="module")
def operators(deployed: Deployed) -> Iterator[Operators]:
    made = Operators(deployed)
    yield made
    made.delete_all()


@pytest.fixture(scope="module")
def places(deployed: Deployed, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mapping[str, str]]:
    """Two queues, the first with messages, its dead letters, and files, by their names in `RUNS`."""
    folder = tmp_path_factory.mktemp("operator")
    urls = [deployed.make_queue(name) for name in (QUEUE, OTHER)]
    for _ in range(9):
        deployed.sqs.send_message(QueueUrl=urls[0], MessageBody="hello")
    source: Any = {"StringValue": f"arn:aws:sqs:{deployed.region}:{deployed.account}:{QUEUE}", "DataType": "String"}
    dead_letters = read_stack_output(deployed.connection, "SluiceFederation", "FederationDeadLettersUrl")
    for _ in range(3):
        deployed.sqs.send_message(QueueUrl=dead_letters, MessageBody="hello", MessageAttributes={SOURCE: source})
    (folder / "cdk.json").write_text((PROJECT.files / "cdk.json").read_text())
    variables = deployed.cloud.environment(deployed.site)
    for name, text in (("topology", "topology export ."), ("address", "link address .")):
        done = CliRunner().invoke(app, shlex.split(text), env=variables)
        (folder / name).write_text(done.stdout)
    yield {
        "arn": source["StringValue"],
        "folder": str(folder),
        **{name: str(folder / name) for name in ("topology", "address")},
    }
    for name in (QUEUE, OTHER, NEW):
        with suppress(ClientError):
            deployed.sqs.delete_queue(QueueUrl=deployed.sqs.get_queue_url(QueueName=name)["QueueUrl"])


def test_every_command_is_run_or_has_a_reason() -> None:
    listed = {name for row in ROWS for name in row.commands}
    assert RUNS.keys() | NOT_RUN.keys() == listed
    assert not RUNS.keys() & {*NOT_RUN, *FREE}


@pytest.mark.parametrize("command", RUNS)
def test_a_command_needs_no_more_than_is_listed(operators: Operators, places: Mapping[str, str], command: str) -> None:
    for text, said in RUNS[command]:
        done = operators.run(command, text.format(**places))
        output = f"{done.output}{done.exception!r}"
        assert not any(refusal in output for refusal in REFUSED), output
        assert done.exit_code == 0 or (said and said in output), output


def test_a_user_without_further_rights_is_told_the_policy(operators: Operators, deployed: Deployed) -> None:
    done = operators.run("split list", "permissions 'split list' dlq")
    site = deployed.site
    named: Any = {"partition": "aws", "region": site.region, "account": site.account, "stage": site.stage}
    assert json.loads(done.stdout) == build_policy(["split list", "dlq"], **named)


@pytest.mark.parametrize(
    ("command", "text"),
    [
        ("split status", "split stop nobody"),
        ("exchange list", "exchange add . permissions direct"),
        ("queue list", f"queue delete . {QUEUE} --force"),
        ("rendezvous status", "rendezvous creds --revoke"),
    ],
)
def test_who_reads_does_not_write(operators: Operators, places: Mapping[str, str], command: str, text: str) -> None:
    done = operators.run(command, text.format(**places))
    assert done.exit_code == 1
    assert any(refusal in done.output for refusal in REFUSED), done.output


def test_the_readers_alias_refuses_who_names_it_for_a_change(operators: Operators, deployed: Deployed) -> None:
    connection = connect_environment(operators.environment("split status"))
    name = read_stack_output(deployed.connection, "SluiceSplitting", "ControlFunctionName")
    request = json.dumps({"op": "stop", "session_id": "nobody"}).encode()
    reply = connection.client("lambda").invoke(FunctionName=name, Qualifier=READER, Payload=request)
    assert "may only read" in json.loads(reply["Payload"].read())["error"]


def test_the_status_of_a_site_is_whole(operators: Operators) -> None:
    connection = connect_environment(operators.environment("status"))
    report = read_site(SiteClient(connection, is_local=True), within_s=SETTLES_WITHIN_S)
    assert (report.failed, report.absent) == ({}, {})


@pytest.mark.parametrize("reading", READERS)
def test_the_console_reads_a_site(operators: Operators, deployed: Deployed, tmp_path: Path, reading: str) -> None:
    connection = connect_environment(operators.environment("console"))
    name = SiteName(deployed.region, local_account=deployed.account)
    site = WatchedSite(name, lambda _: connection, tmp_path)
    watched = WatchedSites(sites=[site], readers=READERS, questions={}, actions={})
    found = json.dumps(watched.read(Topic(reading=reading)), default=str)
    assert not any(refusal in found for refusal in REFUSED), found


def test_an_operator_may_make_and_delete_keys(operators: Operators, deployed: Deployed) -> None:
    """Other tests have a key, and IAM allows two."""
    user = ClientUser(
        connect_environment(operators.environment("rendezvous creds")).client("iam"),
        deployed.deployment.client_user_name,
    )
    keys = {key.id for key in user.access_keys()}
    assert len(keys) < 2
    user.delete_key(user.create_key().access_key_id)
    assert {key.id for key in user.access_keys()} == keys


@pytest.mark.parametrize("command", ["deploy", "destroy"])
def test_a_deployer_may_look_for_queues(operators: Operators, command: str) -> None:
    connection = connect_environment(operators.environment(command))
    assert list(find_removed_queues(connection, {"SluiceState": {}}))
    assert read_registry(connection).splits is not None
    if command == "deploy":
        assert ConcurrencyLimits.fetch(connection).limit
        assert find_taken_names(connection, {"SluiceState": {"Resources": {}}}, now_ms=now_ms) == {}
