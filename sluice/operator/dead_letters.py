"""Shows, redrives and purges the messages of a site's dead-letter queues.

Dead letters have the format of `sluice.aws.dead_letters`. Clients' addresses and session descriptions are masked.
"""

import json
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from sluice.aws.client_types import SQSClient
from sluice.aws.connections import Connection
from sluice.aws.dead_letters import is_offer_placeholder, read_dead_letter
from sluice.aws.deployment import read_stack_output
from sluice.aws.queues import MAX_BATCH, ConsumedQueue, send_batch
from sluice.dead_letter_reasons import Reason, classify_reason
from sluice.errors import BadConfiguration
from sluice.federation.moves import HIDDEN_S, Move, MovedCopy, Unmovable, build_copy
from sluice.message import FIFO_SUFFIX, DeadLetter, Message, drop_contents
from sluice.rendezvous.protocol.addresses import mask_addresses

OPERATIONS_STACK = "SluiceOperations"
URLS_OUTPUT = "DeadLetterUrls"
WAIT_S = 1  # Receives are long polls, of one second, because a short poll asks only some of SQS's servers.
# SQS may deliver a message twice. Receiving stops after this many times the requested number of messages.
MAX_COPIES = 2
DEFAULT_LOOKED_AT = 1_000
MAX_LISTED_FAILURES = 10  # At most this number of messages that could not be moved is listed with the reason.


class NoSuchQueue(BadConfiguration):
    """Raised if the site has no dead-letter queue of the given name."""


def read_queue_urls(connection: Connection) -> Mapping[str, str]:
    """Read the URLs of the site's dead-letter queues, by names such as `federation.fifo`."""
    return parse_queue_urls(read_stack_output(connection, OPERATIONS_STACK, URLS_OUTPUT))


def parse_queue_urls(output: str) -> Mapping[str, str]:
    """Parse the stack output `DeadLetterUrls` into URLs by queue name."""
    urls: Mapping[str, str] = json.loads(output)
    return {
        description.removeprefix("dead letters of ").removeprefix("the ").replace(", FIFO", ".fifo"): url
        for description, url in urls.items()
    }


def find_queue_url(urls: Mapping[str, str], queue: str) -> str:
    """Return the URL of the dead-letter queue with this name. Raises `NoSuchQueue`."""
    if queue not in urls:
        raise NoSuchQueue(f"there is no dead-letter queue {queue}: there are {', '.join(urls)}")
    return urls[queue]


def open_queue(client: SQSClient, url: str) -> ConsumedQueue:
    """Open a dead-letter queue with a visibility timeout that hides messages while they are shown or moved."""
    return ConsumedQueue(client, url, WAIT_S, HIDDEN_S)


def peek_dead_letters(client: SQSClient, url: str, *, most: int) -> Iterator[DeadLetter]:
    """Yield up to `most` dead letters, each once, then make all visible again. Raises `CallFailed`, `QueueGone`.

    SQS returns at most the first ten messages of a FIFO queue's message group.
    """
    queue, seen_ids, hidden = open_queue(client, url), set[str](), list[Message]()
    try:
        while len(seen_ids) < most and len(hidden) < MAX_COPIES * most:
            received = queue.receive(most=min(most - len(seen_ids), MAX_BATCH))
            if not received:
                return
            hidden += map(drop_contents, received)
            for message in received:
                if message.message_id not in seen_ids:
                    seen_ids.add(message.message_id)
                    yield read_dead_letter(message)
    finally:
        queue.release(hidden)


def find_source_name(letter: DeadLetter) -> str:
    """Return the name of the queue or stream that the dead letter came from; empty if the source is not recorded."""
    return letter.source.rsplit(":", 1)[-1]


@dataclass(slots=True)
class DeadLetterSummary:
    """Counts dead letters by reason and source, with the time of the oldest for each reason. Keeps no message."""

    letter_count: int = 0
    oldest_ms: int | None = None
    counts_by_reason: dict[Reason, Counter[str]] = field(default_factory=dict)  # The inner keys are the sources' names.
    oldest_ms_by_reason: dict[Reason, int] = field(default_factory=dict)

    def add_letter(self, letter: DeadLetter) -> None:
        """Add one dead letter to the counts."""
        reason, at_ms = classify_reason(letter), letter.message.sent_at_ms or 0
        self.letter_count += 1
        self.oldest_ms = at_ms if self.oldest_ms is None else min(self.oldest_ms, at_ms)
        self.counts_by_reason.setdefault(reason, Counter())[find_source_name(letter)] += 1
        self.oldest_ms_by_reason[reason] = min(self.oldest_ms_by_reason.get(reason, at_ms), at_ms)

    @property
    def document(self) -> dict[str, Any]:
        """The summary of dead letters for `--json`, with the most frequent reasons first."""
        return {
            "looked_at": self.letter_count,
            "oldest_ms": self.oldest_ms,
            "reasons": [
                {
                    "reason": reason.value,
                    "letters": sources.total(),
                    "oldest_ms": self.oldest_ms_by_reason[reason],
                    "sources": dict(sources.most_common()),
                }
                for reason, sources in sorted(self.counts_by_reason.items(), key=lambda item: -item[1].total())
            ],
        }


def build_letter_document(letter: DeadLetter, *, most: int | None = None) -> dict[str, Any]:
    """Format a dead letter for `--json`, with addresses and session descriptions masked.

    The body, the reason and each attribute are cut to `most` characters.
    """
    message = letter.message
    return {
        "id": message.message_id,
        "reason": classify_reason(letter).value,
        "said": mask_addresses(letter.reason, most=most),
        "source": letter.source,
        "died_ms": message.sent_at_ms,
        "receives": message.receive_count,
        "group": message.group_id,
        "attributes": {
            name: f"[{len(value.content)} bytes]" if value.text is None else mask_addresses(value.text, most=most)
            for name, value in message.attributes.items()
        },
        "body": mask_addresses(message.body, most=most),
    }


@dataclass(frozen=True, slots=True, kw_only=True)
class DeadLetterSelection:
    """Selects dead letters by reason, source queue and message id. An empty set means no restriction."""

    reasons: frozenset[Reason] = frozenset()
    sources: frozenset[str] = frozenset()
    ids: frozenset[str] = frozenset()

    def includes(self, letter: DeadLetter) -> bool:
        """Return whether the dead letter is selected."""
        return (
            (not self.reasons or classify_reason(letter) in self.reasons)
            and (not self.sources or find_source_name(letter) in self.sources)
            and (not self.ids or letter.message.message_id in self.ids)
        )


def prepare_redrive(
    client: SQSClient,
    url: str,
    selection: DeadLetterSelection,
    *,
    most: int | None = None,
    may_go_on: Callable[[], bool],
) -> Move:
    """Prepare a move of the selected dead letters to their source queues.

    Each letter is sent before it is deleted. A FIFO queue receives each message group in order, and drops duplicates
    for five minutes.
    """

    def choose_copy(message: Message) -> MovedCopy | None:
        letter = read_dead_letter(message)
        if not selection.includes(letter):
            return None
        return build_copy(find_source_queue_url(letter, sibling_url=url), letter.message)

    return Move(
        source=open_queue(client, url),
        send=partial(send_batch, client),
        choose_copy=choose_copy,
        fifo=url.endswith(FIFO_SUFFIX),
        has_several_targets=True,
        most=most,
        may_go_on=may_go_on,
    )


def prepare_purge(
    client: SQSClient, url: str, selection: DeadLetterSelection, *, until_ms: int, may_go_on: Callable[[], bool]
) -> Move:
    """Prepare the deletion of the selected dead letters that arrived before `until_ms`."""
    return Move(
        source=open_queue(client, url),
        send=lambda *_: {},
        choose_copy=lambda message: build_copy(url, message) if selection.includes(read_dead_letter(message)) else None,
        fifo=url.endswith(FIFO_SUFFIX),
        until_ms=until_ms,
        may_go_on=may_go_on,
    )


def find_source_queue_url(letter: DeadLetter, *, sibling_url: str) -> str:
    """Return the URL of the source queue, which is in the same region as `sibling_url`'s queue. Raises `Unmovable`."""
    if is_offer_placeholder(letter.message):
        raise Unmovable("an offer can't be redriven: only its length is kept, and its client has given up")
    _, _, service, _, account, name = [*letter.source.split(":", 5), *[""] * 6][:6]
    if service != "sqs":
        raise Unmovable(
            f"its source is not a queue but {letter.source}" if letter.source else "its source queue is not recorded"
        )
    return f"{sibling_url.rsplit('/', 2)[0]}/{account}/{name}"
