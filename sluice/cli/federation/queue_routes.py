"""`sluice queue`: routes from an existing queue to another site's exchange; beside them the queues themselves."""

from typing import Annotated

import typer

from sluice.cli.completion import complete_exchanges
from sluice.cli.federation import queue_moves, queues
from sluice.cli.federation.route_declarations import Ends
from sluice.cli.federation.route_options import (
    DEFAULT_ACK,
    DEFAULT_TIMEOUT_S,
    Ack,
    Credit,
    DelEmptyLink,
    DestKey,
    Durable,
    ExcludesArgument,
    ExcludesOption,
    LinkOption,
    MaxHops,
    Rate,
    SrcLocal,
    TagArgument,
    TagOption,
    Timeout,
    declare,
    if_said,
    said_once,
    tags,
    withdraw,
)
from sluice.cli.output import AsJson, Quiet
from sluice.cli.sites import DestText, SiteTyper, SrcText
from sluice.federation.links.links import BridgeDeclaration
from sluice.federation.matching.tracing import DEFAULT_MAX_HOPS

app = SiteTyper()
app.command()(queues.create)
app.command()(queues.delete)
app.command("list")(queues.list_queues)
app.command()(queue_moves.move)

DestExchange = Annotated[
    str, typer.Argument(metavar="DEST-EXCHANGE", help="The exchange at DEST.", autocompletion=complete_exchanges)
]
SrcQueue = Annotated[str, typer.Argument(metavar="SRC-QUEUE", help="The queue at SRC, by its name.")]


@app.command()
def add(  # noqa: PLR0917 - the order of qpid-route's arguments
    dest: DestText,
    src: SrcText,
    dest_exchange: DestExchange,
    src_queue: SrcQueue,
    tag: TagArgument = None,
    excludes: ExcludesArgument = None,
    *,
    tag_option: TagOption = None,
    excludes_option: ExcludesOption = None,
    src_local: SrcLocal = False,
    durable: Durable = True,
    ack: Ack = DEFAULT_ACK,
    credit: Credit = 0,
    max_hops: MaxHops = DEFAULT_MAX_HOPS,
    dest_key: DestKey = "",
    rate: Rate = 0,
    link: LinkOption = None,
    timeout: Timeout = DEFAULT_TIMEOUT_S,
    quiet: Quiet = False,
    as_json: AsJson = False,
) -> None:
    """Move what is in a queue of SRC to an exchange of DEST, now and from now on. The link is made if need be."""
    wanted = BridgeDeclaration(
        src=src_queue,
        dest=dest_exchange,
        tag=said_once("TAG", tag, "--tag", tag_option) or None,
        excludes=tags(said_once("EXCLUDES", excludes, "--excludes", excludes_option) or ""),
        src_is_queue=True,
        src_is_local=src_local,
        durable=durable,
        sync=ack,
        credit=credit,
        max_hops=max_hops,
        dest_key=if_said(dest_key),
        rate=if_said(rate),
    )
    ends = Ends.of(dest, src, src_local=src_local)
    declare(ends, wanted, link=link, timeout_s=timeout, quiet=quiet, as_json=as_json)


@app.command("del")
def withdraw_route(
    dest: DestText,
    src: SrcText,
    dest_exchange: DestExchange,
    src_queue: SrcQueue,
    *,
    src_local: SrcLocal = False,
    link: LinkOption = None,
    del_empty_link: DelEmptyLink = False,
    quiet: Quiet = False,
    as_json: AsJson = False,
) -> None:
    """Take a queue route away. What is in the queue stays there."""
    wanted = BridgeDeclaration(src=src_queue, dest=dest_exchange, src_is_queue=True, src_is_local=src_local)
    ends = Ends.of(dest, src, src_local=src_local)
    withdraw(ends, wanted, link=link, del_empty_link=del_empty_link, quiet=quiet, as_json=as_json)
