"""DynamoDB's expressions, as far as the adapters use them: compiled once, then run on items in DynamoDB's own JSON.

https://docs.aws.amazon.com/amazondynamodb/latest/developerguide/Expressions.OperatorsAndFunctions.html
"""

import re
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any

from tests.simulation.kernel.scheduler import Unsupported

Item = Mapping[str, Any]
Names = Mapping[str, str]
Values = Mapping[str, Any]
Operand = Callable[[Item, Names, Values], Any]
Condition = Callable[[Item, Names, Values], bool]
Update = Callable[[dict[str, Any], Names, Values], None]

_TOKEN = re.compile(r"\s*(<>|<=|>=|[=<>(),+\-]|[#:A-Za-z_][A-Za-z0-9_.\-|]*)")
COMPARED: dict[str, Callable[[Any, Any], bool]] = {
    "=": lambda one, other: one == other,
    "<>": lambda one, other: one != other,
    "<": lambda one, other: one < other,
    "<=": lambda one, other: one <= other,
    ">": lambda one, other: one > other,
    ">=": lambda one, other: one >= other,
}
CLAUSES = frozenset({"SET", "ADD", "REMOVE", "DELETE"})


class _Tokens:
    def __init__(self, expression: str) -> None:
        self.expression = expression
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


@lru_cache(maxsize=1_000)
def condition(expression: str) -> Condition:
    """Compile a condition, a filter or a key condition."""
    tokens = _Tokens(expression)
    found = _or(tokens)
    if tokens.next:
        raise Unsupported(f"expression {expression!r}: {tokens.next!r} at its end")
    return found


@lru_cache(maxsize=1_000)
def update(expression: str) -> Update:
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

    return run


def _action(clause: str, tokens: _Tokens) -> Callable[[Item, dict[str, Any], Names, Values], None]:
    path = tokens.take()
    if clause == "REMOVE":

        def remove(before: Item, item: dict[str, Any], names: Names, values: Values) -> None:
            item.pop(_name(path, names), None)

        return remove
    if clause == "ADD":
        value = tokens.take()

        def add(before: Item, item: dict[str, Any], names: Names, values: Values) -> None:
            name = _name(path, names)
            total = int(before.get(name, {"N": "0"})["N"]) + int(values[value]["N"])
            item[name] = {"N": str(total)}

        return add
    if clause != "SET":
        raise Unsupported(f"update clause {clause}")
    tokens.take("=")
    operand = _operand(tokens)
    if tokens.next in {"+", "-"}:
        sign = 1 if tokens.take() == "+" else -1
        left, right = operand, _operand(tokens)

        def operand(item: Item, names: Names, values: Values) -> Any:
            return {"N": str(int(left(item, names, values)["N"]) + sign * int(right(item, names, values)["N"]))}

    def assign(before: Item, item: dict[str, Any], names: Names, values: Values) -> None:
        found = operand(before, names, values)
        if found is None:
            raise Unsupported("an update from an attribute that isn't there")
        item[_name(path, names)] = found

    return assign


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
        tokens.take()
        low = _operand(tokens)
        tokens.take("AND")
        high = _operand(tokens)

        def between(item: Item, names: Names, values: Values) -> bool:
            found, least, most = (_plain(each(item, names, values)) for each in (left, low, high))
            return found is not None and least <= found <= most

        return between
    if tokens.is_next("IN"):
        tokens.take()
        tokens.take("(")
        among = [_operand(tokens)]
        while tokens.next == ",":
            tokens.take(",")
            among.append(_operand(tokens))
        tokens.take(")")
        return lambda *given: left(*given) is not None and any(left(*given) == each(*given) for each in among)
    operator = COMPARED[tokens.take(*COMPARED)]
    right = _operand(tokens)

    def compare(item: Item, names: Names, values: Values) -> bool:
        one, other = left(item, names, values), right(item, names, values)
        if one is None or other is None:
            return False
        if one.keys() != other.keys():
            return operator is COMPARED["<>"]
        return operator(_plain(one), _plain(other))

    return compare


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
    wanted = _operand(tokens)
    tokens.take(")")

    def text_has(item: Item, names: Names, values: Values) -> bool:
        found, part = path(item, names, values), wanted(item, names, values)
        if found is None or "S" not in found:
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
    if value is None:
        return None
    if "N" in value:
        return int(value["N"])
    return value.get("S", value.get("B", value.get("BOOL")))
