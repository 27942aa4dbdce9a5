"""A patch of DynamoDB's time to live, which replaces ministack's own reaper thread."""

import threading
import time
from typing import Any

import ministack.core.responses
import ministack.services.dynamodb

REAPER = "dynamodb-ttl-reaper"  # name of ministack's reaper thread
LOOK_EVERY_S = 60.0  # seconds between two checks, as in ministack
# DynamoDB's identity, with names as in the streams API, then as in a function's event.
BY_DYNAMODB = {"PrincipalId": "dynamodb.amazonaws.com", "Type": "Service"}
BY_DYNAMODB |= {"principalId": BY_DYNAMODB["PrincipalId"], "type": BY_DYNAMODB["Type"]}


def expire_items(*, stay_s: float = 0.0) -> None:
    """Remove items `stay_s` seconds after their expiry, and write each removal to the table's stream.

    ministack removes expired items without a record in the stream. AWS writes a record, whose `userIdentity` is
    DynamoDB. On AWS, reads return expired items until they are removed, which is "within a few days".
    https://docs.aws.amazon.com/amazondynamodb/latest/developerguide/TTL.html
    https://docs.aws.amazon.com/amazondynamodb/latest/developerguide/time-to-live-ttl-streams.html
    """
    dynamodb = ministack.services.dynamodb
    hidden = _HiddenSettings()
    hidden._data = dynamodb._ttl_settings._data  # noqa: SLF001 - no public hook
    dynamodb._ttl_settings = hidden  # noqa: SLF001 - see above
    every_s = min(LOOK_EVERY_S, stay_s / 4) if stay_s else LOOK_EVERY_S

    def reap() -> None:
        while True:
            time.sleep(every_s)
            for key, setting in list(hidden._data.items()):  # noqa: SLF001 - see above
                if setting.get("TimeToLiveStatus") == "ENABLED" and setting.get("AttributeName"):
                    _reap_table(key, setting["AttributeName"], until_s=time.time() - stay_s)

    threading.Thread(target=reap, daemon=True, name="expiry").start()


class _HiddenSettings(ministack.core.responses.AccountRegionScopedDict):  # type: ignore[misc]  # ministack has no types
    """Hides ministack's TTL settings from ministack's reaper thread, which has been running since the import."""

    __slots__ = ()

    def all_items(self) -> list[Any]:
        return [] if threading.current_thread().name == REAPER else super().all_items()


def _reap_table(key: tuple[str, str, str], attribute: str, *, until_s: float) -> None:
    dynamodb, responses = ministack.services.dynamodb, ministack.core.responses
    account, region, name = key
    with responses.request_scope(account, region), dynamodb._lock:  # noqa: SLF001 - no public hook
        table = dynamodb._tables.get(name)  # noqa: SLF001 - see above
        if table is None:
            return
        for pk, items in list(table["items"].items()):
            for sk, item in list(items.items()):
                if _parse_expiry(item.get(attribute)) <= until_s:
                    dynamodb._remove_item(table, pk, sk)  # noqa: SLF001 - see above
                    _write_stream_record(name, item)


def _parse_expiry(attribute: dict[str, str] | None) -> float:
    """Return the expiry in an item's TTL attribute, in epoch seconds; infinity if the attribute isn't a number."""
    try:
        return float((attribute or {})["N"])
    except (KeyError, ValueError):
        return float("inf")


def _write_stream_record(name: str, item: Any) -> None:
    dynamodb = ministack.services.dynamodb
    records = dynamodb._stream_records.get(name) or []  # noqa: SLF001 - no public hook
    last = records[-1] if records else None
    dynamodb._emit_stream_event(name, "REMOVE", item, None)  # noqa: SLF001 - see above
    records = dynamodb._stream_records.get(name) or []  # noqa: SLF001 - see above
    if records and records[-1] is not last:
        records[-1]["userIdentity"] = BY_DYNAMODB
