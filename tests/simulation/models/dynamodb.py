"""DynamoDB as AWS documents it, as far as the adapters use it: conditions, transactions, pages, late expiry.

Beside it what rarely happens: an eventually consistent read that is old, a partition that is throttled. Items are in
DynamoDB's JSON. https://docs.aws.amazon.com/amazondynamodb/latest/APIReference/Welcome.html
"""

import json
import zlib
from bisect import bisect_left, bisect_right, insort
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from benchmarks.units import READ, WRITE, read_units_of, write_units
from tests.simulation.kernel.faults import Kind
from tests.simulation.kernel.scheduler import Unsupported
from tests.simulation.models.capacity import Capacity, size_of
from tests.simulation.models.errors import ServiceError
from tests.simulation.models.expressions import Compiled, condition, invalid, update

MAX_ITEM_BYTES = 400 * 1024
MAX_TRANSACTION = 100
MAX_BATCH_WRITE = 25
MAX_BATCH_GET = 100
STALE_S = 1.0  # how old an eventually consistent read may be
TOKEN_S = 600.0  # for which a transaction's token is known
CONDITION_FAILED = "ConditionalCheckFailedException"

Item = dict[str, Any]
Key = tuple[str, str]


@dataclass(slots=True)
class Table:
    """Items by partition and sort key. `page_items` is how many a page holds, in place of a megabyte."""

    name: str
    page_items: int = 1_000
    expires_late_s: float = 0.0  # at most; up to two days, as AWS says
    partitions: dict[str, list[str]] = field(default_factory=dict)  # sort keys in order
    items: dict[Key, Item] = field(default_factory=dict)
    before: dict[Key, tuple[float, Item | None]] = field(default_factory=dict)  # what an old read sees
    cancel: Callable[[Key, Item | None, Item | None], None] | None = None  # the stream, where there is one

    def put(self, key: Key, item: Item, now: float) -> None:
        """Write an item whole."""
        old = self.items.get(key)
        self.before[key] = now, old
        if old is None:
            insort(self.partitions.setdefault(key[0], []), key[1])
        self.items[key] = item
        if self.cancel is not None:
            self.cancel(key, old, item)

    def delete(self, key: Key, now: float) -> None:
        """Remove an item, which may not be there."""
        old = self.items.pop(key, None)
        if old is not None:
            self.before[key] = now, old
            sort_keys = self.partitions[key[0]]
            sort_keys.pop(bisect_left(sort_keys, key[1]))
            if self.cancel is not None:
                self.cancel(key, old, None)

    def get(self, key: Key, now: float) -> Item | None:
        """Read an item; one that has expired goes when its time has come, which is later."""
        item = self.items.get(key)
        if item is not None and "expires_at" in item and now >= int(item["expires_at"]["N"]):
            late_s = zlib.crc32(f"{key}".encode()) % 1000 / 1000 * self.expires_late_s
            if now >= int(item["expires_at"]["N"]) + late_s:
                self.delete(key, now)
                return None
        return item

    def partition(self, pk: str) -> Iterator[Item]:
        """Go through a partition in order of its sort keys; what has expired, and is still there, too."""
        return (self.items[pk, sk] for sk in self.partitions.get(pk, ()))


class DynamoDb:
    """All tables of the world. Its public methods are the API's operations; unknown parameters raise."""

    def __init__(self, world: Any) -> None:
        self.world = world
        self.tables: dict[str, Table] = {}
        self.tokens: dict[str, tuple[float, str]] = {}  # when, and for what
        self.throttled: dict[tuple[str, str], float] = {}  # until when, by table and partition
        self.capacity = Capacity(lambda: float(world.now))

    def make_table(self, name: str, **options: Any) -> Table:
        """Make a table with keys `pk` and `sk`."""
        self.tables[name] = Table(name, **options)
        return self.tables[name]

    # The operations

    def get_item(self, *, TableName: str, Key: Item, ConsistentRead: bool = False) -> Item:
        table, key = self._table(TableName), _key(Key)
        self._reach(TableName, key[0], READ)
        found = self._read(table, key, consistent=ConsistentRead)
        self.capacity.take(TableName, key[0], READ, read_units_of(size_of(found), consistent=ConsistentRead))
        return {} if found is None else {"Item": dict(found)}

    def put_item(self, *, TableName: str, Item: Item, **how: Any) -> Item:
        change = _Change.of("Put", {"TableName": TableName, "Item": Item, **how})
        return self._one(change)

    def update_item(self, *, TableName: str, Key: Item, UpdateExpression: str, **how: Any) -> Item:
        given = {"TableName": TableName, "Key": Key, "UpdateExpression": UpdateExpression}
        return self._one(_Change.of("Update", given | how))

    def delete_item(self, *, TableName: str, Key: Item, **how: Any) -> Item:
        return self._one(_Change.of("Delete", {"TableName": TableName, "Key": Key, **how}))

    def query(
        self,
        *,
        TableName: str,
        KeyConditionExpression: str,
        ExpressionAttributeValues: Item,
        ExpressionAttributeNames: Mapping[str, str] | None = None,
        FilterExpression: str | None = None,
        ConsistentRead: bool = False,
        Limit: int | None = None,
        Select: str | None = None,
        ScanIndexForward: bool = True,
        ExclusiveStartKey: Item | None = None,
    ) -> Item:
        names = ExpressionAttributeNames or {}
        given = [each for each in (KeyConditionExpression, FilterExpression) if each]
        _check([condition(each) for each in given], names, ExpressionAttributeValues)
        table, now = self._table(TableName), self.world.now
        if Select not in {None, "COUNT", "ALL_ATTRIBUTES"}:
            raise Unsupported(f"Select {Select}")
        partition = _partition_of(KeyConditionExpression, names, ExpressionAttributeValues)
        self._reach(TableName, partition, READ)
        # The partition alone needs no asking of each item.
        matches = condition(KeyConditionExpression).run if " AND " in KeyConditionExpression else None
        passes = condition(FilterExpression).run if FilterExpression else None
        sort_keys = table.partitions.get(partition, [])
        stale = not ConsistentRead and self.world.happens(Kind.STALE)
        if stale:  # what was deleted a moment ago is still to be seen
            gone = [key[1] for key, (at, old) in table.before.items() if key[0] == partition and now - at < STALE_S]
            sort_keys = sorted({*sort_keys, *gone})
        sort_keys = _from(sort_keys, ExclusiveStartKey, forward=ScanIndexForward)
        most = min(Limit or table.page_items, table.page_items)
        read: list[tuple[str, Item]] = []
        for sort_key in sort_keys:
            key = partition, sort_key
            item = self._seen(table, key, stale=True) if stale else table.items[key]
            if not stale and item is not None and "expires_at" in item:
                item = table.get(key, now)
            if item is not None and (matches is None or matches(item, names, ExpressionAttributeValues)):
                read.append((sort_key, item))
            if len(read) > most:
                break
        # A page that is full by its limit names its end, also where nothing follows.
        ends = len(read) > most or (Limit is not None and len(read) == most)
        read = read[:most]
        bytes_read = sum(size_of(each) for _, each in read)
        self.capacity.take(TableName, partition, READ, read_units_of(bytes_read, consistent=ConsistentRead))
        found = [dict(each) for _, each in read if passes is None or passes(each, names, ExpressionAttributeValues)]
        answer: Item = {"Count": len(found), "ScannedCount": len(read)}
        if Select != "COUNT":
            answer["Items"] = found
        if ends and read:
            answer["LastEvaluatedKey"] = {"pk": {"S": partition}, "sk": {"S": read[-1][0]}}
        return answer

    def scan(
        self,
        *,
        TableName: str,
        FilterExpression: str,
        ProjectionExpression: str,
        ExpressionAttributeValues: Item,
    ) -> Item:
        if ProjectionExpression != "pk, sk":
            raise Unsupported(f"ProjectionExpression {ProjectionExpression}")
        passes, table = condition(FilterExpression).run, self._table(TableName)
        size = sum(size_of(each) for each in table.items.values())
        self.capacity.take(TableName, "", READ, read_units_of(size, consistent=False))
        found = [item for item in table.items.values() if passes(item, {}, ExpressionAttributeValues)]
        return {"Items": [{"pk": item["pk"], "sk": item["sk"]} for item in found]}

    def batch_get_item(self, *, RequestItems: Mapping[str, Any]) -> Item:
        responses: dict[str, list[Item]] = {}
        if not 1 <= sum(len(asked["Keys"]) for asked in RequestItems.values()) <= MAX_BATCH_GET:
            raise ServiceError("ValidationException", "1 to 100 keys")
        for name, asked in RequestItems.items():
            if asked.keys() - {"Keys", "ConsistentRead"}:
                raise Unsupported(f"BatchGetItem {asked.keys()}")
            keys = [_key(each) for each in asked["Keys"]]
            if len(set(keys)) < len(keys):
                raise ServiceError("ValidationException", "Provided list of item keys contains duplicates")
            table = self._table(name)
            consistent = asked.get("ConsistentRead", False)
            read = [self._read(table, key, consistent=consistent) for key in keys]
            for key, item in zip(keys, read, strict=True):
                self.capacity.take(name, key[0], READ, read_units_of(size_of(item), consistent=consistent))
            responses[name] = [dict(item) for item in read if item is not None]
        return {"Responses": responses, "UnprocessedKeys": {}}

    def batch_write_item(self, *, RequestItems: Mapping[str, Any]) -> Item:
        left: dict[str, list[Any]] = {}
        asked = [(name, each) for name, requests in RequestItems.items() for each in requests]
        if not 1 <= len(asked) <= MAX_BATCH_WRITE:
            raise ServiceError("ValidationException", "1 to 25 requests")
        keys = [
            (name, _key(*[each.get("Key") or each["Item"] for each in request.values()])) for name, request in asked
        ]
        if len(set(keys)) < len(keys):
            raise ServiceError("ValidationException", "Provided list of item keys contains duplicates")
        for (name, request), (_, key) in zip(asked, keys, strict=True):
            table, item = self._table(name), request.get("PutRequest", {}).get("Item")
            if self.world.happens(Kind.THROTTLE) or not self.capacity.left(name, key[0], WRITE):
                left.setdefault(name, []).append(request)
                continue
            self._take_write(name, key, table.items.get(key), item)
            if item is None:
                table.delete(key, self.world.now)
            else:
                table.put(key, _checked(dict(item)), self.world.now)
        if left and len(left[next(iter(left))]) == len(asked):
            raise ServiceError("ProvisionedThroughputExceededException", "all of it")
        return {"UnprocessedItems": left}

    def transact_write_items(self, *, TransactItems: list[Any], ClientRequestToken: str) -> Item:
        changes = [_Change.of(kind, given) for item in TransactItems for kind, given in item.items()]
        now, asked = self.world.now, json.dumps(TransactItems, sort_keys=True, default=repr)
        done_at, done = self.tokens.get(ClientRequestToken, (-TOKEN_S, ""))
        if now - done_at < TOKEN_S:
            if done != asked:
                raise ServiceError("IdempotentParameterMismatchException", "Another request had this token")
            return {}  # done already: its answer was lost
        if not 1 <= len(TransactItems) <= MAX_TRANSACTION:
            raise ServiceError("ValidationException", "1 to 100 actions")
        keys = [(change.table, change.key) for change in changes]
        if len(set(keys)) < len(keys):
            raise ServiceError(
                "ValidationException", "Transaction request cannot include multiple operations on one item"
            )
        for change in changes:
            self._reach(change.table, change.key[0], WRITE)
        if self.world.happens(Kind.THROTTLE):  # somebody else is at one of the items
            conflicting = self.world.chance.randrange(len(changes))
            codes = ("TransactionConflict" if n == conflicting else "None" for n in range(len(changes)))
            raise _cancelled([{"Code": code} for code in codes])
        # All is found before anything is written: what fails halfway changes nothing.
        found = [self._outcome(change) for change in changes]
        self._take_transaction(changes, [item for _, item in found])
        if any(reason["Code"] != "None" for reason, _ in found):
            raise _cancelled([reason for reason, _ in found])
        for change, (_, item) in zip(changes, found, strict=True):
            self._write(change, item)
        self.tokens[ClientRequestToken] = now, asked
        return {}

    # How

    def _table(self, name: str) -> Table:
        if name not in self.tables:
            raise ServiceError("ResourceNotFoundException", f"Requested resource not found: {name}")
        return self.tables[name]

    def _reach(self, table: str, partition: str, kind: str) -> None:
        if self.throttled and self.throttled.get((table, partition), 0.0) > self.world.now:
            raise ServiceError("ProvisionedThroughputExceededException", f"partition {partition}")
        self.capacity.check(table, partition, kind)

    def _take_transaction(self, changes: Sequence["_Change"], items: Sequence[Item | None]) -> None:
        """Count a transaction, which prepares each write before it is done: that is twice as much."""
        for change, item in zip(2 * [*changes], 2 * [*items], strict=True):
            self._take_write(change.table, change.key, self.tables[change.table].items.get(change.key), item)

    def _take_write(self, table: str, key: Key, old: Item | None, new: Item | None) -> None:
        """Count a write: of the larger of what was there and what is."""
        self.capacity.take(table, key[0], WRITE, write_units(max(size_of(old), size_of(new))))

    def _read(self, table: Table, key: Key, *, consistent: bool) -> Item | None:
        return self._seen(table, key, stale=not consistent and self.world.happens(Kind.STALE))

    def _seen(self, table: Table, key: Key, *, stale: bool) -> Item | None:
        now = self.world.now
        if stale and key in table.before:
            changed_at, old = table.before[key]
            if now - changed_at < STALE_S:
                return old
        return table.get(key, now)

    def _one(self, change: "_Change") -> Item:
        self._reach(change.table, change.key[0], WRITE)
        old = self._table(change.table).get(change.key, self.world.now)
        if not change.holds(old):
            self._take_write(change.table, change.key, old, None)
            shown = change.given.get("ReturnValuesOnConditionCheckFailure") == "ALL_OLD" and old is not None
            more: dict[str, Any] = {"Item": dict(old or {})} if shown else {}
            raise ServiceError(CONDITION_FAILED, "The conditional request failed", **more)
        new = change.after(old)
        self._take_write(change.table, change.key, old, new)
        self._write(change, new)
        returned = change.given.get("ReturnValues", "NONE")
        if returned == "ALL_OLD":
            return {"Attributes": dict(old)} if old is not None else {}
        return {"Attributes": dict(new or {})} if returned == "ALL_NEW" else {}

    def _outcome(self, change: "_Change") -> tuple[Item, Item | None]:
        """Find what becomes of a transaction's action: the reason why not, or what to write."""
        old = self._table(change.table).get(change.key, self.world.now)
        if not change.holds(old):
            shown = change.given.get("ReturnValuesOnConditionCheckFailure") == "ALL_OLD" and old is not None
            return {"Code": "ConditionalCheckFailed"} | ({"Item": dict(old or {})} if shown else {}), None
        try:
            return {"Code": "None"}, change.after(old)
        except ServiceError:
            return {"Code": "ValidationError"}, None

    def _write(self, change: "_Change", item: Item | None) -> None:
        table, now = self._table(change.table), self.world.now
        if change.kind == "ConditionCheck":
            return
        if item is None:
            table.delete(change.key, now)
        else:
            table.put(change.key, _checked(item), now)


PARAMETERS = {
    "Put": {"Item"},
    "Update": {"Key", "UpdateExpression"},
    "Delete": {"Key"},
    "ConditionCheck": {"Key"},
}
CONDITIONED = {
    "TableName",
    "ConditionExpression",
    "ExpressionAttributeNames",
    "ExpressionAttributeValues",
    "ReturnValues",
    "ReturnValuesOnConditionCheckFailure",
}


@dataclass(frozen=True, slots=True)
class _Change:
    kind: str
    table: str
    key: Key
    given: Mapping[str, Any]

    @classmethod
    def of(cls, kind: str, given: Mapping[str, Any]) -> "_Change":
        if kind not in PARAMETERS or given.keys() - PARAMETERS[kind] - CONDITIONED:
            raise Unsupported(f"{kind} with {sorted(given)}")
        if given.get("ReturnValues", "NONE") not in {"NONE", "ALL_OLD", "ALL_NEW"}:
            raise Unsupported(f"ReturnValues {given['ReturnValues']}")
        compiled: list[Compiled[Any]] = []
        if "ConditionExpression" in given:
            compiled.append(condition(given["ConditionExpression"]))
        if kind == "Update":
            compiled.append(update(given["UpdateExpression"]))
        _check(compiled, given.get("ExpressionAttributeNames", {}), given.get("ExpressionAttributeValues", {}))
        return cls(kind, given["TableName"], _key(given.get("Key") or given["Item"]), given)

    def holds(self, item: Item | None) -> bool:
        asked = self.given.get("ConditionExpression")
        if asked is None:
            return True
        names = self.given.get("ExpressionAttributeNames", {})
        return condition(asked).run(item or {}, names, self.given.get("ExpressionAttributeValues", {}))

    def after(self, item: Item | None) -> Item | None:
        if self.kind == "Put":
            return dict(self.given["Item"])
        if self.kind == "Delete":
            return None
        if self.kind == "ConditionCheck":
            return item
        changed: Item = dict(item) if item is not None else {"pk": {"S": self.key[0]}, "sk": {"S": self.key[1]}}
        run: Callable[..., None] = update(self.given["UpdateExpression"]).run
        names = self.given.get("ExpressionAttributeNames", {})
        run(changed, names, self.given.get("ExpressionAttributeValues", {}))
        return changed


def _key(item: Mapping[str, Any]) -> Key:
    return item["pk"]["S"], item["sk"]["S"]


def _from(sort_keys: list[str], start: Item | None, *, forward: bool) -> list[str]:
    """Put a copy of them in the order of the query, after the key where the last page ended. They come sorted."""
    if start is None:
        return sort_keys[:] if forward else sort_keys[::-1]
    after = _key(start)[1]
    if forward:
        return sort_keys[bisect_right(sort_keys, after) :]
    return sort_keys[: bisect_left(sort_keys, after)][::-1]


def _partition_of(expression: str, names: Mapping[str, str], values: Mapping[str, Any]) -> str:
    """All our key conditions begin with the partition's."""
    name, equals, value = expression.split()[:3]
    if names.get(name, name) != "pk" or equals != "=":
        raise Unsupported(f"key condition {expression!r}")
    for placeholder in condition(expression).placeholders & values.keys():
        if "S" not in values[placeholder]:
            raise invalid(
                "One or more parameter values were invalid: Condition parameter type does not match schema type"
            )
    partition: str = values[value]["S"]
    return partition


def _check(expressions: Sequence[Compiled[Any]], names: Mapping[str, str], values: Mapping[str, Any]) -> None:
    """Refuse names and values that aren't given, that don't fit, and that no expression uses."""
    for expression in expressions:
        expression.check(names, values)
    used = {name for expression in expressions for name in expression.placeholders}
    for name in [*names, *values]:
        if name not in used:
            raise invalid(f"Value provided in expression unused: keys: {{{name}}}")


def _checked(item: Item) -> Item:
    if size_of(item) > MAX_ITEM_BYTES:
        raise ServiceError("ValidationException", "Item size has exceeded the maximum allowed size")
    return item


def _cancelled(reasons: list[Item]) -> ServiceError:
    codes = ", ".join(reason["Code"] for reason in reasons)
    return ServiceError(
        "TransactionCanceledException",
        f"Transaction cancelled, please refer cancellation reasons for specific reasons [{codes}]",
        CancellationReasons=reasons,
    )
