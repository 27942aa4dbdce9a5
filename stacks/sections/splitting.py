"""Section `splitting`: which queues can be split, and the functions that do it."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from stacks.sections.values import (
    MEMORY_MB,
    ROOT,
    Parse,
    as_json,
    existing_arn,
    flag,
    number,
    optional,
    parsed,
    queue_id,
    text,
    texts,
)

MAX_SPLIT_QUEUES = 15  # of all of them the names must go into a function's environment of 4 KB
MAX_DRAIN_TIMEOUT_S = 14 * 24 * 60 * 60  # as long as SQS keeps a message
MAX_TAGS = 50  # of a queue


@dataclass(frozen=True, slots=True, kw_only=True)
class SplitQueueParameters:
    """One queue that can be split. Its source and main queue are made, or adopted by their ARNs."""

    queue_id: str
    fifo: bool = False
    sns: bool = False  # bodies are SNS notifications, whose attributes count
    s3_event: bool = False  # bodies are S3 event notifications, whose objects' metadata jq sees
    drain_timeout_s: int | None = None
    tags: Mapping[str, str] = field(default_factory=dict)  # of the queues that sessions get
    existing_source_queue_arn: str | None = None
    existing_main_queue_arn: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SplittingParameters:
    """Section `splitting`."""

    queues: tuple[SplitQueueParameters, ...] = (SplitQueueParameters(queue_id="pipeline"),)
    batch_size: int = 1_000  # of standard queues; FIFO queues have ten at most
    batching_window_s: int = 1  # of standard queues; how long a batch may wait to be filled
    max_concurrency: int = 10  # splitters of one queue side by side
    splitter_memory_mb: int = 512
    control_memory_mb: int = 256
    kms_key_arns: tuple[str, ...] = ()  # of adopted queues
    s3_bucket_arns: tuple[str, ...] = ()  # of objects that S3 events are about


def _tags(value: object) -> Mapping[str, str]:
    if not isinstance(value, Mapping) or len(value) > MAX_TAGS:
        raise ValueError(f"{value!r} is not a map of at most {MAX_TAGS} tags")
    return {text(name): text(tag) for name, tag in value.items()}


SPLIT_QUEUE_PARSERS: Mapping[str, Parse] = {
    "queue_id": queue_id,
    "fifo": flag,
    "sns": flag,
    "s3_event": flag,
    "drain_timeout_s": optional(number(0, MAX_DRAIN_TIMEOUT_S)),
    "tags": _tags,
    "existing_source_queue_arn": existing_arn,
    "existing_main_queue_arn": existing_arn,
}


def _split_queues(value: object) -> tuple[SplitQueueParameters, ...]:
    given = as_json(value)
    if not isinstance(given, list) or len(given) > MAX_SPLIT_QUEUES:
        raise ValueError(f"{value!r} is not a list of at most {MAX_SPLIT_QUEUES} queues")
    queues = tuple(_split_queue(place, entry) for place, entry in enumerate(given))
    ids = [queue.queue_id for queue in queues]
    if len(set(ids)) < len(ids):
        raise ValueError(f"a queue_id is listed twice: {', '.join(ids)}")
    return queues


def _split_queue(place: int, entry: object) -> SplitQueueParameters:
    if not isinstance(entry, Mapping) or "queue_id" not in entry:
        raise ValueError(f"queue {place} is not an object with queue_id")
    unknown = entry.keys() - SPLIT_QUEUE_PARSERS.keys()
    if unknown:
        raise ValueError(f"queue {place} has unknown fields: {', '.join(sorted(unknown))}")
    try:
        queue = SplitQueueParameters(**{name: SPLIT_QUEUE_PARSERS[name](value) for name, value in entry.items()})  # type: ignore[arg-type]  # each parser gives its field's type
    except ValueError as error:
        raise ValueError(f"queue {place}: {error}") from error
    for arn in (queue.existing_source_queue_arn, queue.existing_main_queue_arn):
        if arn is not None and arn.endswith(".fifo") != queue.fifo:
            raise ValueError(f"queue {place}: {arn} and fifo {queue.fifo} don't fit")
    return queue


KEY = f"{ROOT}.splitting"
PARSERS: Mapping[str, Parse] = {
    "queues": _split_queues,
    # https://docs.aws.amazon.com/lambda/latest/dg/services-sqs-configure.html
    "batch_size": number(1, 10_000),
    "batching_window_s": number(0, 300),
    "max_concurrency": number(2, 1_000),
    "splitter_memory_mb": MEMORY_MB,
    "control_memory_mb": MEMORY_MB,
    "kms_key_arns": texts,
    "s3_bucket_arns": texts,
}


def read(given: Mapping[str, object]) -> SplittingParameters:
    """From all that is given, by dotted key. Raises `BadParameter`."""
    return SplittingParameters(**parsed(given, KEY, PARSERS))
