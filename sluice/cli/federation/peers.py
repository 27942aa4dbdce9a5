"""`sluice peer`: which sites may link to a site, and what each of them may."""

import sys
from pathlib import Path
from typing import Annotated

import typer

from sluice.cli.completion import complete_peers, complete_sites
from sluice.cli.output import print_result, show_table
from sluice.cli.sites import SiteText, SiteTyper
from sluice.codec import decode
from sluice.errors import BadConfiguration, Malformed
from sluice.federation.links.links import Introduction
from sluice.federation.links.peers import Peer
from sluice.federation.operations import AddPeer, DeletePeer
from sluice.operator.federated_sites import open_site

app = SiteTyper()

AddressOption = Annotated[
    Path | None, typer.Option(metavar="FILE", help="The peer's address, from `sluice link address`; - is stdin.")
]


class BadAddress(BadConfiguration):
    """A file that has no site's address."""


@app.command(quiet=True)
def add(
    site: SiteText,
    peer: Annotated[
        str | None, typer.Argument(metavar="PEER", help="The peer; or --address.", autocompletion=complete_sites)
    ] = None,
    *,
    address: AddressOption = None,
    pull: Annotated[
        list[str] | None,
        typer.Option(
            metavar="EXCHANGE[:KEYS]",
            help="Exchanges (and keys) that the peer may pull from: patterns.",
            show_default="all",
        ),
    ] = None,
    push: Annotated[
        list[str] | None,
        typer.Option(metavar="EXCHANGE", help="Exchanges that the peer may push to: a pattern.", show_default="all"),
    ] = None,
    queue: Annotated[
        list[str] | None,
        typer.Option(metavar="QUEUE", help="Queues that the peer may consume from: a pattern.", show_default="none"),
    ] = None,
    nothing: Annotated[
        bool, typer.Option("--nothing", help="Grant only what the other options name; by default all exchanges.")
    ] = False,
) -> None:
    """Allow a site to link to this one, with these permissions. Running it again replaces the permissions."""
    if (peer is None) == (address is None):
        raise typer.BadParameter("either PEER or --address")
    at = open_site(peer).view().address if peer is not None else read_address(address or Path())
    by_default = () if nothing else ("*",)
    declared = Peer.from_introduction(
        at, pulls=tuple(pull or by_default), pushes=tuple(push or by_default), queues=tuple(queue or ())
    )
    opened = open_site(site)
    opened.client.ask(AddPeer(peer=declared))
    print_result(declared, f"{declared.tag} is a peer of {opened.name}")


@app.command("del", quiet=True)
def delete(
    site: SiteText,
    tag: Annotated[str, typer.Argument(metavar="TAG", help="The peer's.", autocompletion=complete_peers)],
) -> None:
    """Remove a peer and the routes it requested. Messages in their queues are forwarded first."""
    opened = open_site(site)
    opened.client.ask(DeletePeer(name=tag))
    document = {"site": str(opened.name), "peer": tag, "done": "deleted"}
    print_result(document, f"{tag} is no peer of {opened.name} any more")


@app.command("list")
def list_peers(site: SiteText) -> None:
    """List a site's peers with their accounts, regions and permissions."""
    peers = open_site(site).view().peers
    columns = ("peer", "account", "region", "pulls", "pushes", "takes from")
    rows: list[tuple[str, ...]] = []
    for peer in peers:
        rules = (", ".join(rule) or "nothing" for rule in (peer.pulls, peer.pushes, peer.queues))
        rows.append((peer.tag, peer.account, peer.region, *rules))
    print_result(peers, lambda: show_table(columns, rows))


def read_address(file: Path) -> Introduction:
    """Read what `sluice link address` printed elsewhere; `-` is standard input. Raises `BadAddress`."""
    try:
        text = sys.stdin.read() if str(file) == "-" else file.read_text()
        return decode(text, Introduction, of="an address")
    except OSError as error:
        raise BadAddress(f"{file}: {error.strerror}") from error
    except (UnicodeError, Malformed) as error:
        raise BadAddress(f"{file}: is no site's address, as `sluice link address` prints it: {error}") from error
