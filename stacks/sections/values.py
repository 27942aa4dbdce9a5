"""The values of parameters: a parser each, whose ValueError says what is wrong."""

import json
import re
from collections.abc import Callable, Mapping
from enum import StrEnum
from typing import Any

from sluice.errors import BadBinding, BadBridgeList, BadParameter

ROOT = "sluice"
Parse = Callable[[object], object]  # raises ValueError
EMAIL = re.compile(r"[^@\s]{1,64}@[^@\s]{1,190}")
QUEUE_ID = re.compile(r"[^*\s:](?:[^*:]{0,126}[^*\s:])?")  # a colon ends it in `--filter`, and `*` is every queue
ADOPTED_ARN = re.compile(r"arn:aws[a-z-]*:sqs:[a-z0-9-]+:\d{12}:[A-Za-z0-9_-]{1,80}(\.fifo)?")


def parsed(given: Mapping[str, object], section: str, parsers: Mapping[str, Parse]) -> dict[str, Any]:
    """What is given of a section; the rest keeps its default."""
    return {
        name: _parse(f"{section}.{name}", given[f"{section}.{name}"], parse)
        for name, parse in parsers.items()
        if f"{section}.{name}" in given
    }


def _parse(key: str, value: object, parse: Parse) -> object:
    try:
        return parse(value)
    except (ValueError, BadBridgeList, BadBinding) as error:
        raise BadParameter(key, str(error)) from error


def as_json(value: object) -> object:
    """A value of another type than text, which came as text from the command line; what isn't JSON stays text."""
    if not isinstance(value, str):
        return value
    try:
        return json.loads(value)
    except ValueError:
        return value


def text(value: object) -> str:
    """Any text."""
    if not isinstance(value, str):
        raise ValueError(f"{value!r} is not a text")  # noqa: TRY004 - one type for whatever is wrong with a value
    return value


def flag(value: object) -> bool:
    """True or false."""
    given = as_json(value)
    if not isinstance(given, bool):
        raise ValueError(f"{value!r} is not true or false")  # noqa: TRY004 - one type for whatever is wrong with a value
    return given


def number(least: int, most: int) -> Parse:
    """A whole number within these."""

    def parse(value: object) -> int:
        given = as_json(value)
        # Python counts true as a number.
        if not isinstance(given, int) or isinstance(given, bool) or not least <= given <= most:
            raise ValueError(f"{value!r} is not a whole number from {least} to {most}")
        return given

    return parse


def one_of(choices: type[StrEnum]) -> Parse:
    """One of the enumeration's texts."""

    def parse(value: object) -> StrEnum:
        if not isinstance(value, str) or value not in list(choices):
            raise ValueError(f"{value!r} is none of {', '.join(choices)}")
        return choices(value)

    return parse


def optional(parse: Parse) -> Parse:
    """The same, or null."""
    return lambda value: None if as_json(value) is None else parse(value)


def objects(value: object) -> list[object]:
    """A list, of whatever its reader checks."""
    given = as_json(value)
    if not isinstance(given, list):
        raise ValueError(f"{value!r} is not a list")  # noqa: TRY004 - one type for whatever is wrong with a value
    return given


def texts(value: object) -> tuple[str, ...]:
    """A list of texts."""
    return tuple(text(each) for each in objects(value))


def matching(pattern: re.Pattern[str], what: str) -> Parse:
    """A text that the pattern matches whole; `what` that is, for who gave another."""

    def parse(value: object) -> str:
        if not pattern.fullmatch(text(value)):
            raise ValueError(f"{value!r} is not {what}")
        return text(value)

    return parse


def listed(parse: Parse, *, most: int) -> Parse:
    """A list of at most so many."""

    def parse_all(value: object) -> tuple[object, ...]:
        given = as_json(value)
        if not isinstance(given, list) or len(given) > most:
            raise ValueError(f"{value!r} is not a list of at most {most}")
        return tuple(parse(each) for each in given)

    return parse_all


def object_of(type_: Callable[..., object], parsers: Mapping[str, Parse], required: str) -> Parse:
    """An object of fields that are known, one of which must be there."""

    def parse(value: object) -> object:
        if not isinstance(value, Mapping) or required not in value:
            raise ValueError(f"{value!r} is not an object with {required}")
        unknown = value.keys() - parsers.keys()
        if unknown:
            raise ValueError(f"{value!r} has unknown fields: {', '.join(sorted(unknown))}")
        return type_(**{name: parsers[name](each) for name, each in value.items()})

    return parse


def queue_id(value: object) -> str:
    """What `--filter` and bindings call a queue."""
    given = text(value)
    if not QUEUE_ID.fullmatch(given):
        raise ValueError(f"{given!r} is not 1 to 128 characters without `:` and `*`, nor space at its ends")
    return given


def existing_arn(value: object) -> str | None:
    """The ARN of a queue that is adopted, or null."""
    if value is not None and not ADOPTED_ARN.fullmatch(text(value)):
        raise ValueError(f"{value!r} is not the ARN of an SQS queue")
    return None if value is None else text(value)


MEMORY_MB = number(128, 10_240)  # https://docs.aws.amazon.com/lambda/latest/dg/gettingstarted-limits.html
