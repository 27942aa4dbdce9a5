"""DynamoDB's expressions, as far as the adapters use them: compiled once, then run on items in DynamoDB's own JSON.

https://docs.aws.amazon.com/amazondynamodb/latest/developerguide/Expressions.OperatorsAndFunctions.html
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Generic, TypeVar

from tests.simulation.kernel.scheduler import Unsupported
from tests.simulation.models.errors import ServiceError

Item = Mapping[str, Any]
Names = Mapping[str, str]
Values = Mapping[str, Any]
Operand = Callable[[Item, Names, Values], Any]
Condition = Callable[[Item, Names, Values], bool]
Update = Callable[[dict[str, Any], Names, Values], None]
Rule = Callable[[Values], None]  # raises for values that the expression doesn't take, whatever the item has
R = TypeVar("R")

_TOKEN = re.compile(r"\s*(<>|<=|>=|[=<>(),+\-]|[#:A-Za-z_][A-Za-z0-9_.\-|]*)")
COMPARED: dict[str, Callable[[Any, Any], bool]] = {
    "=": lambda one, other: one == other,
    "<>": lambda one, other: one != other,
    "<": lambda one, other: one < other,
    "<=": lambda one, other: one <= other,
    ">": lambda one, other: one > other,
    ">=": lambda one, other: one >= other,
}
ORDERED = frozenset({"S", "N", "B"})  # types that have an order
TEXTS = frozenset({"S", "B"})
NUMBERS = frozenset({"N"})
ADDED = frozenset({"N", "NS", "SS"})
CLAUSES = frozenset({"SET", "ADD", "REMOVE", "DELETE"})
WRONG_TYPE = "An operand in the update expression has an incorrect data type"
NOT_THERE = "The provided expression refers to an attribute that does not exist in the item"


@dataclass(frozen=True, slots=True)
class Compiled(Generic[R]):
    """An expression that can be run, and what it takes of values and names."""

    run: R
    rules: tuple[Rule, ...]
    placeholders: frozenset[str]
    paths: tuple[str, ...]  # that it changes

    def check(self, names: Names, values: Values) -> None:
        """Refuse what the expression can't be run with. Raises `ServiceError`."""
        if missing := self.placeholders - names.keys() - values.keys():
            raise invalid(f"An expression attribute name or value used in expression is not defined: {min(missing)}")
        for rule in self.rules:
            rule(values)
        changed = [_name(path, names) for path in self.paths]
        if len(set(changed)) < len(changed):
            raise invalid("Invalid UpdateExpression: Two document paths overlap with each other")


def invalid(text: str) -> ServiceError:
    """Make the error of a request that DynamoDB refuses."""
    return ServiceError("ValidationException", text)


class _Tokens:
    def __init__(self, expression: str) -> None:
        self.expression = expression
        self.rules: list[Rule] = []
        self.paths: list[str] = []
        self.tokens: list[str] = []
        at = 0
        text = expression.rstrip()
        while at < len(text):
            found = _TOKEN.match(text, at)
            if found is None:
                raise Unsupported(f"expression {expression!r} at {at}")
            self.tokens.append(found[1])
            at = found.end()
        self.at = 0

    @property
    def next(self) -> str:
        return self.tokens[self.at] if self.at < len(self.tokens) else ""

    def take(self, *wanted: str) -> str:
        token = self.next
        if wanted and token not in wanted and token.upper() not in wanted:
            raise Unsupported(f"expression {self.expression!r}: {token!r} instead of {wanted}")
        self.at += 1
        return token

    def is_next(self, word: str) -> bool:
        return self.next.upper() == word

    def expect(self, operand: str, types: frozenset[str], operator: str) -> None:
        """Take only values of these types for an operand that is a placeholder."""
        if operand.startswith(":"):
            self.rules.append(lambda values: _of_type(values[operand], types, operator))

    def compiled(self, run: R) -> Compiled[R]:
        placeholders = frozenset(token for token in self.tokens if token[0] in ":#")
        return Compiled(run, tuple(self.rules), placeholders, tuple(self.paths))


@lru_cache(maxsize=1_000)
def condition(expression: str) -> Compiled[Condition]:
    """Compile a condition, a filter or a key condition."""
    tokens = _Tokens(expression)
    found = _or(tokens)
    if tokens.next:
        raise Unsupported(f"expression {expression!r}: {tokens.next!r} at its end")
    return tokens.compiled(found)


@lru_cache(maxsize=1_000)
def update(expression: str) -> Compiled[Update]:
    """Compile an update."""
    tokens = _Tokens(expression)
    actions: list[Callable[[Item, dict[str, Any], Names, Values], None]] = []
    while tokens.next:
        clause = tokens.take(*CLAUSES).upper()
        while True:
            actions.append(_action(clause, tokens))
            if tokens.next != ",":
                break
            tokens.take(",")

    def run(item: dict[str, Any], names: Names, values: Values) -> None:
        before = dict(item)  # all actions see the item as it was
        for action in actions:
            action(before, item, names, values)

    return tokens.compiled(run)


def _action(clause: str, tokens: _Tokens) -> Callable[[Item, dict[str, Any], Names, Values], None]:
    path = tokens.take()
    tokens.paths.append(path)
    if clause == "REMOVE":

        def remove(before: Item, item: dict[str, Any], names: Names, values: Values) -> None:
            item.pop(_name(path, names), None)

        return remove
    if clause == "ADD":
        value = tokens.take()
        tokens.expect(value, ADDED, "ADD")

        def add(before: Item, item: dict[str, Any], names: Names, values: Values) -> None:
            name = _name(path, names)
            [(kind, added)] = values[value].items()
            if kind in {"NS", "SS"}:
                item[name] = {kind: sorted({*before.get(name, {}).get(kind, ()), *added})}
            else:
                item[name] = {"N": str(_number(before.get(name, {"N": "0"})) + _number(values[value]))}

        return add
    if clause != "SET":
        raise Unsupported(f"update clause {clause}")
    tokens.take("=")
    operand = _set_operand(tokens)

    def assign(before: Item, item: dict[str, Any], names: Names, values: Values) -> None:
        found = operand(before, names, values)
        if found is None:
            raise invalid(NOT_THERE)
        item[_name(path, names)] = found

    return assign


def _set_operand(tokens: _Tokens) -> Operand:
    first = tokens.next
    left = _operand(tokens)
    if tokens.next not in {"+", "-"}:
        return left
    operator = tokens.take()
    second = tokens.next
    right = _operand(tokens)
    sign = 1 if operator == "+" else -1
    for each in (first, second):
        tokens.expect(each, NUMBERS, operator)

    def total(item: Item, names: Names, values: Values) -> Any:
        one, other = left(item, names, values), right(item, names, values)
        if one is None or other is None:
            raise invalid(NOT_THERE)
        return {"N": str(_number(one) + sign * _number(other))}

    return total


def _or(tokens: _Tokens) -> Condition:
    parts = [_and(tokens)]
    while tokens.is_next("OR"):
        tokens.take()
        parts.append(_and(tokens))
    return parts[0] if len(parts) == 1 else lambda *given: any(part(*given) for part in parts)


def _and(tokens: _Tokens) -> Condition:
    parts = [_not(tokens)]
    while tokens.is_next("AND"):
        tokens.take()
        parts.append(_not(tokens))
    return parts[0] if len(parts) == 1 else lambda *given: all(part(*given) for part in parts)


def _not(tokens: _Tokens) -> Condition:
    if tokens.is_next("NOT"):
        tokens.take()
        negated = _not(tokens)
        return lambda *given: not negated(*given)
    if tokens.next == "(":
        tokens.take("(")
        inner = _or(tokens)
        tokens.take(")")
        return inner
    return _comparison(tokens)


def _comparison(tokens: _Tokens) -> Condition:
    name = tokens.next.lower()
    if name in {"attribute_exists", "attribute_not_exists", "begins_with", "contains"}:
        return _function(name, tokens)
    left = _operand(tokens)
    if tokens.is_next("BETWEEN"):
        return _between(left, tokens)
    if tokens.is_next("IN"):
        tokens.take()
        tokens.take("(")
        among = [_operand(tokens)]
        while tokens.next == ",":
            tokens.take(",")
            among.append(_operand(tokens))
        tokens.take(")")
        return lambda *given: left(*given) is not None and any(left(*given) == each(*given) for each in among)
    sign = tokens.take(*COMPARED)
    operator, second = COMPARED[sign], tokens.next
    right = _operand(tokens)
    if sign not in {"=", "<>"}:
        tokens.expect(second, ORDERED, sign)

    def compare(item: Item, names: Names, values: Values) -> bool:
        one, other = left(item, names, values), right(item, names, values)
        if one is None or other is None or one.keys() != other.keys():
            return sign == "<>"
        return operator(_plain(one), _plain(other))

    return compare


def _between(left: Operand, tokens: _Tokens) -> Condition:
    tokens.take()
    first = tokens.next
    low = _operand(tokens)
    tokens.take("AND")
    last = tokens.next
    high = _operand(tokens)
    for each in (first, last):
        tokens.expect(each, ORDERED, "BETWEEN")
    if first.startswith(":") and last.startswith(":"):
        tokens.rules.append(lambda values: _in_order(values[first], values[last]))

    def between(item: Item, names: Names, values: Values) -> bool:
        found, least, most = (each(item, names, values) for each in (left, low, high))
        if None in (found, least, most) or not found.keys() == least.keys() == most.keys():
            return False
        return bool(_plain(least) <= _plain(found) <= _plain(most))

    return between


def _function(name: str, tokens: _Tokens) -> Condition:
    tokens.take()
    tokens.take("(")
    path = _operand(tokens)
    if name == "attribute_exists":
        tokens.take(")")
        return lambda *given: path(*given) is not None
    if name == "attribute_not_exists":
        tokens.take(")")
        return lambda *given: path(*given) is None
    tokens.take(",")
    if name == "begins_with":
        tokens.expect(tokens.next, TEXTS, name)
    wanted = _operand(tokens)
    tokens.take(")")

    def text_has(item: Item, names: Names, values: Values) -> bool:
        found, part = path(item, names, values), wanted(item, names, values)
        if found is None or part is None or "S" not in found or "S" not in part:
            return False
        return bool(found["S"].startswith(part["S"]) if name == "begins_with" else part["S"] in found["S"])

    return text_has


def _operand(tokens: _Tokens) -> Operand:
    token = tokens.take()
    if token.startswith(":"):
        return lambda item, names, values: values[token]
    if token == "if_not_exists":
        tokens.take("(")
        path = tokens.take()
        tokens.take(",")
        other = _operand(tokens)
        tokens.take(")")

        def first(item: Item, names: Names, values: Values) -> Any:
            found = item.get(_name(path, names))
            return other(item, names, values) if found is None else found

        return first
    return lambda item, names, values: item.get(_name(token, names))


def _name(path: str, names: Names) -> str:
    if path.startswith("#"):
        return names[path]
    if "." in path:
        raise Unsupported(f"nested path {path}")
    return path


def _plain(value: Any) -> Any:
    if "N" in value:
        return int(value["N"])
    return value.get("S", value.get("B", value.get("BOOL")))


def _number(value: Mapping[str, Any]) -> int:
    if "N" not in value:
        raise invalid(WRONG_TYPE)
    return int(value["N"])


def _of_type(value: Mapping[str, Any], types: frozenset[str], operator: str) -> None:
    if value.keys().isdisjoint(types):
        text = f"Incorrect operand type for operator or function; operator or function: {operator}"
        raise invalid(f"{text}, operand type: {min(value)}")


def _in_order(low: Mapping[str, Any], high: Mapping[str, Any]) -> None:
    if low.keys() != high.keys() or _plain(low) > _plain(high):
        raise invalid("The BETWEEN operator requires upper bound to be greater than or equal to lower bound")
