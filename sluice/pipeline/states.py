"""The desired state of the stream, which operators set and deployments keep. Pure."""

from enum import StrEnum

from sluice.codec import Format, Struct


class TargetState(StrEnum):
    """A state that an operator can request for the stream."""

    RUNNING = "running"
    STOPPED = "stopped"
    DRAINED = "drained"


class DesiredState(Struct, frozen=True, kw_only=True):
    """The last requested state. `since`, an ISO 8601 time, distinguishes one drain from the next."""

    wanted: TargetState  # naming: a stored field
    since: str


DESIRED_STATE = Format(kind="desired-state", version=1, type=DesiredState)
