"""What an account allows is looked at before a first deployment: through stubbed clients, and by the rule alone."""

import json
from collections.abc import Mapping
from typing import Any, cast

import boto3
import pytest
from botocore.exceptions import EndpointConnectionError
from botocore.stub import Stubber

from sluice.aws.connections import Connection
from sluice.errors import CallFailed
from sluice.operator.accounts import (
    VCPUS,
    VPCS,
    WITHOUT_FUNCTION_URLS,
    AccountNotReady,
    ConcurrencyLimits,
    check_dead_letters,
    check_emr,
    check_function_urls,
    check_release,
    check_vpcs,
)

TWO = {"proxy": 300, "offers": 100}


class Account:
    """An account whose answers are given beforehand; botocore checks each request by its own model."""

    def __init__(self, region: str = "eu-central-1") -> None:
        self.region = region
        self._connection = Connection(boto3.session.Session("t", "t", region_name=region))
        self._stubs: dict[str, Stubber] = {}

    def client(self, service: str) -> Any:
        return self._connection.client(service)

    def pages(self, service: str, operation: str, **options: Any) -> Any:
        return self._connection.pages(service, operation, **options)

    def answers(self, service: str, operation: str, response: Mapping[str, Any]) -> None:
        if service not in self._stubs:
            self._stubs[service] = Stubber(self.client(service))
            self._stubs[service].activate()
        self._stubs[service].add_response(operation, response)

    def has_quota(self, name: str, value: float) -> None:
        self.answers("service-quotas", "list_service_quotas", {"Quotas": [{"QuotaName": name, "Value": value}]})

    @property
    def connection(self) -> Connection:
        return cast("Connection", self)


@pytest.mark.parametrize(
    ("available", "reserved"),
    [
        (0, {}),
        (99, {}),
        (100, {"proxy": 75, "offers": 25}),
        (200, {"proxy": 150, "offers": 50}),
        (400, TWO),
        (9_000, TWO),
    ],
)
def test_all_that_is_wanted_is_reserved_or_an_equal_part_of_each(available: int, reserved: dict[str, int]) -> None:
    concurrency = ConcurrencyLimits(limit=available + 100, available=available)
    assert concurrency.choose_reserves(dict.fromkeys(TWO), TWO) == reserved


def test_what_is_configured_is_reserved_first() -> None:
    concurrency = ConcurrencyLimits(limit=400, available=300)
    assert concurrency.choose_reserves({"proxy": 260, "offers": None}, {"offers": 100}) == {"offers": 40}
    assert concurrency.choose_reserves({"proxy": 300, "offers": None}, {"offers": 100}) == {}
    with pytest.raises(
        AccountNotReady, match=r"only 300 of the account's 400 .* as 100 must stay .*: proxy=301 is more"
    ):
        concurrency.choose_reserves({"proxy": 301, "offers": None}, {"offers": 100})


@pytest.mark.parametrize("region", sorted(WITHOUT_FUNCTION_URLS))
def test_a_region_without_function_urls_lacks_them(region: str) -> None:
    check_function_urls(Account().connection)
    with pytest.raises(AccountNotReady, match=f"{region} has no URLs"):
        check_function_urls(Account(region).connection)


def test_a_region_without_emr_serverless_lacks_it(monkeypatch: pytest.MonkeyPatch) -> None:
    account = Account()

    def unreachable(**_: object) -> None:
        raise EndpointConnectionError(endpoint_url="https://emr-serverless.eu-central-1.amazonaws.com")

    monkeypatch.setattr(account.client("emr-serverless"), "list_applications", unreachable)
    with pytest.raises(AccountNotReady, match="eu-central-1 has no EMR Serverless"):
        check_emr(account.connection, worker_vcpu=1)


@pytest.mark.parametrize(("name", "vcpus", "lacks"), [(VCPUS, 7, True), (VCPUS, 8, False), ("another", 0, False)])
def test_a_job_run_needs_a_driver_and_an_executor(name: str, vcpus: float, *, lacks: bool) -> None:
    account = Account()
    account.answers("emr-serverless", "list_applications", {"applications": []})
    account.has_quota(name, vcpus)
    if not lacks:
        check_emr(account.connection, worker_vcpu=4)
        return
    with pytest.raises(AccountNotReady, match="has 7 vCPUs in this account, and a job run needs 8"):
        check_emr(account.connection, worker_vcpu=4)


@pytest.mark.parametrize(
    ("listed", "noted"), [(["emr-spark-8.1.0"], False), (["emr-spark-8.1.0-other"], True), ([], True)]
)
def test_a_release_that_emr_does_not_list_is_noted(listed: list[str], *, noted: bool) -> None:
    account = Account("me-south-1")
    account.answers("emr", "list_release_labels", {"ReleaseLabels": listed})
    note = check_release(account.connection, release_label="emr-spark-8.1.0")
    assert (note is not None) == noted
    assert note is None or "doesn't list the release emr-spark-8.1.0 in me-south-1" in note


@pytest.mark.parametrize(("existing", "lacks"), [(5, True), (4, False)])
def test_a_pipeline_needs_room_for_a_vpc(existing: int, *, lacks: bool) -> None:
    account = Account()
    account.has_quota(VPCS, 5)
    account.answers("ec2", "describe_vpcs", {"Vpcs": [{"VpcId": f"vpc-{number}"} for number in range(existing)]})
    if not lacks:
        check_vpcs(account.connection)
        return
    with pytest.raises(AccountNotReady, match=r"has 5 VPCs and may have 5.*sluice\.pipeline\.vpc_id"):
        check_vpcs(account.connection)


def test_a_check_that_is_not_allowed_is_no_lack() -> None:
    account = Account()
    stub = Stubber(account.client("emr-serverless"))
    stub.add_client_error("list_applications", "AccessDeniedException")
    with stub, pytest.raises(CallFailed, match="AccessDeniedException"):
        check_emr(account.connection, worker_vcpu=1)


@pytest.mark.parametrize("permission", ["byQueue", "allowAll"])
def test_an_adopted_queues_dead_letter_queue_must_take_temporary_queues(permission: str) -> None:
    account, arn = Account(), "arn:aws:sqs:eu-central-1:111122223333:"
    policies = {
        "RedrivePolicy": {"deadLetterTargetArn": f"{arn}dead", "maxReceiveCount": 5},
        "RedriveAllowPolicy": {"redrivePermission": permission},
    }
    for name, value in policies.items():  # the source's, then its dead-letter queue's
        account.answers("sqs", "get_queue_url", {"QueueUrl": "https://queue"})
        account.answers("sqs", "get_queue_attributes", {"Attributes": {name: json.dumps(value)}})
    account.answers("lambda", "list_event_source_mappings", {"EventSourceMappings": []})
    if permission == "allowAll":
        check_dead_letters(account.connection, source_arn=f"{arn}orders")
        return
    with pytest.raises(AccountNotReady, match=r"orders: sessions would fail, .*RedriveAllowPolicy is byQueue"):
        check_dead_letters(account.connection, source_arn=f"{arn}orders")
