"""`sluice dlq`: list, show, redrive and purge the dead-letter queues of one site, with the user's own credentials.

The format of dead letters is in `sluice.aws.dead_letters`. Clients' addresses and session descriptions are masked.
"""

import time
from collections.abc import Sequence
from typing import Annotated, Any

import typer

from sluice.aws.queues import count_messages
from sluice.cli.completion import complete_dead_letter_queues
from sluice.cli.moves import MAX_MOVED, require_found, run_move
from sluice.cli.output import format_time, is_json, show_json, show_pairs, show_table
from sluice.cli.sites import SiteCommands
from sluice.cli.terminal import print_note
from sluice.dead_letter_reasons import Reason
from sluice.operator.dead_letters import (
    DEFAULT_LOOKED_AT,
    DeadLetterSelection,
    DeadLetterSummary,
    build_letter_document,
    find_queue_url,
    peek_dead_letters,
    prepare_purge,
    prepare_redrive,
    read_queue_urls,
)
from sluice.operator.site_names import SiteOptions

MAX_SHOWN = 100
MAX_PER_SECOND = 1_000

Queue = Annotated[
    str,
    typer.Argument(
        metavar="QUEUE",
        help="A dead-letter queue, named as in `sluice dlq list`.",
        autocompletion=complete_dead_letter_queues,
    ),
]
Reasons = Annotated[
    list[Reason] | None,
    typer.Option("--reason", help="Only dead letters with this reason; repeatable.", show_default="any"),
]
Sources = Annotated[
    list[str] | None,
    typer.Option(
        "--source", metavar="QUEUE", help="Only dead letters from this source queue, by its name in SQS; repeatable."
    ),
]
Ids = Annotated[
    list[str] | None,
    typer.Option("--id", metavar="ID", help="Only the dead letter with this id, as `show` prints it; repeatable."),
]

app = SiteCommands()


@app.command("list")
def list_queues(
    *,
    looked_at: Annotated[
        int, typer.Option(min=1, max=100_000, help="Most dead letters to read from each queue.")
    ] = DEFAULT_LOOKED_AT,
    site: SiteOptions,
) -> None:
    """List the dead-letter queues with, for each reason, the number of letters, the oldest and the source queues."""
    connection = site.connect()
    sqs, summaries = connection.client("sqs"), list[dict[str, Any]]()
    for name, url in read_queue_urls(connection).items():
        depth, summary = count_messages(sqs, url), DeadLetterSummary()
        for letter in peek_dead_letters(sqs, url, most=looked_at):
            summary.add_letter(letter)
        messages = max(depth.visible + depth.in_flight, summary.letter_count)
        summaries.append({"queue": name, "url": url, "messages": messages, **summary.document})
    if is_json():
        show_json(summaries)
        return
    rows = [
        (
            queue["queue"],
            reason["reason"],
            reason["letters"],
            format_time(reason["oldest_ms"]),
            ", ".join(reason["sources"]),
        )
        for queue in summaries
        for reason in queue["reasons"]
    ]
    show_table(("queue", "reason", "letters", "oldest", "source queues"), rows)
    for queue in summaries:
        if queue["messages"] > queue["looked_at"]:
            print_note(f"{queue['queue']}: read {queue['looked_at']} of about {queue['messages']}: raise --looked-at")


@app.command("show")
def show_letters(
    queue: Queue,
    *,
    reason: Reasons = None,
    source: Sources = None,
    id_: Ids = None,
    count: Annotated[int, typer.Option(min=1, max=MAX_SHOWN, help="How many at most.")] = 10,
    site: SiteOptions,
) -> None:
    """Show dead letters with body and attributes, and leave them in the queue. Exit code 1 if an --id isn't found.

    Clients' addresses and session descriptions are masked.
    """
    connection = site.connect()
    selection = _parse_selection(reason, source, id_)
    documents: list[dict[str, Any]] = []
    for letter in peek_dead_letters(
        connection.client("sqs"), find_queue_url(read_queue_urls(connection), queue), most=DEFAULT_LOOKED_AT
    ):
        if selection.includes(letter):
            documents.append(build_letter_document(letter))
        if len(documents) == count:
            break
    if is_json():
        show_json(documents)
    for entry in () if is_json() else documents:
        attributes = [(f"  {name}", value) for name, value in entry["attributes"].items()]
        times = [("failed at", format_time(entry["died_ms"])), ("receive count", entry["receives"])]
        cause = [("reason", entry["reason"]), ("detail", entry["said"]), ("source queue", entry["source"])]
        own = [("id", entry["id"]), *cause, *times, ("message group", entry["group"])]
        show_pairs([*own, *attributes, ("body", entry["body"]), ("", "")])
    require_found(len(documents), named_count=min(count, len(selection.ids)))


@app.command("redrive")
def redrive_letters(
    queue: Queue,
    *,
    reason: Reasons = None,
    source: Sources = None,
    id_: Ids = None,
    count: Annotated[
        int | None, typer.Option(min=1, max=MAX_MOVED, help="How many at most.", show_default="all")
    ] = None,
    per_second: Annotated[
        int, typer.Option(min=1, max=MAX_PER_SECOND, help="Most letters per second, on average.")
    ] = 100,
    site: SiteOptions,
) -> None:
    """Redrive dead letters to the queues that they came from. You may stop the command and start it again.

    The order within a message group is kept. Each letter is sent before it is deleted, so an interruption loses none
    and sends at most ten twice. Exit code 1 if an --id isn't there, or some can't be redriven: they stay in the queue,
    and the reasons are printed.
    """
    connection = site.connect()
    url, selection = find_queue_url(read_queue_urls(connection), queue), _parse_selection(reason, source, id_)
    sqs = connection.client("sqs")
    run_move(
        lambda may_go_on: prepare_redrive(sqs, url, selection, most=count, may_go_on=may_go_on),
        outcome="letters were redriven to the queues that they came from",
        per_second=per_second,
        named_count=len(selection.ids) if count is None else min(count, len(selection.ids)),
    )


@app.command("purge")
def purge_letters(
    queue: Queue,
    *,
    reason: Reasons = None,
    source: Sources = None,
    id_: Ids = None,
    yes: Annotated[bool, typer.Option("--yes", help="Don't ask for confirmation.")] = False,
    site: SiteOptions,
) -> None:
    """Delete the dead letters that are in the queue now. You confirm with the queue's name: they can't be restored."""
    connection = site.connect()
    url, selection = find_queue_url(read_queue_urls(connection), queue), _parse_selection(reason, source, id_)
    if not yes and typer.prompt(f"Deleted letters can't be restored. Type {queue} to continue", err=True) != queue:
        print_note("nothing was deleted")
        raise typer.Exit(1)
    sqs, now_ms = connection.client("sqs"), time.time_ns() // 1_000_000
    run_move(
        lambda may_go_on: prepare_purge(sqs, url, selection, until_ms=now_ms, may_go_on=may_go_on),
        outcome="letters were deleted",
        named_count=len(selection.ids),
    )


def _parse_selection(
    reasons: Sequence[Reason] | None, sources: Sequence[str] | None, ids: Sequence[str] | None
) -> DeadLetterSelection:
    return DeadLetterSelection(
        reasons=frozenset(reasons or ()), sources=frozenset(sources or ()), ids=frozenset(ids or ())
    )
