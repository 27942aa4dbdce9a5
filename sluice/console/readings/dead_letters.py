"""Page *Dead letters*: the queues with what is moved out of them; letters are looked at when somebody asks for it.

To look at a letter is to receive it: so no page does it by itself, again and again, as it does all else.
"""

from collections.abc import Mapping
from typing import Any

from sluice.aws.clients import now_ms
from sluice.aws.deployment import output
from sluice.console.moves import Moves
from sluice.console.requests import number_in, text_in, texts_in
from sluice.console.sites import Document, KnownSite, Query
from sluice.dead_letter_reasons import Reason
from sluice.errors import BadRequest
from sluice.message import DeadLetter
from sluice.operator.dead_letters import (
    MOST_LOOKED_AT,
    OPERATIONS,
    NoSuchQueue,
    Selection,
    Summary,
    document,
    looked_at,
    put_back,
    thrown_away,
    url_among,
    urls_in,
)
from sluice.rendezvous.protocol.addresses import has_description

MAX_LOOKED_AT = 10_000
MAX_LISTED = 1_000
CUT = 500  # characters of a body, and of an attribute, in a list


def read(site: KnownSite, _: Query) -> Document:
    """List the queues, what they hold, and the moves out of them. Raises `NotUsable`, `CallFailed`."""
    urls = urls_at(site)
    queues = [{"queue": name, **held} for name, held in zip(urls, site.held(urls.values()), strict=True)]
    return {"queues": queues, "moves": _moves(site).documents()}


def urls_at(site: KnownSite) -> Mapping[str, str]:
    """Find the queues by their names."""
    return urls_in(output(site.outputs(OPERATIONS), OPERATIONS, "DeadLetterUrls"))


def look(site: KnownSite, fields: Mapping[str, Any]) -> Document:
    """Look at letters: of what they died, and those that are meant, cut to a length that a list has room for."""
    url = url_among(urls_at(site), text_in(fields, "queue"))
    wanted = selection_in(fields)
    most = number_in(fields, "looked_at", least=1, most=MAX_LOOKED_AT, default=MOST_LOOKED_AT)
    listed = number_in(fields, "count", least=0, most=MAX_LISTED, default=MAX_LISTED)
    summary, letters = Summary(), list[Document]()
    for letter in looked_at(site.connection.client("sqs"), url, most=most):
        summary.note(letter)
        if len(letters) < listed and wanted.takes(letter):
            letters.append(cut(letter))
    return {**summary.document, "letters": letters}


def show(site: KnownSite, fields: Mapping[str, Any]) -> Document:
    """Show one letter, whole, with addresses masked. Raises `BadRequest` where it isn't found any more."""
    url = url_among(urls_at(site), text_in(fields, "queue"))
    wanted = Selection(ids=frozenset({text_in(fields, "id")}))
    most = number_in(fields, "looked_at", least=1, most=MAX_LOOKED_AT, default=MOST_LOOKED_AT)
    letters = filter(wanted.takes, looked_at(site.connection.client("sqs"), url, most=most))
    for letter in letters:
        return document(letter)
    raise BadRequest("this letter isn't there any more, or is being looked at by somebody else")


def cut(letter: DeadLetter) -> Document:
    """Write a letter for a list; `body_characters` says how long what can be shown of its body is."""
    found, body = document(letter, most=CUT), letter.message.body
    return {**found, "body_characters": len(found["body"] if has_description(body) else body)}


def selection_in(fields: Mapping[str, Any]) -> Selection:
    """Read which letters are meant. Raises `BadRequest` for a reason that is none."""
    try:
        reasons = frozenset(map(Reason, texts_in(fields, "reasons")))
    except ValueError as error:
        raise BadRequest(str(error)) from None
    return Selection(
        reasons=reasons, sources=frozenset(texts_in(fields, "sources")), ids=frozenset(texts_in(fields, "ids"))
    )


# What may be done


def redrive(site: KnownSite, fields: Mapping[str, Any]) -> Document:
    """Put letters back where they came from, beside what else the page does; `read` says how far it is."""
    queue, url, wanted = _meant(site, fields)
    sqs = site.connection.client("sqs")
    return _moves(site).begin(queue, "redrive", lambda may_go_on: put_back(sqs, url, wanted, may_go_on=may_go_on))


def purge(site: KnownSite, fields: Mapping[str, Any]) -> Document:
    """Throw letters away, of those that are there now; who wants that has typed the queue's name."""
    queue, url, wanted = _meant(site, fields)
    if text_in(fields, "typed") != queue:
        raise BadRequest(f"these letters can't be brought back: type {queue} to go on")
    sqs, until_ms = site.connection.client("sqs"), now_ms()
    return _moves(site).begin(
        queue, "purge", lambda may_go_on: thrown_away(sqs, url, wanted, until_ms=until_ms, may_go_on=may_go_on)
    )


def _meant(site: KnownSite, fields: Mapping[str, Any]) -> tuple[str, str, Selection]:
    """Read which queue is meant, with its URL, and which of its letters."""
    queue = text_in(fields, "queue")
    return queue, url_among(urls_at(site), queue), selection_in(fields)


def _moves(site: KnownSite) -> Moves:
    return site.memory.of("moves", Moves)


def stop(site: KnownSite, fields: Mapping[str, Any]) -> Document:
    """Stop the move out of a queue, after the batch that is under way."""
    queue = text_in(fields, "queue")
    if not _moves(site).stop(queue):
        raise NoSuchQueue(f"nothing is moved out of {queue}")
    return {"queue": queue}
