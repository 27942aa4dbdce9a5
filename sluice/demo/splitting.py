"""The demo's split: two people and the deployed consumer share one queue's traffic, each with their own messages."""

import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass

from sluice.aws.operator.connections import Connection
from sluice.aws.operator.control_client import ControlClient
from sluice.aws.splitting.queues import SplitQueues
from sluice.cli.splitting.sessions import session
from sluice.errors import SluiceError
from sluice.message import Outgoing, Value
from sluice.splitting.filters.values import Filter, QueueFilter
from sluice.splitting.operations import ListQueues, QueueView

QUEUE = "pipeline"
PEOPLE = {"alice": 20, "bob": 10}  # and how many messages are theirs
OTHERS = 30
BATCH = 10
WITHIN_S = 60.0
PARAMETERS: dict[str, object] = {"sluice.splitting.queues": [{"queue_id": QUEUE}]}


class Refused(SluiceError):
    """SQS doesn't take a message."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Divided:
    """How many of whose messages arrived where: receiver to the owners of what it got."""

    received: dict[str, list[str]]
    ready_s: float

    def is_right(self) -> bool:
        """Each their own, once; the rest at the consumer."""
        own = all(self.received[name] == [name] * number for name, number in PEOPLE.items())
        return own and self.received["consumer"] == ["others"] * OTHERS

    def rows(self) -> list[tuple[str, str]]:
        """For the summary."""
        return [
            ("messages sent to the queue", f"{sum(PEOPLE.values()) + OTHERS}"),
            *((f"{name}'s session, filter user: ^{name}$", f"{len(self.received[name])}") for name in PEOPLE),
            ("the deployed consumer", f"{len(self.received['consumer'])}"),
            ("sessions ready after", f"{self.ready_s:.1f} s"),
        ]


def run(connection: Connection, *, progress: Callable[[str], None]) -> Divided:
    """Start sessions, send everybody's messages to one queue, and receive what came where."""
    control = ControlClient.of(connection)
    queue = split_queue(control)
    queues = SplitQueues(connection.client("sqs"), queue.source)
    started = time.monotonic()
    with ExitStack() as sessions:
        progress(f"{len(PEOPLE)} people start sessions")
        filters = {name: {QUEUE: QueueFilter(filter=Filter(attributes=(("user", f"^{name}$"),)))} for name in PEOPLE}
        opened = {
            name: sessions.enter_context(session(control, asked, owner=name, key=name))
            for name, asked in filters.items()
        }
        ready_s = time.monotonic() - started
        progress("messages for all of them go to one queue")
        owners = [name for name, number in {**PEOPLE, "others": OTHERS}.items() for _ in range(number)]
        # Neighbours are of different owners.
        mixed = [owner for start in range(7) for owner in owners[start::7]]
        send(queues, queue, [Outgoing(body=owner, attributes={"user": Value("String", owner)}) for owner in mixed])
        received = {name: _receive(queues, _name(opened[name].url_of(QUEUE)), PEOPLE[name]) for name in PEOPLE}
        received["consumer"] = _receive(queues, _name(queue.main), OTHERS)
    return Divided(received=received, ready_s=ready_s)


def split_queue(control: ControlClient) -> QueueView:
    """Find the queue that is split here."""
    [queue] = [each for each in control.ask(ListQueues()) if each.queue_id == QUEUE]
    return queue


def send(queues: SplitQueues, queue: QueueView, messages: Sequence[Outgoing]) -> None:
    """Send to the queue's source, as its producers do. Raises `Refused` where SQS doesn't take one."""
    for start in range(0, len(messages), BATCH):
        batch = messages[start : start + BATCH]
        refused = queues.send_batch(_name(queue.source), [each.entry(str(at)) for at, each in enumerate(batch)])
        if refused:
            raise Refused(f"{len(refused)} of {len(batch)} messages: {', '.join(set(refused.values()))}")


def _receive(queues: SplitQueues, name: str, number: int) -> list[str]:
    """Receive until bodies are as many, or the time is up; then whatever more is there."""
    bodies: list[str] = []
    deadline = time.monotonic() + WITHIN_S
    while (messages := queues.receive_batch(name)) or (len(bodies) < number and time.monotonic() < deadline):
        if messages:
            queues.delete_batch(name, messages)
            bodies += [message.body for message in messages]
        else:
            time.sleep(0.2)
    return bodies


def _name(url: str) -> str:
    return url.rsplit("/", 1)[1]
