"""Page *Overview*: a whole site, as `sluice status --json` has it, and beside it what went through, alarms, changes."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from functools import partial
from typing import Any

from sluice.aws.clients import now_ms
from sluice.codec import plain
from sluice.console.readings.counters import counters_of, holds_of, metrics_of, offers_of, statistics_of_today
from sluice.console.readings.shared import tried
from sluice.console.sites import Document, KnownSite, Query
from sluice.operator.alarms import deployments, read_alarm_changes, read_alarms
from sluice.operator.site_status import read_site
from sluice.times import HOUR_MS

FUNCTIONS = 4  # that the parts of a status are asked through
LOCAL_FUNCTIONS = 3  # of the pipeline it is a folder
ALARMS_EVERY_S = 15.0
LOCAL_ALARMS_EVERY_S = 5.0
HISTORY_EVERY_S = 60.0
MAX_SHOWN = 50


def read(site: KnownSite, _: Query) -> Document:
    """Read all of it. What can't be read says why in `troubles`. Raises `NotUsable` where no part can be asked."""
    site.set_aside(LOCAL_FUNCTIONS if site.is_local else FUNCTIONS)
    status = plain(read_site(site).document)
    troubles: dict[str, str] = {}
    counts = tried(troubles, "statistics", lambda: statistics_of_today(site) if status["rendezvous"] else None)
    offers = offers_of(counts)
    series = tried(troubles, "metrics", lambda: metrics_of(site, status))
    every_s = LOCAL_ALARMS_EVERY_S if site.is_local else ALARMS_EVERY_S
    ask = partial(site.kept, "alarms", partial(read_alarms, site.connection), every_s=every_s)
    alarms = tried(troubles, "alarms", ask)
    return {
        "status": status,
        "counters": counters_of(status, offers, series),
        "holds": holds_of(status),
        "alarms": None if alarms is None else [asdict(each) for each in alarms if each.state == "ALARM"],
        "alarms_watched": None if alarms is None else len(alarms),
        "changes": _lately(site, status, troubles, since_ms=now_ms() - HOUR_MS),
        "troubles": troubles,
    }


def _lately(
    site: KnownSite, status: Document, troubles: dict[str, str], *, since_ms: int
) -> Sequence[Mapping[str, Any]]:
    """List what changed since then, newest first: deployments, alarms, sessions and runs that began."""
    rung = tried(
        troubles,
        "alarms' history",
        lambda: site.kept(
            "alarm history",
            lambda: read_alarm_changes(site.connection, since_ms=since_ms),
            every_s=HISTORY_EVERY_S,
        ),
    )
    deployed = deployments(site.stacks(), stage=site.connection.stage)
    told = [{**asdict(each), "part": "deployment"} for each in deployed]
    told += [{**asdict(each), "part": "alarm"} for each in rung or ()]
    for each in (status["splitting"] or {}).get("sessions", ()):
        what = f"session {each['key']} of {each['owner']} began"
        told.append({"at_ms": each["started_at_ms"], "part": "splitting", "what": what})
    for each in (status["pipeline"] or {}).get("runs", ()):
        told.append({"at_ms": each["started_at_ms"], "part": "pipeline", "what": f"run of job {each['job']} began"})
    lately = sorted((each for each in told if each["at_ms"] >= since_ms), key=lambda each: -each["at_ms"])
    return lately[:MAX_SHOWN]
