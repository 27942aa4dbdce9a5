"""A patch of ministack's event source mappings of DynamoDB streams."""

import copy
import json
import time
from collections.abc import Sequence
from dataclasses import dataclass
from threading import Timer
from typing import Any

import ministack.core.concurrency
import ministack.core.responses
import ministack.services.dynamodb
import ministack.services.lambda_svc

dynamodb, lambdas = ministack.services.dynamodb, ministack.services.lambda_svc

Record = dict[str, Any]
Mapping = dict[str, Any]
REPORTS = "ReportBatchItemFailures"


def patch() -> None:
    """Read streams as Lambda does.

    ministack has no batching window, blocks all other mappings while the function runs, skips records that are reported
    as failed, and retries forever. After a restart streams are empty, but a mapping skips as many records as it had
    read before. AWS waits for a full batch until the batching window ends; invokes mappings independently; continues at
    the first record that is reported as failed; halves a failed batch if the mapping says so; and gives up after the
    mapping's number of attempts, or at the maximum age of records.
    https://docs.aws.amazon.com/lambda/latest/dg/services-ddb-batchfailurereporting.html
    https://docs.aws.amazon.com/lambda/latest/dg/services-dynamodb-eventsourcemapping.html
    """
    readings: dict[str, StreamPoller] = {}
    assert lambdas._poll_dynamodb_streams  # noqa: SLF001, S101 - no public hook

    def poll() -> bool:
        began = False
        for account, region, mapping in lambdas._iter_all_esms():  # noqa: SLF001 - see above
            with ministack.core.responses.request_scope(account, region):
                reading = readings.setdefault(mapping["UUID"], StreamPoller(mapping))
                reading.mapping = mapping
                began = reading.read() or began
        return began

    lambdas._poll_dynamodb_streams = poll  # noqa: SLF001 - see above


@dataclass(slots=True)
class StreamPoller:
    """A trigger's progress. `attempts` counts retries of the current batch; `limit` is its size after halving."""

    mapping: Mapping
    attempts: int = 0
    limit: int | None = None
    waits_since: float | None = None

    def read(self) -> bool:
        """Read the next batch. Returns whether a batch was passed to the function, or was skipped by filters."""
        uuid, table = self.mapping["UUID"], self._find_table()
        now = time.time()
        is_busy = lambdas._esm_inflight.get(uuid, 0) or lambdas._esm_backoff_until.get(uuid, 0) > now  # noqa: SLF001 - no public hook
        function, _ = lambdas._get_func_record_for_qualifier(  # noqa: SLF001 - see above
            self.mapping["FunctionName"], self.mapping.get("Qualifier")
        )
        if table is None or function is None or is_busy or not self.mapping.get("Enabled", True):
            return False
        first, end = dynamodb.stream_start_position(table), dynamodb.stream_end_position(table)
        starts = first if self.mapping.get("StartingPosition", "LATEST") == "TRIM_HORIZON" else end
        with lambdas._dynamodb_stream_positions_lock:  # noqa: SLF001 - see above
            position: int = lambdas._dynamodb_stream_positions.setdefault(uuid, starts)  # noqa: SLF001 - see above
        position = position if first <= position <= end else first
        read = dynamodb.stream_records_since(table, position, self.limit or self.mapping.get("BatchSize", 100))
        matching = lambdas._apply_filter_criteria(read, self.mapping)  # noqa: SLF001 - see above
        if not read or (matching and self._is_window_open(len(read))):
            return False
        self.waits_since = None
        if not matching:
            self._store_position(position + len(read))
            return True
        lambdas._dispatch_esm_batch(uuid, self.invoke, function, position, read, matching)  # noqa: SLF001 - see above
        return True

    def invoke(self, function: Any, position: int, read: Sequence[Record], matching: Sequence[Record]) -> None:
        """Invoke the function with a batch. Then continue after the batch, or at the batch's first failed record."""
        result = lambdas._execute_function(function, {"Records": copy.deepcopy(matching)})  # noqa: SLF001 - no public hook
        failed = _find_first_failed(result, matching, reports=REPORTS in self.mapping.get("FunctionResponseTypes", []))
        if failed is None:
            self.attempts, self.limit = 0, None
            self.mapping["LastProcessingResult"] = f"OK - {len(matching)} records"
            self._store_position(position + len(read))
            return
        self.mapping["LastProcessingResult"] = "FAILED"
        left = read.index(failed)
        condition = self._find_exceeded_limit(failed)
        if condition is None:
            # A batch is halved if the whole invocation failed. Otherwise the batch is cut at the first failed record.
            is_halved = result.get("error") and self.mapping.get("BisectBatchOnFunctionError") and len(read) > 1
            self.limit = len(read) // 2 if is_halved else self.limit
            self.attempts += 1
            self._store_position(position + left)
            lambdas._esm_backoff_until[self.mapping["UUID"]] = time.time() + lambdas._ESM_BACKOFF_SECONDS  # noqa: SLF001 - see above
            return
        lambdas._send_ddb_stream_failure_record(  # noqa: SLF001 - see above
            self.mapping, function, list(read[left:]), self.mapping["EventSourceArn"], result, condition
        )
        self.attempts, self.limit = 0, None
        self._store_position(position + len(read))

    def _find_exceeded_limit(self, failed: Record) -> str | None:
        """Return Lambda's name of the limit that a failed batch has exceeded, or None. A limit of -1 is off."""
        attempts, age_s = (self.mapping.get(name) for name in ("MaximumRetryAttempts", "MaximumRecordAgeInSeconds"))
        if attempts is not None and 0 <= int(attempts) <= self.attempts:
            return "RetryAttemptsExhausted"
        if age_s and 0 < int(age_s) < time.time() - failed["dynamodb"]["ApproximateCreationDateTime"]:
            return "MaxRecordAgeExceeded"
        return None

    def _find_table(self) -> str | None:
        """Return the table whose stream the trigger reads; None if there is no stream, or the table was deleted."""
        arn = self.mapping.get("EventSourceArn", "")
        if ":dynamodb:" not in arn or "/stream/" not in arn:
            return None
        name: str = arn.split("/stream/")[0].split("/")[-1]
        table = dynamodb._tables.get(name)  # noqa: SLF001 - no public hook
        return name if table and table.get("LatestStreamArn") == arn else None

    def _store_position(self, position: int) -> None:
        with lambdas._dynamodb_stream_positions_lock:  # noqa: SLF001 - no public hook
            lambdas._dynamodb_stream_positions[self.mapping["UUID"]] = position  # noqa: SLF001 - see above

    def _is_window_open(self, number: int) -> bool:
        """Return whether to wait for the end of the batching window. Retried batches and full batches don't wait."""
        window_s = self.mapping.get("MaximumBatchingWindowInSeconds") or 0
        if not window_s or self.attempts or number >= self.mapping.get("BatchSize", 100):
            return False
        if self.waits_since is None:
            self.waits_since = time.monotonic()
            look = Timer(window_s, ministack.core.concurrency.esm_wake.set)
            look.daemon = True  # A stopped cloud doesn't wait for the timer.
            look.start()
        return time.monotonic() - self.waits_since < window_s


def _find_first_failed(result: Record, batch: Sequence[Record], *, reports: bool) -> Record | None:
    """Return the record to retry from: the first reported record, or the batch's first record after any other error."""
    if result.get("error"):
        return batch[0]
    body = result.get("body")
    answer = json.loads(body) if isinstance(body, str) and body else body
    reported = (answer or {}).get("batchItemFailures") if reports and isinstance(answer, dict | None) else None
    if not reported:
        return None
    numbers = {failure.get("itemIdentifier") for failure in reported}
    known = {record["dynamodb"]["SequenceNumber"] for record in batch}
    if not numbers <= known:
        return batch[0]
    return next(record for record in batch if record["dynamodb"]["SequenceNumber"] in numbers)
