"""Control messages between sites: one JSON object per message, with kind and version. Pure.

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


class _ControlMessage(Struct, frozen=True, kw_only=True, tag_field="op"):
    """A control message from `sender`. `link` is the sender's name for the link."""

    link: str
    sender: Address


class Hello(_ControlMessage, frozen=True, kw_only=True, tag="hello"):
    """Greets the peer over a link. Lists the bridges that the link pulls, and those of them that are `paused`.

    `served` is true if the link was not declared at the sender.
    """

    served: bool = False
    draining: bool = False
    paused: frozenset[str] = frozenset()
    pulls: Annotated[tuple[Bridge, ...], Meta(max_length=MAX_PULLS)] = ()


class HelloAnswer(_ControlMessage, frozen=True, kw_only=True, tag="answer"):
    """Answers a hello. `exchanges` has exchange types by name, `bridges` has pulled bridges' states by name."""

    exchanges: Mapping[str, str]
    bridges: Mapping[str, str]


class HelloRefusal(_ControlMessage, frozen=True, kw_only=True, tag="refused"):
    """Refuses a hello, with the reason for the refusal."""

    reason: str


class LinkClosed(_ControlMessage, frozen=True, kw_only=True, tag="parting"):
    """Reports that the sender has closed its link."""


class DynamicMessage(_ControlMessage, frozen=True, kw_only=True, tag="dynamic", rename={"op": "said"}):
    """Carries an encoded op of `dynamic.ops`. The op stays encoded here, so an invalid op doesn't end the link."""

    op: Raw


LinkMessage = Hello | HelloAnswer | HelloRefusal | LinkClosed
ControlMessage = LinkMessage | DynamicMessage

# Type checkers don't accept a union as a type argument.
_CONTROL: Format[ControlMessage] = Format(kind="control", version=1, type=cast("type[ControlMessage]", ControlMessage))


def encode_control(message: ControlMessage) -> str:
    """Encode a control message as the body of an SQS message."""
    return _CONTROL.text(message)


def decode_control(body: str) -> ControlMessage:
    """Decode a control message. Raises `Malformed`, which names the invalid place.

    `DynamicMessage.op` stays encoded, so the nesting depth is checked first.
    """
    try:
        check_depth(body)
        return _CONTROL.from_text(body)
    except NestedTooDeep as error:
        raise Malformed(f"control: {error}") from None
    except BadSnapshot as error:
        raise Malformed(str(error)) from None
