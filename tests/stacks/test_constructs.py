"""The constructs in somebody else's app: the example of the documents, and what an app may not ask for."""

import json
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
from aws_cdk import App, Aws, RemovalPolicy, Stack, Token, Validations, aws_ec2, aws_iam, aws_kms, aws_sns, aws_sqs
from aws_cdk.assertions import Match, Template
from cdk_nag import AwsSolutionsChecks
from constructs import Construct

from sluice import constructs
from sluice.constructs import Exchange, LandingPipeline, Operations, Rendezvous, Site, SplitQueue, Splitting
from sluice.errors import BadConfiguration
from tests.stacks.conftest import PROJECT
from tests.stacks.test_synth import NODE_PATH, digests
from tests.templates.test_lint import IGNORED, found_in

EXAMPLE = PROJECT / "docs" / "examples" / "orders"
pytestmark = pytest.mark.usefixtures("layer")


def example(outdir: Path) -> Path:
    given = {"PATH": NODE_PATH, "PYTHONPATH": str(PROJECT), "CDK_VALIDATION": "false"}
    told = {"CDK_OUTDIR": str(outdir), "CDK_CONTEXT_JSON": "{}"}
    done = subprocess.run(
        [sys.executable, "app.py"], cwd=EXAMPLE, env={**given, **told}, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr  # a finding of cdk-nag fails it
    return outdir


@pytest.fixture(scope="module")
def assembly(layer: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return example(tmp_path_factory.mktemp("orders"))


@pytest.fixture
def stack() -> Stack:
    return Stack(App(analytics_reporting=False), "Theirs")


def resources(stack: Stack, kind: str) -> Mapping[str, Mapping[str, Any]]:
    found = Template.from_stack(stack).find_resources(kind)
    return {id_: each.get("Properties", {}) for id_, each in found.items()}


def functions(stack: Stack) -> set[str]:
    return {resource["FunctionName"] for resource in resources(stack, "AWS::Lambda::Function").values()}


@pytest.mark.slow
def test_the_example_is_as_the_schemas_of_its_resources_say(assembly: Path) -> None:
    found = found_in((assembly / "Orders.template.json").read_text())
    assert [(rule, said) for rule, said in found if rule not in IGNORED] == []


@pytest.mark.slow
def test_the_example_gives_the_same_bytes_twice(assembly: Path, tmp_path: Path) -> None:
    assert digests(example(tmp_path)) == digests(assembly)


def test_what_commands_look_for_is_stored_under_the_names_of_our_stacks(assembly: Path) -> None:
    template = json.loads((assembly / "Orders.template.json").read_text())
    stored = {
        resource["Properties"]["Name"]
        for resource in template["Resources"].values()
        if resource["Type"] == "AWS::SSM::Parameter" and "/outputs/" in resource["Properties"]["Name"]
    }
    assert stored == {f"/Sluice{name}/outputs/0" for name in ("Splitting", "Federation", "Operations")}


def test_what_roles_and_peers_know_by_name_is_named_after_the_stage(stack: Stack) -> None:
    Exchange(stack, "Exchange", stage="dev", parameters={"peer_accounts": ["111111111111"], "access": "role"})
    assert functions(stack) == {f"dev-SluiceFederation-{name}" for name in ("Exchange", "Bridge", "Links")}
    named = {
        resource["QueueName"] for resource in resources(stack, "AWS::SQS::Queue").values() if "QueueName" in resource
    }
    assert named == {
        f"dev-SluiceState-Federation{name}" for name in ("Links.fifo", "LinkIngress", "FifoLinkIngress.fifo")
    }
    roles = [resource["RoleName"] for resource in resources(stack, "AWS::IAM::Role").values() if "RoleName" in resource]
    assert roles == [{"Fn::Join": ["", ["dev-SluiceFederation-PeerRole-", {"Ref": "AWS::Region"}]]}]


def test_queues_that_are_given_are_not_made(stack: Stack) -> None:
    source, main = aws_sqs.Queue(stack, "Source"), aws_sqs.Queue(stack, "Main")
    split = SplitQueue(stack, "Split", queue_id="orders", source_queue=source, main_queue=main)
    assert (split.source_queue, split.main_queue) == (source, main)
    made = {id_[:-8] for id_ in resources(stack, "AWS::SQS::Queue")}
    assert made == {"Source", "Main", "SplitSplittingControlQueue", "SplitSplittingSplittingDeadLetters"}
    [told] = [
        resource["Value"]
        for resource in resources(stack, "AWS::SSM::Parameter").values()
        if resource["Name"].startswith("/SluiceSplitting/splitter/")
    ]
    ids = [stack.get_logical_id(queue.node.default_child) for queue in (source, main)]  # type: ignore[arg-type]  # its resource
    assert [part["Fn::GetAtt"] for part in told["Fn::Join"][1] if isinstance(part, dict) and "Fn::GetAtt" in part] == [
        [id_, "QueueName"] for id_ in ids
    ]


def test_queues_share_the_functions_of_their_splitting(stack: Stack) -> None:
    splitting = Splitting(stack, "Splitting", parameters={"max_concurrency": 5})
    for queue_id in ("orders", "bills"):
        SplitQueue(stack, queue_id, queue_id=queue_id, splitting=splitting, fifo=queue_id == "bills")
    assert functions(stack) == {"SluiceSplitting-Splitter", "SluiceSplitting-Control"}
    mappings = resources(stack, "AWS::Lambda::EventSourceMapping").values()
    assert sorted(mapping.get("ScalingConfig", {}).get("MaximumConcurrency", 0) for mapping in mappings) == [0, 5, 5]


def test_functions_may_use_the_keys_of_queues_that_are_given(stack: Stack) -> None:
    key = aws_kms.Key(stack, "Key")
    queue = aws_sqs.Queue(stack, "Main", encryption_master_key=key)
    split = SplitQueue(stack, "Split", queue_id="orders", main_queue=queue)
    exchange = Exchange(stack, "Exchange")
    exchange.bind(queue, exchange="events", key="#")
    arn = stack.resolve(key.key_arn)
    roles = resources(stack, "AWS::IAM::Role")
    using = {
        id_
        for id_, role in roles.items()
        for policy in role.get("Policies", [])
        for statement in policy["PolicyDocument"]["Statement"]
        if statement["Resource"] == arn
    }
    names = ("SplitSplittingSplitter", "SplitSplittingControl", "ExchangeExchange", "ExchangeBridge", "ExchangeLinks")
    assert {id_[:-8] for id_ in using} == {f"{name}Role" for name in names}
    assert split.main_queue is queue


def test_a_binding_is_declared_to_the_links_function(stack: Stack) -> None:
    exchange = Exchange(stack, "Exchange")
    exchange.declare("shop", "direct")
    exchange.bind(aws_sqs.Queue(stack, "Invoices"), exchange="shop", key="paid")
    settings = [
        stack.resolve(resource["Value"])
        for resource in resources(stack, "AWS::SSM::Parameter").values()
        if resource["Name"].startswith("/SluiceFederation/links/")
    ]
    told = json.dumps(settings).replace(" ", "").replace("\\", "")
    assert '{"exchange":"shop","queue":"Invoices","key":"paid","arguments":{}}' in told
    assert '{"name":"shop","type":"direct","alternate":null}' in told


@pytest.mark.slow
def test_a_whole_site_fits_into_one_stack_without_findings(stack: Stack) -> None:
    topic = aws_sns.Topic(stack, "Topic", enforce_ssl=True)
    site = Site(stack, "Sluice", alarms_topic=topic, removal_policy=RemovalPolicy.DESTROY)
    Validations.of(stack.node.root).add_plugins(AwsSolutionsChecks())
    template = stack.node.root.synth().get_stack_by_name("Theirs").template  # type: ignore[attr-defined]  # an app's
    assert site.pipeline is not None
    assert [found for found in found_in(json.dumps(template)) if found[0] not in IGNORED] == []
    alarms = [
        resource for resource in template["Resources"].values() if resource["Type"] == "AWS::CloudWatch::CompositeAlarm"
    ]
    told = stack.resolve(topic.topic_arn)
    assert [alarm["Properties"]["AlarmActions"] for alarm in alarms] == [[told]] * 4


def test_jobs_run_in_the_vpc_that_is_given(stack: Stack) -> None:
    vpc = aws_ec2.Vpc(stack, "Vpc")
    queue, exchange = aws_sqs.Queue(stack, "Landing"), Exchange(stack, "Exchange")
    pipeline = LandingPipeline(stack, "Pipeline", queue=queue, exchange=exchange, vpc=vpc)
    [application] = resources(stack, "AWS::EMRServerless::Application").values()
    subnets = [stack.resolve(subnet.subnet_id) for subnet in vpc.private_subnets]
    assert application["NetworkConfiguration"]["SubnetIds"] == subnets
    assert resources(stack, "AWS::EC2::VPCEndpoint") == {}
    assert pipeline.queue is queue


@pytest.mark.parametrize("is_in_app", [False, True])
def test_an_app_with_a_key_and_two_split_queues_has_no_queue_without_the_key(stack: Stack, is_in_app: bool) -> None:
    key = "arn:aws:kms:us-east-1:111111111111:key/12345678-90ab-cdef-1234-567890abcdef"
    if is_in_app:
        key = aws_kms.Key(stack, "Key").key_arn
    orders = SplitQueue(stack, "Orders", queue_id="orders", kms_key_arn=key)
    invoices = SplitQueue(stack, "Invoices", queue_id="invoices", splitting=orders.splitting)
    exchange = Exchange(stack, "Exchange", kms_key_arn=key)
    LandingPipeline(stack, "Pipeline", queue=invoices, exchange=exchange, kms_key_arn=key)
    queues = resources(stack, "AWS::SQS::Queue")
    assert [id_ for id_, queue in queues.items() if queue.get("KmsMasterKeyId") != stack.resolve(key)] == []


def test_who_is_granted_offers_may_do_what_clients_do(stack: Stack) -> None:
    rendezvous = Rendezvous(stack, "Rendezvous")
    role = aws_iam.Role(stack, "Role", assumed_by=aws_iam.AccountRootPrincipal())
    rendezvous.grant_offer(role)
    Template.from_stack(stack).has_resource_properties(
        "AWS::IAM::Policy",
        {
            "Roles": [stack.resolve(role.role_name)],
            "PolicyDocument": {
                "Statement": [
                    {"Action": "sqs:SendMessage", "Resource": stack.resolve(rendezvous.offers_queue.queue_arn)},
                    {"Action": ["sqs:ReceiveMessage", "sqs:GetQueueUrl"], "Resource": Match.any_value()},
                ]
            },
        },
    )


@pytest.mark.parametrize(
    ("ask", "said"),
    [
        (lambda stack: Exchange(stack, "Again"), "Theirs/Again: Theirs/Exchange is already SluiceFederation"),
        (
            lambda stack: Rendezvous(stack, "Meeting", parameters={"held_proxies_max": 0}),
            "Theirs/Meeting: parameter sluice.rendezvous.held_proxies_max: 0 is not a whole number",
        ),
        (
            lambda stack: Exchange(stack, "Other", stage="UPPER"),
            "Theirs/Other: parameter sluice.stage: 'UPPER' is not",
        ),
        (
            lambda stack: SplitQueue(
                stack, "Split", queue_id="orders", main_queue=aws_sqs.Queue(stack, "Main", fifo=True), fifo=False
            ),
            "Theirs/Split: all queues and fifo must be of one type, FIFO or standard",
        ),
        (
            lambda stack: Rendezvous(stack, "Meeting", removal_policy=RemovalPolicy.SNAPSHOT),
            "Theirs/Meeting: removal_policy must be RETAIN or DESTROY",
        ),
        (
            lambda stack: Operations(stack, "Operations", watched=[Splitting(stack, "Dev", stage="dev")]),
            "Theirs/Operations: Theirs/Dev belongs to another stage",
        ),
        (
            lambda stack: SplitQueue(stack, "Split", queue_id="orders", parameters={"fifoo": True}),
            "Theirs/Split: parameter sluice.splitting.queues: [0][fifoo]: there is no such parameter; there are",
        ),
        (
            lambda stack: SplitQueue(stack, "Split", queue_id="orders", parameters={"queue_id": "invoices"}),
            "Theirs/Split: queue_id is an argument, so it can't be in parameters",
        ),
    ],
)
def test_what_cannot_be_is_refused_with_the_path_of_the_construct(
    stack: Stack, ask: Callable[[Stack], Construct], said: str
) -> None:
    Exchange(stack, "Exchange")
    with pytest.raises(BadConfiguration) as refused:
        ask(stack)
    assert str(refused.value).startswith(said)


@pytest.mark.parametrize(
    ("create", "required", "typo", "first"),
    [
        (Exchange, {}, "parameter", "state"),
        (LandingPipeline, {"exchange": None}, "subnet", "exchange"),
        (Operations, {"watched": ()}, "alarms_topic", "watched"),
        (Rendezvous, {}, "offer_queue", "offers_queue"),
        (Site, {}, "kms_key", "offers_queue"),
        (SplitQueue, {"queue_id": "orders"}, "mainqueue", "queue_id"),
        (SplitQueue, {"queue_id": "orders"}, "removalPolicy", "queue_id"),
        (SplitQueue, {"queue_id": "orders"}, "queue", "queue_id"),
        (Splitting, {}, "logLevel", "state"),
        (Splitting, {}, "queues", "state"),
    ],
)
def test_an_argument_that_a_construct_does_not_take_is_refused_with_those_it_takes(
    stack: Stack, create: Any, required: Mapping[str, object], typo: str, first: str
) -> None:
    with pytest.raises(BadConfiguration, match=f"^Theirs/It: there is no argument {typo}; there are {first}, .*stage"):
        create(stack, "It", **required, **{typo: None})


def _bind(stack: Stack, **arguments: Any) -> None:
    Exchange(stack, "It").bind(**{"queue": aws_sqs.Queue(stack, "Queue"), "exchange": "events", **arguments})


TEXT, NUMBER = Aws.REGION, Token.as_number({"Ref": "Number"})
LATER = "its value is a CDK token, known only at deployment: give a literal"


@pytest.mark.parametrize(
    ("create", "arguments", "said"),
    [
        (SplitQueue, {"queue_id": "orders", "main_queue": "orders"}, "argument main_queue: 'orders' is not IQueue"),
        (SplitQueue, {"queue_id": 5}, "argument queue_id: 5 is not str"),
        (SplitQueue, {"queue_id": "orders", "parameters": None}, "argument parameters: None is not Mapping"),
        (SplitQueue, {"queue_id": "orders", "splitting": Mock()}, "argument splitting: Mock is not Splitting"),
        (SplitQueue, {}, "missing a required argument: 'queue_id'"),
        (SplitQueue, {"queue_id": TEXT}, f"argument queue_id: {LATER}"),
        (Splitting, {"parameters": {"queues": [{TEXT: 1}]}}, "argument parameters[queues][0][${Token[AWS.Region."),
        (Splitting, {"parameters": {"max_concurrency": NUMBER}}, f"argument parameters[max_concurrency]: {LATER}"),
        (Splitting, {"parameters": {"queues": Mock()}}, "argument parameters[queues]: Mock is not JSON"),
        (LandingPipeline, {"exchange": "events"}, "argument exchange: 'events' is not Exchange or ExchangeState"),
        (Site, {"stage": TEXT}, f"argument stage: {LATER}"),
        (Site, {"kms_key_arn": ["key"]}, "argument kms_key_arn: list is not str"),
        (Operations, {"watched": [Mock()]}, "argument watched[0]: Mock is not SiteConstruct"),
        (Operations, {"watched": "all"}, "argument watched: 'all' is not Sequence[SiteConstruct]"),
        (lambda stack, _, **given: _bind(stack, **given), {"queue": "orders"}, "argument queue of bind: 'orders' is"),
        (lambda stack, _, **given: _bind(stack, **given), {"key": TEXT}, f"argument key of bind: {LATER}"),
        (lambda stack, _, **given: _bind(stack, **given), {"keys": "#"}, "there is no argument keys of bind; there"),
    ],
)
def test_an_argument_of_another_type_or_known_only_at_deployment_is_refused(
    stack: Stack, create: Any, arguments: Mapping[str, object], said: str
) -> None:
    with pytest.raises(BadConfiguration) as refused:
        create(stack, "It", **arguments)
    assert str(refused.value).startswith(f"Theirs/It: {said}")


def test_a_scope_that_is_no_construct_is_refused() -> None:
    with pytest.raises(BadConfiguration, match=r"^Exchange: argument scope: 'Theirs' is not Construct"):
        Exchange("Theirs", "It")  # type: ignore[arg-type]  # the error


def test_every_construct_checks_its_arguments() -> None:
    created = [getattr(constructs, name) for name in constructs.__all__]
    unchecked = [
        each for each in created if issubclass(each, Construct) and not hasattr(vars(each)["__init__"], "__wrapped__")
    ]
    assert unchecked == []


def test_two_stages_and_two_regions_have_an_exchange_each() -> None:
    app = App()
    for region in ("eu-central-1", "us-east-1"):
        for stage in ("dev", "prod"):
            there = Stack(app, f"{stage}-{region}", env={"account": "111111111111", "region": region})
            Exchange(there, "Exchange", stage=stage)
    assert len(app.synth().stacks) == 4


def test_nothing_can_be_added_to_what_is_made(stack: Stack) -> None:
    exchange = Exchange(stack, "Exchange")
    exchange.finish()
    with pytest.raises(BadConfiguration, match="Theirs/Exchange: the app is being synthesized"):
        exchange.bind(aws_sqs.Queue(stack, "Late"), exchange="events", key="#")
