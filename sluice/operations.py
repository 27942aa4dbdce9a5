"""What a function is asked and what it answers: typed at both ends, JSON in between. Pure.

An operation is a value that names its result, `class StopSession(Operation[SessionView], tag="stop")`: who asks with it
gets that type. On the wire it is `{"op": tag, …}`, from Lambda's invocation or from a queue; the reply is
`{"result": …}`, or `{"error": text}` where the asker is to blame.
"""

from collections.abc import Mapping
from functools import cache
from typing import Any, ClassVar, Generic, TypeVar, get_args

import msgspec

from sluice.codec import Struct, convert, decode, encode
from sluice.errors import BadRequest, Malformed, RequestRefused

R = TypeVar("R")


class Operation(Struct, Generic[R], frozen=True, kw_only=True, tag_field="op"):
    """One thing that may be asked. `changes` says whether there may be more to do after it."""

    changes: ClassVar[bool] = False


class QueueDepth(Struct, frozen=True, kw_only=True):
    """How many messages a queue holds, roughly: SQS's own count lags by up to a minute."""

    visible: int
    in_flight: int


def request_of(said: Mapping[str, Any] | str | bytes, operations: Any) -> Any:
    """Read which operation is asked for from an invocation's event, or a queue's text. Raises `BadRequest`.

    `operations` is a union of `Operation`s and the result is one of it: no type says that of a union yet.
    """
    try:
        if isinstance(said, str | bytes):
            return decode(said, operations, of="request")
        known = [each.__struct_config__.tag for each in get_args(operations) or (operations,)]
        if isinstance(said, Mapping) and said.get("op") not in known:
            raise BadRequest(f"no such operation: {said.get('op')!r}; there are {', '.join(known)}")
        return convert(said, operations, of="request")
    except Malformed as error:
        raise BadRequest(str(error)) from None


def reply_of(result: object) -> dict[str, Any]:
    """Make the reply that carries an operation's result, as a handler returns it and the asker reads it."""
    return {"result": msgspec.json.decode(encode(result))}


def refusal_of(error: Exception) -> dict[str, Any]:
    """Make the reply to an asker who is to blame."""
    return {"error": str(error)}


class _Reply(Struct, frozen=True, kw_only=True):
    result: msgspec.Raw = msgspec.Raw()
    error: str | None = None


def result_of(operation: Operation[R], reply: str | bytes) -> R:
    """Read the operation's result. Raises `RequestRefused` for a refusal, `Malformed` for what is no reply to it."""
    of = str(operation.__struct_config__.tag)
    said = decode(reply, _Reply, of=of)
    if said.error is not None:
        raise RequestRefused(said.error)
    result: R = decode(bytes(said.result), _result_type(type(operation)), of=of)
    return result


@cache
def _result_type(operation: type[Operation[Any]]) -> Any:
    [base] = [base for base in operation.__orig_bases__ if issubclass(base.__origin__, Operation)]  # type: ignore[attr-defined]  # typing's own mark
    return get_args(base)[0]
