"""Queues of dead letters as an operator looks at them, and what becomes of letters: put back, or thrown away.

Letters are read and written in the format of `sluice.aws.dead_letters`. What is shown has no address of a client, and
no session description.
"""

import json
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from sluice.aws.connections import Connection
from sluice.aws.dead_letters import is_offer_kept, read
from sluice.aws.deployment import stack_output
from sluice.aws.queues import AT_ONCE, ConsumedQueue, QueuesByUrl
from sluice.dead_letter_reasons import Reason, reason_of
from sluice.errors import BadConfiguration
from sluice.federation.moves import FIFO_SUFFIX, HIDDEN_S, CantGo, Copy, Move, copy_to
from sluice.message import DeadLetter, Message, emptied
from sluice.rendezvous.protocol.addresses import masked

if TYPE_CHECKING:  # boto3-stubs are for the type checker: no program needs them
    from mypy_boto3_sqs import SQSClient


OPERATIONS = "SluiceOperations"
URLS = "DeadLetterUrls"
WAIT_S = 1  # a poll that doesn't wait asks some servers alone, and may find nothing where there is something
COPIES = 2  # times as many are received, at most: SQS may deliver a message twice, also in one answer
MOST_LOOKED_AT = 1_000
MOST_TOLD = 10  # of what stays, with its reason


class NoSuchQueue(BadConfiguration):
    """No queue of dead letters has this name."""


def urls_of(connection: Connection) -> Mapping[str, str]:
    """Find the queues of dead letters by their names: those of the parts of a site, as in `federation.fifo`."""
    return urls_in(stack_output(connection, OPERATIONS, URLS))


def urls_in(output: str) -> Mapping[str, str]:
    """Read the same from the stack's output `DeadLetterUrls`."""
    urls: Mapping[str, str] = json.loads(output)
    return {
        told.removeprefix("dead letters of ").removeprefix("the ").replace(", FIFO", ".fifo"): url
        for told, url in urls.items()
    }


def url_among(urls: Mapping[str, str], queue: str) -> str:
    """Find a queue by its name. Raises `NoSuchQueue`."""
    if queue not in urls:
        raise NoSuchQueue(f"{queue} is no queue of dead letters: there are {', '.join(urls)}")
    return urls[queue]


def dead_letter_queue(client: "SQSClient", url: str) -> ConsumedQueue:
    """Open a queue of dead letters. What is received of it is hidden while it is looked at or moved."""
    return ConsumedQueue(client, url, WAIT_S, HIDDEN_S)


# Looking at letters


def looked_at(client: "SQSClient", url: str, *, most: int) -> Iterator[DeadLetter]:
    """Look at up to `most` letters, each once. All are shown again at the end. Raises `CallFailed`, `QueueGone`.

    Of a group of a FIFO queue SQS shows no more than its first ten.
    """
    queue, seen, kept = dead_letter_queue(client, url), set[str](), list[Message]()
    try:
        while len(seen) < most and len(kept) < COPIES * most:
            received = queue.receive(most=min(most - len(seen), AT_ONCE))
            if not received:
                return
            kept += map(emptied, received)
            for message in received:
                if message.message_id not in seen:
                    seen.add(message.message_id)
                    yield read(message)
    finally:
        queue.give_back(kept)


def queue_of(letter: DeadLetter) -> str:
    """Name the queue, or the stream, that the letter came from; empty where nobody says."""
    return letter.source.rsplit(":", 1)[-1]


@dataclass(slots=True)
class Summary:
    """Of what letters died, how many, since when, and where they came from; no letter is kept."""

    letters: int = 0
    oldest_ms: int | None = None
    by_reason: dict[Reason, Counter[str]] = field(default_factory=dict)  # by source
    oldest_by_reason: dict[Reason, int] = field(default_factory=dict)

    def note(self, letter: DeadLetter) -> None:
        """Count one."""
        reason, at_ms = reason_of(letter), letter.message.sent_at_ms or 0
        self.letters += 1
        self.oldest_ms = at_ms if self.oldest_ms is None else min(self.oldest_ms, at_ms)
        self.by_reason.setdefault(reason, Counter())[queue_of(letter)] += 1
        self.oldest_by_reason[reason] = min(self.oldest_by_reason.get(reason, at_ms), at_ms)

    @property
    def document(self) -> dict[str, Any]:
        """For `--json`: reasons with most letters first."""
        return {
            "looked_at": self.letters,
            "oldest_ms": self.oldest_ms,
            "reasons": [
                {
                    "reason": reason.value,
                    "letters": sources.total(),
                    "oldest_ms": self.oldest_by_reason[reason],
                    "sources": dict(sources.most_common()),
                }
                for reason, sources in sorted(self.by_reason.items(), key=lambda item: -item[1].total())
            ],
        }


def document(letter: DeadLetter, *, most: int | None = None) -> dict[str, Any]:
    """Write a letter for `--json`: no address of a client is in it, and no session description.

    Its texts are cut to `most` characters.
    """
    message = letter.message
    return {
        "id": message.message_id,
        "reason": reason_of(letter).value,
        "said": masked(letter.reason, most=most),
        "source": letter.source,
        "died_ms": message.sent_at_ms,
        "receives": message.receives,
        "group": message.group_id,
        "attributes": {
            name: f"[{len(value.content)} bytes]" if value.text is None else masked(value.text, most=most)
            for name, value in message.attributes.items()
        },
        "body": masked(message.body, most=most),
    }


# Moving letters


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """Which letters: of any of the reasons, from any of the queues by name, with any of the ids. Empty is all."""

    reasons: frozenset[Reason] = frozenset()
    sources: frozenset[str] = frozenset()
    ids: frozenset[str] = frozenset()

    def takes(self, letter: DeadLetter) -> bool:
        """Tell whether the letter is one of them."""
        return (
            (not self.reasons or reason_of(letter) in self.reasons)
            and (not self.sources or queue_of(letter) in self.sources)
            and (not self.ids or letter.message.message_id in self.ids)
        )


def put_back(
    client: "SQSClient", url: str, wanted: Selection, *, most: int | None = None, may_go_on: Callable[[], bool]
) -> Move:
    """Make the move of letters to the queues that they came from, sent before they are deleted.

    A FIFO queue gets each group in order, and for five minutes nothing twice.
    """

    def goes(message: Message) -> Copy | None:
        letter = read(message)
        if not wanted.takes(letter):
            return None
        return copy_to(source_url(letter, beside=url), letter.message)

    return Move(
        source=dead_letter_queue(client, url),
        send=QueuesByUrl(client).send_batch,
        goes=goes,
        fifo=url.endswith(FIFO_SUFFIX),
        several=True,
        most=most,
        may_go_on=may_go_on,
    )


def thrown_away(
    client: "SQSClient", url: str, wanted: Selection, *, until_ms: int, may_go_on: Callable[[], bool]
) -> Move:
    """Make the move of letters to nowhere: of those that were there at the time."""
    return Move(
        source=dead_letter_queue(client, url),
        send=lambda *_: {},
        goes=lambda message: copy_to(url, message) if wanted.takes(read(message)) else None,
        fifo=url.endswith(FIFO_SUFFIX),
        until_ms=until_ms,
        may_go_on=may_go_on,
    )


def source_url(letter: DeadLetter, *, beside: str) -> str:
    """Find the queue that the letter goes back to, by the URL of any queue of the region. Raises `CantGo`."""
    if is_offer_kept(letter.message):
        raise CantGo("of an offer only its length is kept, and its client has given up")
    _, _, service, _, account, name = [*letter.source.split(":", 5), *[""] * 6][:6]  # of an ARN
    if service != "sqs":
        raise CantGo(
            f"it came from no queue but {letter.source}" if letter.source else "it doesn't say from where it came"
        )
    return f"{beside.rsplit('/', 2)[0]}/{account}/{name}"
