"""Loops and limits: whether a message may go over a bridge, and whether a site takes it in. Pure.

A message carries the tags of the sites, or bridges, that it has left, oldest first. A tag is compared whole.

On dynamic bridges each copy is *addressed*: it says which sites it is for, and the copies that a site sends on share
those out among them. So no trace has to stop it, and a copy that finds the way turned back goes back.
"""

import re
from enum import StrEnum
from typing import Annotated

from msgspec import UNSET, Meta, UnsetType

from sluice.codec import Struct

DEFAULT_MAX_HOPS = 8
MAX_TRACE_TAGS = 64  # no site may ask for more hops than that
MAX_TAG_CHARACTERS = 32
MAX_ORIGINS = 1_000  # sites that can be reached by one bridge
MAX_TURNS = 1_000  # bridges that an addressed copy crosses, however often ways turn meanwhile
TAG = f"[A-Za-z0-9_-]{{1,{MAX_TAG_CHARACTERS}}}"
_TAG = re.compile(TAG)

Tag = Annotated[str, Meta(pattern=rf"\A{TAG}\Z")]
Trace = tuple[str, ...]
Sites = frozenset[str]


class DropReason(StrEnum):
    """Why a message isn't sent on. Every drop is counted under its reason."""

    LOOP = "loop"
    HOPS = "hops"
    TTL = "ttl"
    UNROUTABLE = "unroutable"
    FILTERED = "filtered"


class Crossing(Struct, frozen=True, kw_only=True):
    """What a bridge asks of a message's trace: `peer` is the tag of the site behind it, `tag` what it appends.

    `origins` are the sites that a dynamic bridge leads to; no other bridge has any.
    """

    peer: str
    tag: str
    excludes: frozenset[str] = frozenset()
    max_hops: int = DEFAULT_MAX_HOPS
    origins: Sites | UnsetType = UNSET


def is_tag(text: str) -> bool:
    """Whether the text can be a site's tag."""
    return _TAG.fullmatch(text) is not None


def held_back(trace: Trace, crossing: Crossing, *, addressed: bool = False) -> DropReason | None:
    """Why a message with this trace isn't put on the bridge; None where it may cross.

    An addressed copy may go back to where it was: it is for others. Who they are says how far it goes.
    """
    if not crossing.excludes.isdisjoint(trace):
        return DropReason.LOOP
    if addressed:
        return None
    if crossing.peer in trace:
        return DropReason.LOOP
    return DropReason.HOPS if len(trace) >= crossing.max_hops else None


def share(trace: Trace, to: Sites | None, origins: Sites) -> Sites:
    """Which of those whom a message is for its copy on a dynamic bridge to these origins is for.

    Without an address it is for all who haven't had it.
    """
    return origins.difference(trace) if to is None else origins & to


def crossed(trace: Trace, crossing: Crossing, *, addressed: bool = False) -> Trace:
    """Append the bridge's tag: the trace on the other side. An addressed copy's has no tag twice, nor the peer's."""
    if addressed:
        trace = tuple(tag for tag in trace if tag not in {crossing.peer, crossing.tag})
    return (*trace, crossing.tag)


def turned_away(trace: Trace, *, site: str) -> DropReason | None:
    """Why the site with this tag takes no message with this trace: it has been here."""
    return DropReason.LOOP if site in trace else None
