"""AWS's rules about properties that have to fit together, each once and with AWS's page. Pure.

Parameters, constructs, the embedded cloud and the templates' tests call the same functions, so none of them accepts
what another refuses. The range of a single property is its type's, in `sluice.parameters.values`.
"""

from collections.abc import Mapping
from typing import Any

MAX_UNWINDOWED_BATCH = 10  # messages; also the largest batch of a FIFO queue
MAX_BATCH = 10_000
MIN_CONCURRENCY = 2
# Of provisioned mode: https://docs.aws.amazon.com/lambda/latest/dg/services-sqs-scaling.html
MIN_POLLERS, CALLS_PER_POLLER = 2, 10
# "You can reserve up to the Unreserved account concurrency value minus 100."
# https://docs.aws.amazon.com/lambda/latest/dg/configuration-concurrency.html
STAYS_UNRESERVED = 100
AWS_KEY = "alias/aws/sqs"  # AWS's own key: whoever may use the queue may use it


def find_mapping_fault(mapping: Mapping[str, Any], *, fifo: bool) -> str | None:
    """Return why Lambda refuses an event source mapping of a queue, or None if it doesn't.

    `mapping` has the properties' names in CloudFormation and in Lambda's API, which are the same.
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
