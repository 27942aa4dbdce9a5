"""What operators want of the stream, kept over deployments. Pure."""

from enum import StrEnum

from sluice.codec import Format, Struct


class Wanted(StrEnum):
    """What an operator wants of the stream."""

    RUNNING = "running"
    STOPPED = "stopped"
    DRAINED = "drained"


class DesiredState(Struct, frozen=True, kw_only=True):
    """What was asked for last. `since`, an ISO 8601 time, tells one drain from the next."""

    wanted: Wanted
    since: str


DESIRED_STATE = Format(kind="desired-state", version=1, type=DesiredState)
