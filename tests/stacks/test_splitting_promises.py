"""What the splitting stack promises, each read from the templates that are deployed."""

from collections.abc import Callable

import pytest

from tests.stacks.conftest import KEY_ARN, Resource, Templates
from tests.stacks.test_promises import CONSUME, HERE, WRITE_LOGS, allowed, pairs, physical_names, text

TEMPORARY = HERE + "sluice-tmp-*"
TABLE = {f"dynamodb:{action}" for action in ("GetItem", "Query", "PutItem", "UpdateItem")}
QUEUES = [{"queue_id": "a"}, {"queue_id": "b", "fifo": True}]


@pytest.fixture(scope="module")
def split(synth: Callable[..., Templates]) -> Templates:
    return synth(**{"sluice.splitting.queues": QUEUES})


def resources(template: Resource, kind: str) -> dict[str, Resource]:
    return {id_: found for id_, found in template["Resources"].items() if found["Type"] == kind}


def statements(templates: Templates, function: str) -> set[tuple[str, str]]:
    [role] = [
        role
        for id_, role in resources(templates.splitting, "AWS::IAM::Role").items()
        if id_.startswith(f"{function}Role")
    ]
    [policy] = role["Properties"]["Policies"]
    return allowed(policy["PolicyDocument"]["Statement"])


def triggers(templates: Templates) -> dict[str, Resource]:
    found = resources(templates.splitting, "AWS::Lambda::EventSourceMapping").values()
    return {text(each["Properties"]["EventSourceArn"]).removesuffix(".Arn"): each["Properties"] for each in found}


def test_every_trigger_reports_partial_failures(split: Templates) -> None:
    found = triggers(split)
    assert set(found) == {"Split0Source", "Split1Source", "ControlQueue"}
    assert all(trigger["FunctionResponseTypes"] == ["ReportBatchItemFailures"] for trigger in found.values())


def test_standard_queues_come_in_large_batches_and_fifo_queues_in_tens_without_a_window(split: Templates) -> None:
    standard, fifo = triggers(split)["Split0Source"], triggers(split)["Split1Source"]
    assert (standard["BatchSize"], standard["MaximumBatchingWindowInSeconds"]) == (1000, 1)
    assert (fifo["BatchSize"], fifo.get("MaximumBatchingWindowInSeconds")) == (10, None)


def test_a_message_stays_invisible_for_six_times_the_functions_timeout(split: Templates) -> None:
    queues = resources(split.state, "AWS::SQS::Queue")
    functions = {id_: f["Properties"] for id_, f in resources(split.splitting, "AWS::Lambda::Function").items()}
    for source, trigger in triggers(split).items():
        [queue] = [found["Properties"] for id_, found in queues.items() if id_.startswith(source)]
        timeout_s = functions[trigger["FunctionName"]["Ref"]]["Timeout"]
        assert queue["VisibilityTimeout"] >= 6 * timeout_s + trigger.get("MaximumBatchingWindowInSeconds", 0)


def test_topics_and_buckets_send_to_the_source_that_lists_them(synth: Callable[..., Templates]) -> None:
    topic, bucket = "arn:aws:sns:eu-central-1:111122223333:orders", "arn:aws:s3:::orders"
    made = synth(**{"sluice.splitting.queues": [{"queue_id": "a", "sender_arns": [topic, bucket]}, {"queue_id": "b"}]})
    sources = {
        policy["Properties"]["Queues"][0]["Ref"].rstrip("0123456789ABCDEF"): policy["Properties"]["PolicyDocument"][
            "Statement"
        ]
        for policy in resources(made.state, "AWS::SQS::QueuePolicy").values()
    }
    found = {
        statement["Principal"]["Service"]: statement
        for statement in sources["Split0Source"]
        if statement["Effect"] == "Allow"
    }
    assert {each["Action"] for each in found.values()} == {"sqs:SendMessage"}
    assert found["sns.amazonaws.com"]["Condition"] == {"ArnEquals": {"aws:SourceArn": topic}}
    assert found["s3.amazonaws.com"]["Condition"] == {
        "ArnEquals": {"aws:SourceArn": bucket},
        "StringEquals": {"aws:SourceAccount": {"Ref": "AWS::AccountId"}},
    }
    assert not [statement for statement in sources["Split1Source"] if statement["Effect"] == "Allow"]


def test_every_queue_of_a_split_has_dead_letters_of_its_own_kind(split: Templates) -> None:
    queues = {
        id_.rstrip("0123456789ABCDEF"): q["Properties"] for id_, q in resources(split.state, "AWS::SQS::Queue").items()
    }
    for name in ("Split0Source", "Split0Main"):
        assert text(queues[name]["RedrivePolicy"]["deadLetterTargetArn"]) == "SplittingDeadLetters.Arn"
        assert "FifoQueue" not in queues[name]
    for name in ("Split1Source", "Split1Main"):
        assert text(queues[name]["RedrivePolicy"]["deadLetterTargetArn"]) == "Split1DeadLetters.Arn"
        assert queues[name]["FifoQueue"] is queues["Split1DeadLetters"]["FifoQueue"] is True


def test_the_splitter_may_do_exactly_this(split: Templates) -> None:
    sources, mains = {"Split0Source.Arn", "Split1Source.Arn"}, {"Split0Main.Arn", "Split1Main.Arn"}
    assert statements(split, "Splitter") == pairs(
        (TABLE, {"SplittingTable.Arn"}),
        (CONSUME, sources),
        ({"sqs:SendMessage"}, {*mains, TEMPORARY, "ControlQueue.Arn", "SplittingDeadLetters.Arn"}),
        (WRITE_LOGS, {"SplitterLogs.Arn"}),
    )


def test_the_control_function_may_do_exactly_this(split: Templates) -> None:
    sources, mains = {"Split0Source.Arn", "Split1Source.Arn"}, {"Split0Main.Arn", "Split1Main.Arn"}
    temporary = {"CreateQueue", "TagQueue", "GetQueueAttributes", "ReceiveMessage", "DeleteMessage", "DeleteQueue"}
    assert statements(split, "Control") == pairs(
        (TABLE | {"dynamodb:DeleteItem"}, {"SplittingTable.Arn"}),
        ({f"sqs:{action}" for action in temporary}, {TEMPORARY}),
        ({"sqs:SendMessage"}, {*mains, "ControlQueue.Arn", "SplittingDeadLetters.Arn"}),
        (CONSUME, {"ControlQueue.Arn"}),
        ({"sqs:ListQueues"}, {"*"}),
        ({"sqs:GetQueueAttributes", "sqs:ListQueueTags"}, sources),
        (WRITE_LOGS, {"ControlLogs.Arn"}),
    )


def test_nothing_has_a_physical_name(split: Templates) -> None:
    assert physical_names(split.splitting) == set()


def test_keys_and_buckets_are_allowed_where_they_are_named(otherwise: Templates) -> None:
    kms = pairs(({"kms:Encrypt", "kms:Decrypt", "kms:GenerateDataKey"}, {KEY_ARN}))
    assert statements(otherwise, "Splitter") >= kms | {("s3:GetObject", "arn:aws:s3:::bucket/*")}
    assert statements(otherwise, "Control") >= kms


def test_an_adopted_queue_isnt_made_again(synth: Callable[..., Templates]) -> None:
    arn = "arn:aws:sqs:eu-central-1:123456789012:theirs"
    templates = synth(**{"sluice.splitting.queues": [{"queue_id": "q", "existing_source_queue_arn": arn}]})
    assert not [id_ for id_ in resources(templates.state, "AWS::SQS::Queue") if id_.startswith("Split0Source")]
    assert arn in triggers(templates)
    assert ("sqs:DeleteMessage", arn) in statements(templates, "Splitter")


def test_a_fifo_queue_that_is_adopted_whole_has_its_owners_dead_letters(synth: Callable[..., Templates]) -> None:
    """A queue of ours for them, that nothing refers to, would be a finding of cdk-nag's."""
    source, main = (f"arn:aws:sqs:eu-central-1:123456789012:{name}.fifo" for name in ("source", "main"))
    adopted = {"fifo": True, "existing_source_queue_arn": source, "existing_main_queue_arn": main}
    templates = synth(**{"sluice.splitting.queues": [{"queue_id": "q", **adopted}]})
    assert not [id_ for id_ in resources(templates.state, "AWS::SQS::Queue") if id_.startswith("Split0")]


def test_without_queues_the_stack_stands_all_the_same(synth: Callable[..., Templates]) -> None:
    assert set(triggers(synth(**{"sluice.splitting.queues": []}))) == {"ControlQueue"}
