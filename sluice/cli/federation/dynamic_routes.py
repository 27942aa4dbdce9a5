"""`sluice dynamic`: routes that follow what the destination's exchange is bound for."""

from typing import Annotated

import typer

from sluice.cli.completion import complete_exchanges
from sluice.cli.federation.route_declarations import Ends
from sluice.cli.federation.route_options import (
    DEFAULT_ACK,
    DEFAULT_TIMEOUT_S,
    Ack,
    Credit,
    DelEmptyLink,
    Durable,
    ExcludesArgument,
    ExcludesOption,
    LinkOption,
    MaxHops,
    Rate,
    TagArgument,
    TagOption,
    Timeout,
    Ttl,
    declare,
    if_said,
    said_once,
    tags,
    withdraw,
)
from sluice.cli.federation.sites import open_site
from sluice.cli.output import AsJson, Quiet, show_table, tell
from sluice.cli.sites import DestText, SiteText, SiteTyper, SrcText
from sluice.federation.links.links import BridgeDeclaration
from sluice.federation.matching.tracing import DEFAULT_MAX_HOPS
from sluice.federation.operations import ListWays, WayView

app = SiteTyper()

WAY_COLUMNS = ("exchange", "wanted by", "way", "state", "bindings", "keys")
SHOWN_KEYS = 5  # as many as fit a line

Exchange = Annotated[
    str, typer.Argument(help="The exchange, of one name at both sites.", autocompletion=complete_exchanges)
]
Expires = Annotated[
    int | None,
    typer.Option(min=1, metavar="SECONDS", help="Forget what is wanted when the link has been down so long."),
]


@app.command()
def add(
    dest: DestText,
    src: SrcText,
    exchange: Exchange,
    tag: TagArgument = None,
    excludes: ExcludesArgument = None,
    *,
    tag_option: TagOption = None,
    excludes_option: ExcludesOption = None,
    expires: Expires = None,
    durable: Durable = True,
    ack: Ack = DEFAULT_ACK,
    credit: Credit = 0,
    max_hops: MaxHops = DEFAULT_MAX_HOPS,
    rate: Rate = 0,
    ttl: Ttl = 0,
    standard: Annotated[bool, typer.Option("--standard", help="A bridge queue that keeps no order.")] = False,
    link: LinkOption = None,
    timeout: Timeout = DEFAULT_TIMEOUT_S,
    quiet: Quiet = False,
    as_json: AsJson = False,
) -> None:
    """Let DEST have from SRC what DEST's exchange is bound for, now and from now on. The link is made if need be."""
    wanted = BridgeDeclaration(
        src=exchange,
        dest=exchange,
        dynamic=True,
        tag=said_once("TAG", tag, "--tag", tag_option) or None,
        excludes=tags(said_once("EXCLUDES", excludes, "--excludes", excludes_option) or ""),
        durable=durable,
        sync=ack,
        credit=credit,
        max_hops=max_hops,
        fifo=not standard,
        expires_s=expires,
        rate=if_said(rate),
        retention_s=if_said(ttl),
    )
    ends = Ends.of(dest, src, src_local=False)
    declare(ends, wanted, link=link, timeout_s=timeout, quiet=quiet, as_json=as_json)


@app.command("del")
def delete(
    dest: DestText,
    src: SrcText,
    exchange: Exchange,
    *,
    link: LinkOption = None,
    del_empty_link: DelEmptyLink = False,
    quiet: Quiet = False,
    as_json: AsJson = False,
) -> None:
    """Take a dynamic route away. What its queue holds goes over first."""
    wanted = BridgeDeclaration(src=exchange, dest=exchange, dynamic=True)
    ends = Ends.of(dest, src, src_local=False)
    withdraw(ends, wanted, link=link, del_empty_link=del_empty_link, quiet=quiet, as_json=as_json)


@app.command()
def ways(site: SiteText, *, as_json: AsJson = False) -> None:
    """Who wants what of a site, by which way: the active ones, and those that stand by."""
    found = open_site(site).client.ask(ListWays()).ways
    tell(found, lambda: show_table(WAY_COLUMNS, map(way_row, found)), as_json=as_json)


def way_row(way: WayView) -> tuple[object, ...]:
    """Who wants what, by which way."""
    more = ", …" if way.wants > SHOWN_KEYS else ""
    return (
        way.exchange,
        way.origin,
        " → ".join(way.path),
        "active" if way.active else "standby",
        str(way.wants),
        ", ".join(way.keys[:SHOWN_KEYS]) + more,
    )
