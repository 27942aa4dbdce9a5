"""Reads a site's alarms, their recent state changes, and the times of deployments. Names begin with `Sluice`."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from sluice.aws.clients import calls
from sluice.aws.connections import Connection
from sluice.aws.deployment import StackView
from sluice.stages import add_stage_prefix

NAME_PREFIX = "Sluice"  # Names of stacks and alarms begin with this word, after the prefix of a stage.
MAX_CHANGES = 100  # One request to CloudWatch returns at most this number of state changes.
ALARMS_PER_PAGE = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class AlarmView:
    """A CloudWatch alarm with its state, the time of the last state change, and its description (`about`)."""

    name: str
    state: str
    since_ms: int
    about: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SiteChange:
    """A state change of an alarm, or a deployment. `at_ms` is in milliseconds since the epoch."""

    at_ms: int
    text: str


def read_alarms(connection: Connection) -> Sequence[AlarmView]:
    """List the site's metric alarms and composite alarms. Raises `CallFailed`."""
    pages = connection.pages(
        "cloudwatch",
        "describe_alarms",
        AlarmNamePrefix=add_stage_prefix(NAME_PREFIX, connection.stage),
        AlarmTypes=["MetricAlarm", "CompositeAlarm"],
        PaginationConfig={"PageSize": ALARMS_PER_PAGE},
    )
    alarms = [alarm for page in pages for kind in ("MetricAlarms", "CompositeAlarms") for alarm in page.get(kind, [])]
    return [
        AlarmView(
            name=alarm["AlarmName"],
            state=alarm["StateValue"],
            since_ms=_to_epoch_ms(alarm.get("StateUpdatedTimestamp")),
            about=alarm.get("AlarmDescription", ""),
            reason=alarm.get("StateReason", ""),
        )
        for alarm in alarms
    ]


def read_alarm_changes(connection: Connection, *, since_ms: int) -> Sequence[SiteChange]:
    """List alarms' changes to or from state ALARM since `since_ms`, newest first, at most 100. Raises `CallFailed`."""
    with calls("DescribeAlarmHistory"):
        changes = connection.client("cloudwatch").describe_alarm_history(
            HistoryItemType="StateUpdate",
            AlarmTypes=["MetricAlarm", "CompositeAlarm"],
            StartDate=datetime.fromtimestamp(since_ms / 1000, UTC),
            MaxRecords=MAX_CHANGES,
        )["AlarmHistoryItems"]
    prefix = add_stage_prefix(NAME_PREFIX, connection.stage)
    return [
        SiteChange(at_ms=_to_epoch_ms(change["Timestamp"]), text=f"{change['AlarmName']}: {change['HistorySummary']}")
        for change in changes
        if change["AlarmName"].startswith(prefix) and "ALARM" in change["HistorySummary"]
    ]


def list_deployments(stacks: Mapping[str, StackView], *, stage: str | None) -> Sequence[SiteChange]:
    """List the last deployment of each of the site's stacks."""
    return [
        SiteChange(at_ms=stack.changed_ms, text=f"stack {name}: {stack.status}")
        for name, stack in stacks.items()
        if name.startswith(add_stage_prefix(NAME_PREFIX, stage))
    ]


def _to_epoch_ms(time: datetime | None) -> int:
    return 0 if time is None else round(time.timestamp() * 1000)
