"""Loops and limits: whether a message may go over a bridge, and whether a site takes it in. Pure.

A message carries the tags of the sites, or bridges, that it has left, oldest first. A tag is compared whole.
"""

import re
from enum import StrEnum
from typing import Annotated

from msgspec import Meta

from sluice.codec import Struct

DEFAULT_MAX_HOPS = 8
MAX_TRACE_TAGS = 64  # no site may ask for more hops than that
MAX_TAG_CHARACTERS = 32
TAG = f"[A-Za-z0-9_-]{{1,{MAX_TAG_CHARACTERS}}}"
_TAG = re.compile(TAG)

Tag = Annotated[str, Meta(pattern=rf"\A{TAG}\Z")]
Trace = tuple[str, ...]


class DropReason(StrEnum):
    """Why a message isn't sent on. Every drop is counted under its reason."""

    LOOP = "loop"
    HOPS = "hops"
    TTL = "ttl"
    UNROUTABLE = "unroutable"
    FILTERED = "filtered"


class Crossing(Struct, frozen=True, kw_only=True):
    """What a bridge asks of a message's trace: `peer` is the tag of the site behind it, `tag` what it appends."""

    peer: str
    tag: str
    excludes: frozenset[str] = frozenset()
    max_hops: int = DEFAULT_MAX_HOPS


def is_tag(text: str) -> bool:
    """Whether the text can be a site's tag."""
    return _TAG.fullmatch(text) is not None


def held_back(trace: Trace, crossing: Crossing) -> DropReason | None:
    """Why a message with this trace isn't put on the bridge; None where it may cross."""
    if crossing.peer in trace or not crossing.excludes.isdisjoint(trace):
        return DropReason.LOOP
    return DropReason.HOPS if len(trace) >= crossing.max_hops else None


def crossed(trace: Trace, crossing: Crossing) -> Trace:
    """Append the bridge's tag: the trace on the other side."""
    return (*trace, crossing.tag)


def turned_away(trace: Trace, *, site: str) -> DropReason | None:
    """Why the site with this tag takes no message with this trace: it has been here."""
    return DropReason.LOOP if site in trace else None
