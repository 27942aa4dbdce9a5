"""Where a run's figures are written."""

from collections import Counter
from pathlib import Path

from tests.simulation.report import DOCUMENT, PLACE, write
from tests.simulation.runs import CAPABILITIES, Tally

BEFORE = """# R

<!-- simulation: splitting -->
old
<!-- end -->

<!-- simulation: federation -->
stays
<!-- end -->
"""
AFTER = """# R

<!-- simulation: splitting -->
Seeds 5 to 1,004: 1 failed, 3,500 calls, 7 faults.
<!-- end -->

<!-- simulation: federation -->
stays
<!-- end -->
"""


def test_a_capabilitys_result_takes_the_place_of_the_old_one_and_others_stay(tmp_path: Path) -> None:
    document = tmp_path / "r.md"
    document.write_text(BEFORE)
    calls = Counter({"sqs.Receive": 3_000, "sqs.Send": 500})
    tally = Tally(seeds=1_000, calls=calls, faults=Counter({"throttle": 7}), failed=[(9, "lost")])
    write({"splitting": tally}, first=5, document=document)
    assert document.read_text() == AFTER


def test_the_document_has_a_place_for_each_capability() -> None:
    assert {found["capability"] for found in PLACE.finditer(DOCUMENT.read_text())} == CAPABILITIES.keys()
