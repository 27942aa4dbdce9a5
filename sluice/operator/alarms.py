"""A site's alarms, what they did lately, and when its stacks were deployed. By names, as our stacks give them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from sluice.aws.clients import calls
from sluice.aws.connections import Connection
from sluice.aws.deployment import StackView
from sluice.stages import staged

OURS = "Sluice"  # what names of stacks, and so of alarms, begin with, at a stage after its own
MAX_CHANGES = 100  # of one request
A_PAGE = 100  # alarms


@dataclass(frozen=True, slots=True, kw_only=True)
class AlarmView:
    """An alarm: its name, CloudWatch's word for its state, since when, and what it is about."""

    name: str
    state: str
    since_ms: int
    about: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Happened:
    """Something that happened to a site, at a time."""

    at_ms: int
    what: str


def read_alarms(connection: Connection) -> Sequence[AlarmView]:
    """List all alarms of the site, composite ones too. Raises `CallFailed`."""
    pages = connection.pages(
        "cloudwatch",
        "describe_alarms",
        AlarmNamePrefix=_prefix(connection),
        AlarmTypes=["MetricAlarm", "CompositeAlarm"],
        PaginationConfig={"PageSize": A_PAGE},
    )
    alarms = [alarm for page in pages for kind in ("MetricAlarms", "CompositeAlarms") for alarm in page.get(kind, [])]
    return [
        AlarmView(
            name=each["AlarmName"],
            state=each["StateValue"],
            since_ms=_ms(each.get("StateUpdatedTimestamp")),
            about=each.get("AlarmDescription", ""),
            reason=each.get("StateReason", ""),
        )
        for each in alarms
    ]


def read_alarm_changes(connection: Connection, *, since_ms: int) -> Sequence[Happened]:
    """List the alarms that went off, or were over, since then: the last hundred, newest first. Raises `CallFailed`."""
    with calls("DescribeAlarmHistory"):
        found = connection.client("cloudwatch").describe_alarm_history(
            HistoryItemType="StateUpdate",
            AlarmTypes=["MetricAlarm", "CompositeAlarm"],
            StartDate=datetime.fromtimestamp(since_ms / 1000, UTC),
            MaxRecords=MAX_CHANGES,
        )["AlarmHistoryItems"]
    return [
        Happened(at_ms=_ms(each["Timestamp"]), what=f"{each['AlarmName']}: {each['HistorySummary']}")
        for each in found
        if each["AlarmName"].startswith(_prefix(connection)) and "ALARM" in each["HistorySummary"]
    ]


def deployments(stacks: Mapping[str, StackView], *, stage: str | None) -> Sequence[Happened]:
    """List when each stack of the site was deployed last."""
    return [
        Happened(at_ms=stack.changed_ms, what=f"stack {name}: {stack.status}")
        for name, stack in stacks.items()
        if name.startswith(staged(OURS, stage))
    ]


def _prefix(connection: Connection) -> str:
    return staged(OURS, connection.stage)


def _ms(at: datetime | None) -> int:
    return 0 if at is None else round(at.timestamp() * 1000)
