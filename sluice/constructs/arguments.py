"""Checks arguments of constructs and of their methods against their type annotations, before each call."""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import wraps
from inspect import formatannotation, isfunction, signature
from types import UnionType
from typing import Any, ParamSpec, TypedDict, TypeVar, get_args, get_origin, get_type_hints

from aws_cdk import RemovalPolicy, Token
from aws_cdk import aws_lambda as lambda_
from constructs import Construct
from typing_extensions import get_protocol_members, is_protocol

from sluice.errors import BadConfiguration

PACKAGES = re.compile(r"\b[a-z0-9_.]+\.")  # Matches the packages before a type's name in an annotation.
JSON = str | int | float | None | Mapping[str, object] | Sequence[object]
ARN_ARGUMENT = "kms_key_arn"  # Only this argument may hold a CDK token, because the KMS key may belong to the same app.

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")


class SiteProps(TypedDict, total=False):
    """Keyword arguments of all constructs of a site. A default is that of the parameter of the same name.

    `stage` is a prefix of names, which allows several sites in one account and region. `removal_policy` applies to
    tables, buckets and users' queues: RETAIN, which is the default, or DESTROY.
    """

    stage: str | None
    architecture: lambda_.Architecture | str
    removal_policy: RemovalPolicy
    kms_key_arn: str | None
    log_retention_days: int
    log_level: str
    tracing: bool


def check_arguments(construct: type[T]) -> type[T]:
    """Decorate a construct so that a wrong argument raises `BadConfiguration`, with the construct's path."""
    for name, method in list(vars(construct).items()):
        if isfunction(method) and (name == "__init__" or not name.startswith("_")):
            setattr(construct, name, _check_calls(method))
    return construct


def _check_calls(method: Callable[P, R]) -> Callable[P, R]:
    parameters = signature(method).parameters

    @wraps(method)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        arguments: dict[str, Any] = {**dict(zip(parameters, args, strict=False)), **kwargs}
        construct = arguments.pop("self")
        if method.__name__ != "__init__":
            place, of = construct.node.path, f" of {method.__name__}"
        elif isinstance(scope := arguments.get("scope"), Construct):
            place, of = f"{scope.node.path}/{arguments.get('id_')}".lstrip("/"), ""
        else:
            place, of = type(construct).__name__, ""
        types = get_type_hints(method)
        types |= get_type_hints(SiteProps) if types.pop("props", None) else {}
        names = [name for name in types if name not in {"scope", "id_", "return"}]
        for name in arguments.keys() - types.keys():
            raise BadConfiguration(f"{place}: there is no argument {name}{of}; there are {', '.join(names)}")
        for name, value in arguments.items():
            for part, cause in _find_faults(value, types[name], name):
                raise BadConfiguration(f"{place}: argument {part}{of}: {cause}")
        try:
            signature(method).bind(*args, **kwargs)
        except TypeError as error:
            raise BadConfiguration(f"{place}: {error}{of}") from error
        return method(*args, **kwargs)

    return call


def describe_annotation(type_: Any) -> str:
    """Describe which values a type annotation allows: `IQueue or SplitQueue`."""
    options = dict.fromkeys(PACKAGES.sub("", formatannotation(type_)).split(" | "))
    return " or ".join(option for option in options if option != "None")


def _find_faults(value: object, expected: Any, part: str) -> Iterator[tuple[str, str]]:
    """Find CDK tokens, and values, also inside containers, whose type is not the `expected` one."""
    types = get_args(expected) if isinstance(expected, UnionType) else (expected,)
    fitting = [type_ for type_ in types if _is_instance(value, get_origin(type_) or type_)]
    if not fitting:
        shown = repr(value) if isinstance(value, str | int | float | None) else type(value).__name__
        yield part, f"{shown} is not {'JSON' if expected is JSON else describe_annotation(expected)}"
    elif isinstance(value, str | float) and Token.is_unresolved(value) and ARN_ARGUMENT not in part:
        yield part, "its value is a CDK token, known only at deployment: give a literal"
    elif isinstance(value, Mapping):
        for key, member in value.items():
            yield from _find_faults(key, str, f"{part}[{key}]")
            yield from _find_faults(member, JSON, f"{part}[{key}]")
    elif isinstance(value, Sequence) and not isinstance(value, str):
        [member_type] = get_args(fitting[0])
        for index, member in enumerate(value):
            yield from _find_faults(member, JSON if member_type is object else member_type, f"{part}[{index}]")


def _is_instance(value: object, type_: Any) -> bool:
    """Whether a value has a type. jsii's interfaces are protocols; a jsii object of several has every attribute."""
    if not is_protocol(type_):
        return isinstance(value, type_) and not (type_ is Sequence and isinstance(value, str))
    return hasattr(value, "__getattr__") or all(hasattr(type(value), name) for name in get_protocol_members(type_))
