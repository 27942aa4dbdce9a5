"""What a peer may do in tests that are about something else."""

from typing import TypedDict


class Rules(TypedDict):
    pulls: tuple[str, ...]
    pushes: tuple[str, ...]
    queues: tuple[str, ...]
    leads: tuple[str, ...]


EVERYTHING = Rules(pulls=("*",), pushes=("*",), queues=("*",), leads=("*",))
