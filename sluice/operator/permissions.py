"""Lists the IAM permissions that each command needs, for `sluice permissions`, the documentation, and a test.

Resources are given as patterns of their names, so that a policy can be built without requests to AWS.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sluice.errors import BadConfiguration
from sluice.operations import READER
from sluice.stages import add_stage_prefix


class NoSuchCommand(BadConfiguration):
    """Raised if a command doesn't exist. The text lists all commands."""


@dataclass(frozen=True, slots=True)
class Resource:
    """AWS resources: their description in the documentation, and patterns of their ARNs without `arn:PARTITION:`.

    In a pattern, `{place}` stands for the region and account, and `{stage}` for the prefix of the stage.
    """

    text: str
    patterns: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Grant:
    """A permission: IAM actions on AWS resources."""

    actions: tuple[str, ...]
    resource: Resource


@dataclass(frozen=True, slots=True)
class CommandGrants:
    """Commands, and the permissions that each of them needs in addition to those of `EVERY_COMMAND`."""

    commands: tuple[str, ...]
    grants: tuple[Grant, ...]


def _queue_resource(text: str, *names: str) -> Resource:
    return Resource(text, tuple(f"sqs:{{place}}:{{stage}}{name}" for name in names))


def _grant(action: str, resource: Resource, *others: str) -> Grant:
    """Return the permission for an action, such as `sqs:SendMessage`, and for `others` of the same service."""
    service = action.partition(":")[0]
    return Grant((action, *(f"{service}:{name}" for name in others)), resource)


def _grant_invocation(stack: str, function: str) -> tuple[Grant, Grant]:
    """Return two permissions to invoke a function: for operations that only read, and for all operations."""
    # The second permission includes the alias for reading, because commands that change a site also read it.
    pattern = f"lambda:{{place}}:function:{{stage}}{stack}-{function}*"
    alias = Resource(f"`{READER}` of {function.lower()}", (f"{pattern}:{READER}",))
    itself = Resource(f"the {function.lower()} function", (pattern,))
    return _grant("lambda:InvokeFunction", alias), _grant("lambda:InvokeFunction", itself)


ANY = Resource("any resource", ("*",))  # Some actions have no resource, or one that isn't known in advance.
FUNCTIONS = Resource("any function", ("lambda:{place}:function:*",))
STACKS = Resource("the stacks", ("cloudformation:{place}:stack/{stage}Sluice*",))
OUTPUTS = Resource("the outputs of a site in your own app", ("ssm:{place}:parameter/{stage}Sluice*",))
TABLES = Resource("the stacks' tables", ("dynamodb:{place}:table/{stage}SluiceState-*",))
BUCKET = Resource("the pipeline's bucket", ("s3:::{stage}sluicestate-*",))
CLIENTS = Resource("the clients' user", ("iam::{account}:user/{stage}SluiceRendezvous-*",))
APPLICATION = Resource(
    "the application and its runs",
    ("emr-serverless:{place}:/applications/*", "emr-serverless:{place}:/applications/*/jobruns/*"),
)
ENDPOINTS = Resource("VPC endpoints", ("ec2:{place}:vpc-endpoint/*",))
LOGS = Resource("the functions' log groups", ("logs:{place}:log-group:{stage}Sluice*",))
SPLITTER_LOGS = Resource("the splitter's log group", ("logs:{place}:log-group:{stage}SluiceSplitting-SplitterLogs*",))
JOB_LOGS = Resource("the jobs' log group", ("logs:{place}:log-group:{stage}SluicePipeline-JobLogs*",))
STATE_QUEUES = _queue_resource("the stacks' queues", "SluiceState-*", "snowflake-broker")
DEAD_LETTERS = _queue_resource("the dead-letter queues", "SluiceState-*DeadLetters*")
OFFERS = _queue_resource("the offers queue", "snowflake-broker")
ANSWERS = _queue_resource("the clients' queues", "snowflake-client-*")
INGRESS = _queue_resource("the ingress queues", "SluiceState-*Ingress*")
SESSIONS = _queue_resource("sessions' queues ([one's own](../deploy.md#queues-of-ones-own-sessions))", "sluice-tmp-*")
# Permissions for adopted queues, and for other names in `federation.queue_names`, are not listed. Users add these.
BINDABLE = _queue_resource("queues that can be bound", "SluiceState-*", "sluice-queue-*")
ROUTES = _queue_resource("the stacks' and routes' queues", "SluiceState-*", "snowflake-broker", "sluice-*")

SEE_SWEEPER, _ = _grant_invocation("SluiceRendezvous", "Sweeper")
SEE_CONTROL, CONTROL = _grant_invocation("SluiceSplitting", "Control")
SEE_LINKS, LINKS = _grant_invocation("SluiceFederation", "Links")
SEE_JOBS, JOBS = _grant_invocation("SluicePipeline", "Jobs")
ADOPT = (_grant("sqs:GetQueueUrl", ANY, "GetQueueAttributes"), _grant("lambda:ListEventSourceMappings", ANY))
FIND_QUEUE = _grant("sqs:GetQueueUrl", BINDABLE)
PEEK = _grant("sqs:ReceiveMessage", DEAD_LETTERS, "ChangeMessageVisibility")
STATUS = (
    _grant("cloudformation:DescribeStacks", ANY),
    *(SEE_SWEEPER, SEE_CONTROL, SEE_LINKS, SEE_JOBS),
    _grant("sqs:GetQueueAttributes", ROUTES),
    _grant("cloudwatch:GetMetricData", ANY),
)
DEPLOY = (
    _grant("cloudformation:GetTemplate", STACKS, "ListStackResources"),
    _grant("sqs:GetQueueAttributes", STATE_QUEUES),
    _grant("dynamodb:Query", TABLES, "GetItem"),
)
SESSION = (CONTROL, _grant("sqs:ReceiveMessage", SESSIONS, "DeleteMessage", "GetQueueAttributes", "GetQueueUrl"))
CREATE = _grant("sqs:CreateQueue", BINDABLE, "TagQueue", "GetQueueAttributes")

EVERY_COMMAND = CommandGrants(
    ("every command",), (_grant("cloudformation:DescribeStacks", STACKS), _grant("ssm:GetParametersByPath", OUTPUTS))
)
# CloudFormation creates the stacks with this role. Its permissions for IAM are limited to names of ours, because the
# role could otherwise make itself an administrator. `ssm:GetParameters` reads outputs that stacks pass to each other.
EXECUTION_ROLE = "execution role"
DEPLOYED_SERVICES = (
    *("lambda", "sqs", "dynamodb", "s3", "logs", "events", "cloudwatch", "sns", "ssm", "budgets"),
    *("emr-serverless", "ec2"),  # Only the pipeline needs these two services.
)
DEPLOYMENT = CommandGrants(
    (EXECUTION_ROLE,),
    (
        _grant(
            "iam:*",
            Resource(
                "the stacks' roles, user and policies, and EMR Serverless' service-linked role",
                (
                    *(f"iam::{{account}}:{kind}/{{stage}}Sluice*" for kind in ("role", "user", "policy")),
                    "iam::{account}:role/aws-service-role/ops.emr-serverless.amazonaws.com/*",
                ),
            ),
        ),
        *(_grant(f"{service}:*", ANY) for service in DEPLOYED_SERVICES),
    ),
)
# These commands need no permissions. `permissions` calls only GetCallerIdentity, which everybody may call.
FREE = (
    "permissions",
    "split import",
    "split test",
    "topology schema",
    "local up",
    "local down",
    "local status",
    "local env",
)
ROWS = (
    CommandGrants(("status",), STATUS),
    CommandGrants(
        ("console",),
        (
            *STATUS,
            _grant("cloudwatch:DescribeAlarms", ANY, "DescribeAlarmHistory"),
            _grant("dynamodb:Query", TABLES),
            PEEK,
            _grant("lambda:ListFunctions", ANY),
            _grant("logs:FilterLogEvents", LOGS),
            _grant("s3:ListBucket", BUCKET, "GetObject"),
        ),
    ),
    CommandGrants(
        ("deploy",),
        (
            *DEPLOY,
            *ADOPT,
            _grant("lambda:GetAccountSettings", ANY),
            # These calls check the account and the region before a first deployment.
            _grant("cloudformation:ListStacks", ANY),
            _grant("cloudformation:DescribeStackEvents", STACKS),
            _grant("servicequotas:ListServiceQuotas", ANY),
            _grant("ec2:DescribeVpcs", ANY),
            _grant("emr-serverless:ListApplications", ANY),
            _grant("elasticmapreduce:ListReleaseLabels", ANY),
        ),
    ),
    CommandGrants(
        ("destroy",),
        (
            *DEPLOY,
            _grant("iam:ListAccessKeys", CLIENTS, "DeleteAccessKey"),
            _grant("iam:GetAccessKeyLastUsed", ANY),
            JOBS,
            _grant("emr-serverless:ListJobRuns", APPLICATION, "CancelJobRun", "GetApplication", "StopApplication"),
            _grant("ec2:DescribeVpcEndpoints", ANY),
            _grant("ec2:DeleteVpcEndpoints", ENDPOINTS),
        ),
    ),
    CommandGrants(("publish",), (SEE_LINKS, _grant("sqs:SendMessage", INGRESS))),
    CommandGrants(
        ("consume",), (FIND_QUEUE, _grant("sqs:ReceiveMessage", BINDABLE, "DeleteMessage", "ChangeMessageVisibility"))
    ),
    CommandGrants(
        ("rendezvous status",), (_grant("sqs:GetQueueAttributes", STATE_QUEUES), PEEK, _grant("dynamodb:Query", TABLES))
    ),
    CommandGrants(
        ("rendezvous creds",),
        (
            _grant("iam:ListAccessKeys", CLIENTS, "CreateAccessKey", "DeleteAccessKey"),
            _grant("iam:GetAccessKeyLastUsed", ANY),
        ),
    ),
    CommandGrants(
        ("rendezvous offer",), (_grant("sqs:SendMessage", OFFERS), _grant("sqs:GetQueueUrl", ANSWERS, "ReceiveMessage"))
    ),
    CommandGrants(("rendezvous proxy",), ()),
    CommandGrants(("split list", "split status"), (SEE_CONTROL,)),
    CommandGrants(("split stop", "split release", "split agent"), (CONTROL,)),
    CommandGrants(("split start", "split run"), SESSION),
    CommandGrants(("split run --lambda",), (*SESSION, _grant("lambda:GetFunctionConfiguration", FUNCTIONS))),
    CommandGrants(("split tail",), (_grant("logs:FilterLogEvents", SPLITTER_LOGS),)),
    CommandGrants(("split register",), ADOPT),
    CommandGrants(
        (
            *("exchange list", "binding list", "peer list", "link list", "link address"),
            *("route list", "route map", "route status", "dynamic paths", "topology export", "topology plan"),
        ),
        (SEE_LINKS,),
    ),
    CommandGrants(
        (
            *("exchange add", "exchange del", "binding add", "binding del", "peer add", "peer del"),
            *("link add", "link del", "link pause", "link resume", "link drain", "link retry"),
            *("route add", "route change", "route del", "route flush", "route redrive"),
            *("route pause", "route resume", "route drain", "route retry"),
            *("queue add", "queue del", "dynamic add", "dynamic del", "topology apply"),
        ),
        (LINKS,),
    ),
    CommandGrants(("binding add --create",), (LINKS, CREATE)),
    CommandGrants(("queue create",), (SEE_LINKS, CREATE)),
    CommandGrants(("queue delete",), (LINKS, _grant("sqs:GetQueueAttributes", BINDABLE, "DeleteQueue"))),
    CommandGrants(
        ("queue list",), (SEE_LINKS, _grant("sqs:ListQueues", ANY), _grant("sqs:GetQueueAttributes", BINDABLE))
    ),
    CommandGrants(
        ("queue move",),
        (FIND_QUEUE, _grant("sqs:ReceiveMessage", BINDABLE, "DeleteMessage", "ChangeMessageVisibility", "SendMessage")),
    ),
    CommandGrants(("pipeline status",), (SEE_JOBS,)),
    CommandGrants(("pipeline start", "pipeline stop", "pipeline drain"), (JOBS,)),
    CommandGrants(("pipeline logs",), (SEE_JOBS, _grant("logs:DescribeLogStreams", JOB_LOGS, "FilterLogEvents"))),
    CommandGrants(
        ("pipeline run-local",),
        (_grant("sqs:ReceiveMessage", STATE_QUEUES, "DeleteMessage", "ChangeMessageVisibility", "GetQueueAttributes"),),
    ),
    CommandGrants(("dlq list", "dlq show"), (_grant("sqs:GetQueueAttributes", DEAD_LETTERS), PEEK)),
    CommandGrants(
        ("dlq redrive",), (PEEK, _grant("sqs:DeleteMessage", DEAD_LETTERS), _grant("sqs:SendMessage", ROUTES))
    ),
    CommandGrants(("dlq purge",), (PEEK, _grant("sqs:DeleteMessage", DEAD_LETTERS))),
)


def find_grants(commands: Sequence[str]) -> Iterator[Grant]:
    """Yield the permissions that commands need. A group such as `split` means all its commands; none means all.

    `EXECUTION_ROLE` is accepted like a command. Raises `NoSuchCommand`.
    """
    known = {name: row.grants for row in ROWS for name in row.commands} | dict.fromkeys(FREE, ())
    for command in commands or known:
        if command == EXECUTION_ROLE:
            yield from DEPLOYMENT.grants
            continue
        names = [command] if command in known else [name for name in known if name.startswith(f"{command} ")]
        if not names:
            raise NoSuchCommand(f"no such command: {command}; there are {', '.join(sorted(known))}")
        for name in names:
            yield from (*EVERY_COMMAND.grants, *known[name]) if name not in FREE else ()


def build_policy(
    commands: Sequence[str], *, partition: str, region: str, account: str, stage: str | None
) -> Mapping[str, Any]:
    """Build the IAM policy of a user who may run these commands on a site. Raises `NoSuchCommand`."""
    places = {"place": f"{region}:{account}", "account": account, "stage": add_stage_prefix("", stage)}
    actions: dict[Resource, set[str]] = {}
    for grant in find_grants(commands):
        actions.setdefault(grant.resource, set()).update(grant.actions)
    statements = [
        {
            "Effect": "Allow",
            "Action": sorted(allowed),
            "Resource": [
                "*" if pattern == "*" else f"arn:{partition}:{pattern.format_map(places)}"
                for pattern in resource.patterns
            ],
        }
        for resource, allowed in actions.items()
    ]
    return {"Version": "2012-10-17", "Statement": statements}
