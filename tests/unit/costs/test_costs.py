"""What things cost: quantities times prices, months from templates, limits in order, and the documents' tables."""

from collections.abc import Mapping
from typing import Any

import pytest

from benchmarks.cost import PLACE, PROJECT, Costs, documents, written
from benchmarks.counts import UNANSWERED
from benchmarks.limits import FIRST, first, limits
from benchmarks.pool_costs import METRICS_KB, early_usd
from benchmarks.prices import MONTH_H, MONTH_MIN, POLL_S, price_list, times, together
from benchmarks.quotas import quota
from benchmarks.rest import DAILY_JOB_S, SCHEDULED_S, daily_jobs_month, resources_of_a_run, used_in_an_hour
from benchmarks.site_templates import LEAST_POLLERS, POLLERS, Numbers, SiteTemplates
from sluice.aws.metrics import publish
from sluice.operator.accounts import RESERVES
from sluice.parameters import Parameters

LINE_OVERHEAD_BYTES = 26  # https://docs.aws.amazon.com/AmazonCloudWatchLogs/latest/APIReference/API_PutLogEvents.html
CAPPED = {"ScalingConfig": {"MaximumConcurrency": 2}}


def site(*resources: Mapping[str, Any], **named: Mapping[str, Any]) -> SiteTemplates:
    made = {f"R{number}": each for number, each in enumerate(resources)} | named
    return SiteTemplates({"Stack": {"Resources": made}})


def resource(kind: str, **properties: object) -> dict[str, Any]:
    return {"Type": kind, "Properties": properties}


def month(*resources: Mapping[str, Any], **named: Mapping[str, Any]) -> Mapping[str, Numbers]:
    return site(*resources, **named).month(land_job={})


def test_quantities_are_added_up_and_have_their_prices() -> None:
    both = together({"sqs_standard": 1_000_000}, times({"sqs_standard": 500_000, "dashboards": 0.5}, 2))
    assert both == {"sqs_standard": 2_000_000, "dashboards": 1}
    prices = price_list().prices
    assert price_list().usd(both) == pytest.approx(2 * prices["sqs_standard"].usd + prices["dashboards"].usd)


def test_what_is_free_is_no_part_of_the_bill() -> None:
    prices = price_list()
    free = prices.prices["alarm_metrics"].free
    assert prices.billed_usd({"alarm_metrics": free, "dashboards": 1}) == 0
    assert prices.billed_usd({"alarm_metrics": free + 3}) == pytest.approx(3 * prices.prices["alarm_metrics"].usd)


def test_what_has_no_price_is_refused() -> None:
    with pytest.raises(KeyError, match="carrier pigeons"):
        price_list().usd({"carrier pigeons": 1})


def test_every_price_names_its_page_of_aws() -> None:
    assert {price.page.split("/")[2] for price in price_list().prices.values()} == {"aws.amazon.com"}


def found_in_document(key: str) -> dict[str, Any]:
    """The expression that finds a name in another stack's document."""
    after = {"Fn::Select": [1, {"Fn::Split": [f";{key}=", {"Ref": "Document"}]}]}
    return {"Fn::Select": [0, {"Fn::Split": [";", after]}]}


@pytest.mark.parametrize(
    ("mapping", "expected"),
    [
        ({"EventSourceArn": "arn:aws:sqs:r:1:theirs", **CAPPED}, {"standard poller": POLLERS}),
        ({"EventSourceArn": "arn:aws:sqs:r:1:theirs"}, {"standard poller": LEAST_POLLERS}),
        (
            {"EventSourceArn": "arn:aws:sqs:r:1:theirs", "ProvisionedPollerConfig": {"MinimumPollers": 3}},
            {"standard poller": 3, "provisioned poller": 3},
        ),
        ({"EventSourceArn": "arn:aws:sqs:r:1:theirs.fifo"}, {"FIFO poller": POLLERS}),
        ({"EventSourceArn": "arn:aws:sqs:r:1:theirs", "Enabled": False}, {}),
        ({"EventSourceArn": {"Fn::Join": [":", ["arn", found_in_document("Q")]]}}, {"FIFO poller": POLLERS}),
        ({"EventSourceArn": found_in_document("TStream")}, {}),
    ],
)
def test_a_trigger_polls_its_queue_in_vain_and_a_stream_for_nothing(
    mapping: dict[str, Any], expected: dict[str, float]
) -> None:
    state = {
        "Resources": {
            "Q": resource("AWS::SQS::Queue", FifoQueue=True),
            "T": resource("AWS::DynamoDB::Table"),
            "M": resource("AWS::Lambda::EventSourceMapping", **mapping),
        }
    }
    assert SiteTemplates({"S": state}).month(land_job={})["triggers"] == expected


def test_an_alarm_is_paid_for_by_the_metrics_that_it_looks_at() -> None:
    parts = [{"Expression": "a + b"}, {"MetricStat": {}}, {"MetricStat": {}}]
    alarms = month(
        resource("AWS::CloudWatch::Alarm", MetricName="one"),
        resource("AWS::CloudWatch::Alarm", Metrics=parts),
        resource("AWS::CloudWatch::CompositeAlarm"),
    )["alarms"]
    assert alarms == {"alarm metric": 3, "composite alarm": 1}


def test_a_run_has_a_driver_an_executor_and_its_networks_endpoints() -> None:
    """An endpoint is paid for in each zone."""
    pipeline = Parameters().pipeline
    assert resources_of_a_run(pipeline) == {"worker vCPU": 2, "worker GB": 8, "endpoint": 2}
    used = {"emr_vcpu_hours": 2, "emr_gb_hours": 8, "endpoint_hours": 2}
    assert used_in_an_hour(resources_of_a_run(pipeline)) == used


def test_each_daily_job_pays_for_a_whole_hour_of_endpoints() -> None:
    used = daily_jobs_month(Parameters().pipeline)
    runs = 2 * MONTH_H / 24
    assert used["endpoint_hours"] == pytest.approx(2 * runs)
    assert used["emr_vcpu_hours"] == pytest.approx(2 * runs * DAILY_JOB_S / 3600)


def test_a_schedule_calls_its_function_every_minute() -> None:
    rule = {
        "ScheduleExpression": "rate(1 minute)",
        "Targets": [{"Arn": {"Fn::GetAtt": ["Function", "Arn"]}}],
    }
    found = month(resource("AWS::Events::Rule", **rule), Function=resource("AWS::Lambda::Function", MemorySize=512))
    assert found["schedules"] == {"site": 1, "scheduled function": 1, "scheduled GB": 0.5}


def test_what_a_month_counts_has_what_it_uses() -> None:
    """A trigger's pollers poll all month, a schedule calls every minute, an endpoint is there every hour."""
    costs = Costs.kept()
    assert costs.used({"standard poller": POLLERS}) == {
        "sqs_standard": pytest.approx(POLLERS * MONTH_MIN * 60 / POLL_S)
    }
    assert costs.used({"scheduled function": 2, "scheduled GB": 0.5}) == {
        "lambda_calls": 2 * MONTH_MIN,
        "lambda_gb_s": MONTH_MIN * SCHEDULED_S / 2,
    }
    assert costs.used({"endpoint": 2}) == {"endpoint_hours": 2 * MONTH_H}


def test_what_a_line_of_metrics_is_said_to_have_is_what_it_has(capsys: pytest.CaptureFixture[str]) -> None:
    publish("broker", {"OffersMatched": 1})
    bytes_logged = len(capsys.readouterr().out.strip()) + LINE_OVERHEAD_BYTES
    assert bytes_logged / 1_000 == pytest.approx(METRICS_KB, abs=0.02)


def test_of_each_capability_the_first_limits_are_known_in_order() -> None:
    known = limits(Costs.kept().counts, Parameters())
    assert set(known) == {"rendezvous", "splitting", "federation", "pipeline"}
    for each in known.values():
        rates = [limit.rate for limit in first(each)]
        assert len(rates) == FIRST
        assert rates == sorted(rates)
        assert (
            max(rates) <= min(limit.rate for limit in each if limit not in first(each)) if len(each) > FIRST else True
        )


def test_a_limit_moves_with_its_parameter() -> None:
    counts = Costs.kept().counts

    def brokers(most: int) -> float:
        parameters = Parameters.model_validate({"rendezvous": {"broker_max_concurrency": most}})
        known = limits(counts, parameters)["rendezvous"]
        return next(limit.rate for limit in known if limit.what == "brokers at once")

    assert brokers(20) == pytest.approx(2 * brokers(10))


@pytest.mark.parametrize("path", documents(), ids=lambda path: path.name)
def test_the_tables_are_what_was_last_counted_times_the_prices(path: Any) -> None:
    text = path.read_text()
    assert written(text, Costs.kept()) == text, "python -m benchmarks.cost --last --write"


def test_the_documents_have_all_tables() -> None:
    found = {place["name"] for path in documents() for place in PLACE.finditer(path.read_text())}
    assert {"messages", "rest", "limits of rendezvous", "limits of pipeline"} <= found


def test_a_rendezvous_costs_at_most_ten_dollars_a_million() -> None:
    assert 0 < Costs.kept().million_usd("rendezvous") <= 10


def test_the_threat_model_says_what_fills_the_reserves_of_the_two_urls() -> None:
    """How long an offer holds its function was counted in virtual time; the rest are AWS's quota and prices."""
    rendezvous, costs = Parameters().rendezvous, Costs.kept()
    text = (PROJECT / "docs" / "threat-model.md").read_text()
    proxies = polls = RESERVES["sluice.rendezvous.proxy_max_concurrency"]
    reserve = RESERVES["sluice.rendezvous.client_max_concurrency"]
    held_s = costs.counts.messages[UNANSWERED]["lambda_gb_s"] * 1024 / rendezvous.client_memory_mb
    offers = int(reserve / held_s)
    offers_usd = offers * 3600 * costs.million_usd(UNANSWERED) / 1e6
    assert f"{held_s:.2f} s, so {offers} offers a second fill a reserve of {reserve}," in text
    assert f"which costs ${offers_usd:.2f} an hour" in text
    polls *= int(quota("url_requests_each"))
    assert f"A reserve of {proxies} serves {polls:,} polls a second" in text
    assert f"which cost ${early_usd(polls) / MONTH_H:.2f} an hour" in text
