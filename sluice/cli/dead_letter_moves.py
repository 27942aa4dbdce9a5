"""Which dead letters are meant, and what becomes of them: back to where they came from, or thrown away."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from sluice.aws.dead_letters import is_offer_kept, read
from sluice.aws.operator.dead_letters import WAIT_S
from sluice.aws.operator.moved_queues import MovedQueue
from sluice.aws.queues import QueuesByUrl
from sluice.dead_letter_reasons import Reason, reason_of
from sluice.federation.moves import FIFO_SUFFIX, CantGo, Copy, Move, copy_to
from sluice.message import DeadLetter, Message

if TYPE_CHECKING:  # boto3-stubs are for the type checker: no program needs them
    from mypy_boto3_sqs import SQSClient


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


def queue_of(letter: DeadLetter) -> str:
    """Name the queue, or the stream, that the letter came from; empty where nobody says."""
    return letter.source.rsplit(":", 1)[-1]


def put_back(
    client: "SQSClient", url: str, wanted: Selection, *, most: int | None, may_go_on: Callable[[], bool]
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
        source=MovedQueue(client, url, WAIT_S),
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

    def nowhere(_: str, __: Sequence[dict[str, Any]]) -> Mapping[str, str]:
        return {}

    return Move(
        source=MovedQueue(client, url, WAIT_S),
        send=nowhere,
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
