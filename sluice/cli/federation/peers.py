"""Implements `sluice peer`: the sites that may link to a site, with their permissions."""

import sys
from pathlib import Path
from typing import Annotated

import typer

from sluice.cli.completion import complete_peers, complete_sites
from sluice.cli.output import print_result, show_table
from sluice.cli.sites import SiteCommands, SiteText
from sluice.codec import decode
from sluice.errors import BadConfiguration, Malformed
from sluice.federation.links.links import Introduction
from sluice.federation.links.peers import RULES, Peer
from sluice.federation.operations import AddPeer, DeletePeer
from sluice.operator.federated_sites import open_site

app = SiteCommands()

AddressOption = Annotated[
    Path | None, typer.Option(metavar="FILE", help="File that `sluice link address` printed; - is standard input.")
]


@app.command(quiet=True)
def add(
    site: SiteText,
    peer: Annotated[
        str | None, typer.Argument(metavar="PEER", help="The peer, if not --address.", autocompletion=complete_sites)
    ] = None,
    *,
    address: AddressOption = None,
    pull: Annotated[
        list[str] | None,
        typer.Option(
            metavar="EXCHANGE[:KEYS]",
            help="Pattern of exchanges (and keys) that the peer may pull from; repeatable.",
            show_default="none",
        ),
    ] = None,
    push: Annotated[
        list[str] | None,
        typer.Option(metavar="EXCHANGE", help="Pattern of exchanges that it may publish to.", show_default="none"),
    ] = None,
    queue: Annotated[
        list[str] | None,
        typer.Option(metavar="QUEUE", help="Pattern of queues that it may consume from.", show_default="none"),
    ] = None,
    lead: Annotated[
        list[str] | None,
        typer.Option(
            metavar="TAG", help="Pattern of other sites that its dynamic routes may lead to.", show_default="none"
        ),
    ] = None,
) -> None:
    """Allow another site to link to this one, with only the permissions that the options give."""
    if (peer is None) == (address is None):
        raise typer.BadParameter("give either PEER or --address")
    at = open_site(peer).view().address if peer is not None else read_address(address or Path())
    permissions = (tuple(patterns or ()) for patterns in (pull, push, queue, lead))
    declared = Peer.from_introduction(at, **dict(zip(RULES, permissions, strict=True)))
    opened = open_site(site)
    opened.client.ask(AddPeer(peer=declared))
    print_result(declared, f"{declared.tag} is a peer of {opened.name}")


@app.command("del", quiet=True)
def delete(
    site: SiteText,
    tag: Annotated[str, typer.Argument(metavar="TAG", help="The peer's tag.", autocompletion=complete_peers)],
) -> None:
    """Remove a peer and the routes it requested. Messages in their queues are forwarded first."""
    opened = open_site(site)
    opened.client.ask(DeletePeer(name=tag))
    document = {"site": str(opened.name), "peer": tag, "done": "deleted"}
    print_result(document, f"{tag} is no longer a peer of {opened.name}")


@app.command("list")
def list_peers(site: SiteText) -> None:
    """List a site's peers with their accounts, regions and permissions."""
    peers = open_site(site).view().peers
    columns = ("peer", "account", "region", "may pull from", "may push to", "may consume from", "may lead to")
    rules = [[", ".join(getattr(peer, name)) or "nothing" for name in RULES] for peer in peers]
    rows = [(peer.tag, peer.account, peer.region, *texts) for peer, texts in zip(peers, rules, strict=True)]
    print_result(peers, lambda: show_table(columns, rows))


def read_address(file: Path) -> Introduction:
    """Read a file with the output of `sluice link address`; `-` is standard input. Raises `BadConfiguration`."""
    try:
        text = sys.stdin.read() if str(file) == "-" else file.read_text()
        return decode(text, Introduction, of="an address")
    except OSError as error:
        raise BadConfiguration(f"{file}: {error.strerror}") from error
    except (UnicodeError, Malformed) as error:
        raise BadConfiguration(
            f"{file} is not a site's address, as `sluice link address` prints it: {error}"
        ) from error
