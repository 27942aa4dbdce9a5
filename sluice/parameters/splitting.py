"""The parameters of queues that can be split, a section of `sluice.parameters`. No construct is here."""

from typing import Self

from pydantic import model_validator

from sluice.codec import encode
from sluice.parameters import values as v
from sluice.parameters.consumers import CONSUMERS_MOST, ConsumerParameters, targets_of
from sluice.parameters.policies import PolicyParameters, check_policies
from sluice.parameters.values import InconsistentParameter, Model, of

# As JSON, of the 40 KB that a function is told of what grows with a site (`sluice.constructs.stored`).
CONSUMERS_MAX_BYTES = 8_000
TAGS_MAX_BYTES = 12_000


class SplitQueueParameters(Model):
    """One queue that can be split. Its source and main queue are made, or adopted by their ARNs."""

    queue_id: v.QueueId = of(..., "what the team calls it")
    fifo: bool = of(False, "the queue is FIFO")
    sns: bool = of(False, "bodies are SNS notifications, whose attributes count")
    s3_event: bool = of(False, "bodies are S3 event notifications, whose objects' metadata jq sees")
    drain_timeout_s: int | None = of(
        None,
        "how long the temporary main queue may take to be empty after the last session; null: no limit",
        ge=0,
        le=1_209_600,
    )
    tags: dict[str, str] = of({}, "of the queues that sessions get, beside the source's own", max_length=50)
    sender_arns: tuple[v.SenderArn, ...] = of(
        (),
        "topics and buckets that may send to a source that is made, at least one with `sns` or `s3_event`; an adopted "
        "one's policy is yours",
        max_length=20,
    )
    existing_source_queue_arn: v.QueueArn | None = of(None, "adopt a queue of yours instead of making one")
    existing_main_queue_arn: v.QueueArn | None = of(None, "the same; point the deployed consumer at it")
    consumers: tuple[ConsumerParameters, ...] = of(
        (),
        "what says which queue the deployed consumer reads; re-pointed while the queue is split. Empty: it reads the "
        "main queue always",
        max_length=CONSUMERS_MOST,
    )

    @model_validator(mode="after")
    def _fits(self) -> Self:
        for arn in (self.existing_source_queue_arn, self.existing_main_queue_arn):
            if arn is not None and arn.endswith(".fifo") != self.fifo:
                raise ValueError(f"{arn} and fifo {self.fifo} don't fit")
        if self.sender_arns and self.existing_source_queue_arn is not None:
            raise InconsistentParameter(
                "sender_arns", f"{self.existing_source_queue_arn} has its owner's policy, which says who may send"
            )
        # https://docs.aws.amazon.com/sns/latest/dg/sns-fifo-topics.html and
        # https://docs.aws.amazon.com/AmazonS3/latest/userguide/EventNotifications.html
        misfit = next((arn for arn in self.sender_arns if self.fifo and not arn.endswith(".fifo")), None)
        if misfit is not None:
            raise InconsistentParameter("sender_arns", f"{misfit} can't send to a FIFO queue")
        is_notified = self.existing_source_queue_arn is None and (self.sns or self.s3_event)
        if is_notified and not any(":sns:" in arn or not self.sns for arn in self.sender_arns):
            sender = "topic" if self.sns else "bucket, or the topic in between,"
            raise InconsistentParameter("sender_arns", f"{self.queue_id} lets in no {sender} that sends what it holds")
        if self.consumers and self.existing_main_queue_arn is not None:
            raise InconsistentParameter(
                "consumers", f"they read no main queue, and {self.existing_main_queue_arn} is given as one"
            )
        return self


PIPELINE_QUEUE = SplitQueueParameters(queue_id="pipeline")


class SplittingParameters(Model):
    """Which queues can be split, and the functions that do it."""

    queues: tuple[SplitQueueParameters, ...] = of((PIPELINE_QUEUE,), "those that can be split", max_length=15)
    batch_size: v.Batch = of(1_000, "of standard queues; FIFO queues have ten at most")
    batching_window_s: v.Window = of(1, "of standard queues; how long a batch may wait to be filled")
    max_concurrency: v.Concurrency = of(10, "splitters of one queue side by side")
    counts_settle_s: int = of(
        60,
        "how long after a session's end SQS's count of its queue isn't believed: counts are right within a minute",
        ge=0,
        le=600,
    )
    splitter_memory_mb: v.Memory = of(512, "of the function")
    control_memory_mb: v.Memory = of(256, "of the function")
    policies: tuple[PolicyParameters, ...] = of((), "what sessions may ask for: all that hold count", max_length=10)
    kms_key_arns: tuple[str, ...] = of((), "of adopted queues", max_length=100)
    s3_bucket_arns: tuple[str, ...] = of((), "of objects that S3 events are about", max_length=100)

    @model_validator(mode="after")
    def _fits(self) -> Self:
        ids = [queue.queue_id for queue in self.queues]
        if len(set(ids)) < len(ids):
            raise InconsistentParameter("queues", f"a queue_id is listed twice: {', '.join(ids)}")
        v.check_names("queues", [v.of_kind(queue.queue_id, fifo=queue.fifo) for queue in self.queues])
        size = sum(len(encode(targets_of(queue.consumers))) for queue in self.queues)
        if size > CONSUMERS_MAX_BYTES:
            raise InconsistentParameter(
                "queues", f"consumers have {size} bytes as JSON, of {CONSUMERS_MAX_BYTES} at most"
            )
        size = sum(len(encode(queue.tags)) for queue in self.queues)
        if size > TAGS_MAX_BYTES:
            raise InconsistentParameter("queues", f"tags have {size} bytes as JSON, of {TAGS_MAX_BYTES} at most")
        check_policies(self.policies, ids)
        return self
