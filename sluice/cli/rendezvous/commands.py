"""`sluice rendezvous`: look at a site, manage its clients' credentials, be a client, be a proxy."""

import asyncio
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated

import typer

from sluice.building.project import need
from sluice.cli.output import AsJson, tell
from sluice.cli.site_names import SiteOptions
from sluice.cli.sites import SiteTyper
from sluice.rendezvous.protocol.matching import Nat

if TYPE_CHECKING:  # aiortc takes longer than all of --help
    from sluice.peers.channels import Network

MAX_OFFERS = 100_000
MAX_AT_ONCE = 32  # what the client's SQS calls have threads for
MAX_BYTES = 64 * 1024 * 1024
MAX_PROXIES = 100  # what one HTTP session has connections for
MAX_CLIENTS = 1_000
# The broker asks for 20 s between polls, which for a try-out at the desk is long.
PAUSE_ON_LOOPBACK_S = 1.0

app = SiteTyper()

Loopback = Annotated[
    bool | None,
    typer.Option("--loopback/--no-loopback", help="WebRTC on 127.0.0.1 and nowhere else.", show_default="with --local"),
]
StunUrls = Annotated[list[str] | None, typer.Option("--stun", metavar="URL", help="A STUN server, stun:HOST:PORT.")]


@app.command()
def status(*, site: SiteOptions, as_json: AsJson = False) -> None:
    """Where a site's queue and broker are, what they hold, who waits, how the latest offers ended."""
    from sluice.aws.operator.rendezvous_status import read_status  # noqa: PLC0415 - boto3 takes longer than --help
    from sluice.cli.rendezvous import status as looking  # noqa: PLC0415 - see above

    found = read_status(site.connect())
    tell(looking.document(found), lambda: looking.show(found), as_json=as_json)


@app.command()
def creds(
    *,
    rotate: Annotated[bool, typer.Option("--rotate", help="Make a new key, then delete the others.")] = False,
    keep_previous: Annotated[
        bool, typer.Option("--keep-previous", help="With --rotate: the last key stays valid until the next rotation.")
    ] = False,
    revoke: Annotated[bool, typer.Option("--revoke", help="Delete all keys: locks every client out.")] = False,
    site: SiteOptions,
    as_json: AsJson = False,
) -> None:
    """Print the text that clients get as sqscreds. Makes the first key; a secret is never shown twice."""
    if rotate and revoke:
        raise typer.BadParameter("either --rotate or --revoke")
    if keep_previous and not rotate:
        raise typer.BadParameter("--keep-previous goes with --rotate")
    from sluice.cli.rendezvous.credentials import Credentials  # noqa: PLC0415 - boto3 takes longer than all of --help

    credentials = Credentials.of(site.connect())
    if rotate:
        credentials.rotate(keep_previous=keep_previous, as_json=as_json)
    elif revoke:
        credentials.revoke(as_json=as_json)
    else:
        credentials.make(as_json=as_json)


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
    as_json: AsJson = False,
) -> None:
    """Be a client: offer, open a WebRTC data channel to the proxy that answers, send bytes, wait for their echo.

    Exit code 0 where all bytes of every client came back, else 1.
    """
    need("webrtc", "aiortc", "aiohttp")
    from sluice.cli.rendezvous import offering  # noqa: PLC0415 - aiortc takes longer than all of --help
    from sluice.peers.client import AttemptPlan  # noqa: PLC0415 - see above

    plan = AttemptPlan(network=_network(loopback=loopback, site=site, stun=stun), nat=nat, payload_bytes=payload_bytes)
    connection = site.connect()
    attempts = asyncio.run(
        offering.offer_all(connection, plan, http=http, sqscreds=sqscreds or None, count=count, concurrency=concurrency)
    )
    tell(offering.document(attempts), lambda: offering.show(attempts), as_json=as_json)
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
    as_json: AsJson = False,
) -> None:
    """Be a volunteer's proxy until ctrl-C: poll the broker, answer offers, serve clients over WebRTC.

    Says what happens as it happens, with --json a JSON document a line, and last what it came to.
    """
    if relay_pattern is None and (allow_plain or allow_private):
        raise typer.BadParameter("--allow-plain and --allow-private go with --relay-pattern")
    if echo and relay_pattern is not None:
        raise typer.BadParameter("either --echo or --relay-pattern")
    need("webrtc", "aiortc", "aiohttp")
    from sluice.aws.operator.deployment import read_deployment  # noqa: PLC0415 - boto3 takes longer than all of --help
    from sluice.cli.rendezvous import volunteering  # noqa: PLC0415 - so does aiortc
    from sluice.peers.services import Echo, Relay  # noqa: PLC0415 - see above
    from sluice.peers.volunteer import VolunteerLimits  # noqa: PLC0415 - see above

    network = _network(loopback=loopback, site=site, stun=stun)
    limits = VolunteerLimits(capacity=min(capacity, offers or capacity))
    shift = volunteering.Shift(
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
    asyncio.run(volunteering.serve(url, shift, as_json=as_json))


def _network(*, loopback: bool | None, site: SiteOptions, stun: list[str] | None) -> "Network":
    from sluice.peers.channels import Network  # noqa: PLC0415 - aiortc takes longer than all of --help

    is_loopback = site.is_local if loopback is None else loopback
    return Network(loopback=is_loopback, stun_urls=tuple(stun or ()))
