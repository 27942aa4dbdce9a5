"""Runs redrives and purges of dead letters in the background, one at a time for each queue."""

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from sluice.aws.clients import now_ms
from sluice.console.sites import Document
from sluice.errors import BadRequest, SluiceError
from sluice.federation.moves import Move
from sluice.operator.dead_letters import MAX_LISTED_FAILURES


@dataclass(slots=True, kw_only=True)
class RunningMove:
    """A redrive or purge of dead letters with its progress."""

    queue: str
    kind: str  # The kind is "redrive" or "purge".
    began_ms: int
    move: Move
    stop_requested: threading.Event
    has_ended: bool = False
    error: str = ""

    def run(self) -> None:
        """Run the redrive or purge until it ends or is stopped. Errors are stored in `error`."""
        try:
            for _ in self.move.run():
                pass
        except SluiceError as error:
            self.error = str(error)
        except Exception as error:  # noqa: BLE001 - a bug: without an error the page would show the move as done
            self.error = f"{type(error).__name__}: {error}"
        finally:
            self.has_ended = True

    @property
    def document(self) -> Document:
        """The progress for a page: the fields of `sluice dlq redrive --json`, and whether the move has ended."""
        stays = list(self.move.unmoved.items())
        return {
            "queue": self.queue,
            "what": self.kind,
            "began_ms": self.began_ms,
            "moved": self.move.moved,
            "stays": len(stays),
            "stay": dict(stays[:MAX_LISTED_FAILURES]),
            "stopped": self.stop_requested.is_set(),
            "ended": self.has_ended,
            "error": self.error,
        }


@dataclass(slots=True)
class QueueMoves:
    """The last redrive or purge of each dead-letter queue of a site. Thread-safe."""

    moves_by_queue: dict[str, RunningMove] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def list_progress(self) -> Sequence[Document]:
        """Return the progress of each queue's last redrive or purge."""
        return [move.document for move in list(self.moves_by_queue.values())]

    def stop_move(self, queue: str) -> bool:
        """Stop a queue's redrive or purge. Returns False if none is running."""
        move = self.moves_by_queue.get(queue)
        if move is None or move.has_ended:
            return False
        move.stop_requested.set()
        return True

    def start_move(self, queue: str, kind: str, prepare_move: Callable[[Callable[[], bool]], Move]) -> Document:
        """Start a redrive or purge. Raises `BadRequest` if another one of the queue is running."""
        with self._lock:
            before = self.moves_by_queue.get(queue)
            if before is not None and not before.has_ended:
                raise BadRequest(f"letters of {queue} are being moved already: stop that move first")
            stop_requested = threading.Event()
            move = prepare_move(lambda: not stop_requested.is_set())
            running = RunningMove(queue=queue, kind=kind, began_ms=now_ms(), move=move, stop_requested=stop_requested)
            self.moves_by_queue[queue] = running
        threading.Thread(target=running.run, daemon=True).start()
        return running.document
