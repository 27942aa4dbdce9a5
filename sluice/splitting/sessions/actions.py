"""Actions that are due for sessions and their queues. Pure.

Actions are derived only from the registry's state, and each action can be repeated. So after any crash the next
invocation continues the work. The result of an action is an event.
"""

from collections.abc import Iterator

import msgspec

from sluice.splitting.sessions.state import Phase, QueueState, Registry, Split, TemporaryQueue


class CreateQueue(msgspec.Struct, frozen=True):
    """Create a queue with the attributes of the split's source. The event is `QueueCreated` or `QueueNotCreated`."""

    name: str
    queue_id: str


class PointConsumer(msgspec.Struct, frozen=True):
    """Make the deployed consumers read the queue `at`, step by step. The last event is `ConsumerPointed`."""

    queue_id: str
    at: str


class SwitchSplitter(msgspec.Struct, frozen=True):
    """Enable or disable the splitter's trigger from the split's source. The event is `SplitterSwitched`."""

    queue_id: str
    on: bool


class ReturnLeftovers(msgspec.Struct, frozen=True):
    """Send the queue's messages to `to`, then delete these messages. The event is `LeftoversReturned`.

    If the action isn't `final`, splitters may still send to the queue, so its being empty doesn't matter yet.
    """

    name: str
    to: str
    final: bool = True


class DeleteQueue(msgspec.Struct, frozen=True):
    """Delete a queue. The event is `QueueDeleted`, even if the queue didn't exist, or `CleanupFailed`."""

    name: str


class CountMain(msgspec.Struct, frozen=True):
    """Count the messages of a main queue. The event is `MainCounted`."""

    queue_id: str
    name: str


Action = CreateQueue | PointConsumer | SwitchSplitter | ReturnLeftovers | DeleteQueue | CountMain


def find_due_actions(registry: Registry) -> Iterator[Action]:
    """Yield all actions that are due in this state of the registry. Each action can be repeated."""
    for split in registry.splits.values():
        if not split.static:
            yield from _find_consumer_actions(registry, split)
        if split.phase is Phase.DRAINING and split.fifo and split.main is not None:
            yield CountMain(split.queue_id, split.main)
    for queue in registry.queues.values():
        if queue.condemned:
            yield from _find_cleanup_actions(registry, queue)
        elif queue.state is QueueState.PLANNED:
            yield CreateQueue(queue.name, queue.queue_id)


def _find_consumer_actions(registry: Registry, split: Split) -> Iterator[Action]:
    wanted_queue = split.wanted_consumer_at
    if wanted_queue is not None and split.consumer_at != wanted_queue and registry.has_queue(split, wanted_queue):
        yield PointConsumer(split.queue_id, wanted_queue)
    if split.wants_splitter or registry.find_consumers(split.queue_id).splitter_on is not False:
        # Switch the trigger even if it was last seen enabled, since a deployment of the stacks disables it.
        yield SwitchSplitter(split.queue_id, split.wants_splitter)


def _find_cleanup_actions(registry: Registry, queue: TemporaryQueue) -> Iterator[Action]:
    split, of_session = registry.splits[queue.queue_id], queue.session_id is not None
    # Every splitter stops sending to a main queue before the queue is condemned.
    is_quiet = queue.quiet_since_ms is not None if of_session else split.consumer_at != queue.name
    has_main = split.main is not None and (split.static or registry.has_queue(split, split.main))
    # Main's own leftovers go to the source; so do a session's leftovers if main was never created.
    home = split.main if of_session and split.main is not None and has_main else split.source
    if not is_quiet:
        if of_session and not queue.mirror and queue.state is QueueState.CREATED:
            # Return messages early: the deployed consumer needn't wait until idle splitters see the session's end.
            yield ReturnLeftovers(queue.name, home, final=False)
    elif queue.mirror or queue.state is not QueueState.CREATED:
        # A mirroring session's messages are copies; the deployed consumer gets the originals.
        yield DeleteQueue(queue.name)
    else:
        yield ReturnLeftovers(queue.name, home)
