"""The parameters of queue splitting. This module contains no constructs."""

from typing import Self

from pydantic import model_validator

from sluice.codec import encode
from sluice.parameters import values as v
from sluice.parameters.consumers import MAX_CONSUMERS, ConsumerParameters, to_targets
from sluice.parameters.event_sources import Profile, Reading
from sluice.parameters.values import InconsistentParameter, Model, param
from sluice.splitting.filters.values import MAX_QUEUES, MAX_SESSIONS, Mode
from sluice.splitting.operations import MAX_TIME_LIMIT_S
from sluice.splitting.policies import Policy

# Size limits as JSON, each a share of the 40 KB for a function's site-dependent settings (`sluice.constructs.stored`).
CONSUMERS_MAX_BYTES = 8_000
TAGS_MAX_BYTES = 12_000
POLICIES_MAX_BYTES = 4_000
WILDCARDS = frozenset("*?[")


class SplitQueueParameters(Model):
    """A queue that can be split. Its source queue and main queue are created, or adopted by their ARNs."""

    queue_id: v.QueueId = param(..., "Name that users select the queue by")
    fifo: bool = param(False, "Whether the queue is FIFO")
    profile: Profile = param(
        Profile.LATENCY,
        "How the splitter reads a standard queue. `latency`: at once, at most 10 messages per invocation; "
        "`throughput`: in batches of `batch_size`, which cost less and wait for `batching_window_s`; `provisioned`: at "
        "once, by [dedicated pollers](limits.md#latency)",
    )
    sns: bool = param(
        False, "Whether bodies are SNS notifications. If so, filters see the attributes in the notification"
    )
    s3_event: bool = param(
        False, "Whether bodies are S3 event notifications. If so, jq filters see the objects' metadata"
    )
    drain_timeout_s: int | None = param(
        900,
        "Seconds that draining a FIFO queue's temporary main queue may take after the last session ends; remaining "
        "messages return to the source. Null: no limit",
        ge=0,
        le=1_209_600,
    )
    tags: dict[str, str] = param(
        {}, "Tags of the sessions' queues, in addition to the source queue's tags", max_length=50
    )
    sender_arns: tuple[v.SenderArn, ...] = param(
        (),
        "ARNs of topics and buckets that may send to the created source queue; required with `sns` or `s3_event`. "
        "The policy of an adopted queue is not changed",
        max_length=20,
    )
    existing_source_queue_arn: v.QueueArn | None = param(
        None, "ARN of an existing queue to adopt as the source queue. Null: create one"
    )
    existing_main_queue_arn: v.QueueArn | None = param(
        None,
        "ARN of an existing queue to adopt as the main queue; configure the deployed consumer to read it. Null: "
        "create one, unless `consumers` are listed",
    )
    consumers: tuple[ConsumerParameters, ...] = param(
        (),
        "Settings that tell the deployed consumer which queue to read; Sluice re-points them while the queue is "
        "split. Empty: the consumer always reads the main queue",
        max_length=MAX_CONSUMERS,
    )

    @model_validator(mode="after")
    def _check_consistency(self) -> Self:
        for arn in (self.existing_source_queue_arn, self.existing_main_queue_arn):
            if arn is not None and arn.endswith(".fifo") != self.fifo:
                raise ValueError(f"fifo is {str(self.fifo).lower()}, which {arn} contradicts")
        if self.sender_arns and self.existing_source_queue_arn is not None:
            raise InconsistentParameter(
                "sender_arns", f"{self.existing_source_queue_arn} is adopted: its own policy decides who may send"
            )
        # SNS and S3 have these limits: https://docs.aws.amazon.com/sns/latest/dg/sns-fifo-topics.html
        # https://docs.aws.amazon.com/AmazonS3/latest/userguide/EventNotifications.html
        standard_sender = next((arn for arn in self.sender_arns if self.fifo and not arn.endswith(".fifo")), None)
        if standard_sender is not None:
            raise InconsistentParameter("sender_arns", f"{standard_sender} can't send to a FIFO queue")
        needs_sender = self.existing_source_queue_arn is None and self.is_notified
        if needs_sender and not any(":sns:" in arn or not self.sns for arn in self.sender_arns):
            sender = "an SNS topic" if self.sns else "the S3 bucket or the SNS topic between"
            raise InconsistentParameter(
                "sender_arns", f"{self.queue_id} receives notifications, but no sender may send: list {sender}"
            )
        if self.consumers and self.existing_main_queue_arn is not None:
            raise InconsistentParameter(
                "consumers",
                f"no main queue is needed, but existing_main_queue_arn is {self.existing_main_queue_arn}",
            )
        return self

    @property
    def is_notified(self) -> bool:
        """Whether the queue receives notifications, so that SNS or S3 must be allowed to send."""
        return self.sns or self.s3_event


PIPELINE_QUEUE = SplitQueueParameters(queue_id="pipeline")


class PolicyParameters(Model):
    """Rules for sessions on queues whose ids match one of the policy's patterns."""

    queues: tuple[v.QueueIdPattern, ...] = param(
        ("*",),
        "Queue ids that the policy applies to; `*`, `?` and `[…]` are wildcards. An entry without wildcards must be "
        "the id of a listed queue",
        max_length=15,
    )
    required_attributes: tuple[v.AttributeName, ...] = param(
        (), "Message attributes that every session's filter must use", max_length=10
    )
    allow_jq: bool = param(True, "Whether sessions may filter with jq programs")
    modes: tuple[Mode, ...] = param(tuple(Mode), "Modes that sessions may use", max_length=2)
    max_sessions: int | None = param(
        None, "Most live sessions on one queue. Null: only Sluice's own limit applies", ge=0, le=MAX_SESSIONS
    )
    max_time_limit_s: int | None = param(
        None,
        "Longest time limit of a session, in seconds; every session must then set a limit. Null: no time limit "
        "is required",
        ge=1,
        le=MAX_TIME_LIMIT_S,
    )

    @property
    def policy(self) -> Policy:
        """The policy in the form that functions' settings have, without unset fields."""
        return Policy(**{name: getattr(self, name) for name in self.model_fields_set})


class SplittingParameters(Model):
    """The queues that can be split, session policies, and the splitter and control functions."""

    queues: tuple[SplitQueueParameters, ...] = param(
        (PIPELINE_QUEUE,), "Queues that can be split; the fields of an entry are listed above", max_length=MAX_QUEUES
    )
    batch_size: v.Batch = param(
        1_000,
        "Most messages per invocation of the splitter, for queues with profile `throughput`. Other profiles: up to 10",
    )
    batching_window_s: v.Window = param(
        1,
        "Seconds that Lambda waits to fill a batch, for queues with profile `throughput`. AWS requires 1 or more if "
        "`batch_size` is over 10",
    )
    max_concurrency: v.Concurrency = param(50, "Most concurrent executions of the splitter for one queue")
    counts_settle_s: int = param(
        60,
        "Seconds after a session's end for which SQS's count of its queue is not trusted: counts lag by up to a minute",
        ge=0,
        le=600,
    )
    splitter_memory_mb: v.Memory = param(512, "Memory of the splitter function, in MB")
    control_memory_mb: v.Memory = param(256, "Memory of the control function, in MB")
    policies: tuple[PolicyParameters, ...] = param(
        (), "Rules for what sessions may request. If several match a queue, all of them apply", max_length=10
    )
    kms_key_arns: tuple[str, ...] = param((), "ARNs of the KMS keys that encrypt adopted queues", max_length=100)
    s3_bucket_arns: tuple[str, ...] = param(
        (), "ARNs of the buckets whose objects the S3 events describe", max_length=100
    )

    @model_validator(mode="after")
    def _check_consistency(self) -> Self:
        Reading(batch_size=self.batch_size, window_s=self.batching_window_s)
        ids = [queue.queue_id for queue in self.queues]
        if len(set(ids)) < len(ids):
            raise InconsistentParameter("queues", f"a queue_id is listed twice: {', '.join(ids)}")
        v.check_construct_ids("queues", [v.add_queue_type(queue.queue_id, fifo=queue.fifo) for queue in self.queues])
        arns = [
            arn for queue in self.queues for arn in (queue.existing_source_queue_arn, queue.existing_main_queue_arn)
        ]
        twice = next((arn for arn in arns[::2] if arn is not None and arns.count(arn) > 1), None)
        if twice is not None:
            raise InconsistentParameter(
                "queues", f"{twice} is listed twice: a source queue can be listed only once, or messages would go round"
            )
        unknown = [
            (number, name)
            for number, policy in enumerate(self.policies)
            for name in policy.queues
            if name not in ids and not WILDCARDS & set(name)
        ]
        for number, name in unknown:
            cause = f"[{number}]: there is no queue {name}, so the policy would have no effect"
            raise InconsistentParameter("policies", cause)
        for name, things, values, most in (
            ("queues", "consumers", [to_targets(queue.consumers) for queue in self.queues], CONSUMERS_MAX_BYTES),
            ("queues", "tags", [queue.tags for queue in self.queues], TAGS_MAX_BYTES),
            ("policies", "policies", [policy.policy for policy in self.policies], POLICIES_MAX_BYTES),
        ):
            size = sum(len(encode(value)) for value in values)
            if size > most:
                raise InconsistentParameter(name, f"all {things} have {size} bytes as JSON, more than {most}")
        return self

    def reading(self, queue: SplitQueueParameters) -> Reading:
        """Return how the splitter's event source mapping reads the source queue of a split queue."""
        return Reading.from_profile(
            queue.profile,
            fifo=queue.fifo,
            batch_size=self.batch_size,
            window_s=self.batching_window_s,
            max_concurrency=self.max_concurrency,
        )
