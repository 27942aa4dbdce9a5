"""`sluice dlq`: what died, of what, and what becomes of it. With the user's own credentials, at one site.

Letters are read and written in the format of `sluice.aws.dead_letters`. What is shown has no address of a client, and
no session description.
"""

import json
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sluice.cli.completion import complete_dead_letter_queues
from sluice.cli.federation.queue_moves import stopped_by_signals
from sluice.cli.output import AsJson, note, show_json, show_pairs, show_table, tell
from sluice.cli.site_names import SiteOptions
from sluice.cli.site_status import OPERATIONS
from sluice.cli.sites import SiteTyper
from sluice.dead_letter_reasons import Reason, reason_of
from sluice.errors import BadConfiguration
from sluice.message import DeadLetter

if TYPE_CHECKING:  # boto3 takes longer than all of --help
    from sluice.aws.operator.connections import Connection
    from sluice.cli.dead_letter_moves import Selection
    from sluice.federation.moves import Move

MOST_LOOKED_AT = 1_000
MOST_SHOWN = 100
MOST_MOVED = 1_000_000_000
MOST_PER_SECOND = 1_000
MOST_TOLD = 10  # of what stays, with its reason

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


class NoSuchQueue(BadConfiguration):
    """No queue of dead letters has this name."""


@app.command("list")
def list_(
    *,
    looked_at: Annotated[
        int, typer.Option(min=1, max=100_000, help="Letters of a queue to be looked at, at most.")
    ] = MOST_LOOKED_AT,
    site: SiteOptions,
    as_json: AsJson = False,
) -> None:
    """List the queues of dead letters: how many there are, of what they died, since when."""
    connection = site.connect()
    found = [_summary(connection, name, url, most=looked_at) for name, url in urls_of(connection).items()]
    if as_json:
        show_json(found)
        return
    rows = [
        (each["queue"], reason["reason"], reason["letters"], _clock(reason["oldest_ms"]), ", ".join(reason["sources"]))
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
    as_json: AsJson = False,
) -> None:
    """Show letters with body and attributes; they stay. Clients' addresses and session descriptions are masked."""
    from sluice.aws.operator.dead_letters import looked_at  # noqa: PLC0415 - boto3 takes longer than all of --help

    connection = site.connect()
    wanted = _selection(reason, source, id_)
    shown: list[dict[str, Any]] = []
    for letter in looked_at(connection.client("sqs"), _url(connection, queue), most=MOST_LOOKED_AT):
        if wanted.takes(letter):
            shown.append(document(letter))
        if len(shown) == count:
            break
    if as_json:
        show_json(shown)
        return
    for each in shown:
        attributes = [(f"  {name}", value) for name, value in each["attributes"].items()]
        times = [("died", _clock(each["died_ms"])), ("receives", each["receives"])]
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
    as_json: AsJson = False,
) -> None:
    """Put letters back into the queues that they came from, a group's in order. It may be stopped and begun anew.

    Each is sent before it is deleted: whoever dies in between has sent up to ten twice, and lost none. Exit code 1
    where some can't go back: they stay, and why is said.
    """
    from sluice.cli.dead_letter_moves import put_back  # noqa: PLC0415 - boto3 takes longer than all of --help

    connection = site.connect()
    url, wanted = _url(connection, queue), _selection(reason, source, id_)
    with stopped_by_signals() as stopped:
        sqs = connection.client("sqs")
        moving = put_back(sqs, url, wanted, most=count, may_go_on=lambda: not stopped.is_set())
        began = time.monotonic()
        for moved in moving.run():
            stopped.wait(moved / per_second - (time.monotonic() - began))
        _told(moving, as_json=as_json, stopped=stopped.is_set(), done="back where they came from")


@app.command()
def purge(
    queue: Queue,
    *,
    reason: Reasons = None,
    source: Sources = None,
    id_: Ids = None,
    yes: Annotated[bool, typer.Option("--yes", help="Don't ask for the queue's name.")] = False,
    site: SiteOptions,
    as_json: AsJson = False,
) -> None:
    """Throw letters away, for good: those that are there now. It asks for the queue's name."""
    from sluice.cli.dead_letter_moves import thrown_away  # noqa: PLC0415 - boto3 takes longer than all of --help

    connection = site.connect()
    url, wanted = _url(connection, queue), _selection(reason, source, id_)
    if not yes and typer.prompt(f"These letters can't be brought back. Type {queue} to go on", err=True) != queue:
        note("nothing was thrown away")
        raise typer.Exit(1)
    with stopped_by_signals() as stopped:
        now_ms = time.time_ns() // 1_000_000
        sqs = connection.client("sqs")
        moving = thrown_away(sqs, url, wanted, until_ms=now_ms, may_go_on=lambda: not stopped.is_set())
        for _ in moving.run():
            pass
        _told(moving, as_json=as_json, stopped=stopped.is_set(), done="thrown away")


def _told(moving: "Move", *, as_json: bool, stopped: bool, done: str) -> None:
    said = [f"{moving.moved} letters are {done}{'; stopped' if stopped else ''}"]
    said += [f"{id_} stays: {reason}" for id_, reason in list(moving.stays.items())[:MOST_TOLD]]
    document = {"moved": moving.moved, "stays": moving.stays, "stopped": stopped}
    tell(document, "\n".join(said), as_json=as_json)
    if moving.stays:
        raise typer.Exit(1)


def urls_of(connection: "Connection") -> Mapping[str, str]:
    """Find the queues of dead letters by their names: those of the parts of a site, as in `federation.fifo`."""
    from sluice.aws.operator.deployment import stack_output  # noqa: PLC0415 - boto3 takes longer than all of --help

    return urls_in(stack_output(connection, OPERATIONS, "DeadLetterUrls"))


def urls_in(output: str) -> Mapping[str, str]:
    """Read the same from the stack's output `DeadLetterUrls`."""
    urls: Mapping[str, str] = json.loads(output)
    return {
        told.removeprefix("dead letters of ").removeprefix("the ").replace(", FIFO", ".fifo"): url
        for told, url in urls.items()
    }


def _url(connection: "Connection", queue: str) -> str:
    return url_among(urls_of(connection), queue)


def url_among(urls: Mapping[str, str], queue: str) -> str:
    """Find a queue by its name. Raises `NoSuchQueue`."""
    if queue not in urls:
        raise NoSuchQueue(f"{queue} is no queue of dead letters: there are {', '.join(urls)}")
    return urls[queue]


def _selection(
    reasons: Sequence[Reason] | None, sources: Sequence[str] | None, ids: Sequence[str] | None
) -> "Selection":
    from sluice.cli.dead_letter_moves import Selection  # noqa: PLC0415 - boto3 takes longer than all of --help

    return Selection(reasons=frozenset(reasons or ()), sources=frozenset(sources or ()), ids=frozenset(ids or ()))


def _summary(connection: "Connection", name: str, url: str, *, most: int) -> dict[str, Any]:
    from sluice.aws.operator.dead_letters import looked_at  # noqa: PLC0415 - boto3 takes longer than all of --help
    from sluice.aws.queues import depth_of  # noqa: PLC0415 - see above

    sqs = connection.client("sqs")
    depth = depth_of(sqs, url)
    seen = Summary()
    for letter in looked_at(sqs, url, most=most):
        seen.note(letter)
    return {"queue": name, "url": url, "messages": max(depth.visible + depth.in_flight, seen.letters), **seen.document}


@dataclass(slots=True)
class Summary:
    """Of what letters died, how many, since when, and where they came from; no letter is kept."""

    letters: int = 0
    oldest_ms: int | None = None
    by_reason: dict[Reason, Counter[str]] = field(default_factory=dict)  # by source
    oldest_by_reason: dict[Reason, int] = field(default_factory=dict)

    def note(self, letter: DeadLetter) -> None:
        """Count one."""
        from sluice.cli.dead_letter_moves import queue_of  # noqa: PLC0415 - boto3 takes longer than all of --help

        reason, at_ms = reason_of(letter), letter.message.sent_at_ms or 0
        self.letters += 1
        self.oldest_ms = at_ms if self.oldest_ms is None else min(self.oldest_ms, at_ms)
        self.by_reason.setdefault(reason, Counter())[queue_of(letter)] += 1
        self.oldest_by_reason[reason] = min(self.oldest_by_reason.get(reason, at_ms), at_ms)

    @property
    def document(self) -> dict[str, Any]:
        """For `--json`: reasons with most letters first."""
        return {
            "looked_at": self.letters,
            "oldest_ms": self.oldest_ms,
            "reasons": [
                {
                    "reason": reason.value,
                    "letters": sources.total(),
                    "oldest_ms": self.oldest_by_reason[reason],
                    "sources": dict(sources.most_common()),
                }
                for reason, sources in sorted(self.by_reason.items(), key=lambda item: -item[1].total())
            ],
        }


def document(letter: DeadLetter, *, most: int | None = None) -> dict[str, Any]:
    """Write a letter for `--json`: no address of a client is in it, and no session description.

    Its texts are cut to `most` characters.
    """
    from sluice.rendezvous.protocol.addresses import masked  # noqa: PLC0415 - only where something is shown

    message = letter.message
    return {
        "id": message.message_id,
        "reason": reason_of(letter).value,
        "said": masked(letter.reason, most=most),
        "source": letter.source,
        "died_ms": message.sent_at_ms,
        "receives": message.receives,
        "group": message.group_id,
        "attributes": {
            name: f"[{len(value.content)} bytes]" if value.text is None else masked(value.text, most=most)
            for name, value in message.attributes.items()
        },
        "body": masked(message.body, most=most),
    }


def _clock(at_ms: int | None) -> str:
    return "" if at_ms is None else f"{datetime.fromtimestamp(at_ms / 1000, UTC):%Y-%m-%d %H:%M:%S}Z"
