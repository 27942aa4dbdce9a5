"""What sites tell each other over their control queues: one JSON object a message, with its kind and version. Pure.

{"kind": "control", "version": 1, "value": {"op": "hello", "link": …, "sender": {…}, …}}
"""

from collections.abc import Mapping
from typing import Annotated, cast

from msgspec import Meta, Raw

from sluice.codec import Format, Struct
from sluice.documents import NestedTooDeep, check_depth
from sluice.errors import BadSnapshot, Malformed
from sluice.federation.links.links import Address, Bridge

MAX_PULLS = 1_000


class _Said(Struct, frozen=True, kw_only=True, tag_field="op"):
    """By `sender`, over its link with the name `link`."""

    link: str
    sender: Address


class Hello(_Said, frozen=True, kw_only=True, tag="hello"):
    """Over a link: who asks, and what is pulled over it, some of it `paused`.

    `served` where nobody declared the link at the asker.
    """

    served: bool = False
    draining: bool = False
    paused: frozenset[str] = frozenset()
    pulls: Annotated[tuple[Bridge, ...], Meta(max_length=MAX_PULLS)] = ()


class HelloAnswer(_Said, frozen=True, kw_only=True, tag="answer"):
    """To a hello. `exchanges` are names with types, `bridges` names of pulled bridges with their state."""

    exchanges: Mapping[str, str]
    bridges: Mapping[str, str]


class HelloRefusal(_Said, frozen=True, kw_only=True, tag="refused"):
    """To a hello that isn't taken."""

    reason: str


class Parting(_Said, frozen=True, kw_only=True, tag="parting"):
    """The sender's link is closed."""


class DynamicMessage(_Said, frozen=True, kw_only=True, tag="dynamic"):
    """Of dynamic routes; `said` is one of `dynamic.ops`, which reads it: what can't be read doesn't end the link."""

    said: Raw


LinkMessage = Hello | HelloAnswer | HelloRefusal | Parting
ControlMessage = LinkMessage | DynamicMessage

# A union is no type to a type checker.
_CONTROL: Format[ControlMessage] = Format(kind="control", version=1, type=cast("type[ControlMessage]", ControlMessage))


def encode_control(message: ControlMessage) -> str:
    """Write a control message's body."""
    return _CONTROL.text(message)


def decode_control(body: str) -> ControlMessage:
    """Read what `encode_control` wrote. Raises `Malformed`, which names the place.

    `DynamicMessage.said` is kept unread, at any depth that the stack has room for, so the depth is checked before.
    """
    try:
        check_depth(body)
        return _CONTROL.of_text(body)
    except NestedTooDeep as error:
        raise Malformed(f"control: {error}") from None
    except BadSnapshot as error:
        raise Malformed(str(error)) from None
