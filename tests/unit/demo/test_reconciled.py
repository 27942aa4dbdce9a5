"""What was sent is held against what arrived, each message by its id."""

import pytest

from sluice.demo.__main__ import BYTES, CLIENTS, MINE, OTHERS, DemoResults

IDS = [f"{number}" for number in range(MINE + OTHERS)]
MY, REST = IDS[:MINE], IDS[MINE:]
BACK = CLIENTS * BYTES


@pytest.mark.parametrize(
    ("queue_ids", "session_ids", "table_ids", "lost_count", "doubled"),
    [
        (IDS, MY, REST, 0, 0),
        (IDS[1:], MY, REST, 1, 0),  # over the route
        (IDS, MY, REST[1:], 1, 0),  # on the way to the table
        (IDS, MY, [*REST, REST[0]], 0, 1),  # in the table
        (IDS, MY, [*REST, MY[0]], 0, 1),  # in the session and in the table
        ([*IDS, IDS[0]], MY, REST, 0, 1),  # over the route
        (IDS, MY, [*REST[1:], REST[1]], 1, 1),  # as many as were sent, and not the same
    ],
)
def test_what_is_lost_or_doubled_is_counted(
    queue_ids: list[str], session_ids: list[str], table_ids: list[str], lost_count: int, doubled: int
) -> None:
    reconciled = DemoResults(bytes_back=BACK, queue_ids=queue_ids, session_ids=session_ids, table_ids=table_ids)
    assert (reconciled.lost_count, reconciled.duplicate_count) == (lost_count, doubled)
    assert reconciled.is_complete() == (lost_count == doubled == 0)
    said = "every one accounted for" if reconciled.is_complete() else f"{lost_count} lost, {doubled} doubled"
    assert reconciled.summary.startswith(f"{MINE + OTHERS} orders over two sites")
    assert said in reconciled.summary


def test_each_share_and_each_client_has_its_own() -> None:
    assert not DemoResults(
        bytes_back=BACK, queue_ids=IDS, session_ids=IDS[: -OTHERS + 1], table_ids=IDS[-OTHERS + 1 :]
    ).is_complete()
    assert not DemoResults(bytes_back=BACK - BYTES, queue_ids=IDS, session_ids=MY, table_ids=REST).is_complete()
