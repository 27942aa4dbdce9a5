"""`sluice queue move`: what one queue holds goes to another, once, with the user's own credentials."""

import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated

import typer

from sluice.cli.completion import complete_sites
from sluice.cli.federation.queues import FIFO_SUFFIX
from sluice.cli.output import AsJson, Quiet, note, tell
from sluice.cli.site_names import SiteName
from sluice.cli.sites import SiteText
from sluice.errors import BadConfiguration

MAX_MOVED = 1_000_000_000
MAX_SHOWN = 10  # of what stays, with its reason
SAID_EVERY_S = 5.0
WAIT_S = 2  # for a message, before there are none


class BadMove(BadConfiguration):
    """A move that can't be."""


def move(
    site: SiteText,
    src: Annotated[str, typer.Argument(metavar="SRC-QUEUE", help="By its name in cdk.json, or in SQS, or its URL.")],
    dest: Annotated[str, typer.Argument(metavar="DEST-QUEUE", help="The same.")],
    *,
    to: Annotated[
        str | None,
        typer.Option(metavar="SITE", help="Where DEST-QUEUE is.", show_default="SITE", autocompletion=complete_sites),
    ] = None,
    count: Annotated[
        int | None, typer.Option(min=1, max=MAX_MOVED, help="How many at most.", show_default="all")
    ] = None,
    what_is_there: Annotated[
        bool, typer.Option("--what-is-there", help="Nothing that comes meanwhile, by this machine's clock.")
    ] = False,
    quiet: Quiet = False,
    as_json: AsJson = False,
) -> None:
    """Move messages from a queue to another, of this site or one more, until there are none. It may be stopped.

    Exit code 1 where something can't be sent: it stays, and is said.
    """
    from sluice.aws.operator.consumer import queue_url  # noqa: PLC0415 - boto3 takes longer than all of --help
    from sluice.aws.operator.moved_queues import MovedQueue  # noqa: PLC0415 - see above
    from sluice.aws.queues import QueuesByUrl  # noqa: PLC0415 - see above
    from sluice.federation.moves import Move, copy_to  # noqa: PLC0415 - see above

    if count is not None and what_is_there:
        raise typer.BadParameter("--count goes without --what-is-there")
    here = SiteName.parse(site).connect()
    there = here if to is None else SiteName.parse(to).connect()
    source, target = queue_url(here, src), queue_url(there, dest)
    if source == target:
        raise BadMove(f"{src} and {dest} are one queue")
    if source.endswith(FIFO_SUFFIX) and not target.endswith(FIFO_SUFFIX):
        note(f"{dest} is a standard queue: the order isn't kept there")
    with stopped_by_signals() as stopped:
        moving = Move(
            source=MovedQueue(here.client("sqs"), source, WAIT_S),
            send=QueuesByUrl(there.client("sqs")).send_batch,
            goes=lambda message: copy_to(target, message),
            fifo=target.endswith(FIFO_SUFFIX),
            most=count,
            until_ms=time.time_ns() // 1_000_000 if what_is_there else None,
            may_go_on=lambda: not stopped.is_set(),
        )
        try:
            said_at = time.monotonic()
            for moved in moving.run():
                if not quiet and time.monotonic() - said_at > SAID_EVERY_S:
                    said_at = time.monotonic()
                    note(f"{moved} moved")
        finally:
            document = {"moved": moving.moved, "stays": moving.stays, "stopped": stopped.is_set()}
            said = f"{moving.moved} moved from {src} to {dest}{', then stopped' if stopped.is_set() else ''}"
            tell(document, said, as_json=as_json, quiet=quiet)
    for id_, reason in list(moving.stays.items())[:MAX_SHOWN]:
        note(f"{id_} stays: {reason}")
    if moving.stays:
        note(f"{len(moving.stays)} messages stay in {src}")
        raise typer.Exit(1)


@contextmanager
def stopped_by_signals() -> Iterator[threading.Event]:
    """Set the event where somebody asks the program to end: what is under way is finished first."""
    stopped = threading.Event()
    before = {number: signal.signal(number, lambda *_: stopped.set()) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield stopped
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
