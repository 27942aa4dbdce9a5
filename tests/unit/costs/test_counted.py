"""What a rendezvous takes under load, counted in virtual time, is what was last written down."""

import pytest

from benchmarks.cost import Costs
from benchmarks.counts import UNANSWERED
from benchmarks.simulated import Load, steady, unanswered
from sluice.parameters import Parameters


@pytest.mark.slow
def test_a_rendezvous_takes_what_was_last_counted() -> None:
    kept, found = Costs.kept().counts.messages["rendezvous"], steady(Load)
    assert (found.sqs, found.writes, found.reads) == pytest.approx(
        (kept["sqs_standard"], kept["dynamodb_writes"], kept["dynamodb_reads"]), rel=0.05
    )


@pytest.mark.slow
def test_an_offer_over_http_without_a_proxy_holds_its_function_as_long_as_was_last_counted() -> None:
    kept, found = Costs.kept().counts.messages[UNANSWERED], unanswered()
    held_s = kept["lambda_gb_s"] * 1024 / Parameters().rendezvous.client_memory_mb
    assert (found.held_s, found.sqs, found.writes, found.reads) == pytest.approx(
        (held_s, kept["sqs_standard"], kept["dynamodb_writes"], kept["dynamodb_reads"]), rel=0.05
    )
