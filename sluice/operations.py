"""Typed requests to functions and their replies, as JSON. Pure.

An operation's class names its result's type, `class StopSession(Operation[SessionView], tag="stop")`. A Lambda
invocation or a queue message has the form `{"op": tag, …}`; the reply is `{"result": …}`, or `{"error": text}` for a
refusal.
"""

from collections.abc import Mapping
from functools import cache
from typing import Any, ClassVar, Generic, TypeVar, get_args

import msgspec

from sluice.codec import Struct, convert, decode, encode
from sluice.errors import BadRequest, Malformed, RequestRefused

R = TypeVar("R")
READER = "reader"  # Through this alias, a function accepts only operations that read.


class Operation(Struct, Generic[R], frozen=True, kw_only=True, tag_field="op"):
    """A request to a function. `changes` says whether the operation may leave work for the next reconciliation.

    `only_reads` says that the operation changes nothing, so that readers may request it. A class must set it.
    """

    changes: ClassVar[bool] = False
    only_reads: ClassVar[bool] = False


class QueueDepth(Struct, frozen=True, kw_only=True):
    """A queue's approximate number of messages. SQS's count may be a minute old."""

    visible: int
    in_flight: int


def parse_request(request: Mapping[str, Any] | str | bytes, operations: Any) -> Any:
    """Parse an operation from an invocation's event or a message body. Raises `BadRequest`.

    `operations` is a union of `Operation`s, one of which is returned; Python can't express that type yet.
    """
    try:
        if isinstance(request, str | bytes):
            return decode(request, operations, of="request")
        known = [operation.__struct_config__.tag for operation in get_args(operations) or (operations,)]
        if isinstance(request, Mapping) and request.get("op") not in known:
            raise BadRequest(f"no such operation: {request.get('op')!r}; there are {', '.join(known)}")
        return convert(request, operations, of="request")
    except Malformed as error:
        raise BadRequest(str(error)) from None


def build_reply(result: object) -> dict[str, Any]:
    """Build a function's reply with an operation's result."""
    return {"result": msgspec.json.decode(encode(result))}


def build_error_reply(error: Exception) -> dict[str, Any]:
    """Build a function's reply to a refused request."""
    return {"error": str(error)}


class _Reply(Struct, frozen=True, kw_only=True):
    result: msgspec.Raw = msgspec.Raw()
    error: str | None = None


def parse_result(operation: Operation[R], reply: str | bytes) -> R:
    """Parse an operation's result. Raises `RequestRefused` for an error reply, `Malformed` for any other text."""
    of = str(operation.__struct_config__.tag)
    envelope = decode(reply, _Reply, of=of)
    if envelope.error is not None:
        raise RequestRefused(envelope.error)
    result: R = decode(bytes(envelope.result), _result_type(type(operation)), of=of)
    return result


@cache
def _result_type(operation: type[Operation[Any]]) -> Any:
    [base] = [base for base in operation.__orig_bases__ if issubclass(base.__origin__, Operation)]  # type: ignore[attr-defined]  # typing's own mark
    return get_args(base)[0]
