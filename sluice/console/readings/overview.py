"""Page *Overview*: a whole site, as `sluice status --json` has it, and beside it what went through, alarms, changes."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from sluice.aws.clients import now_ms
from sluice.codec import plain
from sluice.console.changes import Change, changes
from sluice.console.readings.counters import counters_of, holds_of, metrics_of, offers_of, statistics_of_today
from sluice.console.readings.dollars import dollars_of
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
MAX_CHANGES = 200  # kept
MAX_SHOWN = 50
MINUTES = 180  # of what was held, that are drawn
DRAWN = ("waiting", "dead")


@dataclass(slots=True)
class SeenChanges:
    """What changed while somebody looked: from one reading to the next."""

    last: Document | None = None
    seen: list[Change] = field(default_factory=list)

    def note(self, status: Document, *, at_ms: int) -> None:
        """Compare with the reading before."""
        if self.last is not None:
            self.seen = [*self.seen, *changes(self.last, status, at_ms=at_ms)][-MAX_CHANGES:]
        self.last = status


def read(site: KnownSite, _: Query) -> Document:
    """Read all of it. What can't be read says why in `troubles`. Raises `NotUsable` where no part can be asked."""
    site.set_aside(LOCAL_FUNCTIONS if site.is_local else FUNCTIONS)
    status = plain(read_site(site).document)
    at_ms = now_ms()
    seen = site.memory.of("changes", SeenChanges)
    seen.note(status, at_ms=at_ms)
    troubles: dict[str, str] = {}
    counts = tried(troubles, "statistics", lambda: statistics_of_today(site) if status["rendezvous"] else None)
    offers = offers_of(counts)
    series = tried(troubles, "metrics", lambda: metrics_of(site, status))
    alarms = tried(
        troubles, "alarms", lambda: site.kept("alarms", lambda: read_alarms(site.connection), every_s=_often(site))
    )
    dollars = tried(troubles, "dollars", lambda: dollars_of(site, status, offers, series))
    holds = holds_of(status)
    return {
        "status": status,
        "counters": counters_of(status, offers, series),
        "holds": holds,
        "history": _history(site, holds, at_ms=at_ms),
        "alarms": None if alarms is None else [asdict(each) for each in alarms if each.state == "ALARM"],
        "alarms_watched": None if alarms is None else len(alarms),
        "changes": _lately(site, status, seen.seen, troubles, since_ms=at_ms - HOUR_MS),
        "dollars": dollars,
        "troubles": troubles,
    }


def _history(site: KnownSite, holds: Mapping[str, Mapping[str, int | None]], *, at_ms: int) -> Document:
    """Note what each part holds, and say what it held in the last hours, by part and kind."""
    history, name = site.memory.history, str(site.name)
    history.note(
        name, {f"{part} {kind}": value for part, held in holds.items() for kind, value in held.items()}, at_ms=at_ms
    )
    return {
        part: {kind: history.series(name, f"{part} {kind}", at_ms=at_ms, minutes=MINUTES) for kind in DRAWN}
        for part in holds
    }


def _often(site: KnownSite) -> float:
    return LOCAL_ALARMS_EVERY_S if site.is_local else ALARMS_EVERY_S


def _lately(
    site: KnownSite, status: Document, seen: Sequence[Change], troubles: dict[str, str], *, since_ms: int
) -> Sequence[Mapping[str, Any]]:
    """List what changed since then, newest first: what was seen, alarms, deployments, what says when it began."""
    rung = tried(
        troubles,
        "alarms' history",
        lambda: site.kept(
            "alarm history",
            lambda: read_alarm_changes(site.connection, since_ms=since_ms),
            every_s=HISTORY_EVERY_S,
        ),
    )
    told = [asdict(each) for each in seen]
    told += [{**asdict(each), "part": "deployment"} for each in deployments(site.stacks(), stage=site.connection.stage)]
    told += [{**asdict(each), "part": "alarm"} for each in rung or ()]
    if not seen:
        told += _began(status)
    lately = sorted((each for each in told if each["at_ms"] >= since_ms), key=lambda each: -each["at_ms"])
    return lately[:MAX_SHOWN]


def _began(status: Document) -> list[dict[str, Any]]:
    sessions = status["splitting"]["sessions"] if status["splitting"] else []
    runs = status["pipeline"]["runs"] if status["pipeline"] else []
    return [
        *(
            {
                "at_ms": each["started_at_ms"],
                "part": "splitting",
                "what": f"session {each['key']} of {each['owner']} began",
            }
            for each in sessions
        ),
        *(
            {"at_ms": each["started_at_ms"], "part": "pipeline", "what": f"run of job {each['job']} began"}
            for each in runs
        ),
    ]
