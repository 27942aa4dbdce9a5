"""Reads the page *Dead letters*: the dead-letter queues, and on request the dead letters of a queue.

Dead letters are only listed on request, because a listing receives them and therefore raises their receive counts.
"""

from collections.abc import Mapping
from typing import Any

from sluice.aws.clients import now_ms
from sluice.aws.deployment import get_output
from sluice.console.moves import QueueMoves
from sluice.console.requests import get_number_field, get_text_field, get_text_list_field
from sluice.console.sites import CallLimitedSite, Document, Query
from sluice.dead_letter_reasons import Reason
from sluice.errors import BadRequest
from sluice.message import DeadLetter
from sluice.operator.dead_letters import (
    DEFAULT_LOOKED_AT,
    OPERATIONS_STACK,
    DeadLetterSelection,
    DeadLetterSummary,
    NoSuchQueue,
    build_letter_document,
    find_queue_url,
    parse_queue_urls,
    peek_dead_letters,
    prepare_purge,
    prepare_redrive,
)
from sluice.rendezvous.protocol.addresses import has_description

MAX_READ_LETTERS = 10_000
MAX_LISTED = 1_000
MAX_CHARACTERS = 500  # Longer bodies and attributes are cut in a list, to this number of characters.


def read(site: CallLimitedSite, _: Query) -> Document:
    """Read the dead-letter queues' depths, and redrives' and purges' progress. Raises `NotUsable`, `CallFailed`."""
    urls = read_queue_urls(site)
    depths = site.read_depths(urls.values())
    queues = [{"queue": name, **depths[url]} for name, url in urls.items()]
    return {"queues": queues, "moves": _get_moves(site).list_progress()}


def read_queue_urls(site: CallLimitedSite) -> Mapping[str, str]:
    """Return the URLs of the dead-letter queues, by name."""
    return parse_queue_urls(get_output(site.read_outputs(OPERATIONS_STACK), OPERATIONS_STACK, "DeadLetterUrls"))


def list_letters(site: CallLimitedSite, fields: Mapping[str, Any]) -> Document:
    """Count a queue's dead letters by reason, and list the selected letters with shortened bodies and attributes."""
    url = find_queue_url(read_queue_urls(site), get_text_field(fields, "queue"))
    selection = parse_selection(fields)
    most = get_number_field(fields, "looked_at", least=1, most=MAX_READ_LETTERS, default=DEFAULT_LOOKED_AT)
    summary, letters = DeadLetterSummary(), list[Document]()
    for letter in peek_dead_letters(site.connection.client("sqs"), url, most=most):
        summary.add_letter(letter)
        if len(letters) < MAX_LISTED and selection.includes(letter):
            letters.append(shorten_letter(letter))
    return {**summary.document, "letters": letters}


def show_letter(site: CallLimitedSite, fields: Mapping[str, Any]) -> Document:
    """Return a complete dead letter, with addresses masked. Raises `BadRequest` if it has left the queue."""
    url = find_queue_url(read_queue_urls(site), get_text_field(fields, "queue"))
    selection = DeadLetterSelection(ids=frozenset({get_text_field(fields, "id")}))
    most = get_number_field(fields, "looked_at", least=1, most=MAX_READ_LETTERS, default=DEFAULT_LOOKED_AT)
    letters = filter(selection.includes, peek_dead_letters(site.connection.client("sqs"), url, most=most))
    for letter in letters:
        return build_letter_document(letter)
    raise BadRequest("this letter has left the queue, or another user is reading it: try again in a minute")


def shorten_letter(letter: DeadLetter) -> Document:
    """Format a dead letter for a list. `body_characters` is the length of the body before it was shortened."""
    document, body = build_letter_document(letter, most=MAX_CHARACTERS), letter.message.body
    return {**document, "body_characters": len(document["body"] if has_description(body) else body)}


def parse_selection(fields: Mapping[str, Any]) -> DeadLetterSelection:
    """Parse the fields of a form that select dead letters. Raises `BadRequest` for an unknown reason."""
    try:
        reasons = frozenset(map(Reason, get_text_list_field(fields, "reasons")))
    except ValueError as error:
        raise BadRequest(str(error)) from None
    return DeadLetterSelection(
        reasons=reasons,
        sources=frozenset(get_text_list_field(fields, "sources")),
        ids=frozenset(get_text_list_field(fields, "ids")),
    )


def redrive(site: CallLimitedSite, fields: Mapping[str, Any]) -> Document:
    """Start redriving the selected dead letters in the background. The page shows the progress."""
    queue, url, selection = _parse_target(site, fields)
    sqs = site.connection.client("sqs")
    return _get_moves(site).start_move(
        queue, "redrive", lambda may_go_on: prepare_redrive(sqs, url, selection, may_go_on=may_go_on)
    )


def purge(site: CallLimitedSite, fields: Mapping[str, Any]) -> Document:
    """Start deleting the selected dead letters. Raises `BadRequest` unless the user has typed the queue's name."""
    queue, url, selection = _parse_target(site, fields)
    if get_text_field(fields, "typed") != queue:
        raise BadRequest(f"deleted letters can't be restored: type {queue} to continue")
    sqs, until_ms = site.connection.client("sqs"), now_ms()
    return _get_moves(site).start_move(
        queue, "purge", lambda may_go_on: prepare_purge(sqs, url, selection, until_ms=until_ms, may_go_on=may_go_on)
    )


def _parse_target(site: CallLimitedSite, fields: Mapping[str, Any]) -> tuple[str, str, DeadLetterSelection]:
    """Parse a form's queue name and its selection of dead letters, and find the queue's URL."""
    queue = get_text_field(fields, "queue")
    return queue, find_queue_url(read_queue_urls(site), queue), parse_selection(fields)


def _get_moves(site: CallLimitedSite) -> QueueMoves:
    return site.memory.get_state("moves", QueueMoves)


def stop_move(site: CallLimitedSite, fields: Mapping[str, Any]) -> Document:
    """Stop a queue's redrive or purge after the current batch. Raises `NoSuchQueue` if none is running."""
    queue = get_text_field(fields, "queue")
    if not _get_moves(site).stop_move(queue):
        raise NoSuchQueue(f"no letters of {queue} are being moved")
    return {"queue": queue}
