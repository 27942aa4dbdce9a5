"""Random programs of calls to DynamoDB: few keys and attributes, so that calls meet, and the adapters' expressions.

Beside them expressions that are refused: types that don't fit, placeholders that nobody uses or that aren't given.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from hypothesis import strategies as st

from tests.harsh.sqs_programs import several, weighted
from tests.harsh.two_clouds import TwoClouds

MAX_PAGES = 20
TABLE = "table"
ATTRIBUTES = ("version", "sent_at", "#state", "#state")
NAMES = {"#state": "state"}
# The adapters', then what is like them. `one` and `other` stand for attributes.
CONDITIONS = (
    "attribute_not_exists(pk)",
    "attribute_not_exists(pk) OR {one} = :v",
    "attribute_not_exists(pk) OR {one} < :v",
    "attribute_not_exists(pk) OR {one} <= :v OR {one} > :w",
    "{one} > :v",
    "{one} = :v",
    "{one} = :v AND {other} = :w",
    "attribute_exists(pk)",
    "attribute_exists({one}) AND NOT {one} = :v",
    "attribute_not_exists({one})",
    "{one} <> :v",
    "NOT ({one} <> :v OR {other} >= :w)",
    "{one} < {other}",
    "{one} BETWEEN :v AND :w",
    "{one} IN (:v, :w)",
    "begins_with({one}, :v)",
    "contains({one}, :v)",
)
UPDATES = (
    "SET {one} = :x",
    "SET {one} = :x, {other} = :y",
    "ADD {one} :x SET {other} = :y",
    "ADD {one} :x",
    "ADD {one} :x, {other} :y",
    "SET {one} = {other} + :x",
    "SET {one} = if_not_exists({one}, :x) + :y",
    "SET {one} = if_not_exists({other}, :x)",
    "SET {one} = {other}",
    "SET {one} = :x - :y",
    "REMOVE {one}",
    "SET {one} = :x REMOVE {other}",
)
KEY_CONDITIONS = (
    "pk = :pk",
    "pk = :pk",
    "pk = :pk AND sk < :sk",
    "pk = :pk AND sk >= :sk",
    "pk = :pk AND sk = :sk",
    "pk = :pk AND begins_with(sk, :sk)",
    "pk = :pk AND sk BETWEEN :sk AND :until",
)


@dataclass(frozen=True, slots=True)
class Step:
    """A call, or the passing of time."""

    call: str
    given: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Program:
    """What is in a table, and what is done with it."""

    items: tuple[dict[str, Any], ...]
    steps: tuple[Step, ...]


def programs() -> st.SearchStrategy[Program]:
    """Draw programs."""
    return st.builds(Program, st.lists(_items(), max_size=4).map(tuple), several(_steps()))


def play(program: Program, clouds: TwoClouds) -> None:
    """Run a program on both clouds, which compare each answer; of a query all pages."""
    clouds.make_table(TABLE)
    for item in program.items:
        clouds.call("put_item", {"TableName": TABLE, "Item": item})
    for step in program.steps:
        if step.call == "wait":
            clouds.wait(step.given["seconds"])
            continue
        answer = clouds.call(step.call, step.given)
        for _ in range(MAX_PAGES):
            if "LastEvaluatedKey" not in answer:
                break
            answer = clouds.call(step.call, {**step.given, "ExclusiveStartKey": answer["LastEvaluatedKey"]})


def _steps() -> st.SearchStrategy[Step]:
    calls = {
        "put_item": _puts(),
        "update_item": _updates(),
        "delete_item": _deletes(),
        "get_item": st.fixed_dictionaries({"Key": _keys()}, optional={"ConsistentRead": st.booleans()}),
        "query": _queries(),
    }
    in_table = {call: given.map(lambda found: {"TableName": TABLE, **found}) for call, given in calls.items()}
    in_table |= {
        "batch_get_item": st.lists(_keys(), min_size=1, max_size=3).map(
            lambda keys: {"RequestItems": {TABLE: {"Keys": keys}}}
        ),
        "batch_write_item": st.lists(_written(), min_size=1, max_size=4).map(
            lambda requests: {"RequestItems": {TABLE: requests}}
        ),
        "transact_write_items": _transactions(),
        "wait": st.fixed_dictionaries({"seconds": st.sampled_from([1, 300, 599, 600])}),
    }
    weights = {"put_item": 3, "update_item": 4, "query": 3, "transact_write_items": 4}
    return weighted({st.builds(Step, st.just(call), given): weights.get(call, 1) for call, given in in_table.items()})


def _keys() -> st.SearchStrategy[dict[str, Any]]:
    sort_keys = st.sampled_from(["1", "10", "2", "3"])
    return st.builds(
        lambda pk, sk: {"pk": {"S": pk}, "sk": {"S": sk}}, st.sampled_from(["p", "p", "p", "q"]), sort_keys
    )


def _values() -> st.SearchStrategy[dict[str, Any]]:
    numbers = st.sampled_from(["0", "1", "2", "-1", "10"]).map(lambda number: {"N": number})
    texts = st.sampled_from(["1", "12", "b"]).map(lambda text: {"S": text})
    return weighted({numbers: 6, texts: 4, st.just({"BOOL": True}): 1})


def _items() -> st.SearchStrategy[dict[str, Any]]:
    attributes = st.fixed_dictionaries({}, optional={name: _values() for name in ("version", "sent_at", "state")})
    return st.builds(lambda key, more: {**key, **more}, _keys(), attributes)


def _puts() -> st.SearchStrategy[dict[str, Any]]:
    how = _conditioned(returned=("NONE", "ALL_OLD"))
    return st.builds(lambda item, more: {"Item": item, **more}, _items(), how)


def _deletes() -> st.SearchStrategy[dict[str, Any]]:
    how = _conditioned(returned=("NONE", "ALL_OLD"))
    return st.builds(lambda key, more: {"Key": key, **more}, _keys(), how)


def _updates() -> st.SearchStrategy[dict[str, Any]]:
    how = _conditioned(returned=("NONE", "ALL_OLD", "ALL_NEW"), updates=True)
    return st.builds(lambda key, more: {"Key": key, **more}, _keys(), how)


def _checks() -> st.SearchStrategy[dict[str, Any]]:
    how = _conditioned(always=True)
    return st.builds(lambda key, more: {"Key": key, **more}, _keys(), how)


@st.composite
def _conditioned(
    draw: st.DrawFn, *, returned: tuple[str, ...] = (), updates: bool = False, always: bool = False
) -> dict[str, Any]:
    """Draw a condition, or none, and an update, with their names and values; now and then one too many, or too few."""
    asked: dict[str, Any] = {}
    if updates:
        asked["UpdateExpression"] = _filled(draw, UPDATES)
    if always or draw(st.booleans()):
        asked["ConditionExpression"] = _filled(draw, CONDITIONS)
        if draw(st.booleans()):
            asked["ReturnValuesOnConditionCheckFailure"] = "ALL_OLD"
    placeholders = _placeholders(draw, " ".join(map(str, asked.values())))
    if draw(st.booleans()) and returned:
        asked["ReturnValues"] = draw(st.sampled_from(returned))
    return asked | placeholders


def _filled(draw: st.DrawFn, expressions: tuple[str, ...]) -> str:
    attributes = st.sampled_from(ATTRIBUTES)
    return draw(st.sampled_from(expressions)).format(one=draw(attributes), other=draw(attributes))


def _placeholders(draw: st.DrawFn, expressions: str) -> dict[str, Any]:
    """Draw the values of an expression's placeholders, and give its names."""
    values = {name: draw(_values()) for name in sorted(set(re.findall(r":\w+", expressions)))}
    names = {name: NAMES[name] for name in sorted(set(re.findall(r"#\w+", expressions)))}
    odd = draw(st.sampled_from([*[""] * 30, "unused value", "unused name", "missing value", "missing name"]))
    if odd == "unused value":  # with another that begins like it, where there is one that long
        values[next((name[:-1] for name in values if len(name) > len(":v")), ":unused")] = {"N": "1"}
    if odd == "unused name":
        names["#unused"] = "unused"
    if odd == "missing value" and values:
        values.popitem()
    if odd == "missing name":
        names.clear()
    given = {"ExpressionAttributeValues": values, "ExpressionAttributeNames": names}
    return {name: content for name, content in given.items() if content}


@st.composite
def _queries(draw: st.DrawFn) -> dict[str, Any]:
    asked: dict[str, Any] = {"KeyConditionExpression": draw(st.sampled_from(KEY_CONDITIONS))}
    if draw(st.booleans()):
        conditions = tuple(condition for condition in CONDITIONS if "pk" not in condition)
        asked["FilterExpression"] = _filled(draw, conditions)
    placeholders = _placeholders(draw, " ".join(asked.values()))
    values = placeholders.setdefault("ExpressionAttributeValues", {})
    if draw(st.integers(0, 20)):
        values[":pk"] = {"S": draw(st.sampled_from(["p", "p", "q"]))}
        values |= {name: {"S": draw(st.sampled_from(["1", "2"]))} for name in (":sk", ":until") if name in values}
    how = st.fixed_dictionaries(
        {},
        optional={
            "Limit": st.integers(1, 3),
            "ScanIndexForward": st.booleans(),
            "Select": st.sampled_from(["COUNT", "ALL_ATTRIBUTES"]),
            "ConsistentRead": st.booleans(),
        },
    )
    return asked | placeholders | draw(how)


def _written() -> st.SearchStrategy[dict[str, Any]]:
    return st.one_of(
        _items().map(lambda item: {"PutRequest": {"Item": item}}),
        _keys().map(lambda key: {"DeleteRequest": {"Key": key}}),
    )


def _transactions() -> st.SearchStrategy[dict[str, Any]]:
    changes = {"Put": _puts(), "Update": _updates(), "Delete": _deletes(), "ConditionCheck": _checks()}
    actions = [given.map(partial(_action, kind)) for kind, given in changes.items()]
    usual = st.lists(st.one_of(*actions), min_size=1, max_size=3)
    # The same ones come again, with the same token or another.
    again = st.sampled_from(
        [[{"Put": {"TableName": TABLE, "Item": {"pk": {"S": "p"}, "sk": {"S": sk}}}}] for sk in ("1", "2")]
    )
    return st.fixed_dictionaries(
        {"TransactItems": usual | again, "ClientRequestToken": st.sampled_from(["token-1", "token-2", "token-3"])}
    )


def _action(kind: str, change: dict[str, Any]) -> dict[str, Any]:
    """Make a transaction's action of a call, which returns nothing there."""
    return {kind: {"TableName": TABLE, **{name: value for name, value in change.items() if name != "ReturnValues"}}}
