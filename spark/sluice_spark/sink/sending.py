"""Sends a partition's messages in parallel lanes, each of which sends one batch at a time. Used in one event loop."""

import asyncio
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from sluice_spark.errors import QueueBusy, RowsNotSent
from sluice_spark.sink.outgoing import Batch, OutgoingMessage, Packer, UnsentRow
from sluice_spark.sqs.client import ATTEMPTS, SqsClient

REPORTED_ROWS_LIMIT = 20  # maximum number of unsent rows reported by position; all unsent rows are counted
LANE_BATCHES = 2  # number of batches waiting per lane, so that the next batch is ready


@dataclass(slots=True)
class SendReport:
    """The result of a task's write, sent in its commit message: only counts and row positions."""

    sent: int = 0
    size: int = 0
    unsent: int = 0
    unsent_rows: list[UnsentRow] = field(default_factory=list)

    def add(self, unsent: UnsentRow) -> None:
        """Count an unsent row, and keep its position if fewer than REPORTED_ROWS_LIMIT are kept."""
        self.unsent += 1
        if len(self.unsent_rows) < REPORTED_ROWS_LIMIT:
            self.unsent_rows.append(unsent)


async def send_all(
    parts: Iterator[Iterable[OutgoingMessage | UnsentRow]], client: SqsClient, *, lanes: int, fail_on_error: bool
) -> SendReport:
    """Send all parts in order. Producing a part can block, so a thread produces the parts.

    Raises QueueRefused, and QueueBusy after ATTEMPTS failed calls: other rows would fail too. With `fail_on_error`,
    raises RowsNotSent at the first unsent row. Before an error is raised, batches in transit are awaited.
    """
    async with client:
        sending = _Sending(client, lanes=lanes, fail_on_error=fail_on_error)
        await sending.run(parts)
        return sending.report


class _Sending:
    def __init__(self, client: SqsClient, *, lanes: int, fail_on_error: bool) -> None:
        self.report = SendReport()
        self._client, self._fail_on_error = client, fail_on_error
        self._packer = Packer(lanes)
        self._lanes: list[asyncio.Queue[Batch | None]] = [asyncio.Queue(LANE_BATCHES) for _ in range(lanes)]
        self._failed: Exception | None = None

    async def run(self, parts: Iterator[Iterable[OutgoingMessage | UnsentRow]]) -> None:
        workers = [asyncio.create_task(self._send_from_lane(lane)) for lane in self._lanes]
        try:
            await self._feed_lanes(parts)
        finally:
            for lane in self._lanes:
                await lane.put(None)
            await asyncio.gather(*workers)
        if self._failed:
            raise self._failed

    async def _feed_lanes(self, parts: Iterator[Iterable[OutgoingMessage | UnsentRow]]) -> None:
        while self._failed is None:
            part = await asyncio.to_thread(next, parts, None)  # Spark can take long to produce rows.
            if part is None:
                break
            for row in part:
                if self._failed:
                    return
                if isinstance(row, UnsentRow):
                    self._report_unsent(row)
                elif batch := self._packer.add(row):
                    await self._lanes[batch.lane].put(batch)
        for batch in self._packer.take_remaining():
            await self._lanes[batch.lane].put(batch)

    async def _send_from_lane(self, lane: asyncio.Queue[Batch | None]) -> None:
        while (batch := await lane.get()) is not None:
            if self._failed:
                continue  # Dropping the batch keeps the feeder from blocking.
            try:
                await self._send(batch)
            except Exception as error:  # noqa: BLE001  raised by run(), once the other lanes have ended
                self._failed = self._failed or error

    async def _send(self, batch: Batch) -> None:
        """Send a batch. Retries failed entries by id, except sender faults, up to ATTEMPTS times."""
        pending = {str(index): message for index, message in enumerate(batch.messages)}
        why: dict[str, str] = {}
        for attempt in range(1, ATTEMPTS + 1):
            entries = [{"Id": identity, **message.entry} for identity, message in pending.items()]
            answer = await self._client.call("SendMessageBatch", {"QueueUrl": batch.queue_url, "Entries": entries})
            done = answer.get("Successful") or ()
            if len(done) == len(batch.messages):  # the usual case: all were sent
                self.report.sent += len(done)
                self.report.size += batch.size
                return
            for success in done:
                self.report.sent += 1
                self.report.size += pending.pop(success["Id"]).size
            failures = {failure["Id"]: failure for failure in answer.get("Failed") or ()}
            why = dict.fromkeys(pending, "SQS's answer leaves it out")
            for identity, failure in failures.items():
                why[identity] = f"SQS says {failure.get('Code')}: {failure.get('Message', '')}"
                if failure.get("SenderFault") and identity in pending:
                    self._report_unsent(UnsentRow(pending.pop(identity).row_position, why[identity]))
            if not pending:
                return
            if attempt < ATTEMPTS:
                code = next((str(failure.get("Code")) for failure in failures.values()), "NoAnswer")
                await self._client.back_off(
                    attempt, QueueBusy("SendMessageBatch", code, f"{len(pending)} entries failed")
                )
        for identity, message in pending.items():
            self._report_unsent(UnsentRow(message.row_position, f"{why[identity]}, {ATTEMPTS} times"))

    def _report_unsent(self, unsent: UnsentRow) -> None:
        self.report.add(unsent)
        if self._fail_on_error and self._failed is None:
            self._failed = RowsNotSent(str(unsent))
