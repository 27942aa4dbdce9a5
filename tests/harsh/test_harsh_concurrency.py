"""A harsh cloud's concurrent executions: an account has few, and some of them can't be reserved."""

import json
import socket
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from typing import Any

import pytest
from botocore.config import Config
from botocore.exceptions import ClientError

from sluice.aws.connections import Connection, connect_environment
from sluice.local.cloud import start_cloud
from sluice.local.harsh.behaviours import Behaviours
from sluice.local.origins import LOOPBACK
from sluice.local.sites import DEFAULT_SITE, Site
from tests.harsh.conftest import eventually
from tests.harsh.functions import deploy_function
from tests.harsh.stacks import Template, deploy, reasons

SMALL, LARGER = 2, 150  # limits of accounts
# Runs until the test closes the connection.
HOLD = f"""
import socket
def handler(event, context):
    with socket.create_connection(("{LOOPBACK}", event["port"])) as held:
        held.recv(1)
"""
COUNT = """
import json, socket
def handler(event, context):
    [record] = event["Records"]
    with socket.create_connection(("127.0.0.1", int(record["body"]))) as told:
        told.sendall(record["attributes"]["ApproximateReceiveCount"].encode())
"""
ONCE = Config(retries={"mode": "standard", "total_max_attempts": 1})
CALM = Behaviours(throttled=0.0, access_changes_s=0.0, mapping_changes_s=0.0, queue_appears_late=0.0, duplicated=0.0)


@contextmanager
def running(folder: Any, limit: int) -> Iterator[Callable[[Site], Connection]]:
    cloud = start_cloud(folder, ends_with_us=True, harsh=replace(CALM, account_concurrency=limit))
    try:
        yield lambda site: connect_environment(cloud.environment(site))
    finally:
        cloud.stop()


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[Site], Connection]]:
    with running(tmp_path_factory.mktemp("small"), SMALL) as connect:
        yield connect


@pytest.fixture(scope="module")
def larger(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Connection]:
    with running(tmp_path_factory.mktemp("larger"), LARGER) as connect:
        yield connect(DEFAULT_SITE)


def unreserved(account: Connection) -> tuple[int, int]:
    limits = account.client("lambda").get_account_settings()["AccountLimit"]
    return limits["ConcurrentExecutions"], limits["UnreservedConcurrentExecutions"]


class Held:
    """Invocations that run until they are released."""

    def __init__(self, account: Connection, listener: socket.socket, threads: ThreadPoolExecutor) -> None:
        self.client = account.session.client("lambda", endpoint_url=account.endpoint_url, config=ONCE)
        self.listener, self.threads, self.calls = listener, threads, ExitStack()
        self.event = json.dumps({"port": listener.getsockname()[1]}).encode()

    def hold(self, name: str) -> Future[Any]:
        """Invokes a function; it runs when this returns."""
        call = self.threads.submit(self.client.invoke, FunctionName=name, Payload=self.event)
        self.calls.enter_context(self.listener.accept()[0])
        return call

    def refuses(self, name: str) -> str:
        with pytest.raises(ClientError, match="TooManyRequestsException") as refused:
            self.client.invoke(FunctionName=name, Payload=self.event)
        return str(refused.value.response.get("Reason"))


@contextmanager
def holding(account: Connection) -> Iterator[Held]:
    with socket.create_server((LOOPBACK, 0)) as listener, ThreadPoolExecutor(SMALL) as threads:
        listener.settimeout(60)
        held = Held(account, listener, threads)
        with held.calls:
            yield held


def test_an_account_runs_no_more_functions_at_once_than_its_limit(small: Callable[[Site], Connection]) -> None:
    account, elsewhere = small(DEFAULT_SITE), small(Site(DEFAULT_SITE.account, "eu-west-3"))
    deploy_function(account, "held", HOLD)
    deploy_function(elsewhere, "elsewhere", HOLD)
    with holding(account) as held, holding(elsewhere) as other_region:
        calls = [held.hold("held") for _ in range(SMALL)]
        assert held.refuses("held") == "ConcurrentInvocationLimitExceeded"
        other_region.hold("elsewhere")
    assert all(call.result()["StatusCode"] == 200 for call in calls)


def test_a_new_account_can_reserve_nothing(small: Callable[[Site], Connection]) -> None:
    account = small(Site("333333333333", "us-east-1"))
    deploy_function(account, "any", HOLD)
    assert unreserved(account) == (SMALL, SMALL)
    with pytest.raises(ClientError, match=r"UnreservedConcurrentExecution below its minimum value of \[2\]"):
        account.client("lambda").put_function_concurrency(FunctionName="any", ReservedConcurrentExecutions=1)


def test_a_throttled_batch_uses_up_a_receive(small: Callable[[Site], Connection]) -> None:
    account = small(Site("444444444444", "us-east-1"))
    sqs, functions = account.client("sqs"), account.client("lambda")
    deploy_function(account, "held", HOLD)
    deploy_function(account, "count", COUNT)
    url = sqs.create_queue(QueueName="counted", Attributes={"VisibilityTimeout": "1"})["QueueUrl"]
    source = sqs.get_queue_attributes(QueueUrl=url, AttributeNames=["QueueArn"])["Attributes"]["QueueArn"]
    with holding(account) as held, socket.create_server((LOOPBACK, 0)) as listener:
        listener.settimeout(60)
        for _ in range(SMALL):
            held.hold("held")
        functions.create_event_source_mapping(EventSourceArn=source, FunctionName="count", BatchSize=1)
        sqs.send_message(QueueUrl=url, MessageBody=str(listener.getsockname()[1]))

        def is_received() -> bool:
            found = sqs.get_queue_attributes(QueueUrl=url, AttributeNames=["All"])["Attributes"]
            return bool(found["ApproximateNumberOfMessagesNotVisible"] == "1")

        eventually(is_received)
        held.calls.close()
        with listener.accept()[0] as told:
            assert int(told.recv(3)) > 1


def test_what_is_reserved_leaves_a_hundred_to_others(larger: Connection) -> None:
    functions = larger.client("lambda")
    for name in ("one", "other"):
        deploy_function(larger, name, HOLD)
    too_much = r"UnreservedConcurrentExecution below its minimum value of \[100\]"
    with pytest.raises(ClientError, match=too_much):
        functions.put_function_concurrency(FunctionName="one", ReservedConcurrentExecutions=LARGER - 99)
    functions.put_function_concurrency(FunctionName="one", ReservedConcurrentExecutions=LARGER - 100)
    functions.put_function_concurrency(FunctionName="one", ReservedConcurrentExecutions=LARGER - 101)  # no other's
    with pytest.raises(ClientError, match=too_much):
        functions.put_function_concurrency(FunctionName="other", ReservedConcurrentExecutions=2)
    assert unreserved(larger) == (LARGER, 101)
    functions.delete_function_concurrency(FunctionName="one")
    assert unreserved(larger) == (LARGER, LARGER)


def test_a_stack_reserves_and_is_refused_like_a_call(larger: Connection) -> None:
    def template(reserved: int | None) -> Template:
        properties = {
            "FunctionName": "deployed",
            "Role": "arn:aws:iam::000000000000:role/any",
            "Runtime": "python3.13",
            "Handler": "index.handler",
            "Code": {"ZipFile": HOLD},
            **({} if reserved is None else {"ReservedConcurrentExecutions": reserved}),
        }
        return Template(resources={"Function": {"Type": "AWS::Lambda::Function", "Properties": properties}})

    assert deploy(larger, "refused", template(51)) == "ROLLBACK_COMPLETE"
    assert any("below its minimum value of [100]" in reason for reason in reasons(larger, "refused"))
    assert deploy(larger, "reserves", template(1)) == "CREATE_COMPLETE"
    assert unreserved(larger) == (LARGER, LARGER - 1)
    with holding(larger) as held:
        held.hold("deployed")
        assert held.refuses("deployed") == "ReservedFunctionConcurrentInvocationLimitExceeded"
    assert deploy(larger, "reserves", template(50)) == "UPDATE_COMPLETE"
    assert deploy(larger, "reserves", template(51)) == "UPDATE_ROLLBACK_COMPLETE"
    assert unreserved(larger) == (LARGER, LARGER - 50)
    assert deploy(larger, "reserves", template(None)) == "UPDATE_COMPLETE"
    assert unreserved(larger) == (LARGER, LARGER)
