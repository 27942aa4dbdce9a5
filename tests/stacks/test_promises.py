"""What the stacks promise, each read from the templates that are deployed."""

import json
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeVar, cast

import pytest
from aws_cdk import Stack, aws_sqs

from app import add_stacks
from sluice.federation.settings import BridgeSettings, ExchangeSettings, LinksSettings
from sluice.pipeline.settings import JobsSettings
from sluice.rendezvous.counts.stream import FILTERS
from sluice.rendezvous.settings import BrokerSettings, CountersSettings, ProxySettings, RendezvousSettings
from sluice.settings import Settings
from sluice.splitting.settings import ControlSettings, SplitterSettings
from stacks import create_reproducible_app
from tests.stacks.conftest import CONTEXT, Resource, Templates, find_referred

Synth = Callable[..., Templates]

FUNCTIONS = ("Broker", "Client", "Counters", "Proxy", "Sweeper")
TABLES = ("Table", "SplittingTable")
MATCH = {f"dynamodb:{action}" for action in ("Query", "UpdateItem", "DeleteItem", "BatchWriteItem")}
SWEEP = {"dynamodb:Query", "dynamodb:BatchWriteItem"}
WRITE_LOGS = {"logs:CreateLogStream", "logs:PutLogEvents"}
CONSUME = {
    f"sqs:{action}" for action in ("ReceiveMessage", "DeleteMessage", "GetQueueAttributes", "ChangeMessageVisibility")
}
HERE = "arn:{AWS::Partition}:sqs:{AWS::Region}:{AWS::AccountId}:"
ANSWERS, MAILBOXES = HERE + "snowflake-client-*", HERE + "sluice-mailbox-*"
INGRESS = "FederationIngress.Arn"
WAITING_TABLE = "WaitingTable.Arn"
MEETING_VARIABLES = {"WAITING_TABLE", "DEAD_LETTERS_URL"}
ADOPTED = "arn:aws:sqs:eu-central-1:123456789012:their-offers"


# The ARN of another stack's resource, made of what that stack's document says.
FOREIGN_ARN = re.compile(
    r"arn:\{AWS::Partition\}:(?:sqs|dynamodb|s3):(?:\{AWS::Region\})?:(?:\{AWS::AccountId\})?:(?:table/)?(\w+)"
)


def text(value: Any) -> str:  # noqa: PLR0911 - one case an expression
    """What a value of a template says, for a reader: what another stack has as if it were this one's."""
    match value:
        case str():
            return value
        case {"Fn::Join": [str(separator), [*parts]]}:
            joined = separator.join(text(part) for part in parts)
            return FOREIGN_ARN.sub(r"\1.Arn", joined) if '";' in json.dumps(parts) else joined
        case {"Ref": str(name)}:
            return f"{{{name}}}"
        case {"Fn::GetAtt": [str(id_), str(attribute)]}:
            return f"{readable(id_)}.{attribute}"
        case {"Fn::Select": [4, {"Fn::Split": ["/", url]}]}:  # of a queue, which is called so
            return text(url)
        case {"Fn::Select": _}:
            return re.sub("Stream$", ".StreamArn", readable(find_referred(value) or ""))
        case {"Fn::Sub": str(pattern)}:
            return pattern
    raise AssertionError(f"no reading for {value}")


S = TypeVar("S", bound=Settings)


def told(template: Resource, function: str, type_: type[S]) -> S:
    """What a function is told, by its variables and by the parameters that these name."""
    resources = template["Resources"]
    parameters = {
        f"{{{id_}}}": text(each["Properties"]["Value"])
        for id_, each in resources.items()
        if each["Type"] == "AWS::SSM::Parameter"
    }
    [made] = [
        each["Properties"]
        for id_, each in resources.items()
        if each["Type"] == "AWS::Lambda::Function" and id_[:-8] == function
    ]
    variables = {name: text(value) for name, value in made["Environment"]["Variables"].items()}
    return type_.read(variables, lambda names: "".join(parameters[name] for name in names))


def readable(id_: str) -> str:
    """A logical id without what CDK adds, and without the hash of a name."""
    return re.sub("[0-9a-f]{8}(?=[A-Z]|$)", "", re.sub("[0-9A-F]{8}(?=$|Stream$)", "", id_))


def listed(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]


def allowed(statements: Iterable[Resource]) -> set[tuple[str, str]]:
    """Every pair of action and resource; fails on a statement that isn't a plain permission."""
    pairs = set()
    for statement in statements:
        assert set(statement) == {"Effect", "Action", "Resource"}
        assert statement["Effect"] == "Allow"
        pairs |= {(action, text(on)) for action in listed(statement["Action"]) for on in listed(statement["Resource"])}
    return pairs


def pairs(*rules: tuple[set[str], set[str]]) -> set[tuple[str, str]]:
    return {(action, resource) for actions, resources in rules for action in actions for resource in resources}


def settings_of(stack: str, function: str) -> tuple[set[str], set[str]]:
    """What a function may, that is told more than its variables hold."""
    own = f"parameter/Sluice{stack}/{function.lower()}/*"
    return {"ssm:GetParameters"}, {f"arn:{{AWS::Partition}}:ssm:{{AWS::Region}}:{{AWS::AccountId}}:{own}"}


def find_role(templates: Templates, function: str) -> Resource:
    return templates.one("AWS::IAM::Role", f"{function}Role")


def statements_of(templates: Templates, function: str) -> list[Resource]:
    role = find_role(templates, function)
    assert set(role) == {"AssumeRolePolicyDocument", "Policies"}  # no managed policy
    (policy,) = role["Policies"]
    return list(policy["PolicyDocument"]["Statement"])


def trigger_queues(templates: Templates) -> Mapping[str, Resource]:
    """Triggers by the name of the queue that they consume."""
    triggers = templates.of_type("AWS::Lambda::EventSourceMapping").values()
    return {text(trigger["EventSourceArn"]).removesuffix(".Arn"): trigger for trigger in triggers}


def test_every_trigger_reports_partial_failures(templates: Templates) -> None:
    triggers = trigger_queues(templates)
    assert set(triggers) == {OFFERS, STREAM}
    for trigger in triggers.values():
        assert trigger["FunctionResponseTypes"] == ["ReportBatchItemFailures"]


STREAM = "Table.StreamArn"
OFFERS = "OffersQueuesnowflakebro"


def test_events_are_counted_many_at_once_as_the_tables_stream_tells_of_them(otherwise: Templates) -> None:
    trigger = trigger_queues(otherwise)[STREAM]
    assert (trigger["BatchSize"], trigger["MaximumBatchingWindowInSeconds"]) == (1_000, 7)
    assert (trigger["ParallelizationFactor"], trigger["StartingPosition"]) == (1, "TRIM_HORIZON")
    patterns = [json.loads(each["Pattern"]) for each in trigger["FilterCriteria"]["Filters"]]
    assert patterns == list(FILTERS)
    table = otherwise.one("AWS::DynamoDB::Table", "Table")
    assert table["StreamSpecification"] == {"StreamViewType": "NEW_AND_OLD_IMAGES"}


def test_events_that_cant_be_counted_come_again_so_often_and_so_long(templates: Templates) -> None:
    trigger = trigger_queues(templates)[STREAM]
    assert trigger["BisectBatchOnFunctionError"] is True
    assert (trigger["MaximumRetryAttempts"], trigger["MaximumRecordAgeInSeconds"]) == (100, 12 * 60 * 60)
    assert text(trigger["DestinationConfig"]["OnFailure"]["Destination"]) == "DeadLetters.Arn"


def test_the_counters_may_do_exactly_this(templates: Templates) -> None:
    assert allowed(statements_of(templates, "Counters")) == pairs(
        ({"dynamodb:UpdateItem"}, {"Table.Arn"}),
        ({"dynamodb:GetItem", "dynamodb:Query"}, {"FederationTable.Arn"}),
        ({f"dynamodb:{action}" for action in ("DescribeStream", "GetRecords", "GetShardIterator")}, {STREAM}),
        ({"dynamodb:ListStreams"}, {"*"}),
        ({"sqs:SendMessage"}, {"DeadLetters.Arn", "FederationIngress.Arn"}),
        (WRITE_LOGS, {"CountersLogs.Arn"}),
    )


def declared(templates: Templates) -> Any:
    """What the links function is told to make."""
    return json.loads(told(templates.federation, "Links", LinksSettings).declaration)


def test_the_events_exchange_is_declared_and_nothing_is_bound_to_it(templates: Templates) -> None:
    assert declared(templates)["exchanges"] == [{"name": "events", "type": "topic", "alternate": None}]
    assert declared(templates)["bindings"] == []


def test_another_events_exchange_is_declared_beside_those_of_the_site(synth: Synth) -> None:
    templates = synth(
        **{
            "sluice.rendezvous.events_exchange": "seen",
            "sluice.federation.exchanges": [{"name": "orders", "type": "direct"}],
        }
    )
    assert [exchange["name"] for exchange in declared(templates)["exchanges"]] == ["orders", "seen"]
    assert templates.one("AWS::Lambda::Function", "Counters")["Environment"]["Variables"]["EXCHANGE"] == "seen"


def test_without_an_events_exchange_nothing_is_published_or_counted(synth: Synth) -> None:
    templates = synth(**{"sluice.rendezvous.events_exchange": "null"})
    assert set(trigger_queues(templates)) == {OFFERS}
    assert declared(templates)["bindings"] == []
    for function in ("Broker", "Proxy", "Sweeper"):
        assert ("sqs:SendMessage", INGRESS) not in allowed(statements_of(templates, function))
        variables = templates.one("AWS::Lambda::Function", function)["Environment"]["Variables"]
        assert "EVENTS" not in variables


def test_the_functions_know_their_site_as_federation_does(otherwise: Templates) -> None:
    for function in ("Broker", "Proxy"):
        variables = otherwise.one("AWS::Lambda::Function", function)["Environment"]["Variables"]
        assert json.loads(text(variables["EVENTS"])) == {"site": "frankfurt", "geoip_file": None}
    variables = otherwise.one("AWS::Lambda::Function", "Counters")["Environment"]["Variables"]
    assert (variables["SITE"], text(variables["INGRESS_URL"])) == ("frankfurt", "FederationIngress")


def test_the_offers_trigger_takes_ten_messages_without_a_window(templates: Templates) -> None:
    trigger = trigger_queues(templates)[OFFERS]
    assert trigger["BatchSize"] == 10
    assert "MaximumBatchingWindowInSeconds" not in trigger
    assert trigger["ScalingConfig"] == {"MaximumConcurrency": 10}


def test_an_offer_is_gone_before_sqs_would_move_it_with_its_addresses_to_the_dead_letters(templates: Templates) -> None:
    queue = templates.one("AWS::SQS::Queue", "OffersQueue")
    receives = queue["RedrivePolicy"]["maxReceiveCount"]
    assert receives * queue["VisibilityTimeout"] > queue["MessageRetentionPeriod"]
    assert text(queue["RedrivePolicy"]["deadLetterTargetArn"]) == "DeadLetters.Arn"


def test_a_message_stays_invisible_for_six_times_the_functions_timeout(templates: Templates) -> None:
    triggers = {name: trigger for name, trigger in trigger_queues(templates).items() if name != STREAM}
    assert triggers
    for name, trigger in triggers.items():
        timeout_s = templates.one("AWS::Lambda::Function", text(trigger["FunctionName"]).strip("{}"))["Timeout"]
        window_s = trigger.get("MaximumBatchingWindowInSeconds", 0)
        assert templates.one("AWS::SQS::Queue", name)["VisibilityTimeout"] >= 6 * timeout_s + window_s


def test_offers_are_kept_for_five_minutes_and_dead_letters_for_two_weeks(templates: Templates) -> None:
    for name, seconds in (("OffersQueue", 300), ("DeadLetters", 14 * 86_400)):
        assert templates.one("AWS::SQS::Queue", name)["MessageRetentionPeriod"] == seconds


def test_every_queue_is_encrypted(templates: Templates) -> None:
    queues = templates.of_type("AWS::SQS::Queue")
    assert queues
    assert all(queue["SqsManagedSseEnabled"] for queue in queues.values())


def test_every_queue_refuses_what_comes_without_tls(templates: Templates) -> None:
    guarded = set()
    for policy in templates.of_type("AWS::SQS::QueuePolicy").values():
        (statement,) = policy["PolicyDocument"]["Statement"]
        assert (statement["Effect"], statement["Action"], statement["Principal"]) == ("Deny", "sqs:*", {"AWS": "*"})
        assert statement["Condition"] == {"Bool": {"aws:SecureTransport": "false"}}
        guarded |= {queue["Ref"] for queue in policy["Queues"]}
    assert guarded == set(templates.of_type("AWS::SQS::Queue"))


def physical_names(template: Resource) -> set[str]:
    """The names that resources are given; a name that CDK makes of the logical id, for a policy in a user, is none.

    Nor is a parameter's, which begins with its stack's, or an alias's, which is a part of its function.
    """
    return {
        value
        for id_, resource in template["Resources"].items()
        for key, value in resource.get("Properties", {}).items()
        if resource["Type"] not in {"AWS::SSM::Parameter", "AWS::Lambda::Alias"}
        and key in {"Name", resource["Type"].rsplit("::", 1)[1] + "Name"}
        and value != id_
    }


def test_nothing_has_a_physical_name_but_the_protocols_queue(templates: Templates, otherwise: Templates) -> None:
    for made, offers_queue in ((templates, "snowflake-broker"), (otherwise, "my-broker")):
        assert physical_names(made.state) == {offers_queue}
        for stack in (made.rendezvous, made.splitting, made.federation, made.pipeline, made.operations):
            assert physical_names(stack) == set()


def test_the_broker_may_do_exactly_this(templates: Templates) -> None:
    assert allowed(statements_of(templates, "Broker")) == pairs(
        ({"dynamodb:GetItem", "dynamodb:PutItem", "dynamodb:UpdateItem"}, {"Table.Arn"}),
        (MATCH, {WAITING_TABLE}),
        (CONSUME, {f"{OFFERS}.Arn"}),
        ({"sqs:SendMessage"}, {"DeadLetters.Arn", ANSWERS, MAILBOXES}),
        ({"sqs:CreateQueue"}, {ANSWERS}),
        (WRITE_LOGS, {"BrokerLogs.Arn"}),
    )


def test_the_client_function_may_do_exactly_this(templates: Templates) -> None:
    assert allowed(statements_of(templates, "Client")) == pairs(
        ({"dynamodb:PutItem", "dynamodb:UpdateItem"}, {"Table.Arn"}),
        (MATCH, {WAITING_TABLE}),
        ({"sqs:CreateQueue", "sqs:ReceiveMessage", "sqs:SendMessage"}, {MAILBOXES}),
        (WRITE_LOGS, {"ClientLogs.Arn"}),
    )


def test_the_proxy_may_do_exactly_this(templates: Templates) -> None:
    assert allowed(statements_of(templates, "Proxy")) == pairs(
        ({f"dynamodb:{action}" for action in ("Query", "GetItem", "PutItem", "UpdateItem")}, {"Table.Arn"}),
        (MATCH | {"dynamodb:PutItem"}, {WAITING_TABLE}),
        ({"sqs:CreateQueue", "sqs:ReceiveMessage", "sqs:SendMessage"}, {MAILBOXES}),
        ({"sqs:SendMessage"}, {ANSWERS}),
        ({"sqs:DeleteMessage"}, {"OffersQueuesnowflakebro.Arn"}),
        (WRITE_LOGS, {"ProxyLogs.Arn"}),
    )


def test_the_sweeper_may_do_exactly_this(templates: Templates) -> None:
    assert allowed(statements_of(templates, "Sweeper")) == pairs(
        (SWEEP | {"dynamodb:UpdateItem"}, {"Table.Arn"}),
        (SWEEP | {"dynamodb:Scan", "dynamodb:DeleteItem"}, {WAITING_TABLE}),
        ({"sqs:DeleteQueue"}, {ANSWERS, MAILBOXES}),
        ({"sqs:SendMessage"}, {"DeadLetters.Arn"}),
        ({"sqs:GetQueueAttributes"}, {"OffersQueuesnowflakebro.Arn", "DeadLetters.Arn"}),
        (WRITE_LOGS, {"SweeperLogs.Arn"}),
    )


def test_every_function_has_a_role_of_its_own_that_only_lambda_takes(templates: Templates) -> None:
    roles = [text(function["Role"]) for function in templates.of_type("AWS::Lambda::Function").values()]
    assert sorted(roles) == [f"{function}Role.Arn" for function in FUNCTIONS]
    for function in FUNCTIONS:
        (statement,) = find_role(templates, function)["AssumeRolePolicyDocument"]["Statement"]
        assert statement["Principal"] == {"Service": "lambda.amazonaws.com"}
    assert len(templates.of_type("AWS::IAM::Role")) == len(FUNCTIONS)


def test_clients_may_send_offers_and_read_answers_and_nothing_else(templates: Templates) -> None:
    policy = templates.one("AWS::IAM::Policy")  # no other policy exists
    assert [text(user) for user in policy["Users"]] == [f"{{{id_}}}" for id_ in templates.of_type("AWS::IAM::User")]
    *given, sessions = policy["PolicyDocument"]["Statement"]
    assert allowed(given) == pairs(
        ({"sqs:SendMessage"}, {f"{OFFERS}.Arn"}),
        ({"sqs:ReceiveMessage", "sqs:GetQueueUrl"}, {ANSWERS}),
    )
    assert sessions == {
        "Effect": "Deny",
        "Action": "sqs:*",
        "Resource": "*",
        "Condition": {"Null": {"aws:TokenIssueTime": "false"}},
    }


def test_no_access_key_is_in_a_template(templates: Templates) -> None:
    assert not templates.of_type("AWS::IAM::AccessKey")
    assert templates.one("AWS::IAM::User") == {}


@pytest.mark.parametrize("name", [*TABLES, "WaitingTable"])
def test_a_table_is_as_the_functions_use_it(templates: Templates, name: str) -> None:
    table = templates.one("AWS::DynamoDB::Table", name)
    assert table["KeySchema"] == [
        {"AttributeName": "pk", "KeyType": "HASH"},
        {"AttributeName": "sk", "KeyType": "RANGE"},
    ]
    assert {key["AttributeType"] for key in table["AttributeDefinitions"]} == {"S"}
    assert table["BillingMode"] == "PAY_PER_REQUEST"
    assert table["TimeToLiveSpecification"] == {"AttributeName": "expires_at", "Enabled": True}
    assert not table.keys() & {"GlobalSecondaryIndexes", "LocalSecondaryIndexes"}


def protection(templates: Templates, name: str) -> tuple[str, str, bool]:
    (table,) = [
        found
        for id_, found in templates.state["Resources"].items()
        if found["Type"] == "AWS::DynamoDB::Table" and id_.startswith(name)
    ]
    is_protected = table["Properties"].get("DeletionProtectionEnabled", False)
    return table["DeletionPolicy"], table["UpdateReplacePolicy"], is_protected


@pytest.mark.parametrize("name", TABLES)
def test_a_table_is_protected_and_can_be_restored(templates: Templates, name: str) -> None:
    assert protection(templates, name) == ("Retain", "Retain", True)
    recovery = templates.one("AWS::DynamoDB::Table", name)["PointInTimeRecoverySpecification"]
    assert recovery["PointInTimeRecoveryEnabled"] is True


@pytest.mark.parametrize("name", TABLES)
def test_state_that_needn_t_be_kept_goes_with_its_stack(otherwise: Templates, name: str) -> None:
    assert protection(otherwise, name) == ("Delete", "Delete", False)


def test_who_waits_can_t_be_restored_and_goes_with_the_stack_whatever_is_kept(templates: Templates) -> None:
    """Addresses are in it, and the keys of their hashes."""
    assert "PointInTimeRecoverySpecification" not in templates.one("AWS::DynamoDB::Table", "WaitingTable")
    assert protection(templates, "WaitingTable") == ("Delete", "Delete", False)


@pytest.fixture(scope="module")
def adopting(synth: Synth) -> Templates:
    return synth(**{"sluice.rendezvous.existing_offers_queue_arn": ADOPTED})


def test_an_adopted_queue_isnt_made_again(adopting: Templates) -> None:
    queues = adopting.of_type("AWS::SQS::Queue")
    assert OFFERS not in {readable(id_) for id_ in queues}
    assert not [queue for queue in queues.values() if "QueueName" in queue]


def test_an_adopted_queue_is_consumed_and_open_to_clients(adopting: Templates) -> None:
    assert trigger_queues(adopting)[ADOPTED]["FunctionResponseTypes"] == ["ReportBatchItemFailures"]
    assert ("sqs:DeleteMessage", ADOPTED) in allowed(statements_of(adopting, "Broker"))
    client = allowed(adopting.one("AWS::IAM::Policy")["PolicyDocument"]["Statement"][:-1])
    assert ("sqs:SendMessage", ADOPTED) in client
    url = text(adopting.rendezvous["Outputs"]["OffersQueueUrl"]["Value"])
    assert url == "https://sqs.eu-central-1.{AWS::URLSuffix}/123456789012/their-offers"


def test_the_offers_queue_has_the_name_that_is_asked_for(otherwise: Templates) -> None:
    assert otherwise.one("AWS::SQS::Queue", "OffersQueue")["QueueName"] == "my-broker"


def test_functions_are_told_what_they_need_and_nothing_else(templates: Templates) -> None:
    shared = {
        "TABLE",
        "POWERTOOLS_SERVICE_NAME",
        "POWERTOOLS_METRICS_NAMESPACE",
        "POWERTOOLS_LOG_LEVEL",
    }
    own = {
        "Broker": {"BRIDGES", "EVENTS"} | MEETING_VARIABLES,
        "Client": {"BRIDGES", "EVENTS"} | MEETING_VARIABLES,
        "Counters": {"EXCHANGE", "INGRESS_URL", "SITE", "FEDERATION_TABLE"},
        "Proxy": {
            "ALLOWED_RELAY_PATTERN",
            "OFFERS_URL",
            "HELD_PROXIES_MIN",
            "HELD_PROXIES_MAX",
            "TRUSTED_HOPS",
            "EVENTS",
        }
        | MEETING_VARIABLES,
        "Sweeper": MEETING_VARIABLES,
    }
    for function, extra in own.items():
        variables = templates.one("AWS::Lambda::Function", function)["Environment"]["Variables"]
        assert set(variables) == shared | extra
        assert variables["POWERTOOLS_SERVICE_NAME"] == function.lower()
        assert (text(variables["TABLE"]), text(variables.get("DEAD_LETTERS_URL", "DeadLetters"))) == (
            "Table",
            "DeadLetters",
        )
        assert text(variables.get("WAITING_TABLE", "WaitingTable")) == "WaitingTable"


def test_functions_run_with_the_limits_that_are_asked_for(otherwise: Templates) -> None:
    limits = {
        name: (function["MemorySize"], function["Timeout"])
        for name in FUNCTIONS
        for function in [otherwise.one("AWS::Lambda::Function", name)]
    }
    assert limits == {
        "Broker": (1024, 10),
        "Client": (150, 20),
        "Counters": (512, 30),
        "Proxy": (300, 20),
        "Sweeper": (200, 60),
    }
    assert trigger_queues(otherwise)["OffersQueuemybroker"]["ScalingConfig"] == {"MaximumConcurrency": 7}


def reserved(templates: Templates) -> dict[str, int]:
    functions = templates.of_type("AWS::Lambda::Function").items()
    known = {readable(id_): found.get("ReservedConcurrentExecutions") for id_, found in functions}
    return {name: number for name, number in known.items() if number is not None}


def test_whoever_floods_a_url_takes_no_other_functions_share(templates: Templates, otherwise: Templates) -> None:
    assert reserved(otherwise) == {"Client": 40, "Proxy": 250}
    assert reserved(templates) == {}  # a new account refuses any


def test_functions_log_to_groups_of_their_own_that_forget(otherwise: Templates) -> None:
    for function in FUNCTIONS:
        assert otherwise.one("AWS::Logs::LogGroup", f"{function}Logs")["RetentionInDays"] == 7
        found = otherwise.one("AWS::Lambda::Function", function)
        assert found["LoggingConfig"]["LogGroup"]["Ref"].startswith(f"{function}Logs")
        assert found["Environment"]["Variables"]["POWERTOOLS_LOG_LEVEL"] == "ERROR"


def test_functions_and_their_layer_are_of_one_architecture(templates: Templates) -> None:
    check_architecture(templates, "arm64")


@pytest.mark.slow  # installs all packages anew
def test_functions_and_their_layer_are_of_the_architecture_that_is_asked_for(synth: Synth) -> None:
    check_architecture(synth(**{"sluice.architecture": "x86_64"}), "x86_64")


def check_architecture(templates: Templates, architecture: str) -> None:
    for function in templates.of_type("AWS::Lambda::Function").values():
        assert (function["Runtime"], function["Architectures"]) == ("python3.13", [architecture])
    assert templates.one("AWS::Lambda::LayerVersion")["CompatibleArchitectures"] == [architecture]


def test_what_calls_itself_by_no_queue_is_stopped_as_a_loop(templates: Templates) -> None:
    assert not [each for each in templates.of_type("AWS::Lambda::Function").values() if "RecursiveLoop" in each]


def test_the_urls_of_proxies_and_clients_are_open_to_all(templates: Templates) -> None:
    urls = templates.of_type("AWS::Lambda::Url").values()
    assert {(url["AuthType"], text(url["TargetFunctionArn"])) for url in urls} == {
        ("NONE", "Client.Arn"),
        ("NONE", "Proxy.Arn"),
    }
    open_to_all = [
        grant for grant in templates.of_type("AWS::Lambda::Permission").values() if grant["Principal"] == "*"
    ]
    # Both are asked for since October 2025: https://docs.aws.amazon.com/lambda/latest/dg/urls-auth.html
    assert {grant["Action"] for grant in open_to_all} == {"lambda:InvokeFunctionUrl", "lambda:InvokeFunction"}
    for grant in open_to_all:
        assert grant.get("FunctionUrlAuthType") == "NONE" or grant.get("InvokedViaFunctionUrl") is True


def test_the_sweeper_runs_every_minute_and_its_failures_are_dead_lettered(templates: Templates) -> None:
    rule = templates.one("AWS::Events::Rule")
    assert rule["ScheduleExpression"] == "rate(1 minute)"
    assert [text(target["Arn"]) for target in rule["Targets"]] == ["Sweeper.Arn"]
    sweeper = templates.one("AWS::Lambda::Function", "Sweeper")
    assert text(sweeper["DeadLetterConfig"]["TargetArn"]) == "DeadLetters.Arn"


def test_programs_find_these_outputs(templates: Templates) -> None:
    outputs = {"OffersQueueUrl", "BrokerUrl", "ClientUrl", "ClientUserName", "TableName", "WaitingTableName"}
    assert set(templates.rendezvous["Outputs"]) == {*outputs, "DeadLettersUrl", "SweeperFunctionName"}


def test_a_finding_that_nobody_acknowledged_fails_the_synth(layer: object, tmp_path: Any) -> None:
    made = create_reproducible_app(CONTEXT, outdir=str(tmp_path))
    add_stacks(made)
    aws_sqs.Queue(Stack(made, "Other"), "OpenQueue")
    with pytest.raises(RuntimeError, match="AwsSolutions-SQS4"):
        made.synth()


SETTINGS: Mapping[str, type[Settings]] = {
    "Broker": BrokerSettings,
    "Client": BrokerSettings,
    "Proxy": ProxySettings,
    "Sweeper": RendezvousSettings,
    "Counters": CountersSettings,
    "Splitter": SplitterSettings,
    "Control": ControlSettings,
    "Exchange": ExchangeSettings,
    "Bridge": BridgeSettings,
    "Links": LinksSettings,
    "Jobs": JobsSettings,
}


def test_every_function_reads_what_its_stack_writes(templates: Templates) -> None:
    """Also lists and objects, in whose texts CloudFormation puts what only a deployment knows."""
    found = {}
    for stack in (templates.rendezvous, templates.splitting, templates.federation, templates.pipeline):
        for id_, resource in stack["Resources"].items():
            if resource["Type"] == "AWS::Lambda::Function":
                name, variables = id_[:-8], resource["Properties"]["Environment"]["Variables"]
                found[name] = told(stack, name, SETTINGS[name])
                own = {variable for variable in variables if not variable.startswith("POWERTOOLS_")}
                assert own == set(found[name].environment(stored_under=["/n"] if found[name].STORED_FIELDS else [])), (
                    name
                )
    assert set(found) == set(SETTINGS)
    assert cast("LinksSettings", found["Links"]).here.control_queue_url == "FederationLinks"
    assert cast("LinksSettings", found["Links"]).senders == ("LinksRole.RoleId", "BridgeRole.RoleId")
    ingresses = cast("ExchangeSettings", found["Exchange"]).ingresses.values()
    assert not any(ingress.trusted for ingress in ingresses)
    assert sorted((ingress.fifo, ingress.from_links) for ingress in ingresses) == [
        (False, False),
        (False, True),
        (True, False),
        (True, True),
    ]
