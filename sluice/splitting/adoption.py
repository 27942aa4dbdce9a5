"""Checks, by AWS's rules and the queues' settings, whether Sluice can split queues that it didn't create. Pure.

The rules are from https://docs.aws.amazon.com/lambda/latest/dg/services-sqs-configure.html and
https://docs.aws.amazon.com/lambda/latest/dg/services-sqs-permissions.html, unless a line names another source.
"""

import json
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field

from sluice.aws_rules import AWS_KEY, find_dead_letter_fault, find_sender_fault
from sluice.splitting.consumers.targets import LambdaTrigger, Target, describe_target
from sluice.splitting.consumers.temporary_queues import PREFIX

SPLITTER_TIMEOUT_S = 20
LEAST_RECEIVES = 5
# The splitter and the control function need these permissions on a split's queues and on the queues' keys.
CONSUMED = ("ReceiveMessage", "DeleteMessage", "GetQueueAttributes", "ChangeMessageVisibility")
DESCRIBED = ("GetQueueAttributes", "ListQueueTags")
DECRYPTED = ("Encrypt", "Decrypt", "GenerateDataKey")
SOURCE, MAIN = "source", "main queue"


@dataclass(frozen=True, slots=True, kw_only=True)
class AdoptedQueue:
    """An existing queue: its role in the split, its attributes, and who reads and watches it.

    Attributes are those of `GetQueueAttributes`; `dead_letter` has those of its dead-letter queue.
    """

    role: str
    arn: str
    attributes: Mapping[str, str]
    dead_letter: Mapping[str, str] = field(default_factory=dict)
    readers: Collection[str] = ()  # ARNs of the functions that this queue triggers
    watchers: Collection[str] = ()  # The names of alarms on the queue's metrics include those of scaling policies.

    @property
    def region(self) -> str:
        """Return the AWS region of the queue."""
        return self.arn.split(":")[3]

    def get_number(self, name: str) -> int:
        """Return a numeric attribute of the queue; 0 if the attribute isn't set."""
        return int(self.attributes.get(name, 0))


@dataclass(frozen=True, slots=True)
class Remark:
    """A problem of adopting a queue. If it `refuses`, the adoption would fail or lose messages; else it only warns."""

    queue: str
    problem: str
    refuses: bool = True


def find_remarks(
    queues: Collection[AdoptedQueue],
    *,
    region: str,
    window_s: int,
    key_arns: Collection[str],
    is_notified: bool,
    consumers: Collection[Target],
) -> Iterator[Remark]:
    """Yield the problems of adopting these queues for one split.

    `region` is the site's region, `window_s` a batch's longest wait, `key_arns` the keys that the site's functions may
    use. `is_notified`: SNS or S3 sends to the source. `consumers` read the source and are to be re-pointed.
    """
    for queue in queues:
        if queue.region != region:
            yield Remark(queue.arn, f"it isn't in {region}, where the site is: Lambda reads its own region's")
        if queue.role == SOURCE:
            yield from _check_source(queue, window_s=window_s)
            yield from _check_readers(queue, consumers)
            yield from find_dead_letter_remarks(queue) if consumers else ()
            if is_notified and (fault := find_sender_fault(queue.attributes)):
                yield Remark(queue.arn, fault)
        key = queue.attributes.get("KmsMasterKeyId", AWS_KEY)
        if key != AWS_KEY and not any(key in {arn, arn.rpartition("/")[2]} for arn in key_arns):
            text = f"it is encrypted with {key}: the functions may use it once its ARN is in splitting.kms_key_arns"
            yield Remark(queue.arn, text, refuses="alias/" not in key)
    by_role = {queue.role: queue for queue in queues}
    if SOURCE in by_role and MAIN in by_role:
        yield from _compare_queues(by_role[SOURCE], by_role[MAIN])


def _check_source(queue: AdoptedQueue, *, window_s: int) -> Iterator[Remark]:
    visibility_s, wanted_s = queue.get_number("VisibilityTimeout"), 6 * SPLITTER_TIMEOUT_S + window_s
    text = f"its visibility timeout is {visibility_s} s: "
    if visibility_s < SPLITTER_TIMEOUT_S:
        yield Remark(queue.arn, f"{text}Lambda takes none under the splitter's {SPLITTER_TIMEOUT_S} s")
    elif visibility_s < wanted_s:
        yield Remark(queue.arn, f"{text}what a splitter keeps may come twice under {wanted_s} s", refuses=False)
    for watcher in sorted(queue.watchers):
        text = f"alarm {watcher} watches it by name, and the splitter empties it: let it watch the consumer's queue too"
        yield Remark(queue.arn, text, refuses=False)
    if "RedriveAllowPolicy" in queue.attributes:
        text = "it may be a dead-letter queue, by its RedriveAllowPolicy, which no queue that is made for it has"
        yield Remark(queue.arn, text, refuses=False)
    redrive = json.loads(queue.attributes.get("RedrivePolicy") or "{}")
    receives = int(redrive.get("maxReceiveCount", LEAST_RECEIVES))
    if receives < LEAST_RECEIVES:
        cause = f"what Lambda throttles, or a splitter dies with, counts, so AWS asks for {LEAST_RECEIVES} at least"
        yield Remark(queue.arn, f"its redrive policy lets a message fail {receives} times: {cause}")


def find_dead_letter_remarks(queue: AdoptedQueue) -> Iterator[Remark]:
    """Yield why the temporary main queue, which consumers read during sessions, can't have the source's redrive policy.

    The queue's name is random, so a dead-letter queue that lists its source queues by name would refuse it.
    """
    if fault := find_dead_letter_fault(queue.dead_letter, f"{PREFIX}…"):
        text = f"sessions would fail, as SQS refuses its dead-letter queue for their temporary queue: {fault}"
        yield Remark(queue.arn, f"{text}. Set redrivePermission to allowAll there")


def _check_readers(queue: AdoptedQueue, consumers: Collection[Target]) -> Iterator[Remark]:
    unknown = set(queue.readers)
    for trigger in consumers:
        if isinstance(trigger, LambdaTrigger):
            own = {arn for arn in queue.readers if f":function:{arn}".endswith(f":function:{trigger.function}")}
            unknown -= own
            if not own:
                yield Remark(queue.arn, f"it isn't read by {describe_target(trigger)}, so sessions would fail")
    for reader in sorted(unknown):
        text = f"{reader} reads it too: it would take messages past the splitter; let it read the main queue"
        yield Remark(queue.arn, text)


def _compare_queues(source: AdoptedQueue, main: AdoptedQueue) -> Iterator[Remark]:
    size, kept_s = main.get_number("MaximumMessageSize"), main.get_number("MessageRetentionPeriod")
    if size < source.get_number("MaximumMessageSize"):
        yield Remark(main.arn, f"it takes messages of {size} bytes, the source longer ones: those end as dead letters")
    if kept_s < source.get_number("MessageRetentionPeriod"):
        yield Remark(main.arn, f"it keeps messages for {kept_s} s, less than the source does", refuses=False)
    if delay_s := main.get_number("DelaySeconds"):
        text = f"it delays what it is sent by {delay_s} s, after the source's own delay"
        yield Remark(main.arn, text, refuses=False)


def plan_adoption(
    queue_id: str,
    adopted: Mapping[str, str],
    *,
    fifo: bool,
    senders: Collection[str],
    keys: Collection[str],
    consumers: Collection[Target],
    dead_letters: str | None = None,
) -> Iterator[tuple[str, str]]:
    """Yield what a deployment would create for a split, who reads its messages, and which permissions it would grant.

    `adopted` are ARNs of queues by role, `senders` ARNs of topics and buckets, `keys` ARNs of keys that the functions
    may use. `consumers` are to be re-pointed. `dead_letters` is the source's dead-letter queue.
    """
    kind = "FIFO queue" if fifo else "queue"
    source = adopted.get(SOURCE, "the source")
    main = adopted.get(MAIN, "a temporary main queue" if consumers else "the main queue")
    made = [role for role in (SOURCE, MAIN) if role not in adopted and not (role == MAIN and consumers)]
    yield from ((kind, f"the {role} of {queue_id}") for role in made)
    if made and fifo:
        yield kind, "dead letters of what is made"
    for target in consumers:
        yield "consumer", f"{describe_target(target)}: reads {source}, and during sessions a temporary main queue"
    if not consumers and MAIN in adopted:
        yield "consumer", f"the deployed one reads {main}"
    elif not consumers:
        yield "consumer", "the deployed one is yours to point to the main queue: until then nobody reads its messages"
    yield "trigger", f"of the splitter, from {source}"
    yield "policy", f"the splitter: {', '.join(CONSUMED)} on {source}, SendMessage on {main}"
    yield "policy", f"control: {', '.join(DESCRIBED)} on {source}, SendMessage on {main}"
    yield from (("policy", f"both: {', '.join(DECRYPTED)} with {key}") for key in keys)
    yield from (("policy", f"{sender}: SendMessage on {source}") for sender in senders)
    if dead_letters and consumers:
        yield "dead letters", f"{dead_letters} also gets, during sessions, what the consumer fails at in {main}"
    elif dead_letters:
        yield "dead letters", f"{dead_letters} no longer gets what the consumer fails at, but the main queue's does"
    yield "redrive", f"what is redriven to {source} goes through the splitter again, with a receive count of 0"
    yield "latency", "of one more queue and function on the way to the consumer" + " during sessions" * bool(consumers)
    watchers = "ECS Application Auto Scaling, HPA, KEDA (a ScaledJob starves) and alarms"
    yield "scaling", f"{watchers} that watch {source} by name should watch {main} too"
