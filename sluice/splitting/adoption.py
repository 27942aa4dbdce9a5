"""Checks whether queues owned by others can be split, by AWS's rules and the queues' settings. Pure.

The rules are those of https://docs.aws.amazon.com/lambda/latest/dg/services-sqs-configure.html and
https://docs.aws.amazon.com/lambda/latest/dg/services-sqs-permissions.html, unless a line says otherwise.
"""

import json
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass

SPLITTER_TIMEOUT_S = 20
LEAST_RECEIVES = 5
OWN_KEY = "alias/aws/sqs"  # AWS's own: it needs no permission beside the queue's
# What the two functions do with a split's queues, and with their keys.
CONSUMED = ("ReceiveMessage", "DeleteMessage", "GetQueueAttributes", "ChangeMessageVisibility")
DESCRIBED = ("GetQueueAttributes", "ListQueueTags")
DECRYPTED = ("Encrypt", "Decrypt", "GenerateDataKey")
SOURCE, MAIN = "source", "main queue"


@dataclass(frozen=True, slots=True, kw_only=True)
class AdoptedQueue:
    """A queue as it is: its role, what `GetQueueAttributes` says, and whose triggers read it."""

    role: str
    arn: str
    attributes: Mapping[str, str]
    readers: Collection[str] = ()  # ARNs of functions

    @property
    def region(self) -> str:
        """The region that it is in."""
        return self.arn.split(":")[3]

    def number(self, name: str) -> int:
        """Read a numeric attribute, 0 where it isn't set."""
        return int(self.attributes.get(name, 0))


@dataclass(frozen=True, slots=True, kw_only=True)
class Remark:
    """Something that is against adopting a queue; `refuses` where it would fail, or lose messages."""

    queue: str
    text: str
    refuses: bool = True


def remarks(
    queues: Collection[AdoptedQueue], *, region: str, window_s: int, key_arns: Collection[str]
) -> Iterator[Remark]:
    """Say what is against adopting these queues of one split.

    `region` is the site's, `window_s` a batch's longest wait, `key_arns` the keys that its functions may use.
    """
    for queue in queues:
        if queue.region != region:
            yield Remark(
                queue=queue.arn, text=f"it isn't in {region}, where the site is: Lambda reads its own region's"
            )
        if queue.role == SOURCE:
            yield from _of_source(queue, window_s=window_s)
        key = queue.attributes.get("KmsMasterKeyId", OWN_KEY)
        if key != OWN_KEY and not any(key in {arn, arn.rpartition("/")[2]} for arn in key_arns):
            text = f"it is encrypted with {key}: the functions may use it once its ARN is in splitting.kms_key_arns"
            yield Remark(queue=queue.arn, text=text, refuses="alias/" not in key)
    by_role = {queue.role: queue for queue in queues}
    if SOURCE in by_role and MAIN in by_role:
        yield from _of_both(by_role[SOURCE], by_role[MAIN])


def _of_source(queue: AdoptedQueue, *, window_s: int) -> Iterator[Remark]:
    visibility_s, wanted_s = queue.number("VisibilityTimeout"), 6 * SPLITTER_TIMEOUT_S + window_s
    if visibility_s < SPLITTER_TIMEOUT_S:
        text = (
            f"its visibility timeout is {visibility_s} s: Lambda takes none under the splitter's {SPLITTER_TIMEOUT_S} s"
        )
        yield Remark(queue=queue.arn, text=text)
    elif visibility_s < wanted_s:
        text = f"its visibility timeout is {visibility_s} s: what a splitter keeps may come twice under {wanted_s} s"
        yield Remark(queue=queue.arn, text=text, refuses=False)
    redrive = json.loads(queue.attributes.get("RedrivePolicy") or "{}")
    receives = int(redrive.get("maxReceiveCount", LEAST_RECEIVES))
    if receives < LEAST_RECEIVES:
        text = (
            f"its redrive policy lets a message fail {receives} times: what Lambda throttles, or a splitter dies with, "
            f"counts, so AWS asks for {LEAST_RECEIVES} at least"
        )
        yield Remark(queue=queue.arn, text=text)
    for reader in sorted(queue.readers):
        text = f"{reader} reads it too: it would take messages past the splitter; let it read the main queue"
        yield Remark(queue=queue.arn, text=text)


def _of_both(source: AdoptedQueue, main: AdoptedQueue) -> Iterator[Remark]:
    if source.arn == main.arn:
        yield Remark(queue=source.arn, text="it can't be source and main queue: messages would go round")
    if main.number("MaximumMessageSize") < source.number("MaximumMessageSize"):
        most = main.number("MaximumMessageSize")
        text = f"it takes messages of {most} bytes, the source longer ones: they would end as dead letters"
        yield Remark(queue=main.arn, text=text)
    if main.number("MessageRetentionPeriod") < source.number("MessageRetentionPeriod"):
        text = f"it keeps messages for {main.number('MessageRetentionPeriod')} s, less than the source does"
        yield Remark(queue=main.arn, text=text, refuses=False)
    if main.number("DelaySeconds"):
        text = f"it delays what it is sent by {main.number('DelaySeconds')} s, after the source's own delay"
        yield Remark(queue=main.arn, text=text, refuses=False)
