"""What `sluice rendezvous status` says, for people and for programs."""

from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from typing import Any

from sluice.aws.clients import now_ms
from sluice.aws.operator.connections import Connection
from sluice.aws.operator.deployment import Deployment, read_deployment
from sluice.aws.operator.rendezvous_status import QueueDepth, RecentDeath, RendezvousStatus, read_status
from sluice.cli.output import show_pairs, show_table
from sluice.rendezvous.ports import OfferState

# As people ask for them: an offer that stays received found no proxy, or came too late for one.
SAID = {
    OfferState.ANSWERED: "answered",
    OfferState.MATCHED: "waiting for their answer",
    OfferState.TIMED_OUT: "timed out",
    OfferState.RECEIVED: "not matched",
}
MAX_REASON = 160  # characters shown; all of it is in the queue


@dataclass(frozen=True, slots=True, kw_only=True)
class SiteStatus:
    """A site's rendezvous and where it is."""

    region: str
    deployment: Deployment
    rendezvous: RendezvousStatus


def read(connection: Connection) -> SiteStatus:
    """Read it as it is now. Raises `NotUsable` where nothing is deployed, `CallFailed` where AWS refuses."""
    deployment = read_deployment(connection)
    rendezvous = read_status(
        deployment, sqs=connection.client("sqs"), dynamodb=connection.client("dynamodb"), now_ms=now_ms()
    )
    return SiteStatus(region=connection.region, deployment=deployment, rendezvous=rendezvous)


def document(status: SiteStatus) -> dict[str, Any]:
    """Write it for `--json`."""
    deployment, rendezvous = status.deployment, status.rendezvous
    return {
        "region": status.region,
        "broker_url": deployment.broker_url,
        "offers_queue": {"url": deployment.offers_queue_url, **asdict(rendezvous.offers_queue)},
        "timeouts_queue": {"url": deployment.timeouts_queue_url, **asdict(rendezvous.timeouts_queue)},
        "waiting_proxies": dict(rendezvous.waiting),
        "recent_offers": dict(rendezvous.recent_offers),
        "dead_letters": {
            "url": deployment.dead_letters_url,
            "count": rendezvous.dead_letters,
            "latest": [asdict(letter) for letter in rendezvous.latest_dead_letters],
        },
    }


def show(status: SiteStatus) -> None:
    """Show it to people."""
    deployment, rendezvous = status.deployment, status.rendezvous
    show_pairs(
        [
            ("region", status.region),
            ("broker", deployment.broker_url),
            ("offers queue", deployment.offers_queue_url),
            ("  holds", _depth(rendezvous.offers_queue)),
            ("time-outs queue", deployment.timeouts_queue_url),
            ("  holds", _depth(rendezvous.timeouts_queue)),
            ("proxies waiting", ", ".join(f"{number} {pool}" for pool, number in rendezvous.waiting.items())),
            ("offers in two minutes", _offers(rendezvous)),
            ("dead letters", f"{rendezvous.dead_letters} in {deployment.dead_letters_url}"),
        ]
    )
    if rendezvous.latest_dead_letters:
        show_table(("dead since", "queue", "reason"), map(_row, rendezvous.latest_dead_letters))


def _depth(depth: QueueDepth) -> str:
    return f"{depth.visible} waiting, {depth.in_flight} in flight"


def _offers(rendezvous: RendezvousStatus) -> str:
    said = [f"{rendezvous.recent_offers[state]} {words}" for state, words in SAID.items()]
    return f"{sum(rendezvous.recent_offers.values())}: {', '.join(said)}"


def _row(letter: RecentDeath) -> tuple[str, str, str]:
    since = datetime.fromtimestamp(letter.sent_at_ms / 1000, UTC)
    return f"{since:%Y-%m-%d %H:%M:%S}Z", letter.source, letter.reason[:MAX_REASON]
