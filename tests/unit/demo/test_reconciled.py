"""What was sent is held against what arrived, each message by its id."""

import pytest

from sluice.demo.__main__ import BYTES, CLIENTS, MINE, OTHERS, Reconciled

IDS = [f"{number}" for number in range(MINE + OTHERS)]
MY, REST = IDS[:MINE], IDS[MINE:]
BACK = CLIENTS * BYTES


@pytest.mark.parametrize(
    ("there", "mine", "landed", "lost", "doubled"),
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
    there: list[str], mine: list[str], landed: list[str], lost: int, doubled: int
) -> None:
    reconciled = Reconciled(bytes_back=BACK, there=there, mine=mine, landed=landed)
    assert (reconciled.lost, reconciled.duplicates) == (lost, doubled)
    assert reconciled.is_right() == (lost == doubled == 0)
    said = "every one accounted for" if reconciled.is_right() else f"{lost} lost, {doubled} doubled"
    assert reconciled.verdict.startswith(f"{MINE + OTHERS} orders over two sites")
    assert said in reconciled.verdict


def test_each_share_and_each_client_has_its_own() -> None:
    assert not Reconciled(bytes_back=BACK, there=IDS, mine=IDS[: -OTHERS + 1], landed=IDS[-OTHERS + 1 :]).is_right()
    assert not Reconciled(bytes_back=BACK - BYTES, there=IDS, mine=MY, landed=REST).is_right()
