"""Delays changes of event source mappings and the growth of their concurrency, as Lambda does."""

import json
import time
from collections.abc import Callable
from threading import Lock
from typing import Any

import ministack.services.lambda_svc

from sluice.local.harsh.behaviours import Behaviours

Response = tuple[int, Any, Any]
REFUSED = 300  # HTTP status codes from 300 on mean that a request failed.
CONCURRENCY_AT_FIRST = 5
STEADY = frozenset({"Enabled", "Disabled"})
IN_USE = "Cannot update the event source mapping because it is in use."  # Lambda's error message
NO_QUEUE = (
    "Error occurred while ReceiveMessage. SQS Error Code: AWS.SimpleQueueService.NonExistentQueue. "
    "SQS Error Message: The specified queue does not exist for this wsdl version."
)


NOT_ALLOWED = "The provided execution role does not have permissions to call ReceiveMessage on SQS"


def change_mappings_slowly(
    behaviours: Behaviours, *, queue_exists: Callable[[str], bool], is_changing: Callable[[str], bool]
) -> None:
    """Delay changes of event source mappings. Meanwhile a mapping's state is Creating, Updating, Disabling or similar.

    Until a change is done the mapping works as before: while it is being disabled or deleted it still polls. Until then
    another change is refused with ResourceInUseException: "you tried to update an event source mapping in the CREATING
    state, or you tried to delete an event source mapping currently UPDATING".
    https://docs.aws.amazon.com/lambda/latest/api/API_UpdateEventSourceMapping.html
    "It enters a Deleting state and might not be completely deleted for several seconds."
    https://docs.aws.amazon.com/lambda/latest/api/API_DeleteEventSourceMapping.html

    Lambda reads the queue of a new mapping. Therefore a mapping is refused if its queue isn't visible yet, or if its
    function's role has no effect yet. ministack accepts such mappings. `queue_exists` takes a queue's ARN,
    `is_changing` a role's name. CloudFormation waits until a change is done, so its changes take effect at once.
    """
    functions = ministack.services.lambda_svc
    create, update, delete = functions._create_esm, functions._update_esm, functions._delete_esm  # noqa: SLF001 - no public hook
    get, list_all, iterate = functions._get_esm, functions._list_esms, functions._iter_all_esms  # noqa: SLF001 - see above
    changes = _PendingChanges(behaviours)

    def create_slowly(data: dict[str, Any]) -> Response:
        changes.finish_due()
        refusal = _refuse_unreadable(data, queue_exists=queue_exists, is_changing=is_changing)
        return refusal or changes.begin(create(data), "Creating", polls_meanwhile=False)

    def update_slowly(mapping_id: str, data: dict[str, Any]) -> Response:
        mapping = changes.find_mapping(mapping_id)
        if mapping is not None and mapping["State"] not in STEADY:
            return _refuse("ResourceInUseException", IN_USE)
        was_on = mapping is not None and mapping["Enabled"]
        state = "Updating" if data.get("Enabled", was_on) == was_on else "Disabling" if was_on else "Enabling"
        return changes.begin(update(mapping_id, data), state, polls_meanwhile=was_on)

    def delete_slowly(mapping_id: str) -> Response:
        mapping = changes.find_mapping(mapping_id)
        if mapping is None:
            return delete(mapping_id)  # type: ignore[no-any-return]  # ministack has no types
        if mapping["State"] not in STEADY:
            return _refuse("ResourceInUseException", IN_USE)
        return changes.begin(get(mapping_id), "Deleting", polls_meanwhile=mapping["Enabled"])

    def finish_changes_before(call: Callable[..., Any]) -> Callable[..., Any]:
        def call_after_changes(*arguments: Any) -> Any:
            changes.finish_due()
            return call(*arguments)

        return call_after_changes

    functions._create_esm, functions._update_esm, functions._delete_esm = create_slowly, update_slowly, delete_slowly  # noqa: SLF001
    functions._get_esm, functions._list_esms = finish_changes_before(get), finish_changes_before(list_all)  # noqa: SLF001 - see above
    functions._iter_all_esms = finish_changes_before(iterate)  # noqa: SLF001 - see above


def scale_slowly(behaviours: Behaviours) -> None:
    """Begin with five concurrent invocations of a standard queue's mapping, and add more while the mapping is busy.

    "Lambda starts processing five batches at a time"; "if messages are still available, Lambda increases the number of
    processes that are reading batches by up to 300 more concurrent invocations per minute". ministack doesn't.
    https://docs.aws.amazon.com/lambda/latest/dg/services-sqs-scaling.html
    """
    functions = ministack.services.lambda_svc
    get_concurrency = functions._sqs_esm_concurrency  # noqa: SLF001 - no public hook
    busy_since: dict[str, float] = {}

    def get_concurrency_slowly(mapping: Any, *rest: Any) -> int:
        id_, now = mapping["UUID"], time.monotonic()
        if not functions._esm_inflight.get(id_):  # noqa: SLF001 - see above
            busy_since[id_] = now
        added = behaviours.concurrency_added_per_s * (now - busy_since[id_])
        maximum: int = get_concurrency(mapping, *rest)
        return min(maximum, CONCURRENCY_AT_FIRST + int(added))

    functions._sqs_esm_concurrency = get_concurrency_slowly  # noqa: SLF001 - see above


class _PendingChanges:
    """Pending changes of event source mappings, with the time when each change is done."""

    def __init__(self, behaviours: Behaviours) -> None:
        self._behaviours = behaviours
        self._due: dict[str, tuple[float, bool]] = {}  # when changes end, and whether the mapping is enabled then
        self._lock = Lock()

    def begin(self, response: Response, state: str, *, polls_meanwhile: bool) -> Response:
        """Give a successful response's mapping a transitional state; the mapping polls if `polls_meanwhile`."""
        if response[0] >= REFUSED:
            return response
        functions = ministack.services.lambda_svc
        mapping = functions._esms[json.loads(response[2])["UUID"]]  # noqa: SLF001 - no public hook
        due = time.monotonic() + self._behaviours.scale_delay(self._behaviours.mapping_changes_s)
        with self._lock:
            self._due[mapping["UUID"]] = due, mapping["Enabled"]
            mapping["State"], mapping["Enabled"] = state, polls_meanwhile
        return (202, *functions.json_response(functions._esm_response(mapping))[1:])  # noqa: SLF001 - see above

    def find_mapping(self, mapping_id: str) -> Any:
        """Return a mapping in its current state; None if it doesn't exist."""
        self.finish_due()
        return ministack.services.lambda_svc._esms.get(mapping_id)  # noqa: SLF001 - no public hook

    def finish_due(self) -> None:
        """Finish all due changes in every account and region. Changes that a previous process began are always due."""
        functions, now = ministack.services.lambda_svc, time.monotonic()
        with self._lock:
            for key, mapping in list(functions._esms._data.items()):  # noqa: SLF001 - no public hook
                if mapping["State"] in STEADY:
                    continue
                due, is_on = self._due.get(mapping["UUID"], (0.0, mapping["Enabled"]))
                if now < due:
                    continue
                self._due.pop(mapping["UUID"], None)
                if mapping["State"] == "Deleting":
                    functions._esms._data.pop(key, None)  # noqa: SLF001 - see above
                    continue
                mapping["State"], mapping["Enabled"] = ("Enabled" if is_on else "Disabled"), is_on


def _refuse_unreadable(
    data: dict[str, Any], *, queue_exists: Callable[[str], bool], is_changing: Callable[[str], bool]
) -> Response | None:
    """Return Lambda's error if Lambda can't read the mapping's queue yet; None otherwise."""
    functions, source = ministack.services.lambda_svc, data.get("EventSourceArn", "")
    record = functions._functions.get(functions._resolve_name(data.get("FunctionName", ""))) or {}  # noqa: SLF001 - no public hook
    role = str(record.get("config", {}).get("Role", "")).rsplit("/", 1)[-1]
    if ":sqs:" in source and is_changing(role):
        return _refuse("InvalidParameterValueException", NOT_ALLOWED)
    if ":sqs:" in source and not queue_exists(source):
        return _refuse("InvalidParameterValueException", NO_QUEUE)
    return None


def _refuse(code: str, text: str) -> Response:
    response: Response = ministack.services.lambda_svc.error_response_json(code, text, 400)
    return response
