"""What a site pays for when nothing comes, counted in its templates. Empty tables, queues and buckets are free."""

import json
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

# An event source mapping polls a queue with five concurrent long polls, or with two if it is a standard queue with
# little traffic and no maximum concurrency:
# https://docs.aws.amazon.com/lambda/latest/dg/services-sqs-scaling.html
POLLERS = 5
LEAST_POLLERS = 2
EVERY_MINUTE = "rate(1 minute)"
DOCUMENT_KEY = re.compile(r'";(\w+)="')  # in an expression that finds a name in another stack's document
RUN_WORKERS = 2  # an idle land job, and any short job, runs the driver and one executor
Template = Mapping[str, Any]
Numbers = Mapping[str, float]  # quantities by the names in `rest.used_in_a_month`
Month = Mapping[str, Numbers]  # quantities by cost item


@dataclass(frozen=True)
class SiteTemplates:
    """A site's templates by stack name."""

    stacks: Mapping[str, Template]

    def month(self, *, land_job: Numbers) -> Month:
        """Count the resources that cost money when idle. `land_job` is from `run_resources` if it streams."""
        alarms = [*self._resources("AWS::CloudWatch::Alarm")]
        scheduled_mb = [  # memory of the functions that run every minute
            template["Resources"][target["Arn"]["Fn::GetAtt"][0]]["Properties"]["MemorySize"]
            for template in self.stacks.values()
            for rule in resource_properties(template, "AWS::Events::Rule")
            if rule.get("ScheduleExpression") == EVERY_MINUTE
            for target in rule["Targets"]
        ]
        return {
            "triggers": self._count_pollers(),
            # One price covers the requests of all scheduled calls of a site.
            "schedules": {
                "site": 1,
                "scheduled function": len(scheduled_mb),
                "scheduled GB": sum(scheduled_mb) / 1024,
            },
            "alarms": {
                "alarm metric": sum(map(count_metrics, alarms)),
                "composite alarm": len([*self._resources("AWS::CloudWatch::CompositeAlarm")]),
            },
            "dashboard": {"dashboard": len([*self._resources("AWS::CloudWatch::Dashboard")])},
            "keys": {"key": len([*self._resources("AWS::KMS::Key")])},
            "land job": land_job,
        }

    def _resources(self, kind: str) -> Iterator[Mapping[str, Any]]:
        for template in self.stacks.values():
            yield from resource_properties(template, kind)

    def _count_pollers(self) -> Numbers:
        """Count the pollers of queues. Polling a DynamoDB stream is free."""
        pollers = Counter[str]()
        for mapping in self._resources("AWS::Lambda::EventSourceMapping"):
            is_fifo = self._is_fifo(mapping["EventSourceArn"])
            if is_fifo is None or not mapping.get("Enabled", True):
                continue
            is_capped = "MaximumConcurrency" in mapping.get("ScalingConfig", {})
            provisioned = mapping.get("ProvisionedPollerConfig", {}).get("MinimumPollers", 0)
            kind = "FIFO poller" if is_fifo else "standard poller"
            pollers[kind] += provisioned or (POLLERS if is_fifo or is_capped else LEAST_POLLERS)
            if provisioned:
                pollers["provisioned poller"] += provisioned
        return pollers

    def _is_fifo(self, arn: Any) -> bool | None:
        """Return whether an ARN, perhaps of another stack's queue, is a FIFO queue's; None if it isn't a queue's."""
        if isinstance(arn, str):
            return arn.endswith(".fifo")
        for logical_id in DOCUMENT_KEY.findall(json.dumps(arn)):
            for template in self.stacks.values():
                resource = template["Resources"].get(logical_id, {})
                if resource.get("Type") == "AWS::SQS::Queue":
                    return bool(resource.get("Properties", {}).get("FifoQueue"))
        return None


def resource_properties(template: Template, kind: str) -> Iterator[Mapping[str, Any]]:
    """Yield the properties of a template's resources of one type."""
    for resource in template["Resources"].values():
        if resource["Type"] == kind:
            yield resource.get("Properties", {})


def run_resources(*, vcpu: float, memory_gb: float, endpoints: int) -> Numbers:
    """Return the resources of a job run with workers of this size. `endpoints` exist while jobs run."""
    return {"worker vCPU": RUN_WORKERS * vcpu, "worker GB": RUN_WORKERS * memory_gb, "endpoint": endpoints}


def count_metrics(alarm: Mapping[str, Any]) -> int:
    """Count the metrics of an alarm from a template or CloudWatch; each metric of an expression is charged."""
    return sum("MetricStat" in metric for metric in alarm["Metrics"]) if alarm.get("Metrics") else 1
