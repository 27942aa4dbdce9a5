"""What the federation stack promises, each read from the templates that are deployed."""

from collections.abc import Callable

import pytest

from sluice.operator.queues import QUEUE_OUTPUT
from tests.stacks.conftest import Resource, Templates
from tests.stacks.test_promises import (
    CONSUME,
    HERE,
    WRITE_LOGS,
    allowed,
    pairs,
    physical_names,
    readable,
    settings_of,
    text,
)
from tests.stacks.test_splitting_promises import resources

BRIDGES = HERE + "sluice-bridge-*"
PEER = "222222222222"
ACCOUNTS = ("{AWS::AccountId}", PEER)
PEER_QUEUES = {f"arn:{{AWS::Partition}}:sqs:*:{account}:SluiceState-Federation*" for account in ACCOUNTS}
PEER_ROLES = {f"arn:{{AWS::Partition}}:iam::{account}:role/SluiceFederation-PeerRole*" for account in ACCOUNTS}
INGRESSES = ("Ingress", "FifoIngress", "LinkIngress", "FifoLinkIngress", "Ingressamqtopicfifo")
READABLE = {"FederationBoundorders.Arn", HERE + "theirs-*"}
BINDABLE = {*READABLE, "SplitpipelineSource.Arn"}
SEND = {"sqs:SendMessage"}


@pytest.fixture(scope="module")
def federated(synth: Callable[..., Templates]) -> Templates:
    return synth(
        **{
            "sluice.federation.peer_accounts": [PEER],
            "sluice.federation.queues": [{"name": "orders"}],
            "sluice.federation.queue_names": ["theirs-*"],
            "sluice.federation.ingresses": [{"exchange": "amq.topic", "fifo": True}],
        }
    )


def statements(templates: Templates, function: str) -> list[Resource]:
    roles = resources(templates.federation, "AWS::IAM::Role").items()
    [role] = [role for id_, role in roles if id_.startswith(f"{function}Role")]
    [policy] = role["Properties"]["Policies"]
    found: list[Resource] = policy["PolicyDocument"]["Statement"]
    return found


def triggers(templates: Templates) -> dict[str, Resource]:
    found = resources(templates.federation, "AWS::Lambda::EventSourceMapping").values()
    return {text(each["Properties"]["EventSourceArn"]).removesuffix(".Arn"): each["Properties"] for each in found}


def test_every_ingress_and_what_the_links_function_hears_report_partial_failures(federated: Templates) -> None:
    found = triggers(federated)
    assert set(found) == {f"Federation{name}" for name in (*INGRESSES, "Links", "Ticks")}
    assert all(trigger["FunctionResponseTypes"] == ["ReportBatchItemFailures"] for trigger in found.values())
    assert {name for name, trigger in found.items() if "MaximumBatchingWindowInSeconds" in trigger} == {
        "FederationIngress",
        "FederationLinkIngress",
    }


def test_what_peers_send_is_read_when_there_are_some_and_polled_for_nothing_until_then(federated: Templates) -> None:
    off = {name for name, trigger in triggers(federated).items() if trigger.get("Enabled") is False}
    assert off == {"FederationLinkIngress", "FederationFifoLinkIngress", "FederationLinks"}


def test_who_sends_to_and_reads_queues_made_at_run_time_may_use_the_key(
    federated: Templates, synth: Callable[..., Templates]
) -> None:
    key = "arn:aws:kms:eu-central-1:123456789012:key/k"
    encrypted = synth(**{"sluice.federation.kms_key_arn": key})
    sender, receiver = {"kms:Decrypt", "kms:GenerateDataKey"}, {"kms:Decrypt"}
    for function, actions in (("Exchange", sender), ("Bridge", receiver), ("Links", sender)):
        of_keys = [statement for statement in statements(encrypted, function) if "kms:" in str(statement["Action"])]
        assert allowed(of_keys) == pairs((actions, {key}))
        assert not any("kms:" in str(statement["Action"]) for statement in statements(federated, function))


def test_every_queue_has_dead_letters_of_its_own_kind_and_time_for_a_batch(federated: Templates) -> None:
    queues = resources(federated.state, "AWS::SQS::Queue").items()
    found = {readable(id_): queue["Properties"] for id_, queue in queues if id_.startswith("Federation")}
    for name, queue in found.items():
        if name.endswith("DeadLetters"):
            continue
        kind = "FederationFifoDeadLetters.Arn" if queue.get("FifoQueue") else "FederationDeadLetters.Arn"
        assert text(queue["RedrivePolicy"]["deadLetterTargetArn"]) == kind
    functions = {id_: f["Properties"] for id_, f in resources(federated.federation, "AWS::Lambda::Function").items()}
    for name, trigger in triggers(federated).items():
        timeout_s = functions[trigger["FunctionName"]["Ref"]]["Timeout"]
        window_s = trigger.get("MaximumBatchingWindowInSeconds", 0)
        assert found[name]["VisibilityTimeout"] >= 6 * timeout_s + window_s


def test_an_ingress_is_read_at_once_by_default(federated: Templates) -> None:
    found = {
        (each["BatchSize"], each["MaximumBatchingWindowInSeconds"])
        for name, each in triggers(federated).items()
        if name in {"FederationIngress", "FederationLinkIngress"}
    }
    assert found == {(10, 0)}


def test_an_ingress_leaves_time_for_the_window_that_its_trigger_waits(otherwise: Templates) -> None:
    timeouts = {
        id_: function["Properties"]["Timeout"]
        for id_, function in resources(otherwise.federation, "AWS::Lambda::Function").items()
    }
    queues = resources(otherwise.state, "AWS::SQS::Queue")
    visibility = {id_[:-8]: queue["Properties"].get("VisibilityTimeout") for id_, queue in queues.items()}
    ingress = triggers(otherwise)["FederationIngress"]
    assert (ingress["BatchSize"], ingress["MaximumBatchingWindowInSeconds"]) == (100, 300)
    assert visibility["FederationIngress"] == 6 * timeouts[ingress["FunctionName"]["Ref"]] + 300


def test_the_exchange_function_may_do_exactly_this(federated: Templates) -> None:
    assert allowed(statements(federated, "Exchange")) == pairs(
        ({"dynamodb:GetItem", "dynamodb:Query"}, {"FederationTable.Arn"}),
        (CONSUME, {f"Federation{name}.Arn" for name in INGRESSES}),
        (SEND, {BRIDGES, "FederationTicks.Arn", "FederationDeadLetters.Arn", *BINDABLE}),
        (WRITE_LOGS, {"ExchangeLogs.Arn"}),
    )


def test_the_bridge_function_may_do_exactly_this(federated: Templates) -> None:
    assert allowed(statements(federated, "Bridge")) == pairs(
        ({f"dynamodb:{action}" for action in ("GetItem", "PutItem", "UpdateItem")}, {"FederationTable.Arn"}),
        (CONSUME, {BRIDGES, *READABLE}),
        (SEND, {"FederationTicks.Arn", "FederationDeadLetters.Arn", *PEER_QUEUES}),
        ({"sts:AssumeRole"}, PEER_ROLES),
        (WRITE_LOGS, {"BridgeLogs.Arn"}),
    )


def test_the_links_function_may_do_exactly_this(federated: Templates) -> None:
    found = statements(federated, "Links")
    [conditional] = [each for each in found if "Condition" in each]
    assert conditional["Resource"] == "*"
    assert set(conditional["Action"]) == {
        f"lambda:{action}EventSourceMapping" for action in ("Create", "Update", "Delete", "Get")
    }
    [(operator, condition)] = conditional["Condition"].items()
    [(key, functions)] = condition.items()
    of_stack = "arn:{AWS::Partition}:lambda:{AWS::Region}:{AWS::AccountId}:function:SluiceFederation-"
    assert (operator, key, [text(function) for function in functions]) == (
        "ArnLike",
        "lambda:FunctionArn",
        ["Bridge.Arn", f"{of_stack}Exchange*", f"{of_stack}Links*"],
    )
    made = {"CreateQueue", "TagQueue", "GetQueueAttributes", "SetQueueAttributes"}
    made |= {"ReceiveMessage", "SendMessage", "DeleteMessage"}
    assert allowed(each for each in found if each is not conditional) == pairs(
        (
            {f"dynamodb:{action}" for action in ("GetItem", "Query", "PutItem", "UpdateItem", "BatchWriteItem")},
            {"FederationTable.Arn"},
        ),
        ({f"sqs:{action}" for action in made} | {"sqs:DeleteQueue"}, {BRIDGES}),
        ({"sqs:GetQueueAttributes"}, BINDABLE),
        (CONSUME, {"FederationLinks.Arn", "FederationTicks.Arn"}),
        ({"sqs:ReceiveMessage", "sqs:DeleteMessage"}, {"FederationDeadLetters.Arn"}),
        (SEND, {"FederationTicks.Arn", "FederationDeadLetters.Arn", *PEER_QUEUES, *BINDABLE}),
        ({"lambda:ListEventSourceMappings"}, {"*"}),
        ({"sts:AssumeRole"}, PEER_ROLES),
        settings_of("Federation", "Links"),
        (WRITE_LOGS, {"LinksLogs.Arn"}),
    )


def opened(templates: Templates) -> dict[str, set[str]]:
    """The accounts that a queue's policy lets in, by queue."""
    found: dict[str, set[str]] = {}
    for id_, policy in resources(templates.state, "AWS::SQS::QueuePolicy").items():
        for statement in policy["Properties"]["PolicyDocument"]["Statement"]:
            if statement["Effect"] == "Allow":
                assert statement["Action"] == "sqs:SendMessage"
                found[id_] = {text(statement["Principal"]["AWS"])}
    return found


def test_peers_accounts_may_send_to_what_is_for_peers_and_to_nothing_else(federated: Templates) -> None:
    principals = opened(federated)
    assert len(principals) == 3
    assert all(name.startswith(("FederationLink", "FederationFifoLink")) for name in principals)
    assert set.union(*principals.values()) == {f"arn:{{AWS::Partition}}:iam::{PEER}:root"}


def test_or_they_assume_a_role_with_the_external_id(synth: Callable[..., Templates]) -> None:
    templates = synth(
        **{
            "sluice.federation.peer_accounts": [PEER],
            "sluice.federation.access": "role",
            "sluice.federation.external_id": "ours-and-theirs",
        }
    )
    assert opened(templates) == {}
    [trust] = next(
        role["Properties"]["AssumeRolePolicyDocument"]["Statement"]
        for id_, role in resources(templates.federation, "AWS::IAM::Role").items()
        if id_.startswith("PeerRole")
    )
    assert text(trust["Principal"]["AWS"]) == f"arn:{{AWS::Partition}}:iam::{PEER}:root"
    named = {"sts:ExternalId": "ours-and-theirs", "sts:RoleSessionName": "${aws:PrincipalAccount}"}
    assert trust["Condition"] == {"StringEquals": named}
    assert allowed(statements(templates, "Peer")) == pairs(
        (SEND, {"FederationLinks.Arn", "FederationLinkIngress.Arn", "FederationFifoLinkIngress.Arn"})
    )


def test_an_adopted_queue_isnt_made_again(synth: Callable[..., Templates]) -> None:
    arn = "arn:aws:sqs:eu-central-1:123456789012:theirs"
    templates = synth(**{"sluice.federation.queues": [{"name": "orders", "existing_arn": arn}]})
    assert not [id_ for id_ in resources(templates.state, "AWS::SQS::Queue") if id_.startswith("FederationBound")]
    assert ("sqs:SendMessage", arn) in allowed(statements(templates, "Exchange"))


def test_commands_find_each_bound_queue_by_an_output_that_says_its_name(federated: Templates) -> None:
    outputs = federated.federation["Outputs"].items()
    found = {each["Description"]: text(each["Value"]) for key, each in outputs if QUEUE_OUTPUT.fullmatch(key)}
    assert found == {
        "orders": "FederationBoundorders",
        "pipeline": "SplitpipelineSource",
    }


def test_an_exchange_with_fifo_queues_and_peers_has_no_physical_name(federated: Templates) -> None:
    assert physical_names(federated.federation) == set()


def test_messages_may_pass_a_function_more_than_sixteen_times_in_one_trace(federated: Templates) -> None:
    """Lambda ends what it takes for a loop: applications may publish what they receive, link by link."""
    looping = {
        readable(id_)
        for template in (federated.federation, federated.splitting)
        for id_, function in resources(template, "AWS::Lambda::Function").items()
        if function["Properties"].get("RecursiveLoop") == "Allow"
    }
    assert looping == {"Exchange", "Bridge", "Links", "Splitter", "Control"}
