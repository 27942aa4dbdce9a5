"""Checks an AWS account before a deployment: Lambda's concurrency limits, quotas, and the services of the region."""

from collections.abc import Mapping
from dataclasses import dataclass

from sluice.aws.clients import calls
from sluice.aws.connections import Connection
from sluice.aws.deployment import STACK
from sluice.aws_rules import STAYS_UNRESERVED
from sluice.errors import BadConfiguration, CallFailed
from sluice.operator.deployments import read_template
from sluice.operator.queues import read_adopted_queue
from sluice.splitting.adoption import SOURCE, find_dead_letter_remarks
from sluice.stages import add_stage_prefix

# The concurrent executions that `sluice deploy` reserves for functions with a public URL, by the parameter's name.
RESERVES: Mapping[str, int] = {
    "sluice.rendezvous.proxy_max_concurrency": 300,
    "sluice.rendezvous.client_max_concurrency": 50,
}
ACCOUNT_CONCURRENCY = "sluice.operations.account_concurrency"
# A reserve is also a limit. Less than this share of `RESERVES` would do more harm than a flood of requests.
LEAST_PART = 0.25
USUAL_CONCURRENCY = 1_000  # https://docs.aws.amazon.com/lambda/latest/dg/gettingstarted-limits.html
# https://docs.aws.amazon.com/lambda/latest/dg/urls-configuration.html
WITHOUT_FUNCTION_URLS = frozenset(
    {
        "ap-east-2", "ap-south-2", "ap-southeast-4", "ap-southeast-5", "ap-southeast-6", "ap-southeast-7", "ca-west-1",
        "eu-central-2", "eu-south-2", "il-central-1", "me-central-1",
    }
)  # fmt: skip
# The names that AWS Service Quotas gives to these quotas.
VPCS, VCPUS = "VPCs per Region", "Max concurrent vCPUs per account"
LEAST_WORKERS = 2  # A Spark job on EMR Serverless needs at least a driver and an executor.


class AccountNotReady(BadConfiguration):
    """Raised if the account or the region lacks something that the site needs. The text says what to do."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ConcurrencyLimits:
    """Limits of Lambda's concurrent executions in an account and region.

    `available` is the number that the site's functions can reserve together, including those that they have reserved.
    """

    limit: int
    available: int

    @classmethod
    def fetch(cls, connection: Connection) -> "ConcurrencyLimits":
        """Fetch the limits from Lambda, and the site's reserved numbers from CloudFormation. Raises `CallFailed`."""
        client = connection.client("lambda")
        with calls("GetAccountSettings"):
            limits = client.get_account_settings()["AccountLimit"]
        deployed = read_template(connection, add_stage_prefix(STACK, connection.stage)) or {"Resources": {}}
        functions = (resource.get("Properties", {}) for resource in deployed["Resources"].values())
        own = sum(int(function.get("ReservedConcurrentExecutions", 0)) for function in functions)
        available = limits["UnreservedConcurrentExecutions"] + own - STAYS_UNRESERVED
        return cls(limit=limits["ConcurrentExecutions"], available=max(0, available))

    def choose_reserves(self, numbers: Mapping[str, int | None], defaults: Mapping[str, int]) -> Mapping[str, int]:
        """Return the numbers to reserve by parameter: those in `defaults`, or the same share of each, or none.

        `numbers` has the numbers that the user has set. Raises `AccountNotReady` if these alone exceed the limit.
        """
        fixed = {parameter: number for parameter, number in numbers.items() if number is not None}
        left = self.available - sum(fixed.values())
        if fixed and left < 0:
            listed = ", ".join(f"{parameter}={number}" for parameter, number in fixed.items())
            raise AccountNotReady(
                f"nothing was changed: only {self.available} of the account's {self.limit:,} concurrent executions can "
                f"be reserved, as {STAYS_UNRESERVED} must stay unreserved: {listed} is more. Set it to less or to "
                "null, or request a higher quota for Lambda's concurrent executions in Service Quotas"
            )
        part = min(1.0, left / sum(defaults.values())) if defaults else 0
        return {name: int(number * part) for name, number in defaults.items()} if part >= LEAST_PART else {}

    def describe(self, reserved: Mapping[str, int], *, region: str, held_polls: int) -> str:
        """Describe the reserved numbers and their consequences. `held_polls` is the maximum number of held polls."""
        polls = f"at most {held_polls} proxy polls are held at a time"
        if reserved:
            listed = ", ".join(f"{parameter}={number}" for parameter, number in reserved.items())
            return (
                f"reserves {sum(reserved.values())} of the account's {self.limit:,} concurrent executions ({listed}): "
                f"a flood of requests to the broker's URL leaves the others to other functions; {polls}"
            )
        return (
            f"reserves none of the account's {self.limit:,} concurrent executions, as {STAYS_UNRESERVED} must stay "
            f"unreserved: a flood of requests to the broker's URL can stop all functions of the account in {region}; "
            f"{polls}. Request {USUAL_CONCURRENCY:,} concurrent executions for Lambda in Service Quotas, then deploy "
            "again"
        )


def check_function_urls(connection: Connection) -> None:
    """Raise `AccountNotReady` if Lambda functions can't have URLs in the region."""
    if connection.region in WITHOUT_FUNCTION_URLS:
        raise AccountNotReady(f"{connection.region} has no URLs for Lambda functions, and the broker has one")


def check_emr(connection: Connection, *, worker_vcpu: int) -> None:
    """Raise `AccountNotReady` if the region has no EMR Serverless or the quota is too small. Raises `CallFailed`."""
    client = connection.client("emr-serverless")
    try:
        with calls("ListApplications"):
            client.list_applications(maxResults=1)
    except CallFailed as error:
        if error.code != "EndpointConnectionError":
            raise
        raise AccountNotReady(f"{connection.region} has no EMR Serverless, which runs the pipeline's jobs") from error
    quota, least = _fetch_quota(connection, "emr-serverless", VCPUS), worker_vcpu * LEAST_WORKERS
    if quota is not None and quota < least:
        raise AccountNotReady(
            f"EMR Serverless has {quota:g} vCPUs in this account, and a job run needs {least}: request more of "
            f"`{VCPUS}` in Service Quotas"
        )


def check_release(connection: Connection, *, release_label: str) -> str | None:
    """Return a note if EMR doesn't list the release in the region, otherwise None. Raises `CallFailed`.

    A deployment continues after the note: EMR Serverless can't list its releases, and EMR may not list all of them.
    https://docs.aws.amazon.com/emr/latest/APIReference/API_ListReleaseLabels.html
    """
    with calls("ListReleaseLabels"):
        response = connection.client("emr").list_release_labels(Filters={"Prefix": release_label})
    if release_label in response.get("ReleaseLabels", []):
        return None
    return (
        f"EMR doesn't list the release {release_label} in {connection.region}: if EMR Serverless refuses it, too, "
        "SluicePipeline fails; then set sluice.pipeline.release_label"
    )


def check_dead_letters(connection: Connection, *, source_arn: str) -> None:
    """Raise `AccountNotReady` if the redrive policy of an adopted queue can't be copied to a temporary main queue."""
    for remark in find_dead_letter_remarks(read_adopted_queue(connection, SOURCE, source_arn)):
        raise AccountNotReady(f"{remark.queue}: {remark.problem}")


def check_vpcs(connection: Connection) -> None:
    """Raise `AccountNotReady` if the account can't have another VPC in the region. Raises `CallFailed`."""
    quota = _fetch_quota(connection, "vpc", VPCS)
    existing = sum(len(page["Vpcs"]) for page in connection.pages("ec2", "describe_vpcs"))
    if quota is not None and existing >= quota:
        raise AccountNotReady(
            f"{connection.region} has {existing} VPCs and may have {quota:g}, and the pipeline needs one: name one in "
            f"sluice.pipeline.vpc_id, or request more of `{VPCS}` in Service Quotas"
        )


def _fetch_quota(connection: Connection, service: str, name: str) -> float | None:
    """Return the value of a quota by its name; None if Service Quotas doesn't list the quota."""
    pages = connection.pages("service-quotas", "list_service_quotas", ServiceCode=service)
    return next((quota["Value"] for page in pages for quota in page["Quotas"] if quota["QuotaName"] == name), None)
