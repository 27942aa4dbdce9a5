"""`sluice link`: links between sites."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from sluice.cli.completion import complete_links, complete_peers, complete_sites
from sluice.cli.federation.peers import AddressOption, read_address
from sluice.cli.output import show_json, show_table, tell, time_of
from sluice.cli.sites import SiteText, SiteTyper
from sluice.federation.links.states import Command
from sluice.federation.operations import LinkView, TellLink
from sluice.operations import Operation
from sluice.operator.federated_sites import open_site
from sluice.operator.routes import Access, Ends, FarEnd, add_link, delete_link

app = SiteTyper()

LinkOption = Annotated[
    str | None, typer.Option("--link", metavar="NAME", help="The link's name, where it isn't the peer's tag.")
]
Name = Annotated[str, typer.Argument(metavar="NAME", help="As `link list` shows it.", autocompletion=complete_links)]
Here = Annotated[
    str,
    typer.Argument(metavar="DEST", help="The site whose link it is.", autocompletion=complete_sites),
]
Durable = Annotated[
    bool, typer.Option("--durable/--no-durable", "-d", help="Else a link goes with the last of its routes.")
]


@app.command(quiet=True)
def add(
    dest: Here,
    src: Annotated[
        str | None, typer.Argument(metavar="SRC", help="Its peer; or --address.", autocompletion=complete_sites)
    ] = None,
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
) -> None:
    """Link a site to a peer. Routes make their links themselves: this is for what they don't know.

    Where both sites are named, each becomes a peer of the other. By --address the peer's operator has to let this site
    be one: `sluice peer add` there.
    """
    if (src is None) == (address is None):
        raise typer.BadParameter("either SRC or --address")
    peer = FarEnd.named(src) if src is not None else FarEnd.at(read_address(address or Path()))
    access = Access(role_arn=role_arn, external_id=external_id, sqs_urls=tuple(sqs_url or ()))
    ends = Ends.between(dest, peer)
    made = add_link(ends, name=link, durable=durable, access=access)
    tell(made, f"{made.name} is a link of {ends.site.name} to {made.peer}")


@app.command("del", quiet=True)
def delete(
    dest: Here,
    src: Annotated[
        str, typer.Argument(metavar="SRC", help="Its peer: the site, or its tag.", autocompletion=complete_peers)
    ],
    *,
    link: LinkOption = None,
) -> None:
    """Close a link, and with it its routes. What these hold goes over first."""
    ends = Ends.between(dest, FarEnd.named(src))
    name = delete_link(ends, name=link)
    document = {"site": str(ends.site.name), "link": name, "done": "closing"}
    tell(document, f"{name} is about to go from {ends.site.name}")


@app.command("list")
def list_links(site: SiteText) -> None:
    """List a site's links with their states. Those with an @ in the name were made by their peer."""
    links = open_site(site).view().links
    columns = ("link", "peer", "state", "answered", "forwarded", "error")
    tell(links, lambda: show_table(columns, map(_row, links)))


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


@app.command("address")
def show_address(site: SiteText) -> None:
    """Print the site's address as JSON, for the operator of another site to pass to `link add --address`.

    It holds no secret, except the external id where the site asks for one. With or without --json it is the same.
    """
    show_json(open_site(site).view().address)


def add_tells(
    app: SiteTyper, ask: Callable[[str, Command], Operation[None]], *, thing: str, argument: Any, helps: Sequence[str]
) -> None:
    """Add the commands that tell a link or a route something, each with its help, in the order of `Command`."""

    def add_tell(what: Command, help_: str) -> None:
        def tell_it(site: SiteText, name: str) -> None:
            opened = open_site(site)
            opened.client.ask(ask(name, what))
            tell({"site": str(opened.name), thing: name, "done": what.value}, f"{name}: {what.value}")

        tell_it.__annotations__["name"] = argument  # which typer reads
        app.command(what.value, quiet=True, help=help_)(tell_it)

    for what, help_ in zip(Command, helps, strict=True):
        add_tell(what, help_)


add_tells(
    app,
    lambda name, what: TellLink(name=name, what=what),
    thing="link",
    argument=Name,
    helps=(
        "Hold all of a link's routes: what comes is kept.",
        "Let a paused or draining link go on.",
        "Take in no more, send what is queued, then pause.",
        "Try a link now that waits or has failed.",
    ),
)
