"""What is said of queues before they are adopted."""

import json
from dataclasses import replace

import pytest

from sluice.splitting.adoption import MAIN, SOURCE, AdoptedQueue, find_remarks, plan_adoption
from sluice.splitting.consumers.targets import LambdaTrigger

ARN = "arn:aws:sqs:eu-central-1:111122223333:"
KEY = "arn:aws:kms:eu-central-1:111122223333:key/1234abcd"
WELL = {"VisibilityTimeout": "121", "MaximumMessageSize": "1048576", "MessageRetentionPeriod": "1209600"}


def queue(role: str = SOURCE, *, readers: tuple[str, ...] = (), **attributes: str) -> AdoptedQueue:
    return AdoptedQueue(role=role, arn=f"{ARN}{role[:4]}", attributes=WELL | attributes, readers=readers)


def said(
    *queues: AdoptedQueue,
    region: str = "eu-central-1",
    keys: tuple[str, ...] = (),
    notified: bool = False,
    consumers: tuple[LambdaTrigger, ...] = (),
) -> list[tuple[bool, str]]:
    found = find_remarks(queues, region=region, window_s=1, key_arns=keys, is_notified=notified, consumers=consumers)
    return [(remark.refuses, f"{remark.queue}: {remark.problem}") for remark in found]


def redrive(receives: int) -> str:
    return json.dumps({"deadLetterTargetArn": f"{ARN}dead", "maxReceiveCount": receives})


TRIGGER = f"{ARN}orders".replace(":sqs:", ":lambda:").replace("orders", "function:orders:live")


@pytest.mark.parametrize("function", ["orders:live", TRIGGER])
def test_the_trigger_that_is_re_pointed_may_read_the_source_and_no_other(function: str):
    consumers = (LambdaTrigger(function=function),)
    assert said(queue(readers=(TRIGGER,)), consumers=consumers) == []
    [(refuses, text)] = said(queue(readers=(TRIGGER, "arn:other")), consumers=consumers)
    assert (refuses, "arn:other reads it too" in text) == (True, True)
    [(refuses, text)] = said(queue(), consumers=consumers)
    assert (refuses, "isn't read by trigger of function" in text) == (True, True)


def test_queues_that_fit_are_adopted_without_a_word():
    assert said(queue(RedrivePolicy=redrive(5), KmsMasterKeyId="alias/aws/sqs"), queue(MAIN)) == []


@pytest.mark.parametrize(
    ("adopted", "refuses", "words"),
    [
        (queue(VisibilityTimeout="19"), True, "Lambda takes none under the splitter's 20 s"),
        (queue(VisibilityTimeout="20"), False, "may come twice under 121 s"),
        (queue(VisibilityTimeout="120"), False, "may come twice under 121 s"),
        (queue(RedrivePolicy=redrive(1)), True, "fail 1 times"),
        (queue(RedrivePolicy=redrive(4)), True, "fail 4 times"),
        (queue(readers=("arn:reader",)), True, "arn:reader reads it too"),
        (queue(KmsMasterKeyId=KEY), True, "splitting.kms_key_arns"),
        (queue(MAIN, KmsMasterKeyId="1234abcd"), True, "splitting.kms_key_arns"),
        (queue(KmsMasterKeyId="alias/orders"), False, "splitting.kms_key_arns"),
    ],
)
def test_what_is_against_a_queue_is_said(adopted: AdoptedQueue, refuses: bool, words: str):
    [(really, text)] = said(adopted)
    assert really is refuses
    assert adopted.arn in text
    assert words in text


@pytest.mark.parametrize(
    ("permission", "names", "refuses"),
    [("allowAll", False, False), ("byQueue", True, True), ("denyAll", False, True), (None, False, False)],
)
def test_a_dead_letter_queue_must_allow_temporary_queues_whose_names_nobody_knows(
    permission: str | None, *, names: bool, refuses: bool
):
    allows = {"redrivePermission": permission} | ({"sourceQueueArns": [f"{ARN}sour"]} if names else {})
    dead_letter = {"RedriveAllowPolicy": json.dumps(allows)} if permission else {}
    source = replace(queue(readers=(TRIGGER,), RedrivePolicy=redrive(5)), dead_letter=dead_letter)
    heard = said(source, consumers=(LambdaTrigger(function="orders:live"),))
    assert [(is_refused, f"RedriveAllowPolicy is {permission}" in text) for is_refused, text in heard] == (
        [(True, True)] if refuses else []
    )
    assert said(replace(source, readers=())) == []  # a session's own queue has no redrive policy


@pytest.mark.parametrize("named", [KEY, "1234abcd"])
def test_a_key_that_the_functions_may_use_is_fine(named: str):
    assert said(queue(KmsMasterKeyId=named), keys=(KEY,)) == []


def test_topics_and_buckets_cannot_send_to_a_source_that_is_encrypted_with_aws_s_own_key():
    with_own_key = queue(KmsMasterKeyId="alias/aws/sqs"), queue(MAIN, KmsMasterKeyId="alias/aws/sqs")
    [(refuses, text)] = said(*with_own_key, notified=True)
    assert refuses
    assert f"{ARN}sour" in text
    assert "alias/aws/sqs" in text
    assert said(queue(KmsMasterKeyId=KEY), keys=(KEY,), notified=True) == []


def test_a_main_queue_may_have_any_visibility_and_readers():
    assert said(queue(MAIN, VisibilityTimeout="0", RedrivePolicy=redrive(1), readers=("arn:reader",))) == []


@pytest.mark.parametrize(
    ("main", "refuses", "words"),
    [
        (queue(MAIN, MaximumMessageSize="1024"), True, "dead letters"),
        (queue(MAIN, MessageRetentionPeriod="60"), False, "keeps messages for 60 s"),
        (queue(MAIN, DelaySeconds="5"), False, "delays"),
    ],
)
def test_a_main_queue_takes_what_its_source_has(main: AdoptedQueue, refuses: bool, words: str):
    [(really, text)] = said(queue(), main)
    assert (really, words in text) == (refuses, True)


def test_what_watches_the_source_by_name_is_named():
    [(refuses, text)] = said(replace(queue(), watchers={"TargetTracking-orders"}))
    assert not refuses
    assert "alarm TargetTracking-orders watches it by name" in text


def test_a_dead_letter_queue_to_adopt_is_named():
    [(refuses, text)] = said(queue(RedriveAllowPolicy='{"redrivePermission":"allowAll"}'))
    assert (refuses, "RedriveAllowPolicy" in text) == (False, True)


def test_what_changes_for_those_who_use_the_source_is_planned():
    dead = f"{ARN}dead"
    fixed, followed = (
        dict(plan_adoption("orders", adopted, fifo=False, senders=(), keys=(), consumers=(), dead_letters=dead))
        for adopted in ({SOURCE: f"{ARN}orders", MAIN: f"{ARN}main"}, {SOURCE: f"{ARN}orders"})
    )
    assert f"{dead} no longer gets what the consumer fails at, but the main queue's" in followed["dead letters"]
    assert "dead letters" in fixed
    trigger = (LambdaTrigger(function="orders"),)
    plan = plan_adoption(
        "orders", {SOURCE: f"{ARN}orders"}, fifo=False, senders=(), keys=(), consumers=trigger, dead_letters=dead
    )
    moved = dict(plan)
    assert (
        f"{dead} also gets, during sessions, what the consumer fails at in a temporary main queue"
        in (moved["dead letters"])
    )
    for rows in (fixed, followed, moved):
        assert "goes through the splitter again" in rows["redrive"]
        assert "one more queue and function" in rows["latency"]
        assert all(name in rows["scaling"] for name in ("Application Auto Scaling", "HPA", "KEDA"))


def test_lambda_reads_queues_of_its_own_region():
    assert [refuses for refuses, _ in said(queue(), region="eu-west-1")] == [True]


def test_what_is_adopted_isnt_made():
    rows = list(
        plan_adoption("orders", {SOURCE: f"{ARN}orders"}, fifo=True, senders=("arn:t",), keys=(KEY,), consumers=())
    )
    assert ("FIFO queue", "the main queue of orders") in rows
    assert ("FIFO queue", "the source of orders") not in rows
    assert ("policy", "arn:t: SendMessage on arn:aws:sqs:eu-central-1:111122223333:orders") in rows
    assert any(KEY in text for _, text in rows)
    adopted = {SOURCE: f"{ARN}orders", MAIN: f"{ARN}main"}
    assert not [
        row
        for row in plan_adoption("orders", adopted, fifo=False, senders=(), keys=(), consumers=())
        if "queue" in row[0]
    ]
