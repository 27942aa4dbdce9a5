"""A harsh cloud without our stacks: every behaviour that has a chance is certain, and delays are short."""

import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from sluice.aws.connections import Connection, connect_environment
from sluice.local.cloud import Cloud, start_cloud
from sluice.local.harsh.behaviours import Behaviours
from sluice.local.patches import sqs as sqs_patches
from sluice.local.sites import DEFAULT_SITE
from tests.harsh import dynamodb_patches
from tests.waiting import wait_until

DELAY_S = 2.0  # long enough for a call to come before its end on a busy machine
THERE_AT_ONCE = "excepted-"  # a queue whose name begins so
PARAMETER_READS_PER_S, IN_FLIGHT = 5, 30
BEHAVIOURS = Behaviours(
    queue_appears_s=DELAY_S,
    queues_there_at_once=f"{THERE_AT_ONCE}.*",
    queue_name_taken_s=DELAY_S,
    deleted_queue_takes=1.0,
    mapping_changes_s=DELAY_S,
    access_changes_s=DELAY_S,
    queue_policy_acts_s=DELAY_S,
    duplicated=1.0,
    duplicate_within_s=DELAY_S,
    reordered=1.0,
    short_poll_misses=1.0,
    throttled=0.0,  # a cloud of their own has these: certain, they leave nothing to try
    entry_fails=0.0,
    fifo_entry_fails=0.0,
    expired_item_stays_s=DELAY_S,
    stale_reads=1.0,
    stale_s=DELAY_S,
    parameter_reads_per_s=PARAMETER_READS_PER_S,
    in_flight=IN_FLIGHT,
)
WITHIN_S = 120


@pytest.fixture(scope="session")
def harsh_cloud(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cloud]:
    running = start_cloud(tmp_path_factory.mktemp("harsh"), ends_with_us=True, harsh=BEHAVIOURS)
    try:
        yield running
    finally:
        running.stop()


@pytest.fixture(scope="session")
def patched() -> None:
    """Patch ministack in this process. Importing it raises the process's limit of recursion."""
    sqs_patches.patch()
    dynamodb_patches.patch()


@pytest.fixture(scope="session")
def account(harsh_cloud: Cloud) -> Connection:
    """As its root."""
    return connect_environment(harsh_cloud.environment(DEFAULT_SITE))


@pytest.fixture(scope="session")
def sqs(account: Connection) -> Any:
    return account.client("sqs")


@pytest.fixture(scope="module")
def queue(sqs: Any, request: pytest.FixtureRequest) -> str:
    """A queue that is there, for the tests of a file."""
    return made(sqs, request.module.__name__.rsplit(".", 1)[-1])


@pytest.fixture(scope="session")
def function_role(account: Connection) -> str:
    """The ARN of a role that any function can have."""
    return role(account, "any-function")


def made(sqs: Any, name: str, **attributes: str) -> str:
    """Makes a queue that is there at once, as its name is excepted; its URL, which ends with the name."""
    url: str = sqs.create_queue(QueueName=THERE_AT_ONCE + name, Attributes=attributes)["QueueUrl"]
    return url


def role(account: Connection, name: str) -> str:
    """Makes a role that functions can have; its ARN."""
    trust = {"Effect": "Allow", "Principal": {"Service": "lambda.amazonaws.com"}, "Action": "sts:AssumeRole"}
    document = json.dumps({"Version": "2012-10-17", "Statement": [trust]})
    made_role = account.client("iam").create_role(RoleName=name, AssumeRolePolicyDocument=document)
    arn: str = made_role["Role"]["Arn"]
    return arn


def eventually(done: Callable[[], Any], *, unless: type[Exception] | tuple[type[Exception], ...] = ()) -> Any:
    """What `done` gives once it gives anything, and raises none of these errors."""

    def try_it() -> Any:
        try:
            return done()
        except unless:
            return None

    return wait_until(try_it, within_s=WITHIN_S)
