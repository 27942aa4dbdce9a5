"""What the splitting stack promises, each read from the templates that are deployed."""

import json
from collections.abc import Callable
from typing import Any

import pytest

from sluice.splitting.consumers.targets import (
    EcsVariable,
    KubernetesWorkload,
    LambdaTrigger,
    LambdaVariable,
    SystemsManagerParameter,
)
from sluice.splitting.policies import Policy
from sluice.splitting.settings import ControlSettings, SplitterSettings
from tests.stacks.conftest import KEY_ARN, Resource, Templates
from tests.stacks.test_promises import (
    CONSUME,
    HERE,
    WRITE_LOGS,
    allowed,
    listed,
    pairs,
    physical_names,
    readable,
    settings_of,
    text,
    told,
)

TEMPORARY = HERE + "sluice-tmp-*"
TABLE = {f"dynamodb:{action}" for action in ("GetItem", "Query", "PutItem", "UpdateItem")}
QUEUES = [{"queue_id": "a"}, {"queue_id": "b", "fifo": True}]
THEIRS = "arn:aws:sqs:eu-central-1:123456789012:theirs.fifo"
ROLES = ["arn:aws:iam::123456789012:role/task", "arn:aws:iam::123456789012:role/execution"]
FUNCTION = "arn:aws:lambda:eu-central-1:123456789012:function:invoices"
WORKLOAD: dict[str, Any] = {
    "cluster": "shop-eks",
    "namespace": "shop",
    "kind": "StatefulSet",
    "name": "orders",
    "env_like": "QUEUE.*",
}
REPOINTED = [
    {
        "queue_id": "triggered",
        "consumers": [
            {"type": "lambda trigger", "function": "orders:live"},
            {"type": "lambda trigger", "function": FUNCTION},
        ],
    },
    {
        "queue_id": "told",
        "consumers": [{"type": "lambda variable", "function": "orders", "variable": "QUEUE"}],
    },
    {
        "queue_id": "read",
        "fifo": True,
        "existing_source_queue_arn": THEIRS,
        "consumers": [{"type": "parameter", "name": "/orders/queue", "refresh_s": 60}],
    },
    {
        "queue_id": "run",
        "consumers": [
            {
                "type": "ecs variable",
                "cluster": "shop",
                "service": "orders",
                "container": "app",
                "variable": "QUEUE",
                "role_arns": ROLES,
            },
            {"type": "kubernetes", **WORKLOAD},
        ],
    },
    {"queue_id": "with a main queue"},
]


@pytest.fixture(scope="module")
def split(synth: Callable[..., Templates]) -> Templates:
    return synth(**{"sluice.splitting.queues": QUEUES, "sluice.splitting.policies": [{"max_sessions": 3}]})


@pytest.fixture(scope="module")
def repointed(synth: Callable[..., Templates]) -> Templates:
    """Each kind of consumer, and beside them a queue with a main queue."""
    return synth(**{"sluice.splitting.queues": REPOINTED})


def resources(template: Resource, kind: str) -> dict[str, Resource]:
    return {id_: found for id_, found in template["Resources"].items() if found["Type"] == kind}


def named(template: Resource, kind: str, name: str) -> Resource:
    [found] = [found["Properties"] for id_, found in resources(template, kind).items() if id_.startswith(name)]
    return found


def documented(templates: Templates, function: str) -> list[Resource]:
    [policy] = named(templates.splitting, "AWS::IAM::Role", f"{function}Role")["Policies"]
    return list(policy["PolicyDocument"]["Statement"])


def statements(templates: Templates, function: str) -> set[tuple[str, str]]:
    return allowed(documented(templates, function))


def conditional(templates: Templates, function: str) -> dict[frozenset[str], tuple[set[str], Any]]:
    """Resources and condition of every statement that has one, by its actions."""

    def plain(node: Any) -> Any:
        if isinstance(node, list):
            return [plain(each) for each in node]
        is_object = isinstance(node, dict) and not node.keys() & {"Fn::Join", "Fn::GetAtt", "Ref"}
        return {key: plain(value) for key, value in node.items()} if is_object else text(node)

    return {
        frozenset(listed(each["Action"])): ({text(on) for on in listed(each["Resource"])}, plain(each["Condition"]))
        for each in documented(templates, function)
        if "Condition" in each
    }


def told_of(templates: Templates, word: str) -> set[str]:
    """The functions whose parameters have a word."""
    parameters = resources(templates.splitting, "AWS::SSM::Parameter").items()
    return {id_.partition("Settings")[0] for id_, each in parameters if word in text(each["Properties"]["Value"])}


def triggers(templates: Templates) -> dict[str, Resource]:
    found = resources(templates.splitting, "AWS::Lambda::EventSourceMapping").values()
    return {text(each["Properties"]["EventSourceArn"]).removesuffix(".Arn"): each["Properties"] for each in found}


def test_the_control_function_knows_the_policies_and_the_splitter_does_not(split: Templates) -> None:
    assert told(split.splitting, "Control", ControlSettings).policies == (Policy(max_sessions=3),)
    assert told_of(split, "max_sessions") == {"Control"}


def test_every_trigger_reports_partial_failures(split: Templates) -> None:
    found = triggers(split)
    assert set(found) == {"SplitaSource", "SplitbfifoSource", "ControlQueue"}
    assert all(trigger["FunctionResponseTypes"] == ["ReportBatchItemFailures"] for trigger in found.values())


def test_a_queue_is_read_at_once_unless_its_profile_is_throughput(synth: Callable[..., Templates]) -> None:
    queues = [
        {"queue_id": "a"},
        {"queue_id": "b", "profile": "throughput"},
        {"queue_id": "c", "profile": "throughput", "fifo": True},
        {"queue_id": "d", "profile": "provisioned"},
        {"queue_id": "e", "profile": "provisioned", "fifo": True},
    ]
    found = triggers(synth(**{"sluice.splitting.queues": queues}))
    read = {name: (each["BatchSize"], each.get("MaximumBatchingWindowInSeconds")) for name, each in found.items()}
    assert read == {
        "SplitaSource": (10, 0),
        "SplitbSource": (1000, 1),
        "SplitcfifoSource": (10, None),
        "SplitdSource": (10, 0),
        "SplitefifoSource": (10, None),
        "ControlQueue": (10, None),
    }
    provisioned = {name: each for name, each in found.items() if "ProvisionedPollerConfig" in each}
    assert set(provisioned) == {"SplitdSource"}
    assert provisioned["SplitdSource"]["ProvisionedPollerConfig"] == {"MinimumPollers": 2, "MaximumPollers": 5}
    assert "ScalingConfig" not in provisioned["SplitdSource"]


def test_a_message_stays_invisible_for_six_times_the_functions_timeout(split: Templates) -> None:
    queues = resources(split.state, "AWS::SQS::Queue")
    functions = {id_: f["Properties"] for id_, f in resources(split.splitting, "AWS::Lambda::Function").items()}
    for source, trigger in triggers(split).items():
        [queue] = [found["Properties"] for id_, found in queues.items() if readable(id_) == source]
        timeout_s = functions[trigger["FunctionName"]["Ref"]]["Timeout"]
        assert queue["VisibilityTimeout"] >= 6 * timeout_s + trigger.get("MaximumBatchingWindowInSeconds", 0)


def test_topics_and_buckets_send_to_the_source_that_lists_them(synth: Callable[..., Templates]) -> None:
    topic, bucket = "arn:aws:sns:eu-central-1:111122223333:orders", "arn:aws:s3:::orders"
    made = synth(**{"sluice.splitting.queues": [{"queue_id": "a", "sender_arns": [topic, bucket]}, {"queue_id": "b"}]})
    sources = {
        readable(policy["Properties"]["Queues"][0]["Ref"]): policy["Properties"]["PolicyDocument"]["Statement"]
        for policy in resources(made.state, "AWS::SQS::QueuePolicy").values()
    }
    found = {
        statement["Principal"]["Service"]: statement
        for statement in sources["SplitaSource"]
        if statement["Effect"] == "Allow"
    }
    assert {each["Action"] for each in found.values()} == {"sqs:SendMessage"}
    assert found["sns.amazonaws.com"]["Condition"] == {"ArnEquals": {"aws:SourceArn": topic}}
    assert found["s3.amazonaws.com"]["Condition"] == {
        "ArnEquals": {"aws:SourceArn": bucket},
        "StringEquals": {"aws:SourceAccount": {"Ref": "AWS::AccountId"}},
    }
    assert not [statement for statement in sources["SplitbSource"] if statement["Effect"] == "Allow"]


def test_every_queue_of_a_split_has_dead_letters_of_its_own_kind(split: Templates) -> None:
    queues = {readable(id_): q["Properties"] for id_, q in resources(split.state, "AWS::SQS::Queue").items()}
    for name in ("SplitaSource", "SplitaMain"):
        assert text(queues[name]["RedrivePolicy"]["deadLetterTargetArn"]) == "SplittingDeadLetters.Arn"
        assert "FifoQueue" not in queues[name]
    for name in ("SplitbfifoSource", "SplitbfifoMain"):
        assert text(queues[name]["RedrivePolicy"]["deadLetterTargetArn"]) == "SplitbfifoDeadLetters.Arn"
        assert queues[name]["FifoQueue"] is queues["SplitbfifoDeadLetters"]["FifoQueue"] is True


def test_fifo_queues_have_the_high_throughput_of_groups(split: Templates) -> None:
    """https://docs.aws.amazon.com/AWSSimpleQueueService/latest/SQSDeveloperGuide/enable-high-throughput-fifo.html."""
    queues = {readable(id_): q["Properties"] for id_, q in resources(split.state, "AWS::SQS::Queue").items()}
    for name in ("SplitbfifoSource", "SplitbfifoMain"):
        assert (queues[name]["DeduplicationScope"], queues[name]["FifoThroughputLimit"]) == (
            "messageGroup",
            "perMessageGroupId",
        )
    assert "DeduplicationScope" not in queues["SplitaSource"]


def test_the_splitter_may_do_exactly_this(split: Templates) -> None:
    sources, mains = {"SplitaSource.Arn", "SplitbfifoSource.Arn"}, {"SplitaMain.Arn", "SplitbfifoMain.Arn"}
    assert statements(split, "Splitter") == pairs(
        (TABLE, {"SplittingTable.Arn"}),
        (CONSUME, sources),
        ({"sqs:SendMessage"}, {*mains, TEMPORARY, "ControlQueue.Arn", "SplittingDeadLetters.Arn"}),
        settings_of("Splitting", "Splitter"),
        (WRITE_LOGS, {"SplitterLogs.Arn"}),
    )


def test_the_control_function_may_do_exactly_this(split: Templates) -> None:
    sources, mains = {"SplitaSource.Arn", "SplitbfifoSource.Arn"}, {"SplitaMain.Arn", "SplitbfifoMain.Arn"}
    temporary = {"CreateQueue", "TagQueue", "GetQueueAttributes", "ReceiveMessage", "DeleteMessage", "DeleteQueue"}
    assert statements(split, "Control") == pairs(
        (TABLE | {"dynamodb:DeleteItem"}, {"SplittingTable.Arn"}),
        ({f"sqs:{action}" for action in temporary}, {TEMPORARY}),
        ({"sqs:SendMessage"}, {*mains, "ControlQueue.Arn", "SplittingDeadLetters.Arn"}),
        (CONSUME, {"ControlQueue.Arn"}),
        ({"sqs:ListQueues"}, {"*"}),
        ({"sqs:GetQueueAttributes", "sqs:ListQueueTags"}, sources),
        settings_of("Splitting", "Control"),
        (WRITE_LOGS, {"ControlLogs.Arn"}),
    )


def test_keys_and_buckets_are_allowed_where_they_are_named(otherwise: Templates) -> None:
    kms = pairs(({"kms:Encrypt", "kms:Decrypt", "kms:GenerateDataKey"}, {KEY_ARN}))
    assert statements(otherwise, "Splitter") >= kms | {("s3:GetObject", "arn:aws:s3:::bucket/*")}
    assert statements(otherwise, "Control") >= kms


def test_an_adopted_queue_isnt_made_again(synth: Callable[..., Templates]) -> None:
    arn = "arn:aws:sqs:eu-central-1:123456789012:theirs"
    templates = synth(**{"sluice.splitting.queues": [{"queue_id": "q", "existing_source_queue_arn": arn}]})
    assert not [id_ for id_ in resources(templates.state, "AWS::SQS::Queue") if id_.startswith("SplitaSource")]
    assert arn in triggers(templates)
    assert ("sqs:DeleteMessage", arn) in statements(templates, "Splitter")


def test_a_fifo_queue_that_is_adopted_whole_has_its_owners_dead_letters(synth: Callable[..., Templates]) -> None:
    """A queue of ours for them, that nothing refers to, would be a finding of cdk-nag's."""
    source, main = (f"arn:aws:sqs:eu-central-1:123456789012:{name}.fifo" for name in ("source", "main"))
    adopted = {"fifo": True, "existing_source_queue_arn": source, "existing_main_queue_arn": main}
    templates = synth(**{"sluice.splitting.queues": [{"queue_id": "q", **adopted}]})
    assert not [id_ for id_ in resources(templates.state, "AWS::SQS::Queue") if id_.startswith("Splita")]


def test_without_queues_the_stack_stands_all_the_same(synth: Callable[..., Templates]) -> None:
    assert set(triggers(synth(**{"sluice.splitting.queues": []}))) == {"ControlQueue"}


def test_a_queue_whose_consumers_are_repointed_has_no_main_queue(repointed: Templates) -> None:
    made = {readable(id_) for id_ in resources(repointed.state, "AWS::SQS::Queue")}
    assert {name for name in made if name.startswith("Split")} == {
        "SplittriggeredSource",
        "SplittoldSource",
        "SplitrunSource",
        "SplitwithamainqueSource",
        "SplitwithamainqueMain",
        "SplittingDeadLetters",
    }
    for function in ("Splitter", "Control"):
        known = told(repointed.splitting, function, SplitterSettings).split_queues
        assert [each.queue_id for each in known if each.main is not None] == ["with a main queue"]


def test_the_splitter_reads_such_a_queue_only_when_it_is_told_to(repointed: Templates, split: Templates) -> None:
    on = {source: trigger.get("Enabled") for source, trigger in triggers(repointed).items()}
    off = dict.fromkeys(("SplittriggeredSource", "SplittoldSource", THEIRS, "SplitrunSource"), False)
    assert on == off | {"SplitwithamainqueSource": None, "ControlQueue": None}
    assert {trigger.get("Enabled") for trigger in triggers(split).values()} == {None}


def test_control_alone_is_told_of_triggers_and_targets(repointed: Templates, split: Templates) -> None:
    known = told(repointed.splitting, "Control", ControlSettings).repointed
    ids = [id_ for id_ in resources(repointed.splitting, "AWS::Lambda::EventSourceMapping") if id_.startswith("Split")]
    assert [each.trigger_id for each in known] == [f"{{{id_}}}" for id_ in ids[:4]]
    assert {each.queue_id: each.targets for each in known} == {
        "triggered": (LambdaTrigger(function="orders:live"), LambdaTrigger(function=FUNCTION)),
        "told": (LambdaVariable(function="orders", variable="QUEUE"),),
        "read": (SystemsManagerParameter(name="/orders/queue", refresh_s=60),),
        "run": (
            EcsVariable(cluster="shop", service="orders", container="app", variable="QUEUE"),
            KubernetesWorkload(**WORKLOAD),
        ),
    }
    assert told(split.splitting, "Control", ControlSettings).repointed == ()
    assert told_of(repointed, "orders:live") == {"Control"}


def test_the_splitter_may_do_nothing_more_where_consumers_are_repointed(repointed: Templates) -> None:
    sources = {
        "SplittriggeredSource.Arn",
        "SplittoldSource.Arn",
        THEIRS,
        "SplitrunSource.Arn",
        "SplitwithamainqueSource.Arn",
    }
    assert statements(repointed, "Splitter") == pairs(
        (TABLE, {"SplittingTable.Arn"}),
        (CONSUME, sources),
        (
            {"sqs:SendMessage"},
            {"SplitwithamainqueMain.Arn", TEMPORARY, "ControlQueue.Arn", "SplittingDeadLetters.Arn"},
        ),
        settings_of("Splitting", "Splitter"),
        (WRITE_LOGS, {"SplitterLogs.Arn"}),
    )


def of_service(service: str, name: str) -> str:
    return HERE.replace(":sqs:", f":{service}:") + name


def test_control_may_do_exactly_this_to_repoint_consumers(repointed: Templates) -> None:
    sources = {"SplittriggeredSource.Arn", "SplittoldSource.Arn", THEIRS, "SplitrunSource.Arn"}
    mappings = resources(repointed.splitting, "AWS::Lambda::EventSourceMapping")
    own = {of_service("lambda", f"event-source-mapping:{{{id_}}}") for id_ in mappings if id_.startswith("Split")}
    own = {each for each in own if "Splitwithamainque" not in each}
    temporary = {"CreateQueue", "TagQueue", "GetQueueAttributes", "ReceiveMessage", "DeleteMessage", "DeleteQueue"}
    plain = [each for each in documented(repointed, "Control") if "Condition" not in each]
    assert allowed(plain) == pairs(
        (TABLE | {"dynamodb:DeleteItem"}, {"SplittingTable.Arn"}),
        ({f"sqs:{action}" for action in temporary}, {TEMPORARY}),
        (
            {"sqs:SendMessage"},
            {*sources, "SplitwithamainqueMain.Arn", TEMPORARY, "ControlQueue.Arn", "SplittingDeadLetters.Arn"},
        ),
        (CONSUME, {"ControlQueue.Arn"}),
        ({"sqs:ListQueues"}, {"*"}),
        ({"sqs:GetQueueAttributes", "sqs:ListQueueTags"}, {*sources, "SplitwithamainqueSource.Arn"}),
        settings_of("Splitting", "Control"),
        (WRITE_LOGS, {"ControlLogs.Arn"}),
        ({"lambda:GetEventSourceMapping", "lambda:UpdateEventSourceMapping"}, own),
        ({"lambda:ListEventSourceMappings"}, {"*"}),
        (
            {"lambda:GetFunctionConfiguration", "lambda:UpdateFunctionConfiguration"},
            {of_service("lambda", "function:orders")},
        ),
        ({"ssm:GetParameter", "ssm:PutParameter"}, {of_service("ssm", "parameter/orders/queue")}),
        ({"ssm:DescribeParameters"}, {"*"}),
        ({"ecs:DescribeServices", "ecs:UpdateService"}, {of_service("ecs", "service/shop/orders")}),
        ({"ecs:DescribeTasks"}, {of_service("ecs", "task/shop/*")}),
        ({"ecs:DescribeTaskDefinition", "ecs:DeregisterTaskDefinition"}, {"*"}),
        ({"ecs:RegisterTaskDefinition"}, {of_service("ecs", "task-definition/*:*")}),
        ({"iam:SimulatePrincipalPolicy"}, {*ROLES, "arn:{AWS::Partition}:iam::{AWS::AccountId}:role/*"}),
        ({"eks:DescribeCluster"}, {of_service("eks", "cluster/shop-eks")}),
    )


def test_whom_a_cluster_has_to_know_is_told_where_there_is_one(repointed: Templates, split: Templates) -> None:
    [id_] = [id_ for id_ in resources(repointed.splitting, "AWS::IAM::Role") if id_.startswith("ControlRole")]
    assert repointed.splitting["Outputs"]["ControlRoleArn"]["Value"] == {"Fn::GetAtt": [id_, "Arn"]}
    assert "ControlRoleArn" not in split.splitting["Outputs"]


def test_what_takes_no_resource_has_a_condition_where_it_takes_one(repointed: Templates) -> None:
    orders = of_service("lambda", "function:orders")
    mappings = {f"lambda:{action}EventSourceMapping" for action in ("Create", "Update", "Delete", "Get")}
    assert conditional(repointed, "Control") == {
        frozenset(mappings): ({"*"}, {"ArnLike": {"lambda:FunctionArn": [orders, f"{orders}:live", FUNCTION]}}),
        frozenset({"ecs:ListTasks"}): ({"*"}, {"ArnEquals": {"ecs:cluster": [of_service("ecs", "cluster/shop")]}}),
        frozenset({"ecs:TagResource"}): (
            {of_service("ecs", "task-definition/*:*")},
            {"StringEquals": {"ecs:CreateAction": "RegisterTaskDefinition"}},
        ),
        frozenset({"iam:PassRole"}): (
            set(ROLES),
            {"StringEquals": {"iam:PassedToService": "ecs-tasks.amazonaws.com"}},
        ),
    }


def test_alarms_say_who_reads_a_queue(repointed: Templates) -> None:
    told = {
        readable(id_): alarm["Properties"]["AlarmDescription"]
        for id_, alarm in resources(repointed.operations, "AWS::CloudWatch::Alarm").items()
    }
    assert "wait too long for the consumer" in told["SplittriggeredSourceAgeAlarm"]
    assert "wait too long for the function" in told["SplitwithamainqueSourceAgeAlarm"]


def test_what_is_split_has_no_physical_name(split: Templates) -> None:
    assert physical_names(split.splitting) == set()


def test_a_hundred_queues_fit_into_their_stacks(synth: Callable[..., Templates]) -> None:
    # https://docs.aws.amazon.com/AWSCloudFormation/latest/UserGuide/cloudformation-limits.html
    adopted = "arn:aws:sqs:eu-central-1:123456789012:a-queue-that-somebody-else-made-and-named-"
    queues = [
        {"queue_id": f"queue-{number}"}
        | ({"existing_source_queue_arn": f"{adopted}{number}"} if number % 2 else {"fifo": True})
        for number in range(100)
    ]
    templates = synth(**{"sluice.splitting.queues": [{"queue_id": "pipeline"}, *queues][:100]})
    for template in (templates.state, templates.splitting, templates.operations):
        assert len(template["Resources"]) <= 500
        assert len(template.get("Outputs", {})) <= 200
        assert len(json.dumps(template, separators=(",", ":"))) <= 1_000_000
