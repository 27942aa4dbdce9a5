"""A message tried on a queue's sessions, as the splitter would: who takes it, and what messages there are to try."""

from base64 import b64encode
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

from sluice.aws.queues import ConsumedQueue
from sluice.console.readings.splitting import splitting_of
from sluice.console.requests import text_in
from sluice.console.sites import Document, KnownSite
from sluice.errors import BadRequest
from sluice.message import Message
from sluice.operator.documents import document_of_text
from sluice.operator.messages import sight_of
from sluice.splitting.filters.files import parse_filters
from sluice.splitting.filters.jq import Decide
from sluice.splitting.filters.texts import FilterInput
from sluice.splitting.filters.values import Filter, QueueFilter, Share, filter_of
from sluice.splitting.jq_runner import JqRunner, compile_problem
from sluice.splitting.operations import QueueView, SessionView
from sluice.splitting.routing.router import Router
from sluice.splitting.routing.trials import Trial, tried
from sluice.splitting.sessions.state import ROUTED

FILTERS, MESSAGE = Path("filters.yaml"), Path("message.json")  # as the texts are called where something is wrong
MAX_PEEKED = 10
MAX_TOLD = 200  # sessions that leave the message
YOURS = ""  # the id of a session that isn't started yet


def try_message(site: KnownSite, fields: Mapping[str, Any]) -> Document:
    """Say which sessions of a queue would take a message, and why the others don't, as the splitter would.

    With `filters` a session that has them stands at the end of the line. Raises `BadFile`, `BadFilter`, `BadRequest`.
    """
    queue = _queue(site, text_in(fields, "queue"))
    sight = sight_of(document_of_text(text_in(fields, "message"), MESSAGE), MESSAGE, envelope=queue)
    asked = None
    if fields.get("filters"):
        document, key = document_of_text(text_in(fields, "filters"), FILTERS), text_in(fields, "key", default="")
        filters = parse_filters(document, compile_problem=compile_problem, key=key or None)
        asked = filter_of(filters, queue.queue_id)
        if asked is None:
            raise BadRequest(f"filters: there is none for queue {queue.queue_id}")
    named = ((each, filter_of(each.filters, queue.queue_id)) for each in splitting_of(site).sessions)
    asking = [(session, own) for session, own in named if own is not None]
    shares = [_share(session, own) for session, own in asking if session.status in ROUTED]
    if asked is not None:
        last = max((each.started_at_ms for each in shares), default=0) + 1
        shares.append(Share(session_id=YOURS, key="", started_at_ms=last, filter=asked.filter, mode=asked.mode))
    with closing(JqRunner()) as decide:
        told = list(_told(shares, sight, decide))
    owners = {session.session_id: session.owner for session, _ in asking}
    waiting = [session for session, _ in asking if session.status not in ROUTED]
    return {
        "queue_id": queue.queue_id,
        "sessions": [{**each, "owner": owners.get(each["session_id"], "")} for each in _shown(told)],
        "left_out": len(told) - len(_shown(told)),
        "not_routed": [{"session_id": each.session_id, "owner": each.owner, "status": each.status} for each in waiting],
        "taker": next((each["session_id"] for each in told if each["verdict"] == "takes"), None),
    }


def _queue(site: KnownSite, queue_id: str) -> QueueView:
    queues = splitting_of(site).queues
    found = next((each for each in queues if each.queue_id == queue_id), None)
    if found is None:
        raise BadRequest(
            f"queue: there is no split queue {queue_id!r}; there are {', '.join(each.queue_id for each in queues)}"
        )
    return found


def _share(session: SessionView, own: QueueFilter) -> Share:
    return Share(
        session_id=session.session_id,
        key=session.key,
        started_at_ms=session.started_at_ms,
        filter=own.filter,
        mode=own.mode,
    )


def _told(shares: Sequence[Share], sight: FilterInput, decide: Decide) -> Iterator[dict[str, Any]]:
    """Go down the line: what becomes of the message at each session, and what each condition of its filter says."""
    found = Router.of(shares, decide=decide).recipients(sight)
    mirroring = {each.session_id for each in found.mirroring}
    trials = dict[Filter, Trial]()
    for share in sorted(shares, key=lambda each: each.order):
        if share.filter not in trials:
            trials[share.filter] = tried(share.filter, sight, decide=decide)
        trial = trials[share.filter]
        if found.stealing is not None and share.session_id == found.stealing.session_id:
            verdict = "takes"
        elif share.session_id in mirroring:
            verdict = "gets a copy"
        else:
            verdict = "too late" if trial.matches else "leaves"
        yield {
            "session_id": share.session_id,
            "mode": share.mode,
            "verdict": verdict,
            "conditions": [
                {"place": each.place, "asked": each.asked, "answer": each.answer} for each in trial.conditions
            ],
        }


def _shown(told: Sequence[dict[str, Any]]) -> Sequence[dict[str, Any]]:
    """Leave out sessions that leave the message, where there are many."""
    left = [each["session_id"] for each in told if each["verdict"] == "leaves"][MAX_TOLD:]
    return [each for each in told if each["session_id"] not in left or each["session_id"] == YOURS]


def peek(site: KnownSite, fields: Mapping[str, Any]) -> Document:
    """Look at messages of a queue, which stay there; a look counts as a receive. Raises `BadRequest`, `CallFailed`."""
    queue = _queue(site, text_in(fields, "queue"))
    url = queue.source if text_in(fields, "of", default="main") == "source" else queue.main
    consumer = ConsumedQueue(site.connection.client("sqs"), url)
    received = consumer.receive(most=MAX_PEEKED, wait_s=0)
    consumer.give_back(received)
    return {"messages": [_document(each) for each in received]}


def _document(message: Message) -> dict[str, Any]:
    """Write a message as the SQS API shows it, and as the tester takes it."""
    attributes = dict[str, dict[str, str]]()
    for name, value in message.attributes.items():
        said = value.api()
        if isinstance(said.get("BinaryValue"), bytes):
            said["BinaryValue"] = b64encode(said["BinaryValue"]).decode()
        attributes[name] = said
    told = {"MessageId": message.message_id, "Body": message.body}
    return {**told, **({"MessageAttributes": attributes} if attributes else {}), "Attributes": dict(message.system)}
