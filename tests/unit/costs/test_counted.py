"""What a rendezvous takes under load, counted in virtual time, is what was last written down."""

import pytest

from benchmarks.cost import Costs
from benchmarks.simulated import Load, steady


@pytest.mark.slow
def test_a_rendezvous_takes_what_was_last_counted() -> None:
    kept, found = Costs.kept().counts.messages["rendezvous"], steady(Load)
    assert (found.sqs, found.writes, found.reads) == pytest.approx(
        (kept["sqs_standard"], kept["dynamodb_writes"], kept["dynamodb_reads"]), rel=0.05
    )
