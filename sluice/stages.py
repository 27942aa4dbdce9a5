"""Stages: the prefix of names by which several sites live in one account and region. Pure.

What stands before a name's first hyphen says whose it is: `dev-sluice-tmp-…` is stage `dev`'s, and where there is no
stage names begin as our own do. No stage has a hyphen, and none is called as those begin: so a pattern `dev-…*` fits
neither names of stage `dev2` nor of the site without a stage, nor the other way round.
"""

import re

MAX_STAGE_CHARACTERS = 7  # a site's tag has 32: a stage, a hyphen, an account, a region
STAGE = rf"[a-z][a-z0-9]{{0,{MAX_STAGE_CHARACTERS - 1}}}"
OURS = "sluice"  # what our own names begin with, beside the protocol's `snowflake`, which is too long for a stage

_STAGE = re.compile(STAGE)
_STAGED = re.compile(rf"({STAGE})-(?:sluice-|Sluice|snowflake-)")


def is_stage(text: str) -> bool:
    """Whether a stage can be called so."""
    return _STAGE.fullmatch(text) is not None and text != OURS


def stage_of(name: str) -> str | None:
    """Find the stage of a name that is ours; None for what has none."""
    found = _STAGED.match(name)
    return found[1] if found and is_stage(found[1]) else None


def staged(name: str, stage: str | None) -> str:
    """Give a name, or what names begin with, at a stage; without a stage it is as it is."""
    return name if stage is None else f"{stage}-{name}"
