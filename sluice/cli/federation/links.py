"""`sluice link`: links between sites."""

from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

import typer

from sluice.cli.federation.peers import AddressOption, read_address
from sluice.cli.federation.route_declarations import Access, Ends, FarEnd, add_link, delete_link
from sluice.cli.federation.sites import AsJson, Quiet, SiteText, open_site
from sluice.cli.output import note, show_json, show_table
from sluice.cli.sites import SiteTyper
from sluice.federation.links.states import Command
from sluice.federation.operations import LinkView, TellLink

app = SiteTyper(no_args_is_help=True, help="Links: from a site to its peers. Routes go over them.")

LinkOption = Annotated[
    str | None, typer.Option("--link", metavar="NAME", help="The link's name, where it isn't the peer's tag.")
]
Name = Annotated[str, typer.Argument(metavar="NAME", help="As `link list` shows it.")]
Durable = Annotated[
    bool, typer.Option("--durable/--no-durable", "-d", help="Else a link goes with the last of its routes.")
]


@app.command()
def add(
    dest: Annotated[str, typer.Argument(metavar="DEST", help="The site that declares the link.")],
    src: Annotated[str | None, typer.Argument(metavar="SRC", help="Its peer; or --address.")] = None,
    *,
    address: AddressOption = None,
    link: LinkOption = None,
    durable: Durable = True,
    role_arn: Annotated[
        str | None, typer.Option(help="The peer's role to assume.", show_default="what its address says")
    ] = None,
    external_id: Annotated[
        str | None, typer.Option(help="What the role asks for.", show_default="what its address says")
    ] = None,
    sqs_url: Annotated[
        list[str] | None,
        typer.Option(metavar="URL", help="Where SQS is reached for the peer; several are tried in turn."),
    ] = None,
    quiet: Quiet = False,
    as_json: AsJson = False,
) -> None:
    """Link a site to a peer. Routes make their links themselves: this is for what they don't know.

    Where both sites are named, each becomes a peer of the other. By --address the peer's operator has to let this site
    be one: `sluice peer add` there.
    """
    if (src is None) == (address is None):
        raise typer.BadParameter("either SRC or --address")
    peer = FarEnd.named(src) if src is not None else FarEnd.at(read_address(address or Path()))
    access = Access(role_arn=role_arn, external_id=external_id, sqs_urls=tuple(sqs_url or ()))
    made = add_link(Ends.between(dest, peer), name=link, durable=durable, access=access)
    if as_json:
        show_json(made)
    elif not quiet:
        note(f"{made.name} is a link of {dest} to {made.peer}")


@app.command("del")
def delete(
    dest: Annotated[str, typer.Argument(metavar="DEST", help="The site that declared the link.")],
    src: Annotated[str, typer.Argument(metavar="SRC", help="Its peer: the site, or its tag.")],
    *,
    link: LinkOption = None,
    quiet: Quiet = False,
) -> None:
    """Close a link, and with it its routes. What these hold goes over first."""
    name = delete_link(Ends.between(dest, FarEnd.named(src)), name=link)
    if not quiet:
        note(f"{name} is about to go from {dest}")


@app.command("list")
def list_links(site: SiteText, *, as_json: AsJson = False) -> None:
    """List a site's links with their states. Those with an @ in the name were made by their peer."""
    view = open_site(site).view()
    if as_json:
        show_json(view.links)
    else:
        show_table(("link", "peer", "state", "answered", "forwarded", "error"), map(_row, view.links))


def _row(link: LinkView) -> tuple[object, ...]:
    status = link.status
    state = f"{status.state}, draining" if status.draining else str(status.state)
    return (
        link.name,
        link.peer,
        state,
        time_of(status.last_answer_ms),
        time_of(status.last_forward_ms),
        status.last_error,
    )


def time_of(at_ms: int | None) -> str:
    """Write a time for people; nothing for never."""
    return "" if at_ms is None else f"{datetime.fromtimestamp(at_ms / 1000, UTC):%Y-%m-%d %H:%M:%S}Z"


@app.command("address")
def show_address(site: SiteText) -> None:
    """Print the site's address as JSON, for the operator of another site to pass to `link add --address`.

    It holds no secret, except the external id where the site asks for one.
    """
    show_json(open_site(site).view().address)


@app.command()
def pause(site: SiteText, name: Name, *, quiet: Quiet = False) -> None:
    """Hold all of a link's routes: what comes is kept."""
    _tell(site, name, Command.PAUSE, quiet=quiet)


@app.command()
def resume(site: SiteText, name: Name, *, quiet: Quiet = False) -> None:
    """Let a paused or draining link go on."""
    _tell(site, name, Command.RESUME, quiet=quiet)


@app.command()
def drain(site: SiteText, name: Name, *, quiet: Quiet = False) -> None:
    """Take in no more, send what is queued, then pause."""
    _tell(site, name, Command.DRAIN, quiet=quiet)


@app.command()
def retry(site: SiteText, name: Name, *, quiet: Quiet = False) -> None:
    """Try a link now that waits or has failed."""
    _tell(site, name, Command.RETRY, quiet=quiet)


def _tell(site: str, name: str, what: Command, *, quiet: bool) -> None:
    open_site(site).client.ask(TellLink(name=name, what=what))
    if not quiet:
        note(f"{name}: {what.value}")
