"""Implements `sluice link`: creates, lists, controls and closes links between sites."""

from collections.abc import Callable, Sequence
from typing import Annotated, Any

import typer

from sluice.cli.completion import complete_links, complete_peers, complete_sites
from sluice.cli.federation.peers import AddressOption, read_address
from sluice.cli.output import format_time, print_result, show_json, show_table
from sluice.cli.sites import SiteCommands, SiteText
from sluice.cli.terminal import print_note
from sluice.federation.links.states import Command
from sluice.federation.operations import CommandLink
from sluice.operations import Operation
from sluice.operator.federated_sites import open_site
from sluice.operator.routes import LinkEnds, PeerSite, add_link, delete_link

app = SiteCommands()

LinkOption = Annotated[
    str | None, typer.Option("--link", metavar="NAME", help="Name of the link, if it isn't the peer's tag.")
]
Name = Annotated[str, typer.Argument(metavar="NAME", help="Name of the link.", autocompletion=complete_links)]
Here = Annotated[str, typer.Argument(metavar="DEST", help="Site that owns the link.", autocompletion=complete_sites)]
Durable = Annotated[
    bool, typer.Option("--durable/--no-durable", "-d", help="Keep the link when its last route is deleted.")
]


@app.command(quiet=True)
def add(
    dest: Here,
    src: Annotated[
        str | None, typer.Argument(metavar="SRC", help="The peer, if not --address.", autocompletion=complete_sites)
    ] = None,
    *,
    address: AddressOption = None,
    link: LinkOption = None,
    durable: Durable = True,
    role_arn: Annotated[
        str | None, typer.Option(help="The peer's role to assume.", show_default="from the peer's address")
    ] = None,
    external_id: Annotated[
        str | None, typer.Option(help="External ID that the role requires.", show_default="from the peer's address")
    ] = None,
    sqs_url: Annotated[
        list[str] | None, typer.Option(metavar="URL", help="SQS endpoint of the peer; repeatable, tried in turn.")
    ] = None,
) -> None:
    """Link a site to a peer. Routes create their links themselves; use this for a role, an endpoint or an --address.

    If both sites are named, each becomes a peer of the other. With --address, the peer's operator has to add this site
    as a peer there, with `sluice peer add`.
    """
    if src is not None and address is None:
        peer = PeerSite.find(src)
    elif src is None and address is not None:
        at = read_address(address)
        peer = PeerSite(tag=at.tag, address=at)
    else:
        raise typer.BadParameter("give either SRC or --address")
    ends, role = LinkEnds.with_peer(dest, peer), {"role_arn": role_arn, "external_id": external_id}
    made = add_link(ends, name=link, durable=durable, sqs_urls=tuple(sqs_url or ()), **role)
    print_result(made, f"{made.name} is a link of {ends.site.name} to {made.peer}")


@app.command("del", quiet=True)
def delete(
    dest: Here,
    src: Annotated[
        str, typer.Argument(metavar="SRC", help="The peer: a site, or its tag.", autocompletion=complete_peers)
    ],
    *,
    link: LinkOption = None,
    force: Annotated[
        bool,
        typer.Option(
            "--force", help="Remove the link without its routes, though the peer can't be told that it closed."
        ),
    ] = False,
) -> None:
    """Close a link and its routes. Messages in their queues are forwarded first."""
    ends = LinkEnds.with_peer(dest, PeerSite.find(src))
    name, kept = delete_link(ends, name=link, force=force)
    view = ends.site.view()
    routes = [route.name for route in view.bridges if route.link == name]
    left = f": {', '.join(routes)} still forward the messages in their queues" if routes else ""
    if not routes and view.find_link(name) is not None:
        left = f": {ends.peer.tag} wasn't told yet; --force removes the link without that"
    document = {"site": str(ends.site.name), "link": name, "routes": routes, "done": "closing"}
    print_result(document, f"{name} is closing at {ends.site.name}{left}")
    for permission in kept:
        print_note(permission)


@app.command("list")
def list_links(site: SiteText) -> None:
    """List a site's links with their states. Links with an @ in the name were created by their peer."""
    links = open_site(site).view().links
    columns = ("link", "peer", "state", "last answer", "last forward", "last error")
    rows: list[tuple[object, ...]] = []
    for link in links:
        status, state = link.status, f"{link.status.state}{', draining' if link.status.draining else ''}"
        times = format_time(status.last_answer_ms), format_time(status.last_forward_ms)
        rows.append((link.name, link.peer, state, *times, status.last_error))
    print_result(links, lambda: show_table(columns, rows))


@app.command("address")
def show_address(site: SiteText) -> None:
    """Print the site's address as JSON, for the operator of another site to pass to `link add --address`.

    The address contains no secret, except the external id if the site requires one. --json doesn't change the output.
    """
    show_json(open_site(site).view().address)


def add_control_commands(
    app: SiteCommands,
    build_operation: Callable[[str, Command], Operation[None]],
    *,
    target_kind: str,
    name_argument: Any,
    help_texts: Sequence[str],
) -> None:
    """Add the commands `pause`, `resume`, `drain` and `retry`, with their help texts in this order, to `app`."""

    def add_command(command: Command, help_: str) -> None:
        def send_command(site: SiteText, link_or_route: str) -> None:
            opened = open_site(site)
            opened.client.ask(build_operation(link_or_route, command))
            result = {"site": str(opened.name), target_kind: link_or_route, "done": command.value}
            print_result(result, f"{link_or_route}: {command.value}")

        send_command.__annotations__["link_or_route"] = name_argument  # Typer reads the argument's help from here.
        app.command(command.value, quiet=True, help=help_)(send_command)

    for command, help_ in zip(Command, help_texts, strict=True):
        add_command(command, help_)


add_control_commands(
    app,
    lambda name, what: CommandLink(name=name, command=what),
    target_kind="link",
    name_argument=Name,
    help_texts=(
        "Pause all routes of a link: their queues keep new messages.",
        "Resume a paused or draining link.",
        "Drain a link: accept no new messages, send the queued ones, then pause.",
        "Retry a waiting or failed link now.",
    ),
)
