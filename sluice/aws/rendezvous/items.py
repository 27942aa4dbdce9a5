"""What the items of the rendezvous' tables have in common."""

import json
from collections.abc import Callable, Iterable
from typing import TypeVar

from aws_lambda_powertools.logging import Logger

from sluice.aws.items import Item, text
from sluice.rendezvous.protocol.matching import Nat, Profile

T = TypeVar("T")

logger = Logger()


def read_each(items: Iterable[Item], read: Callable[[Item], T]) -> list[T]:
    """Read items, and pass over those that can't be read, as one of a newer version may be: it harms no other."""
    found = []
    for item in items:
        try:
            found.append(read(item))
        except (KeyError, ValueError, TypeError) as fault:
            logger.warning("ItemNotRead", pk=text(item, "pk"), reason=repr(fault))
    return found


def read_profile(item: Item) -> Profile:
    """Read what is known of a proxy. Raises KeyError, ValueError or TypeError for what is nothing of it."""
    profile = json.loads(item["profile"]["S"])
    return Profile(**profile | {"nat": Nat(profile["nat"])})


def milliseconds(at_ms: int) -> str:
    """Spell a time so that later ones come later."""
    return f"{max(at_ms, 0):013d}"
