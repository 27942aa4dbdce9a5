"""Page *Dead letters*: the queues with what is moved out of them; letters are looked at when somebody asks for it.

To look at a letter is to receive it: so no page does it by itself, again and again, as it does all else.
"""

from collections.abc import Mapping
from typing import Any

from sluice.aws.clients import now_ms
from sluice.aws.deployment import output
from sluice.console.moves import Moves
from sluice.console.requests import number_field, text_field, text_list_field
from sluice.console.sites import BudgetedSite, Document, Query
from sluice.dead_letter_reasons import Reason
from sluice.errors import BadRequest
from sluice.message import DeadLetter
from sluice.operator.dead_letters import (
    DEFAULT_LOOKED_AT,
    OPERATIONS_STACK,
    DeadLetterSelection,
    DeadLetterSummary,
    NoSuchQueue,
    dead_letter_document,
    find_queue_url,
    parse_queue_urls,
    peek_letters,
    prepare_purge,
    prepare_redrive,
)
from sluice.rendezvous.protocol.addresses import has_description

MAX_LOOKED_AT = 10_000
MAX_LISTED = 1_000
MAX_CHARACTERS = 500  # characters of a body, and of an attribute, in a list


def read(site: BudgetedSite, _: Query) -> Document:
    """List the queues, what they hold, and the moves out of them. Raises `NotUsable`, `CallFailed`."""
    urls = queue_urls(site)
    queues = [{"queue": name, **held} for name, held in zip(urls, site.read_depths(urls.values()), strict=True)]
    return {"queues": queues, "moves": _moves(site).documents()}


def queue_urls(site: BudgetedSite) -> Mapping[str, str]:
    """Find the queues by their names."""
    return parse_queue_urls(output(site.outputs(OPERATIONS_STACK), OPERATIONS_STACK, "DeadLetterUrls"))


def list_letters(site: BudgetedSite, fields: Mapping[str, Any]) -> Document:
    """Look at letters: of what they died, and those that are meant, cut to a length that a list has room for."""
    url = find_queue_url(queue_urls(site), text_field(fields, "queue"))
    selection = parse_selection(fields)
    most = number_field(fields, "looked_at", least=1, most=MAX_LOOKED_AT, default=DEFAULT_LOOKED_AT)
    summary, letters = DeadLetterSummary(), list[Document]()
    for letter in peek_letters(site.connection.client("sqs"), url, most=most):
        summary.add_letter(letter)
        if len(letters) < MAX_LISTED and selection.includes(letter):
            letters.append(shorten_letter(letter))
    return {**summary.document, "letters": letters}


def show_letter(site: BudgetedSite, fields: Mapping[str, Any]) -> Document:
    """Show one letter, whole, with addresses masked. Raises `BadRequest` where it isn't found any more."""
    url = find_queue_url(queue_urls(site), text_field(fields, "queue"))
    selection = DeadLetterSelection(ids=frozenset({text_field(fields, "id")}))
    most = number_field(fields, "looked_at", least=1, most=MAX_LOOKED_AT, default=DEFAULT_LOOKED_AT)
    letters = filter(selection.includes, peek_letters(site.connection.client("sqs"), url, most=most))
    for letter in letters:
        return dead_letter_document(letter)
    raise BadRequest("this letter isn't there any more, or is being looked at by somebody else")


def shorten_letter(letter: DeadLetter) -> Document:
    """Write a letter for a list; `body_characters` says how long what can be shown of its body is."""
    document, body = dead_letter_document(letter, most=MAX_CHARACTERS), letter.message.body
    return {**document, "body_characters": len(document["body"] if has_description(body) else body)}


def parse_selection(fields: Mapping[str, Any]) -> DeadLetterSelection:
    """Read which letters are meant. Raises `BadRequest` for a reason that is none."""
    try:
        reasons = frozenset(map(Reason, text_list_field(fields, "reasons")))
    except ValueError as error:
        raise BadRequest(str(error)) from None
    return DeadLetterSelection(
        reasons=reasons,
        sources=frozenset(text_list_field(fields, "sources")),
        ids=frozenset(text_list_field(fields, "ids")),
    )


# What may be done


def redrive(site: BudgetedSite, fields: Mapping[str, Any]) -> Document:
    """Put letters back where they came from, beside what else the page does; `read` says how far it is."""
    queue, url, selection = _parse_target(site, fields)
    sqs = site.connection.client("sqs")
    return _moves(site).begin(
        queue, "redrive", lambda may_go_on: prepare_redrive(sqs, url, selection, may_go_on=may_go_on)
    )


def purge(site: BudgetedSite, fields: Mapping[str, Any]) -> Document:
    """Throw letters away, of those that are there now; who wants that has typed the queue's name."""
    queue, url, selection = _parse_target(site, fields)
    if text_field(fields, "typed") != queue:
        raise BadRequest(f"these letters can't be brought back: type {queue} to go on")
    sqs, until_ms = site.connection.client("sqs"), now_ms()
    return _moves(site).begin(
        queue, "purge", lambda may_go_on: prepare_purge(sqs, url, selection, until_ms=until_ms, may_go_on=may_go_on)
    )


def _parse_target(site: BudgetedSite, fields: Mapping[str, Any]) -> tuple[str, str, DeadLetterSelection]:
    """Read which queue is meant, with its URL, and which of its letters."""
    queue = text_field(fields, "queue")
    return queue, find_queue_url(queue_urls(site), queue), parse_selection(fields)


def _moves(site: BudgetedSite) -> Moves:
    return site.memory.of("moves", Moves)


def stop_move(site: BudgetedSite, fields: Mapping[str, Any]) -> Document:
    """Stop the move out of a queue, after the batch that is under way."""
    queue = text_field(fields, "queue")
    if not _moves(site).stop(queue):
        raise NoSuchQueue(f"nothing is moved out of {queue}")
    return {"queue": queue}
