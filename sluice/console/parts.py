"""What pages read, ask and do, by name: a page's reading and its module in `static/pages` have one name."""

from collections.abc import Mapping

from sluice.console import kept_sessions, maps, trials
from sluice.console.readings import dead_letters, federation, log, overview, pipeline, rendezvous, splitting
from sluice.console.sites import Reader
from sluice.console.watching import Asked

READERS: Mapping[str, Reader] = {
    "overview": overview.read,
    "rendezvous": rendezvous.read,
    "splitting": splitting.read,
    "federation": federation.read,
    "route-rates": federation.read_rates,
    "pipeline": pipeline.read,
    "dead-letters": dead_letters.read,
    "log": log.read,
}
# Change nothing: also for who may only look.
QUESTIONS: Mapping[str, Asked] = {
    "try-message": trials.try_message,
    "trace-key": maps.trace,
    "hours": pipeline.hours,
    "quarantine": pipeline.quarantine,
    "dead-letters": dead_letters.look,
    "dead-letter": dead_letters.show,
    "trace": log.trace,
}
# With --allow-actions alone. A peek is a receive: after as many as the queue allows SQS takes the message for dead.
ACTIONS: Mapping[str, Asked] = {
    "peek": trials.peek,
    "start-session": kept_sessions.start_session,
    "stop-session": kept_sessions.stop_session,
    "tell-route": federation.tell_route,
    "tell-link": federation.tell_link,
    "redrive-route": federation.redrive_route,
    "start-job": pipeline.start_job,
    "stop-job": pipeline.stop_job,
    "drain-queue": pipeline.drain,
    "redrive": dead_letters.redrive,
    "purge": dead_letters.purge,
    "stop-move": dead_letters.stop,
}
