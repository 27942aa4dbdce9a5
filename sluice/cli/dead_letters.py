"""`sluice dlq`: what died, of what, and what becomes of it. With the user's own credentials, at one site.

Letters are read and written in the format of `sluice.aws.dead_letters`. What is shown has no address of a client, and
no session description.
"""

import time
from collections.abc import Sequence
from typing import Annotated, Any

import typer

from sluice.aws.connections import Connection
from sluice.aws.queues import depth_of
from sluice.cli.completion import complete_dead_letter_queues
from sluice.cli.moves import MOST_MOVED, run_move
from sluice.cli.output import is_json, show_json, show_pairs, show_table, time_of
from sluice.cli.sites import SiteTyper
from sluice.cli.terminal import note
from sluice.dead_letter_reasons import Reason
from sluice.operator.dead_letters import (
    MOST_LOOKED_AT,
    Selection,
    Summary,
    document,
    looked_at,
    put_back,
    thrown_away,
    url_among,
    urls_of,
)
from sluice.operator.site_names import SiteOptions

MOST_SHOWN = 100
MOST_PER_SECOND = 1_000

Queue = Annotated[
    str,
    typer.Argument(
        metavar="QUEUE",
        help="Of dead letters, as `sluice dlq list` calls it.",
        autocompletion=complete_dead_letter_queues,
    ),
]
Reasons = Annotated[
    list[Reason] | None, typer.Option("--reason", help="Only what died of this; may be said again.", show_default="any")
]
Sources = Annotated[
    list[str] | None,
    typer.Option("--source", metavar="QUEUE", help="Only what came from this queue, by its name in SQS."),
]
Ids = Annotated[
    list[str] | None, typer.Option("--id", metavar="ID", help="Only this letter, by the id that `show` has.")
]

app = SiteTyper()


@app.command("list")
def list_(
    *,
    looked_at: Annotated[
        int, typer.Option(min=1, max=100_000, help="Letters of a queue to be looked at, at most.")
    ] = MOST_LOOKED_AT,
    site: SiteOptions,
) -> None:
    """List the queues of dead letters: how many there are, of what they died, since when."""
    connection = site.connect()
    found = [_summary(connection, name, url, most=looked_at) for name, url in urls_of(connection).items()]
    if is_json():
        show_json(found)
        return
    rows = [
        (each["queue"], reason["reason"], reason["letters"], time_of(reason["oldest_ms"]), ", ".join(reason["sources"]))
        for each in found
        for reason in each["reasons"]
    ]
    show_table(("queue", "reason", "letters", "oldest", "from"), rows)
    for each in found:
        if each["messages"] > each["looked_at"]:
            note(f"{each['queue']}: {each['looked_at']} of about {each['messages']} were looked at")


@app.command()
def show(
    queue: Queue,
    *,
    reason: Reasons = None,
    source: Sources = None,
    id_: Ids = None,
    count: Annotated[int, typer.Option(min=1, max=MOST_SHOWN, help="How many at most.")] = 10,
    site: SiteOptions,
) -> None:
    """Show letters with body and attributes; they stay. Clients' addresses and session descriptions are masked."""
    connection = site.connect()
    wanted = _selection(reason, source, id_)
    shown: list[dict[str, Any]] = []
    for letter in looked_at(connection.client("sqs"), _url(connection, queue), most=MOST_LOOKED_AT):
        if wanted.takes(letter):
            shown.append(document(letter))
        if len(shown) == count:
            break
    if is_json():
        show_json(shown)
        return
    for each in shown:
        attributes = [(f"  {name}", value) for name, value in each["attributes"].items()]
        times = [("died", time_of(each["died_ms"])), ("receives", each["receives"])]
        said = [("id", each["id"]), ("reason", each["reason"]), ("said", each["said"]), ("from", each["source"])]
        show_pairs([*said, *times, ("group", each["group"]), *attributes, ("body", each["body"]), ("", "")])


@app.command()
def redrive(
    queue: Queue,
    *,
    reason: Reasons = None,
    source: Sources = None,
    id_: Ids = None,
    count: Annotated[
        int | None, typer.Option(min=1, max=MOST_MOVED, help="How many at most.", show_default="all")
    ] = None,
    per_second: Annotated[
        int, typer.Option(min=1, max=MOST_PER_SECOND, help="How many a second, on the average.")
    ] = 100,
    site: SiteOptions,
) -> None:
    """Put letters back into the queues that they came from, a group's in order. It may be stopped and begun anew.

    Each is sent before it is deleted: whoever dies in between has sent up to ten twice, and lost none. Exit code 1
    where some can't go back: they stay, and why is said.
    """
    connection = site.connect()
    url, wanted = _url(connection, queue), _selection(reason, source, id_)
    sqs = connection.client("sqs")
    run_move(
        lambda may_go_on: put_back(sqs, url, wanted, most=count, may_go_on=may_go_on),
        done="letters are back where they came from",
        per_second=per_second,
    )


@app.command()
def purge(
    queue: Queue,
    *,
    reason: Reasons = None,
    source: Sources = None,
    id_: Ids = None,
    yes: Annotated[bool, typer.Option("--yes", help="Don't ask for the queue's name.")] = False,
    site: SiteOptions,
) -> None:
    """Throw letters away, for good: those that are there now. It asks for the queue's name."""
    connection = site.connect()
    url, wanted = _url(connection, queue), _selection(reason, source, id_)
    if not yes and typer.prompt(f"These letters can't be brought back. Type {queue} to go on", err=True) != queue:
        note("nothing was thrown away")
        raise typer.Exit(1)
    sqs, now_ms = connection.client("sqs"), time.time_ns() // 1_000_000
    run_move(
        lambda may_go_on: thrown_away(sqs, url, wanted, until_ms=now_ms, may_go_on=may_go_on),
        done="letters are thrown away",
    )


def _url(connection: Connection, queue: str) -> str:
    return url_among(urls_of(connection), queue)


def _selection(reasons: Sequence[Reason] | None, sources: Sequence[str] | None, ids: Sequence[str] | None) -> Selection:
    return Selection(reasons=frozenset(reasons or ()), sources=frozenset(sources or ()), ids=frozenset(ids or ()))


def _summary(connection: Connection, name: str, url: str, *, most: int) -> dict[str, Any]:
    sqs = connection.client("sqs")
    depth = depth_of(sqs, url)
    seen = Summary()
    for letter in looked_at(sqs, url, most=most):
        seen.note(letter)
    return {"queue": name, "url": url, "messages": max(depth.visible + depth.in_flight, seen.letters), **seen.document}
