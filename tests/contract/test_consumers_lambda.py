"""Functions read another queue, and then the first again: on moto, and through a stub what moto doesn't do."""

import io
import json
import zipfile
from collections.abc import Iterator
from typing import Any

import boto3
import pytest
from botocore.stub import Stubber
from moto import mock_aws

from sluice.aws.splitting.consumers.lambda_functions import LambdaVariables
from sluice.aws.splitting.consumers.targets import AwsConsumers
from sluice.errors import BadConsumer, CallFailed
from sluice.splitting.consumers.targets import LambdaTrigger, LambdaVariable, Place
from tests.interruptions import Interruptions, each_interruption, until_true
from tests.many_cases import one_of

REGION = "eu-central-1"
PREFIX = f"arn:aws:sqs:{REGION}:123456789012:"
SOURCE, MAIN = "orders.fifo", "sluice-tmp-abcdef0123456789ab-main-orders.fifo"
OTHER = "sluice-tmp-abcdef9876543210ab-main-orders.fifo"
CONFIG = json.dumps({"queues": [f"https://sqs.{REGION}.amazonaws.com/123456789012/{SOURCE}", "other"]}, indent=1)
TRIGGER = LambdaTrigger(function="orders")
VARIABLE = LambdaVariable(function="orders", variable="CONFIG", place=Place(path=("queues", "[]")))
SETTINGS = {
    "BatchSize": 7,
    "FilterCriteria": {"Filters": [{"Pattern": '{"body": {"kind": ["new"]}}'}]},
    "FunctionResponseTypes": ["ReportBatchItemFailures"],
    "ScalingConfig": {"MaximumConcurrency": 3},
}


@pytest.fixture(autouse=True)
def aws(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("AWS_ENDPOINT_URL", raising=False)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "test")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "test")


def client(service: str) -> Any:
    made: Any = boto3.client(service, region_name=REGION)  # type: ignore[call-overload]  # its stubs take no variable
    made.meta.events.register("after-call.lambda.GetFunctionConfiguration", with_revision)
    return made


def with_revision(parsed: dict[str, Any], **_: Any) -> None:
    """AWS says it, moto doesn't."""
    parsed.setdefault("RevisionId", "r1")


def consumers(interruptions: Interruptions | None = None) -> AwsConsumers:
    watched = (interruptions or Interruptions()).watch
    return AwsConsumers(client=lambda service: watched(client(service)), arn_prefix=PREFIX, now_ms=lambda: 0)


def deploy() -> None:
    """Make both queues, and a function that reads the first."""
    archive = io.BytesIO()
    with zipfile.ZipFile(archive, "w") as written:
        written.writestr("handler.py", "def handler(event, context): pass")
    role = client("iam").create_role(RoleName="orders", AssumeRolePolicyDocument="{}")["Role"]["Arn"]
    client("lambda").create_function(
        FunctionName="orders",
        Runtime="python3.11",
        Role=role,
        Handler="handler.handler",
        Code={"ZipFile": archive.getvalue()},
        Environment={"Variables": {"CONFIG": CONFIG, "OTHER": "ä"}},
    )
    for queue in (SOURCE, MAIN, OTHER):
        client("sqs").create_queue(QueueName=queue, Attributes={"FifoQueue": "true"})
    client("lambda").create_event_source_mapping(EventSourceArn=PREFIX + SOURCE, FunctionName="orders", **SETTINGS)


def mappings() -> dict[str, dict[str, Any]]:
    """Read all there is of the function's mappings, by queue, but for when they were changed."""
    listed = client("lambda").list_event_source_mappings(FunctionName="orders")["EventSourceMappings"]
    return {mapping["EventSourceArn"].removeprefix(PREFIX): {**mapping, "LastModified": None} for mapping in listed}


def variables() -> dict[str, str]:
    return client("lambda").get_function_configuration(FunctionName="orders")["Environment"]["Variables"]


@mock_aws
def test_a_trigger_reads_another_queue_with_the_same_settings_and_then_the_first() -> None:
    deploy()
    before, original = mappings(), consumers().read_original(TRIGGER, queue=SOURCE)
    until_true(lambda: consumers().point(TRIGGER, original, queue=MAIN, instead_of=(SOURCE,)))
    now = mappings()
    assert {queue: mapping["State"] for queue, mapping in now.items()} == {SOURCE: "Disabled", MAIN: "Enabled"}
    assert {key: now[MAIN][key] for key in SETTINGS} == SETTINGS
    assert consumers().point(TRIGGER, original, queue=MAIN, instead_of=(SOURCE,))
    assert mappings() == now
    until_true(lambda: consumers().point(TRIGGER, original, queue=SOURCE, instead_of=(MAIN,)))
    assert mappings() == before


@mock_aws
def test_a_trigger_that_is_off_stays_off() -> None:
    deploy()
    [before] = mappings().values()
    client("lambda").update_event_source_mapping(UUID=before["UUID"], Enabled=False)
    original = consumers().read_original(TRIGGER, queue=SOURCE)
    until_true(lambda: consumers().point(TRIGGER, original, queue=MAIN, instead_of=(SOURCE,)))
    assert mappings()[MAIN]["State"] == "Disabled"


@mock_aws
def test_a_trigger_that_its_owner_has_switched_on_again_reads_only_the_next_main_queue() -> None:
    deploy()
    original = consumers().read_original(TRIGGER, queue=SOURCE)
    until_true(lambda: consumers().point(TRIGGER, original, queue=MAIN, instead_of=(SOURCE,)))
    client("lambda").update_event_source_mapping(UUID=mappings()[SOURCE]["UUID"], Enabled=True)
    until_true(lambda: consumers().point(TRIGGER, original, queue=OTHER, instead_of=(MAIN, SOURCE)))
    assert {queue: mapping["State"] for queue, mapping in mappings().items()} == {SOURCE: "Disabled", OTHER: "Enabled"}


@mock_aws
def test_a_trigger_that_somebody_deleted_is_made_again() -> None:
    deploy()
    original = consumers().read_original(TRIGGER, queue=SOURCE)
    until_true(lambda: consumers().point(TRIGGER, original, queue=MAIN, instead_of=(SOURCE,)))
    client("lambda").delete_event_source_mapping(UUID=mappings()[SOURCE]["UUID"])
    until_true(lambda: consumers().point(TRIGGER, original, queue=SOURCE, instead_of=(MAIN,)))
    [found] = mappings().values()
    assert {key: found[key] for key in SETTINGS} == SETTINGS


@mock_aws
def test_a_variable_names_another_queue_and_then_the_first() -> None:
    deploy()
    original = consumers().read_original(VARIABLE, queue=SOURCE)
    assert original == CONFIG
    assert LambdaVariables(client=client("lambda"), arn_prefix=PREFIX).read_role(VARIABLE).endswith(":role/orders")
    until_true(lambda: consumers().point(VARIABLE, original, queue=MAIN, instead_of=(SOURCE,)))
    assert variables() == {"CONFIG": CONFIG.replace(SOURCE, MAIN), "OTHER": "ä"}
    until_true(lambda: consumers().point(VARIABLE, original, queue=SOURCE, instead_of=(MAIN,)))
    assert variables() == {"CONFIG": CONFIG, "OTHER": "ä"}


@mock_aws
@pytest.mark.parametrize("target", [TRIGGER, VARIABLE])
def test_what_reads_a_queue_is_told_by_what_is_configured_and_on(target: LambdaTrigger | LambdaVariable) -> None:
    deploy()
    original = consumers().read_original(target, queue=SOURCE)
    until_true(lambda: consumers().point(target, original, queue=MAIN, instead_of=(SOURCE,)))
    assert [consumers().reads(target, queue=queue) for queue in (SOURCE, MAIN)] == [False, True]
    if isinstance(target, LambdaTrigger):  # as its owner's deployment does
        client("lambda").update_event_source_mapping(UUID=mappings()[SOURCE]["UUID"], Enabled=True)
    else:
        client("lambda").update_function_configuration(
            FunctionName="orders", Environment={"Variables": {"CONFIG": CONFIG}}
        )
    assert consumers().reads(target, queue=SOURCE)


@mock_aws
def test_what_others_change_of_a_function_meanwhile_stays() -> None:
    deploy()
    original = consumers().read_original(VARIABLE, queue=SOURCE)
    until_true(lambda: consumers().point(VARIABLE, original, queue=MAIN, instead_of=(SOURCE,)))
    theirs = variables()["CONFIG"].replace("other", "another")
    client("lambda").update_function_configuration(
        FunctionName="orders", Environment={"Variables": {"CONFIG": theirs, "NEW": "1"}}
    )
    until_true(lambda: consumers().point(VARIABLE, original, queue=SOURCE, instead_of=(MAIN,)))
    assert variables() == {"CONFIG": CONFIG.replace("other", "another"), "NEW": "1"}


@pytest.mark.parametrize("target", [TRIGGER, VARIABLE])
@one_of(4)
def test_whatever_call_fails_it_gets_there_and_back(target: LambdaTrigger | LambdaVariable, every: int) -> None:
    @mock_aws
    def scenario(interruptions: Interruptions) -> None:
        deploy()
        before = mappings(), variables()
        original = consumers().read_original(target, queue=SOURCE)
        ours = consumers(interruptions)
        until_true(lambda: ours.point(target, original, queue=MAIN, instead_of=(SOURCE,)))
        until_true(lambda: ours.point(target, original, queue=SOURCE, instead_of=(MAIN,)))
        assert (mappings(), variables()) == before

    each_interruption(scenario, every=every)


@mock_aws
def test_what_does_not_read_the_queue_is_refused() -> None:
    deploy()
    with pytest.raises(BadConsumer, match=r"^trigger of function orders: there is none from other$"):
        consumers().read_original(TRIGGER, queue="other")
    with pytest.raises(BadConsumer, match=r"^variable CONFIG of function orders \.queues\.\[\]: doesn't name orders$"):
        consumers().read_original(VARIABLE, queue="orders")
    with pytest.raises(BadConsumer, match=r"^variable QUEUE of function orders: isn't set$"):
        consumers().read_original(LambdaVariable(function="orders", variable="QUEUE"), queue=SOURCE)


class Scripted:
    """Answers that are given beforehand; botocore checks every request against its own model."""

    def __init__(self) -> None:
        self.client = client("lambda")
        self.stub = Stubber(self.client)
        self.stub.activate()
        self.consumers = AwsConsumers(client=lambda _: self.client, arn_prefix=PREFIX, now_ms=lambda: 0)

    def configured(self, value: str = CONFIG, **more: Any) -> None:
        self.stub.add_response(
            "get_function_configuration",
            {"RevisionId": "r1", "Environment": {"Variables": {"CONFIG": value, "OTHER": "ä"}}, **more},
            {"FunctionName": "orders"},
        )

    def listed(self, queue: str, *found: dict[str, Any]) -> None:
        self.stub.add_response(
            "list_event_source_mappings",
            {"EventSourceMappings": list(found)},
            {"EventSourceArn": PREFIX + queue, "FunctionName": "orders"},
        )

    def pointed(self, target: LambdaTrigger | LambdaVariable, original: str = "") -> bool:
        return self.consumers.point(target, original, queue=MAIN, instead_of=(SOURCE,))


@pytest.fixture
def scripted() -> Iterator[Scripted]:
    script = Scripted()
    yield script
    script.stub.assert_no_pending_responses()


def test_an_update_is_of_the_revision_that_was_read(scripted: Scripted) -> None:
    scripted.configured()
    scripted.stub.add_client_error(
        "update_function_configuration",
        "PreconditionFailedException",
        expected_params={
            "FunctionName": "orders",
            "Environment": {"Variables": {"CONFIG": CONFIG.replace(SOURCE, MAIN), "OTHER": "ä"}},
            "RevisionId": "r1",
        },
    )
    with pytest.raises(CallFailed, match="PreconditionFailedException"):
        scripted.pointed(VARIABLE)


def test_an_update_is_waited_for(scripted: Scripted) -> None:
    pointed = CONFIG.replace(SOURCE, MAIN)
    for status, there in (("InProgress", False), ("Successful", True)):
        scripted.configured(pointed, LastUpdateStatus=status)
        assert scripted.pointed(VARIABLE) is there
    scripted.configured(LastUpdateStatus="InProgress")  # somebody else's
    assert not scripted.pointed(VARIABLE)


def test_an_update_that_fails_says_why(scripted: Scripted) -> None:
    scripted.configured(
        CONFIG.replace(SOURCE, MAIN),
        LastUpdateStatus="Failed",
        LastUpdateStatusReasonCode="DisabledKMSKey",
        LastUpdateStatusReason="the key is disabled",
    )
    with pytest.raises(CallFailed, match="UpdateFunctionConfiguration: DisabledKMSKey: the key is disabled"):
        scripted.pointed(VARIABLE)


def test_variables_that_cannot_be_seen_are_not_overwritten(scripted: Scripted) -> None:
    answer = {"Environment": {"Error": {"ErrorCode": "AccessDenied", "Message": "no key"}}}
    scripted.stub.add_response("get_function_configuration", answer)
    with pytest.raises(BadConsumer, match="can't be read: no key"):
        scripted.pointed(VARIABLE)


def test_a_published_version_is_refused(scripted: Scripted) -> None:
    scripted.configured(Version="3")
    with pytest.raises(BadConsumer, match="a published version can't be changed"):
        scripted.pointed(VARIABLE)


ONE, TWO = "a" * 36, "b" * 36  # as long as Lambda's ids
ON, OFF = {"UUID": ONE, "State": "Enabled"}, {"UUID": ONE, "State": "Disabled"}


def original_of(scripted: Scripted, mapping: dict[str, Any]) -> str:
    scripted.listed(SOURCE, mapping)
    return scripted.consumers.read_original(TRIGGER, queue=SOURCE)


@pytest.mark.parametrize("state", ["Creating", "Enabling", "Disabling", "Updating", "Deleting"])
def test_a_mapping_that_is_changing_is_waited_for(scripted: Scripted, state: str) -> None:
    original = original_of(scripted, ON)
    scripted.listed(MAIN, {"UUID": TWO, "State": state})
    assert not scripted.pointed(TRIGGER, original)
    scripted.listed(MAIN, {"UUID": TWO, "State": "Disabled"})
    scripted.listed(SOURCE, {"UUID": ONE, "State": state})
    assert not scripted.pointed(TRIGGER, original)
    with pytest.raises(CallFailed, match="trigger of function orders is changing"):
        original_of(scripted, {"UUID": ONE, "State": state})


def test_no_mapping_is_on_before_the_other_is_off(scripted: Scripted) -> None:
    original = original_of(scripted, ON)
    scripted.listed(MAIN, {"UUID": TWO, "State": "Disabled"})
    scripted.listed(SOURCE, ON)
    scripted.stub.add_response("update_event_source_mapping", {}, {"UUID": ONE, "Enabled": False})
    assert not scripted.pointed(TRIGGER, original)


def test_lambda_accepts_the_other_mapping_before_the_first_is_switched_off(scripted: Scripted) -> None:
    original = original_of(scripted, ON)
    wanted = {"EventSourceArn": PREFIX + MAIN, "FunctionName": "orders", "Enabled": False}
    refusal = "The provided execution role does not have permissions to call ReceiveMessage on SQS"
    scripted.listed(MAIN)
    scripted.stub.add_client_error(
        "create_event_source_mapping", "InvalidParameterValueException", refusal, expected_params=wanted
    )
    with pytest.raises(CallFailed, match=refusal):
        scripted.pointed(TRIGGER, original)
    scripted.listed(MAIN)
    scripted.stub.add_response("create_event_source_mapping", {}, wanted)
    assert not scripted.pointed(TRIGGER, original)


def test_a_mapping_whose_filter_cannot_be_read_or_that_is_not_the_only_one_is_refused(scripted: Scripted) -> None:
    with pytest.raises(BadConsumer, match="its filter can't be read"):
        original_of(scripted, ON | {"FilterCriteriaError": {"ErrorCode": "AccessDenied", "Message": "there is no key"}})
    scripted.listed(SOURCE, ON, OFF)
    with pytest.raises(BadConsumer, match=r"there are 2 from orders\.fifo: name the alias"):
        scripted.consumers.read_original(TRIGGER, queue=SOURCE)
