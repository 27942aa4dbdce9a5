"""Manages the event source mappings of bridge queues, and of the queues that peers send to."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from sluice.aws.client_types import LambdaClient
from sluice.aws.clients import calls
from sluice.aws_rules import MAX_UNWINDOWED_BATCH
from sluice.errors import CallFailed
from sluice.federation.links.links import MappingScaling
from sluice.message import FIFO_SUFFIX

if TYPE_CHECKING:  # Only the type checker has boto3-stubs.
    from mypy_boto3_lambda.type_defs import EventSourceMappingConfigurationTypeDef

GONE = "ResourceNotFoundException"
BUSY = "ResourceInUseException"
WINDOW_S = 1


class BridgeMappings(msgspec.Struct, frozen=True, kw_only=True):
    """Manages event source mappings of the bridge function. `arn_prefix` is a queue's ARN without the queue's name."""

    client: LambdaClient
    function_name: str
    arn_prefix: str

    def reconcile(self, queue: str, scaling: MappingScaling, *, on: bool, creates: bool = True) -> str:
        """Create or update a queue's mapping so that it matches these options. Returns the mapping's id.

        Without `creates`, a missing mapping isn't created, and the id is empty. A mapping with the right options isn't
        updated, because after an update Lambda refuses further changes for some seconds. Raises `CallFailed`, which is
        transient if the mapping is being deleted or isn't listed yet.
        """
        options = {"Enabled": on, **_build_scaling_options(queue, scaling)}
        for mapping in self._list_mappings(queue):
            if mapping["State"] == "Deleting":
                continue
            is_on = mapping["State"] in {"Enabled", "Enabling", "Creating", "Updating"}
            limit = mapping.get("ScalingConfig", {}).get("MaximumConcurrency")
            if (is_on, mapping["BatchSize"], limit) != (on, scaling.batch_size, scaling.max_concurrency):
                with calls("UpdateEventSourceMapping"):
                    self.client.update_event_source_mapping(UUID=mapping["UUID"], **options)
            return mapping["UUID"]
        if not creates:
            return ""
        with calls("CreateEventSourceMapping"):
            return self.client.create_event_source_mapping(
                EventSourceArn=self.arn_prefix + queue,
                FunctionName=self.function_name,
                FunctionResponseTypes=["ReportBatchItemFailures"],
                **{name: value for name, value in options.items() if value or name == "Enabled"},
            )["UUID"]

    def delete(self, queue: str) -> None:
        """Delete the queue's mapping if it exists. Raises `CallFailed`."""
        for mapping in self._list_mappings(queue):
            try:
                with calls("DeleteEventSourceMapping"):
                    self.client.delete_event_source_mapping(UUID=mapping["UUID"])
            except CallFailed as error:
                if error.code != GONE:
                    raise

    def _list_mappings(self, queue: str) -> Sequence["EventSourceMappingConfigurationTypeDef"]:
        with calls("ListEventSourceMappings"):
            return self.client.list_event_source_mappings(
                EventSourceArn=self.arn_prefix + queue, FunctionName=self.function_name
            )["EventSourceMappings"]


def enable_peer_mappings(client: LambdaClient, queue_arns: Sequence[str]) -> None:
    """Enable mappings of queues that peers send to. Stacks create them disabled, because idle polls cost money.

    A mapping that Lambda is changing is skipped until the next call. Raises `CallFailed`.
    """
    for arn in queue_arns:
        with calls("ListEventSourceMappings"):
            response = client.list_event_source_mappings(EventSourceArn=arn)["EventSourceMappings"]
        for mapping in response:
            if mapping["State"] not in {"Disabled", "Disabling"}:
                continue
            try:
                with calls("UpdateEventSourceMapping"):
                    client.update_event_source_mapping(UUID=mapping["UUID"], Enabled=True)
            except CallFailed as error:
                if error.code != BUSY:
                    raise


def _build_scaling_options(queue: str, scaling: MappingScaling) -> dict[str, Any]:
    """Return the mapping's options for batch size, concurrency and batching window."""
    # An empty scaling configuration removes an existing concurrency limit.
    concurrency = {} if scaling.max_concurrency is None else {"MaximumConcurrency": scaling.max_concurrency}
    options: dict[str, Any] = {"BatchSize": scaling.batch_size, "ScalingConfig": concurrency}
    if not queue.endswith(FIFO_SUFFIX):  # mappings of FIFO queues have no batching window
        options["MaximumBatchingWindowInSeconds"] = WINDOW_S if scaling.batch_size > MAX_UNWINDOWED_BATCH else 0
    return options
