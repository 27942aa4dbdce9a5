"""What a run costs: reckoned before anything is made, and counted before it goes again."""

from collections.abc import Iterable

from sluice.costs.prices import MONTH_H, Used, price_list, together
from sluice.costs.rest import POLL_S, POLLERS
from sluice.smoke.runs import RUN_WITHIN_S, Bill

# By its limits, and by twice of what it is expected to do: both stages' fifteen triggers and thirty alarms as long as a
# run may take; a driver and four executors, which take some minutes to start and end, for a quarter of an hour; two
# endpoints, for whom a part of an hour is a whole one.
HOURS, STAGES = RUN_WITHIN_S / 3600, 2
MOST: Used = {
    "sqs_standard": STAGES * 15 * RUN_WITHIN_S * POLLERS / POLL_S + 20_000,
    "lambda_gb_s": 4_000.0,
    "lambda_calls": 10_000.0,
    "dynamodb_writes": 20_000.0,
    "dynamodb_reads": 50_000.0,
    "emr_vcpu_hours": 5 * 0.25,
    "emr_gb_hours": 5 * 0.25 * 4,
    "endpoint_hours": 2 * 2.0,
    "alarm_metrics": STAGES * 30 * HOURS / MONTH_H,
    "logs_gb": 0.1,
    "s3_puts": 2_000.0,
}


def estimate_usd() -> float:
    """Dollars that a run may cost at most."""
    return price_list().usd(MOST)


def bill(parts: Iterable[Used]) -> Bill:
    """Make the bill of what was used."""
    prices, used = price_list(), together(*parts)
    lines = [
        f"{quantity:,.3f} {prices.prices[name].unit}: ${prices.usd({name: quantity}):.4f}"
        for name, quantity in used.items()
        if quantity
    ]
    return Bill(usd=prices.usd(used), lines=lines)
