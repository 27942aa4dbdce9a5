"""Patches of ministack's DynamoDB: which requests and expressions it refuses.

The simulation's model refuses them, too, and is compared with ministack patched so. The deployed suites run on a cloud
with these patches (`refusing_cloud`), so they see each expression that AWS would refuse.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import combinations
from typing import Any

import ministack.services.dynamodb

dynamodb = ministack.services.dynamodb

Token = tuple[str, str]
Values = Mapping[str, Mapping[str, Any]]

ORDERED = {"S", "N", "B"}  # types that have an order
NUMBERS = {"N"}
# What operators take, by ministack's tokens.
TAKES = {"LT": ORDERED, "LE": ORDERED, "GT": ORDERED, "GE": ORDERED, "PLUS": NUMBERS, "MINUS": NUMBERS}
ADDED = {"N", "SS", "NS", "BS"}
TEXTS = {"S", "B"}
CLAUSES = {"SET", "REMOVE", "ADD", "DELETE"}
WRONG_TYPE = "An operand in the update expression has an incorrect data type"
BOUNDS = "The BETWEEN operator requires bounds of one type, the upper one greater than or equal to the lower one"
OVERLAP = "Two document paths overlap with each other; must remove or rewrite one of these paths"


def patch() -> None:
    """Make all patches of this file, once."""
    refuse_unused_placeholders()
    refuse_operands_at_once()
    compare_only_texts_with_texts()
    add_only_numbers()


def refuse_unused_placeholders() -> None:
    """Refuse a name or a value that no expression uses, even if one that is used begins with its text.

    ministack looks for the text, so `:p` counts as used in `pk = :pk`. AWS refuses the request.
    https://docs.aws.amazon.com/amazondynamodb/latest/developerguide/Expressions.ExpressionAttributeValues.html
    """
    validate = dynamodb._validate_expression_attrs

    def validate_used(data: Any, fields: Sequence[str], *arguments: Any, **named: Any) -> Any:
        refused = validate(data, fields, *arguments, **named)
        used = {placeholder for field in fields for placeholder in re.findall(r"[:#]\w+", data.get(field) or "")}
        for kind in ("ExpressionAttributeValues", "ExpressionAttributeNames"):
            unused = (data.get(kind) or {}).keys() - used
            if not refused and unused:
                return _refused(f"Value provided in {kind} unused in expressions: keys: {{{min(unused)}}}")
        return refused

    dynamodb._validate_expression_attrs = validate_used


def refuse_operands_at_once() -> None:
    """Refuse values of types that an operator doesn't take, bounds out of order, and paths that overlap, at once.

    ministack checks an operand when it evaluates it for an item: without an item, or behind an operand that decides,
    any type passes, and in a transaction a wrong type cancels it. It doesn't see that `SET a = :x, a = :y` overlaps.
    AWS refuses the request as invalid before it reads an item.
    https://docs.aws.amazon.com/amazondynamodb/latest/developerguide/Expressions.OperatorsAndFunctions.html
    https://docs.aws.amazon.com/amazondynamodb/latest/developerguide/Expressions.UpdateExpressions.html
    """
    validate = dynamodb._validate_expression_attrs

    def validate_operands(data: Any, fields: Sequence[str], *arguments: Any, **named: Any) -> Any:
        refused = validate(data, fields, *arguments, **named)
        for field in fields:
            if not refused and data.get(field):
                tokens = dynamodb._tokenize(data[field])
                refused = _fault_of(field, tokens, data)
        return refused

    dynamodb._validate_expression_attrs = validate_operands


def compare_only_texts_with_texts() -> None:
    """Evaluate `begins_with` as false for an attribute that is neither a string nor binary.

    ministack refuses the request, as it does for a value of such a type. AWS evaluates the condition as false.
    https://docs.aws.amazon.com/amazondynamodb/latest/developerguide/Expressions.OperatorsAndFunctions.html
    """
    evaluator = dynamodb._ExprEval
    begins_with = evaluator._fn_begins_with

    def begins_with_text(self: Any) -> bool:
        at = self.pos
        try:
            return begins_with(self)
        except ValueError:
            value = self.av.get(self.tokens[self.pos - 2][1], {})  # what stands before the closing parenthesis
            if self.tokens[at][1].lower() != "begins_with" or TEXTS.isdisjoint(value):
                raise
            return False

    evaluator._fn_begins_with = begins_with_text


def add_only_numbers() -> None:
    """Refuse an update that adds to, or subtracts from, an attribute that is no number.

    ministack sets the attribute to the left operand. AWS refuses the update.
    https://docs.aws.amazon.com/amazondynamodb/latest/developerguide/Expressions.UpdateExpressions.html
    """
    evaluate = dynamodb._eval_set_value

    def evaluate_numbers(tokens: Sequence[Token], item: Any, values: Values, names: Mapping[str, str]) -> Any:
        depth = 0
        for at, (kind, _) in enumerate(tokens):
            depth += (kind == "LPAREN") - (kind == "RPAREN")
            if depth == 0 and at > 0 and kind in {"PLUS", "MINUS"}:
                sides = (evaluate(each, item, values, names) for each in (tokens[:at], tokens[at + 1 :]))
                if not all(side and "N" in side for side in sides):
                    raise ValueError(WRONG_TYPE)
        return evaluate(tokens, item, values, names)

    dynamodb._eval_set_value = evaluate_numbers


def _fault_of(field: str, tokens: Sequence[Token], data: Mapping[str, Any]) -> Any:
    """Find what is wrong with an expression as such: ministack's answer, or None."""
    values: Values = data.get("ExpressionAttributeValues") or {}
    for operator, operand, types in _operands(tokens):
        if types.isdisjoint(values[operand]):
            kind = next(iter(values[operand]), "?")
            text = f"operator or function: {operator}, operand type: {kind}"
            return _refused(f"Invalid {field}: Incorrect operand type for operator or function; {text}")
    for low, high in _bounds(tokens):
        if values[low].keys() != values[high].keys() or dynamodb._between_bounds_error(values[low], values[high]):
            return _refused(f"Invalid {field}: {BOUNDS}")
    if field == "UpdateExpression":
        paths = list(_changed(tokens, data.get("ExpressionAttributeNames") or {}))
        if any(one == other[: len(one)] or other == one[: len(other)] for one, other in combinations(paths, 2)):
            return _refused(f"Invalid UpdateExpression: {OVERLAP}")
    return None


def _operands(tokens: Sequence[Token]) -> Iterator[tuple[str, str, set[str]]]:
    """List the values that stand at an operator, with the types that it takes."""
    clause = ""
    for at, (kind, text) in enumerate(tokens):
        word = text.upper() if kind == "IDENT" else ""
        clause = word if word in CLAUSES else clause
        found: list[tuple[Token, set[str]]] = []
        if kind in TAKES:
            found = [(tokens[at - 1], TAKES[kind]), (tokens[at + 1], TAKES[kind])]
        elif word == "BETWEEN":
            found = [(tokens[at + 1], ORDERED), (tokens[at + 3], ORDERED)]
        elif word == "BEGINS_WITH":
            comma = next(place for place in range(at, len(tokens)) if tokens[place][0] == "COMMA")
            found = [(tokens[comma + 1], TEXTS)]
        elif kind == "VALUE_REF" and clause == "ADD":
            found = [((kind, text), ADDED)]
        yield from ((word or text, operand, types) for (is_a, operand), types in found if is_a == "VALUE_REF")


def _bounds(tokens: Sequence[Token]) -> Iterator[tuple[str, str]]:
    """List the bounds that are given as values."""
    for at, (kind, text) in enumerate(tokens):
        if kind == "IDENT" and text.upper() == "BETWEEN" and tokens[at + 1][0] == tokens[at + 3][0] == "VALUE_REF":
            yield tokens[at + 1][1], tokens[at + 3][1]


def _changed(tokens: Sequence[Token], names: Mapping[str, str]) -> Iterator[list[Any]]:
    """List the paths that an update changes."""
    starts = [at for at, (kind, text) in enumerate(tokens) if kind == "IDENT" and text.upper() in CLAUSES]
    for start, end in zip(starts, [*starts[1:], len(tokens) - 1], strict=True):
        for part in dynamodb._split_by_comma(tokens[start + 1 : end]):
            ends = [at for at, (kind, _) in enumerate(part) if kind in {"EQ", "VALUE_REF"}]
            yield dynamodb._parse_path_from_tokens(part[: ends[0] if ends else None], names)


def _refused(text: str) -> Any:
    return dynamodb.error_response_json("ValidationException", text, 400)
