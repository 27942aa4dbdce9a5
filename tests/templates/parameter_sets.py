"""The sets of parameters whose templates are checked: each changes cdk.json's in a way that changes what is deployed.

To add one: a `ParameterSet` in `SETS`. Every check of this folder then looks at its templates.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from sluice.parameters import parameter_schemas
from sluice.parameters.values import BRIDGES_MAX_BYTES

HERE = "arn:aws:sqs:ap-southeast-1:123456789012"
THEIR_KEY = "arn:aws:kms:ap-southeast-1:123456789012:key/1234abcd-12ab-34cd-56ef-1234567890{}"
LONGEST_QUEUE_NAME = 80  # https://docs.aws.amazon.com/AWSSimpleQueueService/latest/SQSDeveloperGuide/quotas-queues.html


@dataclass(frozen=True, slots=True, kw_only=True)
class ParameterSet:
    """Parameters on top of cdk.json's, by the keys that `-c` takes."""

    name: str
    parameters: Mapping[str, object] = field(default_factory=dict)


def _numbered(most: int, pattern: str, *, width: int = 0) -> list[str]:
    """So many different texts; with `width`, each padded to that many characters."""
    digits = max(2, width - len(pattern.format("")))
    return [pattern.format(str(number).zfill(digits)) for number in range(most)]


def _highest() -> dict[str, object]:
    """Every number at the limit that its parameter has."""
    limits = {key: schema["maximum"] for key, schema in parameter_schemas().items() if "maximum" in schema}
    limits["sluice.rendezvous.proxy_max_concurrency"] = limits["sluice.rendezvous.held_proxies_max"]
    return {**limits, "sluice.log_retention_days": 3_653, "sluice.pipeline.worker_vcpu": 16}


def _bridges() -> list[dict[str, str]]:
    """As many as the list takes, with the shortest of names and addresses."""
    made = [{"displayName": "", "webSocketAddress": "ws://a", "fingerprint": f"{number:040x}"} for number in range(100)]
    while len("\n".join(json.dumps(each) for each in made)) > BRIDGES_MAX_BYTES:
        made.pop()
    return made


def _exchanges(*, width: int = 0) -> list[dict[str, str]]:
    """As many as the list takes; at this width they are nearly all that may be declared."""
    return [{"name": name, "type": "topic"} for name in _numbered(100, "exchange-{}", width=width)]


DEFAULTS = ParameterSet(name="defaults")
# Where the stacks make nothing that they needn't.
LEAST = ParameterSet(
    name="least",
    parameters={
        "sluice.architecture": "x86_64",
        "sluice.rendezvous.events_exchange": "null",  # CDK drops what is null itself
        "sluice.rendezvous.keep_state": False,
        "sluice.rendezvous.trusted_hops": 2,
        "sluice.splitting.queues": [],
        "sluice.federation.exchanges": [],
        "sluice.federation.queue_names": [],  # so that no queue could be bound
        "sluice.pipeline.statistics_at": "null",
        "sluice.pipeline.compaction_at": "null",
    },
)
# Every queue that can be is somebody else's, and so are roles, keys, a bucket, the topic that alarms go to.
ADOPTED = ParameterSet(
    name="adopted",
    parameters={
        "sluice.rendezvous.existing_offers_queue_arn": f"{HERE}:their-offers",
        "sluice.splitting.queues": [
            {
                "queue_id": "pipeline",
                "existing_source_queue_arn": f"{HERE}:their-source",
                "existing_main_queue_arn": f"{HERE}:their-main",
            },
            {
                "queue_id": "ordered",
                "fifo": True,
                "existing_source_queue_arn": f"{HERE}:their-source.fifo",
                "existing_main_queue_arn": f"{HERE}:their-main.fifo",
            },
        ],
        "sluice.splitting.kms_key_arns": [
            "arn:aws:kms:ap-southeast-1:123456789012:key/1234abcd-12ab-34cd-56ef-1234567890ab"
        ],
        "sluice.splitting.s3_bucket_arns": ["arn:aws:s3:::their-bucket"],
        "sluice.federation.queues": [{"name": "orders", "existing_arn": f"{HERE}:their-orders"}],
        "sluice.federation.kms_key_arn": "arn:aws:kms:ap-southeast-1:123456789012:key/mrk-1234abcd12ab34cd56ef12345678",
        "sluice.pipeline.assume_role_arns": ["arn:aws:iam::123456789012:role/their-role"],
        "sluice.pipeline.envelope": "sns,s3",
        "sluice.pipeline.columns": ",".join(_numbered(20, "attribute-{}:bigint")),
        "sluice.operations.alarm_topic_arn": "arn:aws:sns:ap-southeast-1:123456789012:their-topic",
    },
)
# Workers in a VPC, FIFO wherever there can be, other accounts by a role, somebody who is told, traces.
VPC_AND_ROLES = ParameterSet(
    name="vpc, fifo and roles",
    parameters={
        "sluice.splitting.queues": [{"queue_id": "pipeline", "fifo": True}, {"queue_id": "standard"}],
        "sluice.federation.peer_accounts": ["111111111111", "222222222222"],
        "sluice.federation.access": "role",
        "sluice.federation.queues": [{"name": "orders", "fifo": True}, {"name": "returns"}],
        "sluice.federation.ingresses": [{"exchange": "amq.topic", "fifo": True}, {"exchange": "amq.direct"}],
        "sluice.pipeline.vpc_id": "vpc-0123456789abcdef0",
        "sluice.pipeline.subnet_ids": ["subnet-0123456789abcdef0", "subnet-0123456789abcdef1"],
        "sluice.pipeline.security_group_ids": ["sg-0123456789abcdef0"],
        "sluice.pipeline.route_table_ids": ["rtb-0123456789abcdef0"],
        "sluice.pipeline.vpc_endpoints": ["sqs", "sts", "logs", "kms", "s3"],
        "sluice.pipeline.endpoint_subnets": 2,
        "sluice.pipeline.table_format": "iceberg",
        "sluice.pipeline.streaming": True,
        "sluice.operations.alarm_email": "somebody@example.com",
        "sluice.operations.tracing": True,
    },
)
# The pipeline's VPC as large as it may be, with all the endpoints that jobs can need.
ZONES = ParameterSet(
    name="three zones",
    parameters={
        "sluice.pipeline.zones": [3, 0, 1],
        "sluice.pipeline.endpoint_subnets": 3,
        "sluice.pipeline.assume_role_arns": _numbered(20, "arn:aws:iam::123456789012:role/their-role-{}"),
        "sluice.pipeline.streaming": True,
    },
)
# Workers in subnets that lead to SQS by a NAT gateway.
NAT = ParameterSet(
    name="a NAT gateway",
    parameters={
        "sluice.pipeline.subnet_ids": ["subnet-0123456789abcdef0", "subnet-0123456789abcdef1"],
        "sluice.pipeline.security_group_ids": ["sg-0123456789abcdef0"],
        "sluice.pipeline.own_way_to_sqs": True,
    },
)
# Nothing has a main queue: whoever reads a queue is re-pointed while it is split, in each of the ways that there are.
REPOINTED = ParameterSet(
    name="re-pointed",
    parameters={
        "sluice.splitting.queues": [
            {"queue_id": "triggered", "consumers": [{"type": "lambda trigger", "function": "their-function:live"}]},
            {
                "queue_id": "told",
                "fifo": True,
                "existing_source_queue_arn": f"{HERE}:their-source.fifo",
                "consumers": [
                    {
                        "type": "lambda variable",
                        "function": "arn:aws:lambda:ap-southeast-1:123456789012:function:their-function",
                        "variable": "QUEUES",
                        "place": {"path": ["orders", "[]", "url"]},
                    },
                    {
                        "type": "parameter",
                        "name": "/their/parameter",
                        "refresh_s": 300,
                        "place": {"pattern": "queue=(.+)"},
                    },
                    {
                        "type": "ecs variable",
                        "cluster": "their-cluster",
                        "service": "their-service",
                        "container": "app",
                        "variable": "QUEUE",
                        "role_arns": [
                            "arn:aws:iam::123456789012:role/their-task",
                            "arn:aws:iam::123456789012:role/their/execution",
                        ],
                    },
                    {
                        "type": "kubernetes",
                        "cluster": "their-cluster",
                        "namespace": "shop",
                        "kind": "Rollout",
                        "name": "orders",
                        "containers": ["app"],
                        "env": "QUEUE",
                        "fallback": "their-source.fifo",
                        "timeout_s": 900,
                    },
                ],
            },
        ],
    },
)
# As many of each as there may be, with names such as people give.
MANY = ParameterSet(
    name="many",
    parameters={
        **_highest(),
        "sluice.rendezvous.bridges": _bridges(),
        "sluice.rendezvous.allowed_relay_pattern": "^$",
        "sluice.splitting.queues": [{"queue_id": name} for name in _numbered(35, "split-{}")],
        "sluice.splitting.policies": [{"max_sessions": 1_000, "max_time_limit_s": 604_800}] * 10,
        "sluice.splitting.kms_key_arns": _numbered(100, THEIR_KEY),
        "sluice.splitting.s3_bucket_arns": _numbered(100, "arn:aws:s3:::their-bucket-{}"),
        "sluice.federation.tag": "singapore",
        "sluice.federation.peer_accounts": _numbered(49, "{}", width=12),
        "sluice.federation.queues": [{"name": name} for name in _numbered(15, "bound-{}")],
        "sluice.federation.queue_names": _numbered(20, "team-{}-*"),
        "sluice.federation.ingresses": [{"exchange": name} for name in _numbered(8, "exchange-{}")],
        "sluice.federation.exchanges": _exchanges(),
        "sluice.pipeline.queue_id": "split-00",
        "sluice.pipeline.assume_role_arns": _numbered(20, "arn:aws:iam::123456789012:role/their-role-{}"),
        "sluice.pipeline.zones": [5, 3, 1],
        "sluice.pipeline.vpc_id": "vpc-0123456789abcdef0",
        "sluice.pipeline.subnet_ids": _numbered(16, "subnet-{}", width=24),
        "sluice.pipeline.security_group_ids": _numbered(5, "sg-{}", width=20),
        "sluice.pipeline.route_table_ids": _numbered(16, "rtb-{}", width=21),
        "sluice.pipeline.vpc_endpoints": ["sqs", "sts", "logs", "kms", "s3"],
        "sluice.operations.alarm_email": "somebody@example.com",
        "sluice.operations.dashboard": True,
        "sluice.operations.tracing": True,
    },
)
# The same, and every text as long as it may be.
MAXIMUM = ParameterSet(
    name="maximum",
    parameters={
        **MANY.parameters,
        "sluice.rendezvous.offers_queue_name": "o" * LONGEST_QUEUE_NAME,
        "sluice.rendezvous.events_exchange": "e" * 127,
        "sluice.splitting.queues": [
            {
                "queue_id": name,
                "drain_timeout_s": 1_209_600,
                "tags": dict.fromkeys(_numbered(20, "tag-{}"), "v"),
            }
            for name in _numbered(35, "split-{}", width=128)
        ],
        "sluice.federation.tag": "t" * 32,
        "sluice.federation.access": "role",
        "sluice.federation.external_id": "x" * 128,
        "sluice.federation.sqs_url": f"https://{'h' * 253}/",
        "sluice.federation.queues": [{"name": name} for name in _numbered(15, "bound-{}", width=128)],
        "sluice.federation.queue_names": _numbered(20, "team-{}-*", width=LONGEST_QUEUE_NAME),
        "sluice.federation.exchanges": _exchanges(width=110),
        "sluice.federation.ingresses": [{"exchange": name} for name in _numbered(8, "exchange-{}", width=127)],
        "sluice.pipeline.queue_id": _numbered(1, "split-{}", width=128)[0],
        "sluice.pipeline.assume_role_arns": _numbered(20, "arn:aws:iam::123456789012:role/{}", width=607),
    },
)
# Beside other sites in its account and region, with the longest of names.
STAGED = ParameterSet(
    name="staged",
    parameters={
        "sluice.stage": "staging",
        "sluice.rendezvous.offers_queue_name": "o" * (LONGEST_QUEUE_NAME - len("staging-")),
        "sluice.federation.queues": [{"name": "orders"}],
        "sluice.federation.peer_accounts": ["111111111111"],
        "sluice.federation.access": "role",
        "sluice.operations.alarm_email": "somebody@example.com",
        "sluice.operations.dashboard": True,
    },
)
SETS: Sequence[ParameterSet] = (
    DEFAULTS,
    LEAST,
    ADOPTED,
    VPC_AND_ROLES,
    ZONES,
    NAT,
    REPOINTED,
    STAGED,
    MANY,
    MAXIMUM,
)
