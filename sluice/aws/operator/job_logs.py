"""What job runs say, from CloudWatch Logs."""

from dataclasses import dataclass
from typing import Any

from sluice.aws.clients import calls

MAX_STREAMS = 100  # of one FilterLogEvents


@dataclass(frozen=True, slots=True)
class JobLogs:
    """The log group of the pipeline's jobs. `client` is boto3's for `logs`."""

    client: Any
    log_group: str

    def text(self, run_id: str, *, lines: int) -> str:
        """Give the last lines of the driver's output of a run; nothing where it hasn't said anything yet."""
        streams = self._streams(run_id)
        if not streams:
            return ""
        pages = self.client.get_paginator("filter_log_events").paginate(
            logGroupName=self.log_group, logStreamNames=streams[:MAX_STREAMS]
        )
        with calls("FilterLogEvents"):
            said = [event["message"].rstrip("\n") for page in pages for event in page["events"]]
        return "\n".join(said[-lines:])

    def _streams(self, run_id: str) -> list[str]:
        """Streams are named by application, run and worker; a prefix of ours may stand before that."""
        pages = self.client.get_paginator("describe_log_streams").paginate(logGroupName=self.log_group)
        with calls("DescribeLogStreams"):
            names = [stream["logStreamName"] for page in pages for stream in page["logStreams"]]
        return [name for name in names if run_id in name.split("/")]
