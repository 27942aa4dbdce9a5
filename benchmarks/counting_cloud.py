"""An embedded cloud that counts what DynamoDB requests would cost on AWS; start it with `start_counting`.

Its server, `python -m benchmarks.counting_cloud`, is the embedded cloud's server with one more patch of ministack.
"""

import json
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import ministack.services.dynamodb

from benchmarks.units import READ, WRITE, UnitLog, read_units_of, write_units
from sluice.local import server
from sluice.local.cloud import Cloud, start_cloud

dynamodb = ministack.services.dynamodb

UNIT_LOG = "units.jsonl"  # in the cloud's folder, next to the request log
BATCHES = {"BatchWriteItem", "BatchGetItem", "TransactWriteItems"}
DONE_STATUS, REFUSED_STATUS = 200, 400


def start_counting(folder: Path) -> Cloud:
    """Start the cloud, which ends with this process. Raises `CloudFailed`."""
    return start_cloud(folder, ends_with_us=True, server="benchmarks.counting_cloud")


def unit_log(cloud: Cloud) -> Path:
    """Return the path of the log of units, which `read_units` reads."""
    return cloud.folder / UNIT_LOG


def count_units(log: UnitLog) -> None:
    """Record the cost of each request. ministack itself counts every read as one unit, whatever its size."""
    add, handle = dynamodb._add_consumed_capacity, dynamodb.handle_request  # noqa: SLF001 - no public hook
    size_of = dynamodb._item_size_bytes  # noqa: SLF001 - see above

    def add_counted(  # noqa: PLR0917 - ministack's own signature
        result: Any,
        data: Any,
        table_name: str,
        write: bool = False,  # noqa: FBT001, FBT002 - ministack's own signature
        old_item: Any = None,
        new_item: Any = None,
        index_name: str | None = None,
    ) -> None:
        if write:
            units: float = write_units(max(size_of(old_item or {}), size_of(new_item or {})))
        else:
            items = result.get("Items") or ([result["Item"]] if result.get("Item") else [])
            units = read_units_of(sum(map(size_of, items)), consistent=data.get("ConsistentRead", False))
        action = "Write" if write else "Read"
        kind = WRITE if write else READ
        log.note(action=action, table=table_name, data=data, kind=kind, units=units)
        add(result, data, table_name, write, old_item, new_item, index_name)

    async def handle_counted(
        method: str, path: str, headers: dict[str, str], body: bytes, query: dict[str, Any]
    ) -> tuple[int, Any, Any]:
        response: tuple[int, Any, Any] = await handle(method, path, headers, body, query)
        action = headers.get("x-amz-target", "").rpartition(".")[2]
        if response[0] == REFUSED_STATUS and b"ConditionalCheckFailed" in bytes(response[2]):
            data = json.loads(body)
            log.note(action=action, table=data.get("TableName", ""), data=data, kind=WRITE, units=1)
        elif response[0] == DONE_STATUS and action in BATCHES:
            for table, request, kind, units in _batch_units(action, json.loads(body)):
                log.note(action=action, table=table, data=request, kind=kind, units=units)
        return response

    dynamodb._add_consumed_capacity, dynamodb.handle_request = add_counted, handle_counted  # noqa: SLF001 - see above


def _batch_units(action: str, data: Mapping[str, Any]) -> Iterator[tuple[str, Mapping[str, Any], str, float]]:
    """Count the units of each request in a batch or transaction. Deleted items count as small ones."""
    size_of = dynamodb._item_size_bytes  # noqa: SLF001 - no public hook
    if action == "TransactWriteItems":
        for each in data["TransactItems"]:
            for write in each.values():
                # A transaction uses two units for each:
                # https://docs.aws.amazon.com/amazondynamodb/latest/developerguide/transaction-apis.html
                yield write["TableName"], write, WRITE, 2 * write_units(size_of(write.get("Item") or {}))
        return
    for table, requests in data["RequestItems"].items():
        if action == "BatchGetItem":
            for key in requests["Keys"]:
                units = read_units_of(0, consistent=requests.get("ConsistentRead", False))
                yield table, {"Key": key}, READ, units
            continue
        for request in requests:
            for write in request.values():
                yield table, write, WRITE, write_units(size_of(write.get("Item") or {}))


if __name__ == "__main__":
    count_units(UnitLog(Path(sys.argv[2]).with_name(UNIT_LOG)))
    server.main(*sys.argv[1:])
