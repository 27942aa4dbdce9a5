"""What changed at a site between two of its statuses, in words. Pure."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

Status = Mapping[str, Any]  # as `sluice status --json` has it
PARTS = ("rendezvous", "splitting", "federation", "pipeline", "dead_letters")


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """Something that changed, when it was seen, and the part that it is about."""

    at_ms: int
    part: str
    what: str


def changes(before: Status, after: Status, *, at_ms: int) -> Sequence[Change]:
    """Compare two statuses; a part that one of them doesn't have is compared as a whole."""
    return [Change(at_ms=at_ms, part=part, what=what) for part, what in _changes(before, after)]


def _changes(before: Status, after: Status) -> Iterator[tuple[str, str]]:
    for part in PARTS:
        failed, fails = before["failed"].get(part), after["failed"].get(part)
        if fails and not failed:
            yield part, f"can't be asked: {fails}"
        elif failed and not fails:
            yield part, "answers again"
    pairs = {part: (before.get(part), after.get(part)) for part in PARTS}
    for part, compare in (
        ("splitting", _splitting),
        ("federation", _federation),
        ("pipeline", _pipeline),
        ("dead_letters", _dead_letters),
    ):
        old, new = pairs[part]
        if old is not None and new is not None:
            yield from ((part, what) for what in compare(old, new))


def _splitting(before: Status, after: Status) -> Iterator[str]:
    old = {each["session_id"]: each for each in before["sessions"]}
    new = {each["session_id"]: each for each in after["sessions"]}
    for session_id, each in new.items():
        if session_id not in old:
            yield f"session {each['key']} of {each['owner']} began"
        elif old[session_id]["status"] != each["status"]:
            yield f"session {each['key']} of {each['owner']} is {each['status']}"
    for session_id in old.keys() - new.keys():
        yield f"session {old[session_id]['key']} of {old[session_id]['owner']} ended"


def _federation(before: Status, after: Status) -> Iterator[str]:
    for kind in ("exchanges", "links", "routes"):
        yield from _named(kind.removesuffix("s"), before[kind], after[kind])
    if before["bindings"] != after["bindings"]:
        yield f"{after['bindings']} bindings, before {before['bindings']}"


def _named(kind: str, before: Sequence[Status], after: Sequence[Status]) -> Iterator[str]:
    old, new = ({each["name"]: each.get("state") for each in side} for side in (before, after))
    for name, state in new.items():
        if name not in old:
            yield f"{kind} {name} is new"
        elif state != old[name]:
            yield f"{kind} {name} is {state}"
    for name in old.keys() - new.keys():
        yield f"{kind} {name} is gone"


def _pipeline(before: Status, after: Status) -> Iterator[str]:
    if before["wanted"] != after["wanted"]:
        yield f"job land should be {after['wanted']}"
    old = {each["run"]: each["state"] for each in before["runs"]}
    for each in after["runs"]:
        if old.get(each["run"]) != each["state"]:
            yield f"run of job {each['job']} is {each['state']}"


def _dead_letters(before: Status, after: Status) -> Iterator[str]:
    for told, held in after.items():
        old = before.get(told, {})
        if held["visible"] is None or old.get("visible") is None:
            continue
        more = held["visible"] + held["in_flight"] - old["visible"] - old["in_flight"]
        if more > 0:
            yield f"{more} more {told}"
        elif more < 0:
            yield f"{-more} fewer {told}"
