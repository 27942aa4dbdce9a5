"""What a site costs in a month without messages, by what its templates have.

The prices are those of `costs.json`, which `python -m benchmarks.cost --write` writes: it knows AWS's price list. No
AWS here, and no synth: values only. Tables, queues and buckets that hold nothing are free.
"""

import json
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

FILE = Path(__file__).with_name("costs.json")
# A trigger looks at a queue with five long polls at a time; with two, AWS says, at a standard queue with little
# traffic, where its concurrency has no maximum:
# https://docs.aws.amazon.com/lambda/latest/dg/services-sqs-scaling.html
POLLERS = 5
LEAST_POLLERS = 2
EVERY_MINUTE = "rate(1 minute)"
STREAM_WORKERS = 2  # of the land job without messages: the driver and one executor
ENDPOINTS = "endpoints"  # the part of a month that a pipeline's VPC takes
Template = Mapping[str, Any]
Numbers = Mapping[str, float]  # how many there are of what `CostTable.month_usd` has a price for
Month = Mapping[str, Numbers]  # by parts of a site


@dataclass(frozen=True, slots=True, kw_only=True)
class CostTable:
    """Dollars by AWS's prices of one day in one region: for a month of a thing."""

    on: str
    region: str
    month_usd: Mapping[str, float]

    def usd_by_part(self, month: Month) -> Mapping[str, float]:
        """Dollars for each part of a month. Raises KeyError for what has no price."""
        return {
            part: sum(self.month_usd[thing] * number for thing, number in numbers.items())
            for part, numbers in month.items()
        }


@cache
def cost_table() -> CostTable:
    """Read the file."""
    return CostTable(**json.loads(FILE.read_text()))


@dataclass(frozen=True)
class SiteTemplates:
    """A site's templates by their stacks' names."""

    stacks: Mapping[str, Template]

    def month(self, *, land_job: Numbers) -> Month:
        """Count what costs in a month without messages. `land_job` is what `streamed` gives, where it streams."""
        endpoints = [each for each in self._all("AWS::EC2::VPCEndpoint") if each.get("VpcEndpointType") == "Interface"]
        alarms = [*self._all("AWS::CloudWatch::Alarm")]
        return {
            "triggers": self._pollers(),
            # What all schedules' calls of a site ask for was counted together.
            "schedules": {"site": 1, **self._scheduled()},
            "alarms": {
                "alarm metric": sum(map(metrics_of, alarms)),
                "composite alarm": len([*self._all("AWS::CloudWatch::CompositeAlarm")]),
            },
            "dashboard": {"dashboard": len([*self._all("AWS::CloudWatch::Dashboard")])},
            "keys": {"key": len([*self._all("AWS::KMS::Key")])},
            ENDPOINTS: {
                "endpoint": sum(len(each["SubnetIds"]) for each in endpoints),  # in each zone
                "NAT gateway": len([*self._all("AWS::EC2::NatGateway")]),
            },
            "land job": land_job,
        }

    def _all(self, kind: str) -> Iterator[Mapping[str, Any]]:
        for template in self.stacks.values():
            yield from properties_of(template, kind)

    def _pollers(self) -> Numbers:
        """Count what polls queues in vain, all the time. A stream is looked at for nothing."""
        pollers = Counter[str]()
        for mapping in self._all("AWS::Lambda::EventSourceMapping"):
            is_fifo = self._is_fifo(mapping["EventSourceArn"])
            if is_fifo is None or not mapping.get("Enabled", True):
                continue
            is_capped = "MaximumConcurrency" in mapping.get("ScalingConfig", {})
            kind = "FIFO poller" if is_fifo else "standard poller"
            pollers[kind] += POLLERS if is_fifo or is_capped else LEAST_POLLERS
        return pollers

    def _is_fifo(self, arn: Any) -> bool | None:
        """Say whether an ARN, in whatever stack its queue is made, is a FIFO queue's; None where it is no queue's."""
        match arn:
            case str():
                return arn.endswith(".fifo")
            case {"Fn::GetStackOutput": {"StackName": str(stack), "OutputName": str(output)}}:
                template = self.stacks[stack]
                match template["Outputs"][output]["Value"]:
                    case {"Fn::GetAtt": [str(id_), str(_)]} if template["Resources"][id_]["Type"] == "AWS::SQS::Queue":
                        return bool(template["Resources"][id_].get("Properties", {}).get("FifoQueue"))
        return None

    def _scheduled(self) -> Numbers:
        """Count the functions that are called every minute, and their memory."""
        memory_mb = [
            template["Resources"][target["Arn"]["Fn::GetAtt"][0]]["Properties"]["MemorySize"]
            for template in self.stacks.values()
            for rule in properties_of(template, "AWS::Events::Rule")
            if rule.get("ScheduleExpression") == EVERY_MINUTE
            for target in rule["Targets"]
        ]
        return {"scheduled function": len(memory_mb), "scheduled GB": sum(memory_mb) / 1024}


def properties_of(template: Template, kind: str) -> Iterator[Mapping[str, Any]]:
    """List the properties of a template's resources of a type."""
    for resource in template["Resources"].values():
        if resource["Type"] == kind:
            yield resource.get("Properties", {})


def streamed(*, vcpu: float, memory_gb: float) -> Numbers:
    """Say what a land job takes that runs all month, with workers of this size."""
    return {"worker vCPU": STREAM_WORKERS * vcpu, "worker GB": STREAM_WORKERS * memory_gb}


def metrics_of(alarm: Mapping[str, Any]) -> int:
    """Count what an alarm looks at, as a template or CloudWatch has it: an expression's metrics are paid for each."""
    return sum("MetricStat" in each for each in alarm["Metrics"]) if alarm.get("Metrics") else 1
