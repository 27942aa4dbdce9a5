"""What a stage has used, by the names of the prices: from CloudWatch's metrics and EMR Serverless's own bill.

CloudWatch is minutes late, and of a new queue up to fifteen
(https://docs.aws.amazon.com/AWSSimpleQueueService/latest/SQSDeveloperGuide/monitoring-using-cloudwatch.html):
so what triggers ask of queues is reckoned by time, and one's own requests are counted.
"""

import math
import threading
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime

from benchmarks.prices import MONTH_H, POLL_S, Used
from benchmarks.rest import endpoint_count
from benchmarks.site_templates import POLLERS, count_metrics
from sluice.aws.clients import calls
from sluice.aws.connections import Connection
from sluice.operator.metrics import Metric, read_series
from sluice.parameters.pipeline import PipelineParameters
from tests.smoke.stage_contents import StageContents

APPLICATION = "AWS::EMRServerless::Application"
ENDPOINTS = endpoint_count(PipelineParameters())
HOUR_S = 3_600
MESSAGES = ("NumberOfMessagesSent", "NumberOfMessagesReceived", "NumberOfMessagesDeleted")
WRITES, READS = UNITS = ("ConsumedWriteCapacityUnits", "ConsumedReadCapacityUnits")
LOGGED = "IncomingBytes"
Named = tuple[str, str]  # what has a metric, and the metric


@dataclass(slots=True)
class OwnRequests:
    """Counts the SQS requests of connections' clients. Safe for threads."""

    number: int = 0
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def count(self, connection: Connection) -> None:
        """Count those of the clients that this connection makes from now on."""
        connection.session.events.register("before-send.sqs", self.note)

    def note(self, **_: object) -> None:
        """Count one."""
        with self._lock:
            self.number += 1


@dataclass(frozen=True, slots=True)
class Usage:
    """Of the connection's stage, since a time. Calls raise `CallFailed`."""

    connection: Connection
    since: datetime

    def until(self, now: datetime) -> Used:
        """Give quantities by the prices' names. Messages count as a request each, although batches have up to ten."""
        contents = StageContents(self.connection)
        hours = (now - self.since).total_seconds() / HOUR_S
        functions = {function["FunctionName"]: function["MemorySize"] / 1024 for function in contents.functions()}
        spent = self._sums("AWS/Lambda", "FunctionName", functions, ("Duration", "Invocations"), now)
        units = self._sums("AWS/DynamoDB", "TableName", contents.tables(), UNITS, now)
        logged = self._sums("AWS/Logs", "LogGroupName", contents.log_groups(), (LOGGED,), now)
        alarms = contents.alarms()
        composite = sum("AlarmRule" in alarm for alarm in alarms)
        looked_at = sum(count_metrics(alarm) for alarm in alarms if "AlarmRule" not in alarm)
        return {
            **self._requests(contents, now),
            "lambda_gb_s": sum(spent[name, "Duration"] / 1000 * memory for name, memory in functions.items()),
            "lambda_calls": sum(spent[name, "Invocations"] for name in functions),
            "dynamodb_writes": sum(number for (_, metric), number in units.items() if metric == WRITES),
            "dynamodb_reads": sum(number for (_, metric), number in units.items() if metric == READS),
            "logs_gb": sum(logged.values()) / 1e9,
            "alarm_metrics": looked_at * hours / MONTH_H,
            "composite_alarms": composite * hours / MONTH_H,
            # At most: endpoints of a pipeline exist only while its jobs run.
            "endpoint_hours": len(contents.resources(APPLICATION)) * ENDPOINTS * math.ceil(hours),
        }

    def of_jobs(self, application_id: str) -> Used:
        """Read what EMR Serverless bills for an application's last runs, which aren't streams.

        https://docs.aws.amazon.com/emr-serverless/latest/APIReference/API_JobRun.html
        """
        client = self.connection.client("emr-serverless")
        used = {"emr_vcpu_hours": 0.0, "emr_gb_hours": 0.0}
        with calls("ListJobRuns"):
            runs = client.list_job_runs(applicationId=application_id, mode="BATCH")["jobRuns"]
        for run in runs:
            with calls("GetJobRun"):
                found = client.get_job_run(applicationId=application_id, jobRunId=run["id"])["jobRun"]
            billed = found.get("billedResourceUtilization") or found.get("totalResourceUtilization") or {}
            used["emr_vcpu_hours"] += billed.get("vCPUHour", 0.0)
            used["emr_gb_hours"] += billed.get("memoryGBHour", 0.0)
        return used

    def _requests(self, contents: StageContents, now: datetime) -> Used:
        """Count messages, and reckon what triggers have asked of their queues, in vain or not."""
        messages = self._sums("AWS/SQS", "QueueName", contents.queues(), MESSAGES, now)
        polls = (now - self.since).total_seconds() * POLLERS / POLL_S
        asked = [
            *((name, number) for (name, _), number in messages.items()),
            *(
                (mapping["EventSourceArn"], polls)
                for mapping in contents.mappings()
                if ":sqs:" in mapping["EventSourceArn"]
            ),
        ]
        fifo = sum(number for name, number in asked if name.endswith(".fifo"))
        return {"sqs_fifo": fifo, "sqs_standard": sum(number for _, number in asked) - fifo}

    def _sums(
        self, namespace: str, dimension: str, names: Iterable[str], metrics: Sequence[str], now: datetime
    ) -> dict[Named, float]:
        """Add up each metric of each name, by both."""
        wanted = {
            (name, metric): Metric(namespace=namespace, name=metric, dimensions={dimension: name})
            for name in names
            for metric in metrics
        }
        since_ms, until_ms = (round(at.timestamp() * 1000) for at in (self.since, now))
        series = read_series(self.connection.client("cloudwatch"), wanted, since_ms=since_ms, until_ms=until_ms)
        return {key: sum(value for _, value in values) for key, values in series.items()}
