"""Actions that are due for sessions and their queues. Pure.

It follows from the state alone, and every action may be done twice: so whoever comes by, after whatever crash, goes on
where the last one stopped. An action is answered with an event.
"""

from collections.abc import Iterable, Iterator

import msgspec

from sluice.splitting.consumers.temporary_queues import is_ours
from sluice.splitting.sessions.state import Phase, QueueState, Registry, Split, TemporaryQueue


class CreateQueue(msgspec.Struct, frozen=True):
    """Make it like the split's source. Answer with `QueueCreated` or `QueueNotCreated`."""

    name: str
    queue_id: str


class PointConsumer(msgspec.Struct, frozen=True):
    """Let the deployed consumers read this queue, step by step. The last answer is `ConsumerPointed`."""

    queue_id: str
    at: str


class SwitchSplitter(msgspec.Struct, frozen=True):
    """Let the splitter read the split's source, or no longer. Answer with `SplitterSwitched`."""

    queue_id: str
    on: bool


class ReturnLeftovers(msgspec.Struct, frozen=True):
    """Send the queue's messages to `to`, then delete them from the queue. Answer with `LeftoversReturned`.

    Where it isn't `final`, somebody may still send to the queue: whether it was empty then means nothing.
    """

    name: str
    to: str
    final: bool = True


class DeleteQueue(msgspec.Struct, frozen=True):
    """Answer with `QueueDeleted`, also where it didn't exist, or with `CleanupFailed`."""

    name: str


class CountMain(msgspec.Struct, frozen=True):
    """Answer with `MainCounted`."""

    queue_id: str
    name: str


Action = CreateQueue | PointConsumer | SwitchSplitter | ReturnLeftovers | DeleteQueue | CountMain


def due(registry: Registry) -> Iterator[Action]:
    """Yield everything to be done in this state, all of it safe to do again."""
    for split in registry.splits.values():
        if not split.static:
            yield from _due_of_consumers(registry, split)
        if split.phase is Phase.DRAINING and split.main is not None:
            yield CountMain(split.queue_id, split.main)
    for queue in registry.queues.values():
        if queue.condemned:
            yield from _due_of_condemned(registry, queue)
        elif queue.state is QueueState.PLANNED:
            yield CreateQueue(queue.name, queue.queue_id)


def _due_of_consumers(registry: Registry, split: Split) -> Iterator[Action]:
    wanted_queue = split.wanted_consumer_at
    if wanted_queue is not None and split.consumer_at != wanted_queue and registry.is_there(split, wanted_queue):
        yield PointConsumer(split.queue_id, wanted_queue)
    if split.wants_splitter or registry.find_consumers(split.queue_id).splitter_on is not False:
        # Also where it has been seen on: a deployment of the stacks switches it off.
        yield SwitchSplitter(split.queue_id, split.wants_splitter)


def _due_of_condemned(registry: Registry, queue: TemporaryQueue) -> Iterator[Action]:
    split, of_session = registry.splits[queue.queue_id], queue.session_id is not None
    # A main queue is condemned only once every splitter has let go of it.
    is_quiet = queue.quiet_since_ms is not None if of_session else split.consumer_at != queue.name
    has_main = split.main is not None and (split.static or registry.is_there(split, split.main))
    # From main itself, or where main never came to be, to the source.
    home = split.main if of_session and split.main is not None and has_main else split.source
    if not is_quiet:
        if of_session and not queue.mirror and queue.state is QueueState.CREATED:
            # The deployed consumer needn't wait for splitters at rest to have seen the end.
            yield ReturnLeftovers(queue.name, home, final=False)
    elif queue.mirror or queue.state is not QueueState.CREATED:
        # A mirroring session's messages were copies: the deployed consumer has had them.
        yield DeleteQueue(queue.name)
    else:
        yield ReturnLeftovers(queue.name, home)


def orphans(existing: Iterable[str], registry: Registry, *, deployment: str) -> list[str]:
    """List, of the queues that exist, those of this deployment that the registry doesn't know: to be deleted.

    The queues are to be listed before the registry is read: then a queue that has just been made is known.
    """
    return [name for name in existing if is_ours(name, deployment=deployment) and name not in registry.queues]
