"""Implements `sluice queue`: a site's bindable queues, and routes from a queue to another site's exchange.

Queues are created, listed, moved and deleted with the user's own credentials. The site limits their names: the roles of
its functions may only use queues that match `federation.queue_names`.
"""

import re
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Annotated, Any, TypeVar

import typer

from sluice.aws.queues import ConsumedQueue, send_batch
from sluice.aws.splitting.queues import SplitQueues
from sluice.cli.completion import complete_bound_queues, complete_exchanges, complete_sites
from sluice.cli.federation.route_options import (
    DelEmptyLink,
    LinkOption,
    RouteOptions,
    SrcLocal,
    add_and_show_route,
    remove_route,
    with_route_options,
)
from sluice.cli.moves import MAX_MOVED, run_move
from sluice.cli.output import print_result, show_table
from sluice.cli.sites import DestText, SiteCommands, SiteText, SrcText
from sluice.cli.terminal import print_note
from sluice.codec import to_document
from sluice.errors import BadConfiguration, QueueGone, RequestRefused
from sluice.federation.bridge_provisioner import SITE_TAG, build_queue_attributes
from sluice.federation.links.links import BridgeDeclaration, RouteKind
from sluice.federation.moves import HIDDEN_S, Move, build_copy
from sluice.federation.operations import ListBindings, ListQueues, QueuesView, QueueView, UnbindQueue
from sluice.message import FIFO_SUFFIX
from sluice.operator.federated_sites import OpenSite, open_site
from sluice.operator.queues import find_queue_url
from sluice.operator.site_names import SiteName

MAX_NAME_CHARACTERS = 80  # SQS's maximum length of a queue's name
FOUND_WITHIN_S = 60  # SQS may need this number of seconds until it finds a new queue, but usually one second.
POLL_S = 0.5
MOVE_WAIT_S = 2  # A queue counts as empty after this number of seconds without a message.
# Attributes of new queues, in seconds: 14 days, and 30 seconds, which suit routes. The stacks use the same values.
ATTRIBUTES = {"MessageRetentionPeriod": "1209600", "VisibilityTimeout": "30"}

T = TypeVar("T")

_WILDCARDS = re.compile(r"[*?]")
_NAME = re.compile(r"[A-Za-z0-9_-]+(?:\.fifo)?")

Name = Annotated[
    str, typer.Argument(metavar="NAME", help="Its name, which matches federation.queue_names; for FIFO, ends in .fifo.")
]


app = SiteCommands()


@app.command("create", quiet=True)
def create_queue(site: SiteText, name: Name) -> None:
    """Create a queue that can be bound; an existing queue stays as it is."""
    opened = open_site(site)
    ensure_queue(opened, name)
    document = {"queue": name, "fifo": name.endswith(FIFO_SUFFIX)}
    print_result(document, f"{name} is a queue of {opened.name}")


def ensure_queue(site: OpenSite, name: str) -> None:
    """Create a queue with the site's tag unless it exists, and wait until SQS finds it.

    Raises `BadConfiguration` if the site may not use the name, and `CallFailed` if SQS refuses the request.
    """
    view = site.client.ask(ListQueues())
    known = view.find_queue(name)
    if known is not None and known.deployed:
        return
    _check_queue_name(name, view)
    queues = _open_sqs_by_queue_name(site, view)
    attributes = ATTRIBUTES | build_queue_attributes(fifo=name.endswith(FIFO_SUFFIX), kms_key_arn=view.kms_key_arn)
    try:
        queues.count(name)
    except QueueGone:
        queues.create(name, attributes, {SITE_TAG: view.address.tag})
        retry_until_found(name, lambda: queues.count(name), within_s=FOUND_WITHIN_S)


def retry_until_found(queue: str, request: Callable[[], T], *, within_s: float) -> T:
    """Call `request` until SQS finds the queue, which may be new. Raises `request`'s error after `within_s` seconds."""
    deadline = time.monotonic() + within_s
    while True:
        try:
            return request()
        except (QueueGone, RequestRefused) as error:
            if str(error) != str(QueueGone(queue)) or time.monotonic() > deadline:
                raise
        time.sleep(POLL_S)


def _check_queue_name(name: str, view: QueuesView) -> None:
    if not _NAME.fullmatch(name) or len(name) > MAX_NAME_CHARACTERS:
        raise BadConfiguration(
            f"{name!r} is not a queue's name: use 1 to {MAX_NAME_CHARACTERS} of A-Za-z0-9_-; FIFO names end in .fifo"
        )
    if problem := view.find_name_problem(name):
        raise BadConfiguration(problem)


@app.command(quiet=True)
def delete(
    site: SiteText,
    name: Annotated[
        str, typer.Argument(metavar="NAME", help="The queue's name in SQS.", autocompletion=complete_bound_queues)
    ],
    *,
    force: Annotated[
        bool, typer.Option("--force", help="Unbind the queue first, and delete it even if it holds messages.")
    ] = False,
) -> None:
    """Delete a queue. A bound or non-empty queue needs --force; SQS's message counts may be a minute old."""
    opened = open_site(site)
    view = opened.client.ask(ListQueues())
    known = view.find_queue(name) or QueueView(name=name, queue=name, deployed=False, bindings=0, routes=())
    if known.deployed:
        raise BadConfiguration(f"{known.name} is deployed: remove it from cdk.json, and deploy")
    if known.routes:
        raise BadConfiguration(f"{known.name} is read by routes: delete {', '.join(known.routes)} first")
    queues = _open_sqs_by_queue_name(opened, view)
    if not known.bindings:
        _check_queue_name(name, view)
    if not force:
        _require_empty(known, queues)
    if known.bindings:
        for binding in opened.client.ask(ListBindings()).bindings:
            if binding.queue == known.name:
                opened.client.ask(UnbindQueue(exchange=binding.exchange, queue=binding.queue, key=binding.key))
    queues.delete(known.queue)
    document = {"site": str(opened.name), "queue": name, "done": "deleted"}
    print_result(document, f"{name} was deleted from {opened.name}")


def _require_empty(queue: QueueView, queue_client: SplitQueues) -> None:
    """Raise `BadConfiguration` if the queue has bindings or messages, and `QueueGone` if it doesn't exist."""
    if queue.bindings:
        raise BadConfiguration(f"{queue.name} has {queue.bindings} bindings: delete them first, or use --force")
    messages = queue_client.count(queue.queue)
    if messages:
        raise BadConfiguration(
            f"{queue.name} holds {messages} messages: consume them first, or use --force to delete them too"
        )


@app.command("list")
def list_queues(site: SiteText) -> None:
    """List the queues that can be bound: deployed ones, and those whose names match federation.queue_names."""
    opened = open_site(site)
    view = opened.client.ask(ListQueues())
    queues = _open_sqs_by_queue_name(opened, view)
    prefixes = {_WILDCARDS.split(pattern)[0] for pattern in view.patterns}
    named = {name for prefix in prefixes for name in queues.names(prefix)}
    others = {name for name in named if view.find_name_problem(name) is None}
    known = {queue.queue for queue in view.queues}
    new = [QueueView(name=name, queue=name, deployed=False, bindings=0, routes=()) for name in others - known]
    rows: list[dict[str, Any]] = []
    for queue in sorted([*view.queues, *new], key=lambda queue: queue.name):
        messages: int | None = None
        with suppress(QueueGone):
            messages = queues.count(queue.queue)
        rows.append({**to_document(queue), "fifo": queue.queue.endswith(FIFO_SUFFIX), "messages": messages})
    columns = ("queue", "fifo", "deployed", "messages", "bindings", "read by routes")
    cells = [
        (
            row["name"],
            *("yes" if row[name] else "" for name in ("fifo", "deployed")),
            "doesn't exist" if row["messages"] is None else row["messages"],
            row["bindings"],
            ", ".join(row["routes"]),
        )
        for row in rows
    ]
    print_result(rows, lambda: show_table(columns, cells))


def _open_sqs_by_queue_name(site: OpenSite, queues_view: QueuesView) -> SplitQueues:
    """Return an SQS client that takes names of the site's queues instead of URLs."""
    return SplitQueues(site.name.connect().client("sqs"), queues_view.address.ingress_url)


@app.command("move", quiet=True)
def move_messages(
    site: SiteText,
    src: Annotated[str, typer.Argument(metavar="SRC-QUEUE", help="A queue's URL, or name in cdk.json or SQS.")],
    dest: Annotated[str, typer.Argument(metavar="DEST-QUEUE", help="Another queue, written as SRC-QUEUE.")],
    *,
    to: Annotated[
        str | None,
        typer.Option(metavar="SITE", help="DEST-QUEUE's site.", show_default="SITE", autocompletion=complete_sites),
    ] = None,
    count: Annotated[
        int | None, typer.Option(min=1, max=MAX_MOVED, help="Maximum number of messages.", show_default="all")
    ] = None,
    what_is_there: Annotated[
        bool, typer.Option("--what-is-there", help="Move only messages sent before the start, by this machine's clock.")
    ] = False,
) -> None:
    """Move messages from a queue to another one, at this or another site, until the queue is empty or you press ctrl-C.

    Exit code 1 if messages can't be sent: they stay in the queue, and the reasons are printed.
    """
    if count is not None and what_is_there:
        raise typer.BadParameter("--count and --what-is-there exclude each other: use one of them")
    here = SiteName.parse(site).connect()
    dest_site = here if to is None else SiteName.parse(to).connect()
    source, target = find_queue_url(here, src), find_queue_url(dest_site, dest)
    if source == target:
        raise BadConfiguration(f"{src} and {dest} are the same queue: name another one")
    if source.endswith(FIFO_SUFFIX) and not target.endswith(FIFO_SUFFIX):
        print_note(f"{dest} is a standard queue: it doesn't keep the messages' order")
    until_ms = time.time_ns() // 1_000_000 if what_is_there else None

    def prepare_move(may_go_on: Callable[[], bool]) -> Move:
        return Move(
            source=ConsumedQueue(here.client("sqs"), source, MOVE_WAIT_S, HIDDEN_S),
            send=partial(send_batch, dest_site.client("sqs")),
            choose_copy=lambda message: build_copy(target, message),
            fifo=target.endswith(FIFO_SUFFIX),
            most=count,
            until_ms=until_ms,
            may_go_on=may_go_on,
        )

    run_move(prepare_move, outcome=f"moved from {src} to {dest}")


DestExchange = Annotated[
    str, typer.Argument(metavar="DEST-EXCHANGE", help="The exchange at DEST.", autocompletion=complete_exchanges)
]
SrcQueue = Annotated[str, typer.Argument(metavar="SRC-QUEUE", help="The queue at SRC, by its name.")]


@app.command(quiet=True)
@with_route_options(RouteKind.QUEUE)
def add(
    dest: DestText, src: SrcText, dest_exchange: DestExchange, src_queue: SrcQueue, *, options: RouteOptions
) -> None:
    """Keep moving messages from a queue of SRC to an exchange of DEST. Creates the link if needed."""
    declaration = options.build_declaration(src=src_queue, dest=dest_exchange, src_is_queue=True)
    if not declaration.src_is_local:
        bindings = open_site(dest).client.ask(ListBindings()).bindings
        if dest_exchange not in {binding.exchange for binding in bindings}:
            print_note(
                f"warning: nothing is bound to {dest_exchange} at {dest}, so messages from {src_queue} are dropped"
                f" there: bind a queue with `sluice binding add {dest} {dest_exchange} QUEUE`"
            )
    add_and_show_route(dest, src, declaration, options)


@app.command("del", quiet=True)
def delete_route(
    dest: DestText,
    src: SrcText,
    dest_exchange: DestExchange,
    src_queue: SrcQueue,
    *,
    src_local: SrcLocal = False,
    link: LinkOption = None,
    del_empty_link: DelEmptyLink = False,
) -> None:
    """Delete a queue route. Messages in its source queue stay there."""
    declaration = BridgeDeclaration(src=src_queue, dest=dest_exchange, src_is_queue=True, src_is_local=src_local)
    remove_route(dest, src, declaration, link=link, del_empty_link=del_empty_link)
