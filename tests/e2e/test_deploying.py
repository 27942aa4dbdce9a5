"""`sluice deploy`, `sluice destroy`: what goes with a deployment. CDK's command line writes what it is told."""

import json
import re
import sys
from collections.abc import Mapping, Sequence
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace
from typer.testing import CliRunner, Result

from sluice.aws.clients import now_ms
from sluice.aws.connections import Connection, connect_environment
from sluice.aws.splitting.registry_store import DynamoRegistryStore
from sluice.cli import deploying
from sluice.cli.program import app
from sluice.local.cloud import Cloud
from sluice.local.sites import Site
from sluice.operator.deployments import NAME_TAKEN_S
from sluice.splitting.consumers.targets import Consumer, Consumers, LambdaTrigger
from sluice.splitting.sessions.state import Phase, Session, Split, Status
from tests.deployed import send_all

REGION = "eu-central-1"
STACK = "SluiceState"
SPLITTING = "SluiceSplitting"
QUEUE = "arn:aws:sqs:eu-central-1:123456789012:"
ORDERS = {
    "queue_id": "orders",
    "existing_source_queue_arn": f"{QUEUE}orders",
    "consumers": [{"type": "lambda trigger", "function": "shop"}],
}
accounts = count(700_000_000_000)  # one a test
CDK = """#!{python}
import json, pathlib, sys
here = pathlib.Path(__file__).parent
with (here / "log").open("a") as log:
    print(json.dumps(sys.argv[1:]), file=log)
if sys.argv[1] == "synth":
    out = pathlib.Path(sys.argv[sys.argv.index("--output") + 1])
    artifacts = {{"Tree": {{"type": "cdk:tree"}}}}
    for path in here.glob("Sluice*"):
        artifacts[path.name] = {{"type": "aws:cloudformation:stack", "properties": {{"templateFile": path.name}}}}
        (out / path.name).write_text(path.read_text())
    (out / "manifest.json").write_text(json.dumps({{"artifacts": artifacts}}))
else:
    print("cdk", sys.argv[1])
"""


def template(**queues: Mapping[str, Any]) -> str:
    resources = {name: {"Type": "AWS::SQS::Queue", **each} for name, each in queues.items()}
    return json.dumps({"Resources": resources or {"Topic": {"Type": "AWS::SNS::Topic"}}})


def registry_template() -> str:
    """As the stack's: the registry's table, named by an output."""
    keys = [{"name": name, "type": "HASH" if name == "pk" else "RANGE"} for name in ("pk", "sk")]
    table = {
        "Type": "AWS::DynamoDB::Table",
        "Properties": {
            "BillingMode": "PAY_PER_REQUEST",
            "AttributeDefinitions": [{"AttributeName": key["name"], "AttributeType": "S"} for key in keys],
            "KeySchema": [{"AttributeName": key["name"], "KeyType": key["type"]} for key in keys],
        },
    }
    outputs = {"SplittingTableName": {"Value": {"Ref": "Table"}}}
    return json.dumps({"Resources": {"Table": table}, "Outputs": outputs})


class Clone:
    """A clone whose CDK notes what it is asked; what it would deploy is `wanted`."""

    def __init__(self, folder: Path, account: Connection) -> None:
        self.folder, self.connection = folder, account
        self.sqs = account.client("sqs")
        self.cloudformation = account.client("cloudformation")
        self.iam = account.client("iam")

    def wants(self, **queues: Mapping[str, Any]) -> None:
        (self.folder / STACK).write_text(template(**queues))

    def save(self, split: Split, *sessions: Session) -> None:
        """Write the registry with this split of `ORDERS`; first create its table."""
        if not self.cloudformation.list_stacks(StackStatusFilter=["CREATE_COMPLETE"])["StackSummaries"]:
            self.cloudformation.create_stack(StackName=SPLITTING, TemplateBody=registry_template())
            self.cloudformation.get_waiter("stack_create_complete").wait(StackName=SPLITTING, WaiterConfig={"Delay": 1})
        outputs = self.cloudformation.describe_stacks(StackName=SPLITTING)["Stacks"][0]["Outputs"]
        store = DynamoRegistryStore(self.connection.client("dynamodb"), outputs[0]["OutputValue"])
        before, revision = store.load()
        known = {session.session_id: session for session in sessions}
        consumers = () if split.static else (Consumer(target=LambdaTrigger(function="shop")),)
        saved = replace(
            before,
            splits={split.queue_id: split},
            consumers={split.queue_id: Consumers(queue_id=split.queue_id, consumers=consumers)},
            sessions=known,
        )
        assert store.save(before, saved, revision=revision)

    def deployed(self, **queues: Mapping[str, Any]) -> None:
        self.cloudformation.create_stack(StackName=STACK, TemplateBody=template(**queues))
        self.cloudformation.get_waiter("stack_create_complete").wait(StackName=STACK, WaiterConfig={"Delay": 1})

    def url(self, id_: str) -> str:
        found = self.cloudformation.describe_stack_resource(StackName=STACK, LogicalResourceId=id_)
        return str(found["StackResourceDetail"]["PhysicalResourceId"])

    def fill(self, id_: str, messages: int) -> str:
        """Its name."""
        grouped = {"MessageGroupId": "g"} if self.url(id_).endswith(".fifo") else {}
        send_all(
            self.sqs,
            self.url(id_),
            [
                {"MessageBody": "m", **grouped, **({"MessageDeduplicationId": str(number)} if grouped else {})}
                for number in range(messages)
            ],
        )
        return self.url(id_).rsplit("/", 1)[1]

    def sluice(self, *arguments: str) -> Result:
        return CliRunner().invoke(app, [*arguments, "--region", REGION])

    @property
    def asked(self) -> Sequence[Sequence[str]]:
        return [json.loads(line) for line in (self.folder / "log").read_text().splitlines()]


@pytest.fixture
def clone(cloud: Cloud, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Clone:
    """In an account of its own."""
    monkeypatch.delenv("AWS_PROFILE", raising=False)
    environment = cloud.environment(Site(str(next(accounts)), REGION))
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    cdk = tmp_path / "cdk"
    cdk.write_text(CDK.format(python=sys.executable))
    cdk.chmod(0o755)
    monkeypatch.setattr(deploying, "cdk", lambda: cdk)
    return Clone(tmp_path, connect_environment(environment))


def test_a_first_deployment_synthesizes_and_deploys_that(clone: Clone) -> None:
    clone.wants(Orders={})
    done = clone.sluice("deploy", "-c", "sluice.log_level=DEBUG", "-c", "sluice.pipeline.queue_id=none")
    assert done.exit_code == 0, done.output
    synth, deploy = clone.asked
    assert (synth[0], deploy[:2]) == ("synth", ["deploy", "--all"])
    assert {"--context=sluice.log_level=DEBUG", "--context=sluice.pipeline.queue_id=none"} <= set(synth)
    assert deploy[deploy.index("--app") + 1] == synth[synth.index("--output") + 1]


def test_what_was_done_is_said_as_json_beside_what_cdk_says(clone: Clone, capfd: pytest.CaptureFixture[str]) -> None:
    clone.wants(Orders={})
    for command, done in ((["deploy"], "deployed"), (["destroy", "--force"], "destroyed")):
        said = clone.sluice(*command, "--json").stdout
        assert json.loads(said) == {"region": REGION, "stage": None, done: ["SluiceState"]}
    assert capfd.readouterr().err.splitlines() == ["cdk deploy", "cdk destroy"]


def test_what_the_account_allows_is_reserved_unless_something_else_is_said(clone: Clone) -> None:
    proxies, account = (
        "sluice.rendezvous.proxy_max_concurrency",
        "--context=sluice.operations.account_concurrency=1000",
    )
    clone.wants(Orders={})
    said = clone.sluice("deploy").stderr
    listed = f"{proxies}=300, sluice.rendezvous.client_max_concurrency=50"
    assert f"reserves 350 of the account's 1,000 concurrent executions ({listed})" in said
    assert {f"--context={proxies}=300", account} <= set(clone.asked[-2])
    said = clone.sluice("deploy", "-c", f"{proxies}=null").stderr
    assert "reserves 50 of the account's 1,000" in said
    assert account in clone.asked[-2]
    assert [each for each in clone.asked[-2] if proxies in each] == [f"--context={proxies}=null"]
    refused = clone.sluice("deploy", "-c", f"{proxies}=901")
    assert (refused.exit_code, len(clone.asked)) == (1, 4)
    assert "only 900 of the account's 1,000 concurrent executions can be reserved, as 100 must stay" in refused.stderr


def test_what_the_site_has_reserved_it_reserves_again(clone: Clone) -> None:
    properties = {
        "Role": "arn:aws:iam::000000000000:role/any",
        "Runtime": "python3.13",
        "Handler": "index.handler",
        "Code": {"ZipFile": "handler = print"},
        "ReservedConcurrentExecutions": 900,
    }
    resources = {"Proxy": {"Type": "AWS::Lambda::Function", "Properties": properties}}
    clone.cloudformation.create_stack(StackName="SluiceRendezvous", TemplateBody=json.dumps({"Resources": resources}))
    clone.cloudformation.get_waiter("stack_create_complete").wait(StackName="SluiceRendezvous")
    clone.wants()
    assert "reserves 350 of the account's 1,000" in clone.sluice("deploy").stderr


def test_a_region_without_function_urls_is_refused_before_anything_is_made(clone: Clone) -> None:
    clone.wants()
    refused = CliRunner().invoke(app, ["deploy", "--region", "eu-south-2"])
    assert (refused.exit_code, [each[0] for each in clone.asked]) == (1, ["synth"])
    assert "nothing was changed: eu-south-2 has no URLs for Lambda functions" in refused.stderr
    assert CliRunner().invoke(app, ["deploy", "--region", "eu-south-2", "--force"]).exit_code == 0
    assert clone.asked[-1][0] == "deploy"


def test_a_deleted_sites_names_are_waited_for(clone: Clone, capsys: pytest.CaptureFixture[str]) -> None:
    offers = {"Properties": {"QueueName": "snowflake-broker"}}
    clone.deployed(Offers=offers, Orders={})
    clone.cloudformation.delete_stack(StackName=STACK)
    clone.cloudformation.get_waiter("stack_delete_complete").wait(StackName=STACK, WaiterConfig={"Delay": 1})
    templates = {STACK: json.loads(template(Offers=offers, Orders={}))}
    slept: list[float] = []
    deploying.wait_for_names(clone.connection, templates, now_ms=now_ms, sleep=slept.append)
    assert "SQS gives no deleted queue's name again for a minute: snowflake-broker" in capsys.readouterr().err
    [wait_s] = slept
    assert 0 < wait_s <= NAME_TAKEN_S
    deploying.wait_for_names(
        clone.connection, templates, now_ms=lambda: now_ms() + round(NAME_TAKEN_S * 1000), sleep=slept.append
    )
    assert slept == [wait_s]


@pytest.mark.parametrize(("said", "asks"), [([], "never"), (["--approve"], "broadening"), (["--no-approve"], "never")])
def test_without_a_terminal_nobody_is_asked_unless_told_to(clone: Clone, said: list[str], asks: str) -> None:
    clone.wants()
    assert clone.sluice("deploy", *said).exit_code == 0
    deploy = clone.asked[-1]
    assert deploy[deploy.index("--require-approval") + 1] == asks


def test_a_queue_that_holds_messages_is_not_taken_away_unless_that_is_said(clone: Clone) -> None:
    clone.deployed(Orders={}, Bills={}, Empty={}, Stays={})
    orders, bills, empty, _ = (
        clone.fill("Orders", 2),
        clone.fill("Bills", 1),
        clone.fill("Empty", 0),
        clone.fill("Stays", 3),
    )
    clone.sqs.receive_message(QueueUrl=clone.url("Bills"))  # in flight
    clone.wants(Stays={})
    refused = clone.sluice("deploy", "--remove", orders)
    assert refused.exit_code == 1
    # SQS counts approximately: a message that has just been received may count as waiting, too.
    assert re.search(rf"{bills} of {STACK}: about [12] messages", refused.stderr)
    assert f"or lose the messages with --remove {bills}\n" in refused.stderr
    assert [each[0] for each in clone.asked] == ["synth"]
    done = clone.sluice("deploy", "--remove", orders, "--remove", bills)
    assert done.exit_code == 0
    assert f"will be removed: {empty} of {STACK}: about 0 messages" in done.stderr
    assert [each[0] for each in clone.asked] == ["synth", "synth", "deploy"]


def test_a_queue_that_is_kept_as_nobodys_is_not_taken_away_either(clone: Clone) -> None:
    clone.deployed(Orders={"DeletionPolicy": "Retain"})
    clone.fill("Orders", 1)
    clone.wants()
    refused = clone.sluice("deploy")
    assert refused.exit_code == 1
    assert "about 1 messages, retained by CloudFormation" in refused.stderr


def test_a_queue_that_would_be_made_anew_is_one_that_goes(clone: Clone) -> None:
    before = {"Properties": {"FifoQueue": True, "QueueName": "a.fifo"}}
    clone.deployed(Orders=before)
    clone.fill("Orders", 1)
    clone.wants(Orders={"Properties": {"FifoQueue": True, "QueueName": "a.fifo", "VisibilityTimeout": 5}})
    assert clone.sluice("deploy").exit_code == 0
    clone.wants(Orders={"Properties": {"FifoQueue": True, "QueueName": "b.fifo"}})
    assert "a.fifo of SluiceState: about 1 messages" in clone.sluice("deploy").stderr


def test_destroy_deletes_what_is_kept_by_nobody_only_when_it_is_empty(clone: Clone) -> None:
    clone.deployed(Orders={"DeletionPolicy": "Retain"}, Bills={})
    clone.fill("Orders", 1)
    clone.wants(Orders={}, Bills={})
    assert clone.sluice("destroy", "--force").exit_code == 0
    bills = clone.fill("Bills", 1)
    assert f"{bills} of SluiceState: about 1 messages" in clone.sluice("destroy", "--force").stderr
    assert [each[0] for each in clone.asked] == ["synth", "destroy", "synth"]
    assert "--force" in clone.asked[1]


def test_destroy_asks_first_and_cdk_asks_no_second_time(clone: Clone) -> None:
    clone.wants()
    refused = CliRunner().invoke(app, ["destroy", "--region", REGION], input="n\n")
    assert (refused.exit_code, [each[0] for each in clone.asked]) == (1, ["synth"])
    assert f"Delete {STACK}?" in refused.output
    agreed = CliRunner().invoke(app, ["destroy", "--region", REGION], input="y\n")
    assert (agreed.exit_code, clone.asked[-1][0]) == (0, "destroy")
    assert "--force" in clone.asked[-1]


def test_destroy_deletes_the_clients_keys_as_iam_deletes_no_user_that_has_one(clone: Clone) -> None:
    user = {"Type": "AWS::IAM::User"}
    outputs = {"ClientUserName": {"Value": {"Ref": "ClientUser"}}}
    body = json.dumps({"Resources": {"ClientUser": user}, "Outputs": outputs})
    clone.cloudformation.create_stack(StackName="SluiceRendezvous", TemplateBody=body, Capabilities=["CAPABILITY_IAM"])
    clone.cloudformation.get_waiter("stack_create_complete").wait(StackName="SluiceRendezvous")
    name = clone.cloudformation.describe_stacks(StackName="SluiceRendezvous")["Stacks"][0]["Outputs"][0]["OutputValue"]
    key = clone.iam.create_access_key(UserName=name)["AccessKey"]["AccessKeyId"]
    clone.wants()
    done = clone.sluice("destroy", "--force")
    assert (done.exit_code, f"deleted the clients' access key {key}" in done.stderr) == (0, True)
    assert clone.iam.list_access_keys(UserName=name)["AccessKeyMetadata"] == []


def test_what_cdk_says_no_to_is_no_success(clone: Clone, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    failing = tmp_path / "failing"
    failing.write_text("#!/bin/sh\nexit 3\n")
    failing.chmod(0o755)
    monkeypatch.setattr(deploying, "cdk", lambda: failing)
    failed = clone.sluice("deploy")
    assert (failed.exit_code, "cdk synth failed with exit code 3" in failed.stderr) == (1, True)


def split(phase: Phase, **fields: Any) -> Split:
    """A re-pointed split whose consumer, unless `fields` say otherwise, reads the temporary main queue."""
    kept = {"source": "orders", "static": False, "main": "sluice-tmp-main", "consumer_at": "sluice-tmp-main", **fields}
    return Split(queue_id="orders", phase=phase, phase_since_ms=1, **kept)


AT_REST = split(Phase.IDLE, main=None, consumer_at="orders")


def with_queues(*entries: Mapping[str, Any]) -> tuple[str, ...]:
    return ("-c", f"sluice.splitting.queues={json.dumps(entries)}", "-c", "sluice.pipeline.queue_id=none")


@pytest.mark.parametrize("phase", [Phase.ACTIVE, Phase.RELEASING, Phase.DRAINING, Phase.RESTORING])
def test_nothing_is_destroyed_while_a_consumer_reads_a_temporary_queue(clone: Clone, phase: Phase) -> None:
    clone.wants()
    session = Session(
        session_id="s1", key="s1", owner="me", started_at_ms=1, filters={}, heartbeat_at_ms=1, status=Status.READY
    )
    clone.save(split(phase), session)
    for removed in ((), ("--remove", "sluice-tmp-main")):
        refused = clone.sluice("destroy", "--force", *removed, *with_queues(ORDERS))
        assert (refused.exit_code, {each[0] for each in clone.asked}) == (1, {"synth"})
        assert f"orders: {phase} since " in refused.stderr
        for way_out in ("sluice split stop s1", "sluice split release", "sluice split status"):
            assert way_out in refused.stderr
    clone.save(AT_REST)
    assert clone.sluice("destroy", "--force").exit_code == 0


@pytest.mark.parametrize(
    "change",
    [
        {"queue_id": "bills"},
        {"consumers": [{"type": "lambda trigger", "function": "bank"}]},
        {"consumers": []},
        {"existing_source_queue_arn": f"{QUEUE}bills"},
        {"existing_source_queue_arn": None},
    ],
)
def test_no_deployment_takes_the_rights_to_a_split_that_is_not_at_rest(clone: Clone, change: Mapping[str, Any]) -> None:
    clone.wants()
    clone.save(split(Phase.RESTORING, consumer_at=None))
    changed = with_queues({**ORDERS, **change})
    refused = clone.sluice("deploy", *changed)
    assert (refused.exit_code, [each[0] for each in clone.asked]) == (1, ["synth"])
    assert "orders: restoring since " in refused.stderr
    clone.save(AT_REST)
    assert clone.sluice("deploy", *changed).exit_code == 0


@pytest.mark.parametrize("main", [f"{QUEUE}theirs", None])
def test_no_deployment_takes_the_main_queue_of_a_static_split_with_sessions(clone: Clone, main: str | None) -> None:
    clone.wants()
    mine = "SluiceState-SplitordersMain" if main else "theirs"
    clone.save(split(Phase.ACTIVE, static=True, main=mine, consumer_at=mine))
    entry = {**ORDERS, "consumers": [], "existing_main_queue_arn": main}
    assert clone.sluice("deploy", *with_queues(entry)).exit_code == 1
    kept = {**entry, "existing_main_queue_arn": None if main else f"{QUEUE}theirs"}
    assert clone.sluice("deploy", *with_queues(kept)).exit_code == 0


def test_a_deployment_that_keeps_the_split_may_go_on_amid_it(clone: Clone) -> None:
    clone.wants()
    clone.save(split(Phase.DRAINING))
    assert clone.sluice("deploy", *with_queues({"queue_id": "new"}, {**ORDERS, "drain_timeout_s": 5})).exit_code == 0
    clone.save(split(Phase.DRAINING, source="SluiceState-SplitordersSource"))
    assert clone.sluice("deploy", *with_queues({**ORDERS, "existing_source_queue_arn": None})).exit_code == 0
