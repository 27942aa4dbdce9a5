"""What has a stage's name, what it has used, and its removal: through stubbed clients of the services."""

from collections import defaultdict
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any, cast

import boto3
import pytest
from botocore.stub import ANY, Stubber

from benchmarks.prices import MONTH_H, POLL_S
from benchmarks.site_templates import POLLERS
from sluice.aws.connections import Connection
from sluice.errors import CallFailed
from tests.smoke.stage_contents import NoStage, StageContents
from tests.smoke.usage import MESSAGES, OwnRequests, Usage

REGION, STAGE = "eu-central-1", "smoke"
SQS, ARN = f"https://sqs.{REGION}.amazonaws.com/123456789012", f"arn:aws:sqs:{REGION}:123456789012"
MINE, OTHERS = "smoke-sluice-bridge-1", "smoke2-sluice-bridge-1"
ARNS = ("arn", "createdBy", "executionRole")
TIME = datetime(2026, 11, 24, tzinfo=UTC)
LATER = TIME + timedelta(hours=1.1)
POLLS = POLLERS / POLL_S * 3_960


class Scripted:
    """A connection whose services' answers are given beforehand; botocore checks each request by its own model."""

    region, endpoint_url = REGION, None
    pages = Connection.pages

    def __init__(self, stage: str | None = STAGE) -> None:
        self.stage = stage
        self.session: Any = boto3.session.Session("test", "test", region_name=REGION)
        self.clients: dict[str, Any] = {}
        self.stubs: dict[str, Stubber] = {}

    def client(self, service: str) -> Any:
        if service not in self.clients:
            self.clients[service] = self.session.client(service)
            self.stubs[service] = Stubber(self.clients[service])
            self.stubs[service].activate()
        return self.clients[service]

    def answers(self, service: str, operation: str, answer: Mapping[str, Any], **asked: Any) -> None:
        self.client(service)
        self.stubs[service].add_response(operation, dict(answer), asked)

    def refuses(self, service: str, operation: str, code: str) -> None:
        self.client(service)
        self.stubs[service].add_client_error(operation, code)

    @property
    def contents(self) -> StageContents:
        return StageContents(cast("Connection", self))

    def has_nothing_but(self, **found: Mapping[str, Any]) -> None:
        """What `left` asks, in its order; `found` answers by the operation."""
        answers = defaultdict[str, Mapping[str, Any]](dict, found)
        empty: Mapping[str, Mapping[str, Any]] = {
            "describe_stacks": {"Stacks": []},
            "list_event_source_mappings": {"EventSourceMappings": []},
            "list_tables": {"TableNames": []},
            "describe_log_groups": {"logGroups": []},
        }
        services = [
            ("cloudformation", "describe_stacks"),
            ("sqs", "list_queues"),
            ("lambda", "list_event_source_mappings"),
            ("dynamodb", "list_tables"),
            ("logs", "describe_log_groups"),
        ]
        for service, operation in services:
            asked = {"QueueNamePrefix": "smoke-"} if service == "sqs" else {}
            if service == "logs":
                for prefix in ("smoke-", "/aws/lambda/smoke-"):
                    self.answers(
                        service, operation, answers.pop(operation, empty[operation]), logGroupNamePrefix=prefix
                    )
            else:
                self.answers(service, operation, answers[operation] or empty.get(operation, {}), **asked)

    def all_was_asked(self) -> None:
        for stub in self.stubs.values():
            stub.assert_no_pending_responses()


def mapping(queue: str, state: str = "Enabled") -> Mapping[str, Any]:
    return {"UUID": id_of(queue), "EventSourceArn": f"{ARN}:{queue}", "State": state}


def id_of(queue: str) -> str:
    return f"of-{queue}".ljust(36, "-")


def test_only_what_begins_with_the_stage_and_a_hyphen_is_the_stages() -> None:
    script = Scripted()
    script.answers("lambda", "list_event_source_mappings", {"EventSourceMappings": [mapping(MINE), mapping(OTHERS)]})
    script.answers("lambda", "list_functions", {"Functions": [{"FunctionName": name} for name in (MINE, OTHERS)]})
    script.answers("dynamodb", "list_tables", {"TableNames": ["smoke-SluiceState-Table", "SluiceState-Table"]})
    assert [each["UUID"] for each in script.contents.mappings()] == [id_of(MINE)]
    assert [function["FunctionName"] for function in script.contents.functions()] == [MINE]
    assert script.contents.tables() == ["smoke-SluiceState-Table"]


def test_a_tables_stream_is_the_stages_too() -> None:
    script = Scripted()
    stream = f"arn:aws:dynamodb:{REGION}:123456789012:table/smoke-SluiceState-Table/stream/2026"
    script.answers("lambda", "list_event_source_mappings", {"EventSourceMappings": [{"EventSourceArn": stream}]})
    assert len(script.contents.mappings()) == 1


def test_a_site_without_a_stage_has_no_contents_of_its_own() -> None:
    with pytest.raises(NoStage):
        _ = Scripted(None).contents


def test_what_is_left_says_how_to_remove_it() -> None:
    script = Scripted()
    stack = {"StackName": "smoke-SluiceState", "CreationTime": TIME, "StackStatus": "DELETE_FAILED"}
    script.has_nothing_but(
        describe_stacks={"Stacks": [stack, {**stack, "StackName": "SluiceState"}]},
        list_queues={"QueueUrls": [f"{SQS}/{MINE}"]},
        list_event_source_mappings={"EventSourceMappings": [mapping(MINE), mapping("smoke-b", "Deleting")]},
    )
    script.answers("s3", "head_bucket", {}, Bucket="bucket")
    script.refuses("s3", "head_bucket", "404")
    assert [each.remove for each in script.contents.left(buckets=["bucket", "gone"])] == [
        "aws cloudformation delete-stack --stack-name smoke-SluiceState",
        f"aws sqs delete-queue --queue-url {SQS}/{MINE}",
        f"aws lambda delete-event-source-mapping --uuid {id_of(MINE)}",
        "aws s3 rb --force s3://bucket",
    ]
    script.all_was_asked()


def test_what_no_stack_has_is_deleted() -> None:
    script = Scripted()
    script.answers("lambda", "list_event_source_mappings", {"EventSourceMappings": [mapping(MINE), mapping(OTHERS)]})
    script.answers("lambda", "delete_event_source_mapping", {}, UUID=id_of(MINE))
    script.answers("sqs", "list_queues", {"QueueUrls": [f"{SQS}/{MINE}"]}, QueueNamePrefix="smoke-")
    script.answers("sqs", "delete_queue", {}, QueueUrl=f"{SQS}/{MINE}")
    group = {"logGroups": [{"logGroupName": "/aws/lambda/smoke-f"}]}
    script.answers("logs", "describe_log_groups", {"logGroups": []}, logGroupNamePrefix="smoke-")
    script.answers("logs", "describe_log_groups", group, logGroupNamePrefix="/aws/lambda/smoke-")
    script.answers("logs", "delete_log_group", {}, logGroupName="/aws/lambda/smoke-f")
    script.contents.delete_made_at_run_time()
    script.all_was_asked()


def test_a_bucket_is_emptied_page_by_page_and_a_refusal_is_raised() -> None:
    script = Scripted()
    page = {"Contents": [{"Key": "a"}, {"Key": "b"}], "IsTruncated": True, "NextContinuationToken": "t"}
    script.answers("s3", "list_objects_v2", page, Bucket="bucket")
    script.answers("s3", "delete_objects", {}, Bucket="bucket", Delete={"Objects": ANY, "Quiet": True})
    last = {"Contents": [{"Key": "c"}], "IsTruncated": False}
    script.answers("s3", "list_objects_v2", last, Bucket="bucket", ContinuationToken="t")
    script.answers(
        "s3",
        "delete_objects",
        {"Errors": [{"Key": "c", "Code": "AccessDenied", "Message": "no"}]},
        Bucket="bucket",
        Delete={"Objects": [{"Key": "c"}], "Quiet": True},
    )
    with pytest.raises(CallFailed, match="AccessDenied"):
        script.contents.empty_bucket("bucket")
    script.all_was_asked()


TWO_METRICS = [{"Id": id_, "MetricStat": {"Metric": {}, "Period": 60, "Stat": "Sum"}} for id_ in ("a", "b")]
COMPOSITE = {"AlarmName": "smoke-capability", "AlarmRule": "ALARM(smoke-a)"}


def sums(service: str, *values: float) -> tuple[str, str, Mapping[str, Any]]:
    results = [
        {"Id": f"m{number}", "Timestamps": [TIME, TIME], "Values": [value / 2, value / 2]}
        for number, value in enumerate(values)
    ]
    return service, "get_metric_data", {"MetricDataResults": results}


def test_what_was_used_is_by_the_prices_names() -> None:
    script = Scripted()
    metrics: Mapping[str, Any] = {"MetricDataQueries": ANY, "StartTime": TIME, "EndTime": LATER, "ScanBy": ANY}
    script.answers("lambda", "list_functions", {"Functions": [{"FunctionName": "smoke-f", "MemorySize": 512}]})
    script.answers(*sums("cloudwatch", 3_000_000.0, 40.0), **metrics)
    script.answers("dynamodb", "list_tables", {"TableNames": ["smoke-t"]})
    script.answers(*sums("cloudwatch", 7.0, 5.0), **metrics)
    for prefix, groups in (("smoke-", [{"logGroupName": "smoke-logs"}]), ("/aws/lambda/smoke-", [])):
        script.answers("logs", "describe_log_groups", {"logGroups": groups}, logGroupNamePrefix=prefix)
    script.answers(*sums("cloudwatch", 2e6), **metrics)
    alarms = {
        "MetricAlarms": [{"Metrics": TWO_METRICS}, *[{}] * 71],
        "CompositeAlarms": [COMPOSITE] * 73,
    }
    script.answers("cloudwatch", "describe_alarms", alarms, AlarmNamePrefix=ANY, AlarmTypes=ANY)
    queues = {"QueueUrls": [f"{SQS}/{MINE}", f"{SQS}/{MINE}.fifo"]}
    script.answers("sqs", "list_queues", queues, QueueNamePrefix="smoke-")
    script.answers(*sums("cloudwatch", *(10.0 for _ in MESSAGES), *(1.0 for _ in MESSAGES)), **metrics)
    mappings = {"EventSourceMappings": [mapping(MINE), mapping(f"{MINE}.fifo")]}
    script.answers("lambda", "list_event_source_mappings", mappings)
    stack = {"StackName": "smoke-SluicePipeline", "CreationTime": TIME, "StackStatus": "CREATE_COMPLETE"}
    script.answers("cloudformation", "describe_stacks", {"Stacks": [stack]})
    application = {
        "LogicalResourceId": "Application",
        "PhysicalResourceId": "app",
        "ResourceType": "AWS::EMRServerless::Application",
        "LastUpdatedTimestamp": TIME,
        "ResourceStatus": "CREATE_COMPLETE",
    }
    listed = {"StackResourceSummaries": [application]}
    script.answers("cloudformation", "list_stack_resources", listed, StackName="smoke-SluicePipeline")
    used = Usage(cast("Connection", script), TIME).until(LATER)
    script.all_was_asked()
    assert used["sqs_standard"] == pytest.approx(30 + POLLS)
    assert used["sqs_fifo"] == pytest.approx(3 + POLLS)
    assert used["logs_gb"] == pytest.approx(0.002)
    assert (used["lambda_gb_s"], used["lambda_calls"]) == (1500, 40)
    assert (used["dynamodb_writes"], used["dynamodb_reads"]) == (7, 5)
    assert used["alarm_metrics"] == used["composite_alarms"] == pytest.approx(73 * 1.1 / MONTH_H)
    assert used["endpoint_hours"] == 2 * 2  # two endpoints, and a part of the second hour


def test_jobs_cost_what_emr_serverless_bills_else_what_they_used() -> None:
    script = Scripted()
    fields = {"applicationId": "a", "id": "r", "stateDetails": "d"} | dict.fromkeys(ARNS, "a" * 60)
    times = {"createdAt": TIME, "updatedAt": TIME}
    runs = [{**fields, **times, "state": "SUCCESS", "releaseLabel": "r", "id": id_} for id_ in ("r1", "r2")]
    script.answers("emr-serverless", "list_job_runs", {"jobRuns": runs}, applicationId="app", mode="BATCH")
    whole = {
        "jobRunId": "r",
        "releaseLabel": "r",
        "jobDriver": {"hive": {"query": "q"}},
        "state": "SUCCESS",
        **fields,
        **times,
    }
    billed = {"billedResourceUtilization": {"vCPUHour": 0.5, "memoryGBHour": 2.0}}
    spent = {"totalResourceUtilization": {"vCPUHour": 0.25, "memoryGBHour": 1.0}}
    whole.pop("id")
    for id_, found in (("r1", billed | spent), ("r2", spent)):
        answer = {"jobRun": {**whole, **found}}
        script.answers("emr-serverless", "get_job_run", answer, applicationId="app", jobRunId=id_)
    used = Usage(cast("Connection", script), TIME).of_jobs("app")
    assert used == {"emr_vcpu_hours": 0.75, "emr_gb_hours": 3.0}


def test_own_requests_are_those_to_sqs() -> None:
    script, own = Scripted(), OwnRequests()
    own.count(cast("Connection", script))
    for service in ("sqs", "dynamodb"):
        client = script.session.client(service)
        client.meta.events.emit(f"before-send.{service}.Any", request=None)
    assert own.number == 1
