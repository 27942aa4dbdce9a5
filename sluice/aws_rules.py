"""AWS's rules about properties that must fit together. Each rule is here once, with AWS's page. Pure.

Parameters, constructs, the embedded cloud and the templates' tests call the same functions, so they all refuse the same
combinations. The range of a single property belongs to the property's type in `sluice.parameters.values`.
"""

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

MAX_UNWINDOWED_BATCH = 10  # Limit of messages in a batch without a window, and of any FIFO queue's batch.
MAX_BATCH = 10_000
MIN_CONCURRENCY = 2
# Limits of Lambda's provisioned mode: https://docs.aws.amazon.com/lambda/latest/dg/services-sqs-scaling.html
MIN_POLLERS, CALLS_PER_POLLER = 2, 10
# AWS's limit: "You can reserve up to the Unreserved account concurrency value minus 100."
# https://docs.aws.amazon.com/lambda/latest/dg/configuration-concurrency.html
STAYS_UNRESERVED = 100
# The images' Python versions, by the beginning of the EMR release label. Jobs need Spark 4, which no `emr-7` has.
# https://docs.aws.amazon.com/emr/latest/ReleaseGuide/emr-spark810-release.html
# https://docs.aws.amazon.com/emr/latest/EMR-Serverless-UserGuide/release-version-emr-spark-8.0-preview.html
RELEASE_PYTHONS: Mapping[str, Sequence[str]] = {
    "emr-spark-8.0-preview": ("3.9", "3.11", "3.12"),
    "emr-spark-8.0.": ("3.11", "3.13"),
    "emr-spark-8.1.": ("3.11", "3.13"),
}
SPARK_3 = re.compile(r"emr-[1-7]\.")  # https://docs.aws.amazon.com/emr/latest/ReleaseGuide/Spark-release-history.html
# The URL may be of a legacy, FIPS, dual-stack or VPC endpoint: https://docs.aws.amazon.com/general/latest/gr/sqs-service.html
_QUEUE_URL = re.compile(
    r"https?://(?:(?:[\w-]+\.)?sqs(?:-fips)?\.)?(?:([a-z]+(?:-[a-z]+)+-\d)\.)?(?:queue\.|vpce\.|api\.)?"
    r"(?:aws|amazon(?:aws|webservices)\.(?:com|com\.cn|eu))/(\d+)/([A-Za-z0-9_-]{1,80}(?:\.fifo)?)"
)
_PARTITIONS = {"cn-": "aws-cn", "us-gov-": "aws-us-gov", "eusc-": "aws-eusc"}  # Regions begin with the keys.
AWS_KEY = "alias/aws/sqs"  # Every user of a queue may use AWS's own KMS key for SQS.


class QueueUrlParts(NamedTuple):
    """The parts of a queue's URL."""

    region: str
    account: str
    name: str

    @property
    def arn(self) -> str:
        """The queue's ARN."""
        partition = next((name for start, name in _PARTITIONS.items() if self.region.startswith(start)), "aws")
        return f"arn:{partition}:sqs:{self.region}:{self.account}:{self.name}"


def parse_queue_url(url: str) -> QueueUrlParts | None:
    """Return the parts of any form of AWS's queue URLs; None for an emulator's URL."""
    match = _QUEUE_URL.fullmatch(url)
    return QueueUrlParts(match[1] or "us-east-1", match[2], match[3]) if match else None


def find_mapping_fault(mapping: Mapping[str, Any], *, fifo: bool) -> str | None:
    """Return why Lambda refuses an event source mapping of a queue, or None if Lambda accepts the mapping.

    `mapping` holds the properties by name (CloudFormation and Lambda's API use the same names).
    https://docs.aws.amazon.com/lambda/latest/api/API_CreateEventSourceMapping.html
    https://docs.aws.amazon.com/lambda/latest/dg/services-sqs-scaling.html
    """
    batch_size, window_s = (int(mapping.get(name) or 0) for name in ("BatchSize", "MaximumBatchingWindowInSeconds"))
    max_concurrency = (mapping.get("ScalingConfig") or {}).get("MaximumConcurrency")
    if fifo and batch_size > MAX_UNWINDOWED_BATCH:
        return f"a FIFO queue's batch has at most {MAX_UNWINDOWED_BATCH} messages, not {batch_size}"
    if fifo and window_s:
        return "a FIFO queue has no batching window"
    if batch_size > MAX_UNWINDOWED_BATCH and not window_s:
        return (
            f"a batch of {batch_size} messages, over {MAX_UNWINDOWED_BATCH}, needs a batching window of 1 s or more "
            "(MaximumBatchingWindowInSeconds)"
        )
    if batch_size > MAX_BATCH:
        return f"a batch has at most {MAX_BATCH} messages, not {batch_size}"
    if max_concurrency is not None and mapping.get("ProvisionedPollerConfig"):
        return "provisioned pollers and a maximum concurrency exclude each other"
    return None


def find_sender_fault(attributes: Mapping[str, str]) -> str | None:
    """Return why SNS topics and S3 buckets can't send to a queue with these attributes, or None if they can.

    https://docs.aws.amazon.com/AWSSimpleQueueService/latest/SQSDeveloperGuide/sqs-key-management.html
    """
    if attributes.get("KmsMasterKeyId") != AWS_KEY:
        return None
    return (
        f"it is encrypted with {AWS_KEY}, whose policy can't let SNS or S3 send: encrypt it with a key of your own, or "
        "by SQS (SqsManagedSseEnabled)"
    )


def find_dead_letter_fault(dead_letter: Mapping[str, str], source_arn: str) -> str | None:
    """Return why SQS refuses a dead-letter queue with these attributes for the queue, or None if SQS accepts it.

    https://docs.aws.amazon.com/AWSSimpleQueueService/latest/APIReference/API_SetQueueAttributes.html
    """
    policy = json.loads(dead_letter.get("RedriveAllowPolicy") or "{}")
    permission = policy.get("redrivePermission", "allowAll")
    if permission == "allowAll" or (permission == "byQueue" and source_arn in policy.get("sourceQueueArns", ())):
        return None
    return f"its RedriveAllowPolicy is {permission} and doesn't let {source_arn} name it as dead-letter queue"


def find_release_fault(release_label: str, python: str) -> str | None:
    """Return why jobs can't run on an EMR release with a Python version; None if they can or AWS hasn't said yet."""
    if SPARK_3.match(release_label):
        return "this release has Spark 3 or older, and jobs need Spark 4: set emr-spark-8.0.0 or later"
    pythons = next((known for label, known in RELEASE_PYTHONS.items() if release_label.startswith(label)), (python,))
    return None if python in pythons else f"its image has Python {', '.join(pythons)}, not {python}"
