"""`sluice rendezvous`: shows a site's status, manages its clients' credentials, runs clients and runs proxies."""

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated

import typer

from sluice.aws.deployment import read_deployment
from sluice.aws.rendezvous import clients
from sluice.aws.rendezvous.clients import Rotation, sqscreds
from sluice.building.project import require_modules
from sluice.cli.output import format_time, print_result, show_pairs, show_table
from sluice.cli.sites import SiteCommands
from sluice.cli.terminal import print_note
from sluice.operator import rendezvous_status
from sluice.operator.rendezvous_status import RendezvousStatus, read_status
from sluice.operator.site_names import SiteOptions
from sluice.rendezvous.protocol.ends import OPEN, End
from sluice.rendezvous.protocol.matching import Nat
from sluice.rendezvous.protocol.messages import DEFAULT_FINGERPRINT

if TYPE_CHECKING:  # The optional library aiortc may not be installed.
    from sluice.peers.channels import Network

MAX_OFFERS = 100_000
MAX_AT_ONCE = 32  # The calls to SQS use at most this number of threads.
MAX_TRIES = 100
MAX_BYTES = 64 * 1024 * 1024
MAX_PROXIES = 100  # An HTTP session of aiohttp has at most this number of connections.
MAX_CLIENTS = 1_000
# The broker asks proxies to wait 20 seconds between polls, which is too long for local tests.
LOOPBACK_POLL_INTERVAL_S = 1.0

OFFER_STATE_LABELS = {
    End.OFFER_MATCHED.state: "answered",
    OPEN: "not answered",
    End.OFFER_REFUSED.state: "malformed",
}
STUN_URLS = tuple(f"stun:stun.{host}:3478" for host in ("antisip.com", "epygi.com", "uls.co.za", "nextcloud.com"))
MAX_REASON = 160  # The table cuts reasons to this number of characters; `sluice dlq show` prints the whole reason.

app = SiteCommands()

Loopback = Annotated[
    bool | None,
    typer.Option("--loopback/--no-loopback", help="Use WebRTC only on 127.0.0.1.", show_default="with --local"),
]
StunUrls = Annotated[
    list[str] | None, typer.Option("--stun", metavar="URL", help="A STUN server, stun:HOST:PORT; repeatable.")
]


@app.command("status")
def show_status(*, site: SiteOptions) -> None:
    """Show a site's broker and offers queue, waiting proxies, outcomes of recent offers and dead letters."""
    rendezvous = read_status(site.connect())
    print_result(rendezvous_status.format_status(rendezvous), lambda: _show_status(rendezvous))


@app.command("creds")
def manage_credentials(
    *,
    rotate: Annotated[bool, typer.Option("--rotate", help="Create a new access key, then delete the others.")] = False,
    keep_previous: Annotated[
        bool, typer.Option("--keep-previous", help="With --rotate: keep the previous key until the next rotation.")
    ] = False,
    revoke: Annotated[
        bool, typer.Option("--revoke", help="Delete all access keys, which locks every client out.")
    ] = False,
    bridge_line: Annotated[
        bool, typer.Option("--bridge-line", help="Print the bridge line that apps take, with the credentials in it.")
    ] = False,
    fingerprint: Annotated[
        str, typer.Option(metavar="HEX", help="The bridge that the bridge line names.")
    ] = DEFAULT_FINGERPRINT,
    stun: StunUrls = None,
    site: SiteOptions,
) -> None:
    """Print the clients' credentials for -sqscreds. Creates the first access key; a secret is shown only once."""
    if rotate and revoke:
        raise typer.BadParameter("--rotate and --revoke exclude each other: use one of them")
    if keep_previous and not rotate:
        raise typer.BadParameter("--keep-previous needs --rotate")
    connection = site.connect()
    deployment = read_deployment(connection)
    user = clients.ClientUser(connection.client("iam"), deployment.client_user_name)
    if revoke:
        deleted = clients.revoke_keys(user)
        document = {"user": user.name, "deleted": deleted}
        print_result(document, _describe_keys("deleted", deleted) or f"{user.name} had no access key")
        return
    if rotate:
        rotation = clients.rotate_keys(user, keep_previous=keep_previous)
    else:
        rotation = Rotation(credentials=clients.create_first_key(user))
    credentials = rotation.credentials
    queue_url = clients.to_aws_queue_url(deployment.offers_queue_url, region=connection.region)
    line = clients.write_bridge_line(
        credentials, queue_url=queue_url, fingerprint=fingerprint, stun_urls=stun or STUN_URLS
    )
    document = {
        "user": user.name,
        "access_key_id": credentials.access_key_id,
        "sqscreds": sqscreds(credentials),
        "offers_queue_url": queue_url,
        "bridge_line": line,
        "deleted": list(rotation.deleted),
        "kept": list(rotation.kept),
    }
    usage = f"start clients with -sqsqueue {queue_url} and -sqscreds with the text above"
    if connection.endpoint_url is not None:
        usage += f", and AWS_ENDPOINT_URL_SQS={connection.endpoint_url} in their environment"
    shown = (line, "give the line above to apps") if bridge_line else (sqscreds(credentials), usage)
    print_result(document, lambda: _show_credentials(*shown, user.name, rotation))
    if rotation.fault:  # An old key was not deleted. This error is raised after the new key was printed.
        raise rotation.fault


@app.command("offer")
def run_clients(
    *,
    count: Annotated[int, typer.Option(min=1, max=MAX_OFFERS, help="Number of clients.")] = 1,
    concurrency: Annotated[int, typer.Option(min=1, max=MAX_AT_ONCE, help="Clients that run at the same time.")] = 8,
    payload_bytes: Annotated[
        int, typer.Option("--bytes", min=0, max=MAX_BYTES, help="Bytes that each client sends and expects back.")
    ] = 1000,
    tries: Annotated[
        int, typer.Option(min=1, max=MAX_TRIES, help="Offers of each client until a proxy answers, ten seconds apart.")
    ] = 3,
    nat: Annotated[Nat, typer.Option(help="NAT type that the client reports.")] = Nat.UNKNOWN,
    http: Annotated[bool, typer.Option("--http", help="Send offers to the URL for clients instead of SQS.")] = False,
    sqscreds: Annotated[
        str | None, typer.Option(envvar="SLUICE_SQSCREDS", help="Use these client credentials instead of your own.")
    ] = None,
    loopback: Loopback = None,
    stun: StunUrls = None,
    site: SiteOptions,
) -> None:
    """Run clients: each sends an offer, opens a WebRTC data channel to the proxy that answers, and has bytes echoed.

    Exit code 0 if every client got all its bytes back, otherwise 1.
    """
    require_modules("webrtc", "aiortc", "aiohttp")
    from sluice.cli.rendezvous import webrtc  # noqa: PLC0415 - aiortc is an extra
    from sluice.peers.client import AttemptPlan  # noqa: PLC0415 - see above

    plan = AttemptPlan(
        network=_choose_network(loopback=loopback, site=site, stun=stun),
        nat=nat,
        payload_bytes=payload_bytes,
        tries=tries,
    )
    connection = site.connect()
    attempts = asyncio.run(
        webrtc.run_clients(connection, plan, http=http, sqscreds=sqscreds or None, count=count, concurrency=concurrency)
    )
    print_result(webrtc.build_document(attempts), lambda: webrtc.show_attempts(attempts))
    if not all(attempt.echoed for attempt in attempts):
        raise typer.Exit(1)


@app.command("proxy")
def run_proxies(
    *,
    count: Annotated[int, typer.Option(min=1, max=MAX_PROXIES, help="Number of proxies, each with its own poll.")] = 1,
    capacity: Annotated[
        int, typer.Option(min=1, max=MAX_CLIENTS, help="Clients that each proxy serves at the same time.")
    ] = 10,
    nat: Annotated[
        Nat | None,
        typer.Option(help="NAT type that the proxy reports.", show_default="unknown, on loopback unrestricted"),
    ] = None,
    seconds: Annotated[
        float | None, typer.Option("--for", min=0, metavar="SECONDS", help="Stop after this many seconds.")
    ] = None,
    offers: Annotated[int | None, typer.Option(min=1, help="Stop when this many clients have been served.")] = None,
    broker_url: Annotated[
        str | None,
        typer.Option(metavar="URL", help="Poll this broker instead of the site's; needs no AWS credentials."),
    ] = None,
    loopback: Loopback = None,
    stun: StunUrls = None,
    site: SiteOptions,
) -> None:
    """Run volunteers' proxies until ctrl-C: poll the broker, answer offers, echo clients' bytes over WebRTC.

    Prints each event as it happens, with --json one JSON document per line, and a summary at the end.
    """
    require_modules("webrtc", "aiortc", "aiohttp")
    from sluice.cli.rendezvous import webrtc  # noqa: PLC0415 - aiortc is an extra
    from sluice.peers.volunteer import VolunteerLimits  # noqa: PLC0415 - see above

    network = _choose_network(loopback=loopback, site=site, stun=stun)
    limits = VolunteerLimits(capacity=min(capacity, offers or capacity))
    url = broker_url or read_deployment(site.connect()).broker_url
    serving = webrtc.run_proxies(
        url,
        network=network,
        nat=nat or (Nat.UNRESTRICTED if network.loopback else Nat.UNKNOWN),
        limits=replace(limits, pause_s=LOOPBACK_POLL_INTERVAL_S) if network.loopback else limits,
        proxies=count,
        seconds=seconds,
        clients=offers,
    )
    asyncio.run(serving)


def _choose_network(*, loopback: bool | None, site: SiteOptions, stun: list[str] | None) -> "Network":
    from sluice.peers.channels import Network  # noqa: PLC0415 - aiortc is an extra

    is_loopback = site.is_local if loopback is None else loopback
    return Network(loopback=is_loopback, stun_urls=tuple(stun or ()))


def _show_status(rendezvous: RendezvousStatus) -> None:
    deployment, offers = rendezvous.deployment, rendezvous.offers_queue
    said = [f"{rendezvous.recent_offers[state]} {words}" for state, words in OFFER_STATE_LABELS.items()]
    show_pairs(
        [
            ("region", rendezvous.region),
            ("broker", deployment.broker_url),
            ("clients over HTTP", deployment.client_url),
            ("offers queue", deployment.offers_queue_url),
            ("  holds", f"{offers.visible} waiting, {offers.in_flight} in flight"),
            ("proxies waiting", ", ".join(f"{number} {pool}" for pool, number in rendezvous.waiting.items())),
            ("offers, last 2 min", f"{sum(rendezvous.recent_offers.values())}: {', '.join(said)}"),
            ("dead letters", f"{rendezvous.dead_letters} in {deployment.dead_letters_url}"),
        ]
    )
    if rendezvous.latest_dead_letters:
        rows = [
            (format_time(letter.sent_at_ms), letter.source, letter.reason[:MAX_REASON])
            for letter in rendezvous.latest_dead_letters
        ]
        show_table(("sent", "queue", "reason"), rows)


def _show_credentials(secret: str, usage: str, user: str, rotation: Rotation) -> None:
    """Print only the secret on standard output, and notes on standard error, so that a shell can capture the secret."""
    typer.echo(secret)
    print_note(f"access key {rotation.credentials.access_key_id} of {user}; its secret can't be shown again")
    print_note(usage)
    for said in (
        _describe_keys("deleted", rotation.deleted),
        _describe_keys("still valid until the next rotation:", rotation.kept),
    ):
        if said:
            print_note(said)


def _describe_keys(label: str, key_ids: Sequence[str]) -> str:
    return f"{label} {', '.join(key_ids)}" if key_ids else ""
