"""Stages: a name prefix that lets several sites share one account and region. Pure.

The part of a name before its first hyphen is the stage: `dev-sluice-tmp-…` belongs to stage `dev`; without a stage,
names begin with `sluice`. A stage has no hyphen and can't be `sluice`. The pattern `dev-…*` therefore matches neither
names of stage `dev2` nor names without a stage, and their patterns match no name of stage `dev`.
"""

import re

MAX_STAGE_CHARACTERS = 7  # A tag has 32 characters, which also hold account and region.
STAGE = rf"[a-z][a-z0-9]{{0,{MAX_STAGE_CHARACTERS - 1}}}"
OURS = "sluice"  # Prefix of Sluice's names. The protocol's prefix, `snowflake`, is too long for a stage.

_STAGE = re.compile(STAGE)
_STAGED = re.compile(rf"({STAGE})-(?:sluice-|Sluice|snowflake-)")


def is_stage(text: str) -> bool:
    """Whether the text is a valid stage name."""
    return _STAGE.fullmatch(text) is not None and text != OURS


def parse_stage(name: str) -> str | None:
    """Return the stage in a resource's name; None if the name contains no stage."""
    match = _STAGED.match(name)
    return match[1] if match and is_stage(match[1]) else None


def add_stage_prefix(name: str, stage: str | None) -> str:
    """Add the stage's prefix to a name or a name prefix; without a stage, return it unchanged."""
    return name if stage is None else f"{stage}-{name}"
