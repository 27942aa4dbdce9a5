"""What a site uses in a month in which nothing comes: from its templates, and what its schedules were counted to do.

A template says what there is: triggers that poll, alarms, a dashboard, endpoints. What a schedule's call asks for was
counted (`sluice.costs.counts`). Tables, queues and a bucket without anything in them are free.
"""

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sluice.costs.prices import MONTH_H, MONTH_MIN, MONTH_S, Used, price_list, times, together

# A trigger looks at a queue with five long polls at a time, each of twenty seconds; with two, AWS says, at a standard
# queue with little traffic, where its concurrency has no maximum:
# https://docs.aws.amazon.com/lambda/latest/dg/services-sqs-scaling.html
POLLERS = 5
LEAST_POLLERS = 2
POLL_S = 20
SCHEDULED_S = 0.1  # that a schedule's call takes which finds nothing to do; assumed, as no emulator says it
EVERY_MINUTE = "rate(1 minute)"
STREAM_WORKERS = 2  # of the land job at rest: the driver and one executor
Template = Mapping[str, Any]
Month = Mapping[str, Used]  # what is used by what uses it
POLLED: Used = {"sqs_standard": POLLERS * MONTH_S / POLL_S}  # of a route's queue by its trigger, in vain
# Of the queues that peers send to, two of them FIFO, as soon as a site has a peer.
PEERED: Used = {**POLLED, "sqs_fifo": 2 * POLLERS * MONTH_S / POLL_S}
ENDPOINTS = "endpoints"  # the part of a month that a pipeline's VPC takes


@dataclass(frozen=True)
class SiteTemplates:
    """One synth's templates by their stacks' names."""

    stacks: Mapping[str, Template]

    @classmethod
    def read(cls, assembly: Path) -> "SiteTemplates":
        """Read an assembly's folder."""
        files = sorted(assembly.glob("*.template.json"))
        return cls({file.name.partition(".")[0]: json.loads(file.read_text()) for file in files})

    def of(self, kind: str) -> Iterator[tuple[str, Mapping[str, Any]]]:
        """Every resource of a type: its stack and its properties."""
        for stack, template in self.stacks.items():
            for resource in template["Resources"].values():
                if resource["Type"] == kind:
                    yield stack, resource.get("Properties", {})

    def function(self, stack: str, arn: Any) -> Mapping[str, Any]:
        """Find the function that a target of the same stack names."""
        properties: Mapping[str, Any] = self.stacks[stack]["Resources"][arn["Fn::GetAtt"][0]]["Properties"]
        return properties

    def resource(self, arn: Any) -> Mapping[str, Any] | None:
        """Find what an ARN is of, in whatever stack; None where none of them makes it."""
        match arn:
            case {"Fn::GetStackOutput": {"StackName": str(stack), "OutputName": str(output)}}:
                template = self.stacks[stack]
                match template["Outputs"][output]["Value"]:
                    case {"Fn::GetAtt": [str(id_), str(_)]}:
                        found: Mapping[str, Any] = template["Resources"][id_]
                        return found
        return None


def month(site: SiteTemplates, *, minute: Used, metrics: int, land_job: Used) -> Month:
    """Say what the month uses. `minute` is what all schedules' calls of a minute ask for, who publish `metrics`."""
    return {
        "triggers": together(*(polls(site, mapping) for _, mapping in site.of("AWS::Lambda::EventSourceMapping"))),
        "schedules": together(times(minute, MONTH_MIN), *_scheduled(site)),
        "metrics": {"metrics": metrics},
        "alarms": {
            "alarm_metrics": sum(metrics_of(alarm) for _, alarm in site.of("AWS::CloudWatch::Alarm")),
            "composite_alarms": _number(site.of("AWS::CloudWatch::CompositeAlarm")),
        },
        "dashboard": {"dashboards": _number(site.of("AWS::CloudWatch::Dashboard"))},
        "keys": {"keys": _number(site.of("AWS::KMS::Key"))},
        ENDPOINTS: {
            "endpoint_hours": MONTH_H * sum(_zones(each) for _, each in site.of("AWS::EC2::VPCEndpoint")),
            "nat_hours": MONTH_H * _number(site.of("AWS::EC2::NatGateway")),
        },
        "land job": land_job,
    }


def usd_by_part(month: Month) -> Mapping[str, float]:
    """Dollars for each part of a month."""
    return {part: price_list().usd(used) for part, used in month.items()}


def polls(site: SiteTemplates, mapping: Mapping[str, Any]) -> Used:
    """Say what a trigger asks of its queue in vain. Of a stream it is free."""
    if not mapping.get("Enabled", True):
        return {}
    arn = mapping["EventSourceArn"]
    if isinstance(arn, str):
        is_fifo = arn.endswith(".fifo")
    else:
        source = site.resource(arn)
        if source is None or source["Type"] != "AWS::SQS::Queue":
            return {}
        is_fifo = source["Properties"].get("FifoQueue", False)
    if is_fifo:
        return {"sqs_fifo": POLLERS * MONTH_S / POLL_S}
    pollers = POLLERS if "MaximumConcurrency" in mapping.get("ScalingConfig", {}) else LEAST_POLLERS
    return {"sqs_standard": pollers * MONTH_S / POLL_S}


def streamed(*, vcpu: float, memory_gb: float) -> Used:
    """Say what a land job takes that runs all month, with workers of this size."""
    hours = STREAM_WORKERS * MONTH_H
    return {"emr_vcpu_hours": hours * vcpu, "emr_gb_hours": hours * memory_gb}


def metrics_of(alarm: Mapping[str, Any]) -> int:
    """Count what an alarm looks at, as a template or CloudWatch has it: an expression's metrics are paid for each."""
    return sum("MetricStat" in each for each in alarm["Metrics"]) if alarm.get("Metrics") else 1


def _scheduled(site: SiteTemplates) -> Iterator[Used]:
    for stack, rule in site.of("AWS::Events::Rule"):
        if rule.get("ScheduleExpression") == EVERY_MINUTE:
            memory_mb = [site.function(stack, target["Arn"])["MemorySize"] for target in rule["Targets"]]
            yield {
                "lambda_calls": MONTH_MIN * len(memory_mb),
                "lambda_gb_s": MONTH_MIN * SCHEDULED_S * sum(memory_mb) / 1024,
            }


def _zones(endpoint: Mapping[str, Any]) -> int:
    """Count the zones where an interface endpoint stands; a gateway is free."""
    return len(endpoint["SubnetIds"]) if endpoint.get("VpcEndpointType") == "Interface" else 0


def _number(resources: Iterable[object]) -> int:
    return sum(1 for _ in resources)
