"""Dead letters on their way, back or away: one move out of a queue at a time, run beside what the page does else."""

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from sluice.aws.clients import now_ms
from sluice.console.sites import Document
from sluice.errors import BadRequest, SluiceError
from sluice.federation.moves import Move
from sluice.operator.dead_letters import MOST_TOLD


@dataclass(slots=True, kw_only=True)
class RunningMove:
    """One move, and how far it is."""

    queue: str
    what: str  # "redrive" or "purge"
    began_ms: int
    move: Move
    stopped: threading.Event
    ended: bool = False
    error: str = ""

    def run(self) -> None:
        """Move to the end, or until it is stopped."""
        try:
            for _ in self.move.run():
                pass
        except SluiceError as error:
            self.error = str(error)
        except Exception as error:  # noqa: BLE001 - our own fault: without a word the page would take it for done
            self.error = f"{type(error).__name__}: {error}"
        finally:
            self.ended = True

    @property
    def document(self) -> Document:
        """As `sluice dlq redrive --json` says it, and whether it goes on."""
        stays = list(self.move.stays.items())
        return {
            "queue": self.queue,
            "what": self.what,
            "began_ms": self.began_ms,
            "moved": self.move.moved,
            "stays": len(stays),
            "stay": dict(stays[:MOST_TOLD]),
            "stopped": self.stopped.is_set(),
            "ended": self.ended,
            "error": self.error,
        }


@dataclass(slots=True)
class Moves:
    """The last move out of each queue of a site. Safe for threads."""

    by_queue: dict[str, RunningMove] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def documents(self) -> Sequence[Document]:
        """Say of all of them how far they are."""
        return [each.document for each in list(self.by_queue.values())]

    def stop(self, queue: str) -> bool:
        """Stop the move out of a queue; False where there is none."""
        move = self.by_queue.get(queue)
        if move is None or move.ended:
            return False
        move.stopped.set()
        return True

    def begin(self, queue: str, what: str, make: Callable[[Callable[[], bool]], Move]) -> Document:
        """Begin a move out of a queue, of which `make` is told what says whether it may go on.

        Raises `BadRequest` where a move is under way.
        """
        with self._lock:
            before = self.by_queue.get(queue)
            if before is not None and not before.ended:
                raise BadRequest(f"letters are moved out of {queue} already: stop that first")
            stopped = threading.Event()
            move = make(lambda: not stopped.is_set())
            begun = RunningMove(queue=queue, what=what, began_ms=now_ms(), move=move, stopped=stopped)
            self.by_queue[queue] = begun
        threading.Thread(target=begun.run, daemon=True).start()
        return begun.document
