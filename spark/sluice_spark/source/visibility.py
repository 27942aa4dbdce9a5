"""Heartbeats: messages that are staged stay invisible until Spark has committed them."""

import asyncio
import logging
from collections.abc import Sequence

from sluice_spark.errors import QueueBusy
from sluice_spark.source.after_commit import Held
from sluice_spark.source.intake import Intake
from sluice_spark.sqs.client import SqsClient
from sluice_spark.sqs.received import in_tens

log = logging.getLogger(__name__)

VISIBILITY = "VisibilityTimeout"


async def keep_invisible(held: Held, client: SqsClient, intake: Intake) -> None:
    """Extend at half the time-out, until cancelled. A message that expires all the same is redelivered, and known.

    Raises what the client raises, but QueueBusy: the next heartbeat may make up for that.
    """
    timeout_s = await _visibility_s(client, intake)
    while True:
        await asyncio.sleep(timeout_s / 2)
        for queue_url, handles in in_tens(held.all()):
            await _extend(client, queue_url, handles, timeout_s)


async def _visibility_s(client: SqsClient, intake: Intake) -> int:
    if intake.visibility_s is not None:
        return intake.visibility_s
    answers = [await client.attributes(url, VISIBILITY) for url in intake.queue_urls]
    return max(1, min(int(answer[VISIBILITY]) for answer in answers))


async def _extend(client: SqsClient, queue_url: str, handles: Sequence[str], timeout_s: int) -> None:
    entries = [
        {"Id": str(index), "ReceiptHandle": handle, VISIBILITY: timeout_s} for index, handle in enumerate(handles)
    ]
    try:
        await client.call("ChangeMessageVisibilityBatch", {"QueueUrl": queue_url, "Entries": entries})
    except QueueBusy as error:
        log.warning("messages may become visible before they are committed: %s", error)
