"""A harsh cloud's keys, roles and policies: what is said of them acts later."""

import json
from typing import Any

import boto3
import pytest
from botocore.exceptions import ClientError

from sluice.aws.connections import Connection, connect_environment
from sluice.local.cloud import Cloud
from sluice.local.sites import DEFAULT_SITE, Site
from tests.harsh.conftest import eventually, made, role
from tests.harsh.functions import code

LISTS = json.dumps(
    {"Version": "2012-10-17", "Statement": [{"Effect": "Allow", "Action": "sqs:ListQueues", "Resource": "*"}]}
)


def error_of(call: Any) -> str:
    """The code of its error, empty where it has none."""
    try:
        call()
    except ClientError as error:
        return error.response["Error"]["Code"]
    return ""


def test_keys_and_policies_act_later(harsh_cloud: Cloud, account: Connection) -> None:
    iam = account.client("iam")
    iam.create_user(UserName="user")
    iam.put_user_policy(UserName="user", PolicyName="lists", PolicyDocument=LISTS)
    key = iam.create_access_key(UserName="user")["AccessKey"]
    secrets = {"AWS_ACCESS_KEY_ID": key["AccessKeyId"], "AWS_SECRET_ACCESS_KEY": key["SecretAccessKey"]}
    theirs = connect_environment(harsh_cloud.environment(DEFAULT_SITE) | secrets).client("sqs")
    assert error_of(theirs.list_queues) == "InvalidClientTokenId"
    eventually(lambda: error_of(theirs.list_queues) == "")
    iam.delete_user_policy(UserName="user", PolicyName="lists")
    assert error_of(theirs.list_queues) == ""
    eventually(lambda: "AccessDenied" in error_of(theirs.list_queues))


def test_a_function_cannot_have_a_role_that_was_just_made(account: Connection) -> None:
    functions, arn = account.client("lambda"), role(account, "just-made")

    def create() -> Any:
        return functions.create_function(
            FunctionName="just-made",
            Role=arn,
            Runtime="python3.11",
            Handler="index.handler",
            Code={"ZipFile": code("handler = print")},
        )

    with pytest.raises(ClientError, match="cannot be assumed by Lambda"):
        create()
    eventually(create, unless=ClientError)


def test_a_queues_policy_acts_later(harsh_cloud: Cloud, sqs: Any) -> None:
    url = made(sqs, "shared")
    stranger = connect_environment(harsh_cloud.environment(Site("111111111111", DEFAULT_SITE.region))).client("sqs")
    statement = {"Effect": "Allow", "Principal": {"AWS": "111111111111"}, "Action": "sqs:SendMessage", "Resource": "*"}
    policy = json.dumps({"Version": "2012-10-17", "Statement": [statement]})

    def send() -> Any:
        return stranger.send_message(QueueUrl=url, MessageBody="body")

    sqs.set_queue_attributes(QueueUrl=url, Attributes={"Policy": policy})
    found = sqs.get_queue_attributes(QueueUrl=url, AttributeNames=["Policy"])["Attributes"]["Policy"]
    assert json.loads(found) == json.loads(policy)
    assert "AccessDenied" in error_of(send)
    eventually(lambda: error_of(send) == "")
    sqs.set_queue_attributes(QueueUrl=url, Attributes={"Policy": ""})
    assert error_of(send) == ""
    eventually(lambda: "AccessDenied" in error_of(send))


def test_a_message_says_which_role_sent_it_and_in_whose_session(harsh_cloud: Cloud, account: Connection) -> None:
    """A role whose policy asks for it is assumed by an account in a session of its own name, and in no other."""
    theirs = harsh_cloud.environment(Site("111111111111", DEFAULT_SITE.region))
    iam, sqs, sts = account.client("iam"), account.client("sqs"), connect_environment(theirs).client("sts")
    named = {"StringEquals": {"sts:RoleSessionName": "${aws:PrincipalAccount}"}}
    trust = {"Effect": "Allow", "Principal": {"AWS": "111111111111"}, "Action": "sts:AssumeRole", "Condition": named}
    sends = {"Effect": "Allow", "Action": "sqs:SendMessage", "Resource": "*"}
    document, allowed = (json.dumps({"Version": "2012-10-17", "Statement": [each]}) for each in (trust, sends))
    made_role = iam.create_role(RoleName="theirs", AssumeRolePolicyDocument=document)["Role"]
    iam.put_role_policy(RoleName="theirs", PolicyName="sends", PolicyDocument=allowed)

    def assume(name: str) -> Any:
        return sts.assume_role(RoleArn=made_role["Arn"], RoleSessionName=name)["Credentials"]

    eventually(lambda: error_of(lambda: assume("111111111111")) == "")
    assert error_of(lambda: assume("222222222222")) == "AccessDenied"
    key = assume("111111111111")
    session = boto3.Session(key["AccessKeyId"], key["SecretAccessKey"], key["SessionToken"], DEFAULT_SITE.region)
    peer = Connection(session, account.endpoint_url).client("sqs")
    url = made(sqs, "told-by-whom")
    eventually(lambda: error_of(lambda: peer.send_message(QueueUrl=url, MessageBody="peer's")) == "")
    sqs.send_message(QueueUrl=url, MessageBody="own")
    senders: dict[str, str] = {}
    while len(senders) < 2:  # the test's own time limit ends it
        found = sqs.receive_message(QueueUrl=url, MaxNumberOfMessages=10, AttributeNames=["All"], WaitTimeSeconds=1)
        senders |= {message["Body"]: message["Attributes"]["SenderId"] for message in found.get("Messages", [])}
    assert senders == {"peer's": f"{made_role['RoleId']}:111111111111", "own": DEFAULT_SITE.account}
