"""Reads the page *Overview*: a site's status as in `sluice status --json`, message counts, alarms and changes."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from functools import partial
from typing import Any

from sluice.aws.clients import now_ms
from sluice.codec import to_document
from sluice.console.readings.counters import (
    build_counters,
    count_offers,
    read_part_metrics,
    read_todays_statistics,
    sum_depths,
)
from sluice.console.readings.shared import try_reading
from sluice.console.sites import CallLimitedSite, Document, Query
from sluice.operator.alarms import list_deployments, read_alarm_changes, read_alarms
from sluice.operator.site_status import read_site
from sluice.times import HOUR_MS

FUNCTIONS = 4  # Reading a site's status invokes this number of functions.
LOCAL_FUNCTIONS = 3  # On the embedded cloud, no function is invoked for the pipeline's state, which is in a folder.
ALARMS_INTERVAL_S = 15.0
LOCAL_ALARMS_INTERVAL_S = 5.0
HISTORY_INTERVAL_S = 60.0
MAX_SHOWN = 50


def read(site: CallLimitedSite, _: Query) -> Document:
    """Read the page's data; unreadable data are null, with reasons in `troubles`. Raises `NotUsable` if all are."""
    site.reserve_calls(LOCAL_FUNCTIONS if site.is_local else FUNCTIONS)
    status = to_document(read_site(site).document)
    troubles: dict[str, str] = {}
    counts = try_reading(troubles, "statistics", lambda: read_todays_statistics(site) if status["rendezvous"] else None)
    offers = count_offers(counts)
    series = try_reading(troubles, "metrics", lambda: read_part_metrics(site, status))
    every_s = LOCAL_ALARMS_INTERVAL_S if site.is_local else ALARMS_INTERVAL_S
    ask = partial(site.read_cached, "alarms", partial(read_alarms, site.connection), every_s=every_s)
    alarms = try_reading(troubles, "alarms", ask)
    return {
        "status": status,
        "counters": build_counters(status, offers, series),
        "holds": sum_depths(status),
        "alarms": None if alarms is None else [asdict(alarm) for alarm in alarms if alarm.state == "ALARM"],
        "alarms_watched": None if alarms is None else len(alarms),
        "changes": _list_recent_changes(site, status, troubles, since_ms=now_ms() - HOUR_MS),
        "troubles": troubles,
    }


def _list_recent_changes(
    site: CallLimitedSite, status: Document, troubles: dict[str, str], *, since_ms: int
) -> Sequence[Mapping[str, Any]]:
    """List a site's changes since a time, newest first: deployments, alarms, started sessions and started runs."""
    alarm_changes = try_reading(
        troubles,
        "alarms' history",
        lambda: site.read_cached(
            "alarm history",
            lambda: read_alarm_changes(site.connection, since_ms=since_ms),
            every_s=HISTORY_INTERVAL_S,
        ),
    )
    deployed = list_deployments(site.list_stacks(), stage=site.connection.stage)
    changes = [{**asdict(event), "part": "deployment"} for event in deployed]
    changes += [{**asdict(event), "part": "alarm"} for event in alarm_changes or ()]
    for session in (status["splitting"] or {}).get("sessions", ()):
        text = f"session {session['key']} of {session['owner']} began"
        changes.append({"at_ms": session["started_at_ms"], "part": "splitting", "text": text})
    for run in (status["pipeline"] or {}).get("runs", ()):
        changes.append({"at_ms": run["started_at_ms"], "part": "pipeline", "text": f"run of job {run['job']} began"})
    recent = sorted((change for change in changes if change["at_ms"] >= since_ms), key=lambda change: -change["at_ms"])
    return recent[:MAX_SHOWN]
