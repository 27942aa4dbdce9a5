"""`sluice rendezvous`: look at a site, manage its clients' credentials, be a client, be a proxy."""

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated

import typer

from sluice.aws.deployment import Deployment, read_deployment
from sluice.aws.rendezvous import clients
from sluice.aws.rendezvous.clients import Rotation, sqscreds
from sluice.building.project import need
from sluice.cli.output import show_pairs, show_table, tell, time_of
from sluice.cli.sites import SiteTyper
from sluice.cli.terminal import note
from sluice.operator import rendezvous_status
from sluice.operator.rendezvous_status import RendezvousStatus, read_status
from sluice.operator.site_names import SiteOptions
from sluice.rendezvous.protocol.ends import OPEN, End
from sluice.rendezvous.protocol.matching import Nat

if TYPE_CHECKING:  # aiortc is an extra, which may not be installed
    from sluice.peers.channels import Network

MAX_OFFERS = 100_000
MAX_AT_ONCE = 32  # what the client's SQS calls have threads for
MAX_BYTES = 64 * 1024 * 1024
MAX_PROXIES = 100  # what one HTTP session has connections for
MAX_CLIENTS = 1_000
# The broker asks for 20 s between polls, which for a try-out at the desk is long.
PAUSE_ON_LOOPBACK_S = 1.0

# As people ask for them.
SAID = {
    End.OFFER_MATCHED.state: "answered",
    OPEN: "not answered",
    End.OFFER_REFUSED.state: "malformed",
}
MAX_REASON = 160  # characters shown; all of it is in the queue

app = SiteTyper()

Loopback = Annotated[
    bool | None,
    typer.Option("--loopback/--no-loopback", help="WebRTC on 127.0.0.1 and nowhere else.", show_default="with --local"),
]
StunUrls = Annotated[list[str] | None, typer.Option("--stun", metavar="URL", help="A STUN server, stun:HOST:PORT.")]


@app.command()
def status(*, site: SiteOptions) -> None:
    """Where a site's queue and broker are, what they hold, who waits, how the latest offers ended."""
    found = read_status(site.connect())
    tell(rendezvous_status.document(found), lambda: _show_status(found))


@app.command()
def creds(
    *,
    rotate: Annotated[bool, typer.Option("--rotate", help="Make a new key, then delete the others.")] = False,
    keep_previous: Annotated[
        bool, typer.Option("--keep-previous", help="With --rotate: the last key stays valid until the next rotation.")
    ] = False,
    revoke: Annotated[bool, typer.Option("--revoke", help="Delete all keys: locks every client out.")] = False,
    site: SiteOptions,
) -> None:
    """Print the text that clients get as sqscreds. Makes the first key; a secret is never shown twice."""
    if rotate and revoke:
        raise typer.BadParameter("either --rotate or --revoke")
    if keep_previous and not rotate:
        raise typer.BadParameter("--keep-previous goes with --rotate")
    connection = site.connect()
    deployment = read_deployment(connection)
    user = clients.ClientUser(connection.client("iam"), deployment.client_user_name)
    if revoke:
        deleted = clients.revoke(user)
        document = {"user": user.name, "deleted": deleted}
        tell(document, _said("deleted", deleted) or f"{user.name} had no access key")
        return
    if rotate:
        rotation = clients.rotate(user, keep_previous=keep_previous)
    else:
        rotation = Rotation(credentials=clients.first_key(user))
    document = {
        "user": user.name,
        "access_key_id": rotation.credentials.access_key_id,
        "sqscreds": sqscreds(rotation.credentials),
        "offers_queue_url": deployment.offers_queue_url,
        "deleted": list(rotation.deleted),
        "kept": list(rotation.kept),
    }
    tell(document, lambda: _show_credentials(deployment, user.name, rotation))
    if rotation.fault:  # of a deletion: the new key is shown before
        raise rotation.fault


@app.command()
def offer(
    *,
    count: Annotated[int, typer.Option(min=1, max=MAX_OFFERS, help="How many clients.")] = 1,
    concurrency: Annotated[int, typer.Option(min=1, max=MAX_AT_ONCE, help="How many at once.")] = 8,
    payload_bytes: Annotated[
        int, typer.Option("--bytes", min=0, max=MAX_BYTES, help="How many bytes each sends and wants back.")
    ] = 1000,
    nat: Annotated[Nat, typer.Option(help="What the client says of its NAT.")] = Nat.UNKNOWN,
    http: Annotated[bool, typer.Option("--http", help="Over the broker's URL instead of SQS.")] = False,
    sqscreds: Annotated[
        str | None, typer.Option(envvar="SLUICE_SQSCREDS", help="Act with a client's credentials, not with your own.")
    ] = None,
    loopback: Loopback = None,
    stun: StunUrls = None,
    site: SiteOptions,
) -> None:
    """Be a client: offer, open a WebRTC data channel to the proxy that answers, send bytes, wait for their echo.

    Exit code 0 where all bytes of every client came back, else 1.
    """
    need("webrtc", "aiortc", "aiohttp")
    from sluice.cli.rendezvous import webrtc  # noqa: PLC0415 - aiortc is an extra
    from sluice.peers.client import AttemptPlan  # noqa: PLC0415 - see above

    plan = AttemptPlan(network=_network(loopback=loopback, site=site, stun=stun), nat=nat, payload_bytes=payload_bytes)
    connection = site.connect()
    attempts = asyncio.run(
        webrtc.offer_all(connection, plan, http=http, sqscreds=sqscreds or None, count=count, concurrency=concurrency)
    )
    tell(webrtc.document(attempts), lambda: webrtc.show(attempts))
    if not all(attempt.echoed for attempt in attempts):
        raise typer.Exit(1)


@app.command()
def proxy(
    *,
    count: Annotated[int, typer.Option(min=1, max=MAX_PROXIES, help="How many proxies, each with a poll.")] = 1,
    capacity: Annotated[int, typer.Option(min=1, max=MAX_CLIENTS, help="Clients that each serves at once.")] = 10,
    echo: Annotated[bool, typer.Option("--echo", help="Send clients' bytes back: what is done by default.")] = False,
    relay_pattern: Annotated[
        str | None,
        typer.Option(help="Pass clients' bytes on to relays with such a host: SUFFIX$, or ^HOST$ for just one."),
    ] = None,
    allow_plain: Annotated[bool, typer.Option("--allow-plain", help="Also to relays without TLS, ws://.")] = False,
    allow_private: Annotated[
        bool, typer.Option("--allow-private", help="Also to relays with private or loopback addresses.")
    ] = False,
    nat: Annotated[
        Nat | None,
        typer.Option(help="What the proxy says of its NAT.", show_default="unknown, on loopback unrestricted"),
    ] = None,
    seconds: Annotated[
        float | None, typer.Option("--for", min=0, metavar="SECONDS", help="Stop after so long.")
    ] = None,
    offers: Annotated[int | None, typer.Option(min=1, help="Stop when so many clients have been served.")] = None,
    broker_url: Annotated[
        str | None, typer.Option(metavar="URL", help="Poll this broker: no AWS credentials are needed.")
    ] = None,
    loopback: Loopback = None,
    stun: StunUrls = None,
    site: SiteOptions,
) -> None:
    """Be a volunteer's proxy until ctrl-C: poll the broker, answer offers, serve clients over WebRTC.

    Says what happens as it happens, with --json a JSON document a line, and last what it came to.
    """
    if relay_pattern is None and (allow_plain or allow_private):
        raise typer.BadParameter("--allow-plain and --allow-private go with --relay-pattern")
    if echo and relay_pattern is not None:
        raise typer.BadParameter("either --echo or --relay-pattern")
    need("webrtc", "aiortc", "aiohttp")
    from sluice.cli.rendezvous import webrtc  # noqa: PLC0415 - aiortc is an extra
    from sluice.peers.services import Echo, Relay  # noqa: PLC0415 - see above
    from sluice.peers.volunteer import VolunteerLimits  # noqa: PLC0415 - see above

    network = _network(loopback=loopback, site=site, stun=stun)
    limits = VolunteerLimits(capacity=min(capacity, offers or capacity))
    shift = webrtc.Shift(
        service=lambda session: (
            Relay(session, relay_pattern=relay_pattern, allow_plain=allow_plain, allow_private=allow_private)
            if relay_pattern is not None
            else Echo()
        ),
        network=network,
        nat=nat or (Nat.UNRESTRICTED if network.loopback else Nat.UNKNOWN),
        limits=replace(limits, pause_s=PAUSE_ON_LOOPBACK_S) if network.loopback else limits,
        proxies=count,
        seconds=seconds,
        clients=offers,
    )
    url = broker_url or read_deployment(site.connect()).broker_url
    asyncio.run(webrtc.serve(url, shift))


def _network(*, loopback: bool | None, site: SiteOptions, stun: list[str] | None) -> "Network":
    from sluice.peers.channels import Network  # noqa: PLC0415 - aiortc is an extra

    is_loopback = site.is_local if loopback is None else loopback
    return Network(loopback=is_loopback, stun_urls=tuple(stun or ()))


# What a site's status and its credentials say


def _show_status(rendezvous: RendezvousStatus) -> None:
    """Show it to people."""
    deployment, offers = rendezvous.deployment, rendezvous.offers_queue
    said = [f"{rendezvous.recent_offers[state]} {words}" for state, words in SAID.items()]
    show_pairs(
        [
            ("region", rendezvous.region),
            ("broker", deployment.broker_url),
            ("offers queue", deployment.offers_queue_url),
            ("  holds", f"{offers.visible} waiting, {offers.in_flight} in flight"),
            ("proxies waiting", ", ".join(f"{number} {pool}" for pool, number in rendezvous.waiting.items())),
            ("offers in two minutes", f"{sum(rendezvous.recent_offers.values())}: {', '.join(said)}"),
            ("dead letters", f"{rendezvous.dead_letters} in {deployment.dead_letters_url}"),
        ]
    )
    if rendezvous.latest_dead_letters:
        rows = [
            (time_of(letter.sent_at_ms), letter.source, letter.reason[:MAX_REASON])
            for letter in rendezvous.latest_dead_letters
        ]
        show_table(("dead since", "queue", "reason"), rows)


def _show_credentials(deployment: Deployment, user: str, rotation: Rotation) -> None:
    """Show the secret on standard output and nowhere else, so that it can be taken as it is.

    As in SLUICE_SQSCREDS=$(sluice rendezvous creds --rotate).
    """
    typer.echo(sqscreds(rotation.credentials))
    note(f"access key {rotation.credentials.access_key_id} of {user}; IAM shows its secret only this once")
    note(f"clients take it with -sqsqueue {deployment.offers_queue_url} -sqscreds and the text above")
    for said in (_said("deleted", rotation.deleted), _said("still valid until the next rotation:", rotation.kept)):
        if said:
            note(said)


def _said(what: str, key_ids: Sequence[str]) -> str:
    return f"{what} {', '.join(key_ids)}" if key_ids else ""
