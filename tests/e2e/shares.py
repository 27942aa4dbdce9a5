"""Two people and the deployed consumer share one queue's traffic: who gets what."""

import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack

from sluice.aws.connections import Connection
from sluice.aws.splitting.queues import SplitQueues
from sluice.message import Outgoing, Value
from sluice.operator.functions import ControlClient
from sluice.operator.sessions import open_session
from sluice.splitting.filters.values import Filter, QueueFilter
from sluice.splitting.operations import ShowSplitting

QUEUE = "pipeline"
PEOPLE = {"alice": 20, "bob": 10}  # and how many messages are theirs
OTHERS = 30
BATCH = 10
WITHIN_S = 60.0
PARAMETERS: dict[str, object] = {"sluice.splitting.queues": [{"queue_id": QUEUE}]}
DIVIDED = {**{name: [name] * number for name, number in PEOPLE.items()}, "consumer": ["others"] * OTHERS}


def divide(connection: Connection) -> Mapping[str, Sequence[str]]:
    """Sends everybody's messages to one queue; by receiver, the owners of what it got: `DIVIDED`."""
    control = ControlClient.connect(connection)
    [queue] = [each for each in control.ask(ShowSplitting()).queues if each.queue_id == QUEUE]
    queues = SplitQueues(connection.client("sqs"), queue.source)
    with ExitStack() as sessions:
        filters = {name: {QUEUE: QueueFilter(filter=Filter(attributes=(("user", f"^{name}$"),)))} for name in PEOPLE}
        opened = {
            name: sessions.enter_context(open_session(control, asked, owner=name, key=name))
            for name, asked in filters.items()
        }
        owners = [name for name, number in {**PEOPLE, "others": OTHERS}.items() for _ in range(number)]
        mixed = [owner for start in range(7) for owner in owners[start::7]]  # neighbours are of different owners
        for start in range(0, len(mixed), BATCH):
            batch = mixed[start : start + BATCH]
            messages = [Outgoing(body=owner, attributes={"user": Value("String", owner)}) for owner in batch]
            entries = [message.entry(str(at)) for at, message in enumerate(messages)]
            assert not queues.send_batch(_name(queue.source), entries)
        received = {name: _receive(queues, _name(opened[name].queue_url(QUEUE)), PEOPLE[name]) for name in PEOPLE}
        return received | {"consumer": _receive(queues, _name(queue.main), OTHERS)}


def _receive(queues: SplitQueues, name: str, number: int) -> Sequence[str]:
    """Receives until bodies are as many, or the time is up; then whatever more is there."""
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
