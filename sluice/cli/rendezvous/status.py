"""What `sluice rendezvous status` says, for people and for programs."""

from dataclasses import asdict
from datetime import UTC, datetime
from typing import Any

from sluice.aws.operator.rendezvous_status import RendezvousStatus
from sluice.cli.output import plain, show_pairs, show_table
from sluice.operations import QueueDepth
from sluice.rendezvous.protocol.ends import OPEN, End

# As people ask for them.
SAID = {
    End.OFFER_MATCHED.state: "answered",
    OPEN: "not answered",
    End.OFFER_REFUSED.state: "malformed",
}
MAX_REASON = 160  # characters shown; all of it is in the queue


def document(rendezvous: RendezvousStatus) -> dict[str, Any]:
    """Write it for `--json`."""
    deployment = rendezvous.deployment
    return {
        "region": rendezvous.region,
        "broker_url": deployment.broker_url,
        "offers_queue": {"url": deployment.offers_queue_url, **plain(rendezvous.offers_queue)},
        "waiting_proxies": dict(rendezvous.waiting),
        "recent_offers": dict(rendezvous.recent_offers),
        "dead_letters": {
            "url": deployment.dead_letters_url,
            "count": rendezvous.dead_letters,
            "latest": [asdict(letter) for letter in rendezvous.latest_dead_letters],
        },
    }


def show(rendezvous: RendezvousStatus) -> None:
    """Show it to people."""
    deployment = rendezvous.deployment
    said = [f"{rendezvous.recent_offers[state]} {words}" for state, words in SAID.items()]
    show_pairs(
        [
            ("region", rendezvous.region),
            ("broker", deployment.broker_url),
            ("offers queue", deployment.offers_queue_url),
            ("  holds", _depth(rendezvous.offers_queue)),
            ("proxies waiting", ", ".join(f"{number} {pool}" for pool, number in rendezvous.waiting.items())),
            ("offers in two minutes", f"{sum(rendezvous.recent_offers.values())}: {', '.join(said)}"),
            ("dead letters", f"{rendezvous.dead_letters} in {deployment.dead_letters_url}"),
        ]
    )
    if rendezvous.latest_dead_letters:
        rows = (
            (
                f"{datetime.fromtimestamp(letter.sent_at_ms / 1000, UTC):%Y-%m-%d %H:%M:%S}Z",
                letter.source,
                letter.reason[:MAX_REASON],
            )
            for letter in rendezvous.latest_dead_letters
        )
        show_table(("dead since", "queue", "reason"), rows)


def _depth(depth: QueueDepth) -> str:
    return f"{depth.visible} waiting, {depth.in_flight} in flight"
