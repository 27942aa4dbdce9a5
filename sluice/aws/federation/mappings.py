"""Manages the event source mappings of bridge queues, and of the queues that peers send to."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any

import msgspec

from sluice.aws.client_types import LambdaClient
from sluice.aws.clients import calls
from sluice.aws_rules import MAX_UNWINDOWED_BATCH
from sluice.errors import CallFailed, MappingGone
from sluice.federation.links.links import MappingScaling
from sluice.message import FIFO_SUFFIX

EXISTS = "ResourceConflictException"
GONE = "ResourceNotFoundException"
BUSY = "ResourceInUseException"
WINDOW_S = 1


class BridgeMappings(msgspec.Struct, frozen=True, kw_only=True):
    """Event source mappings of the bridge function. `arn_prefix` is a queue's ARN without the queue's name."""

    client: LambdaClient
    function: str
    arn_prefix: str

    def create(self, queue: str, scaling: MappingScaling, *, on: bool) -> str:
        """Create the queue's mapping, or update the existing one. Returns the mapping's id.

        Raises `CallFailed`, or `MappingGone` if the existing mapping is deleted in the meantime.
        """
        options = {name: value for name, value in _scaling_options(queue, scaling).items() if value}
        try:
            with calls("CreateEventSourceMapping"):
                made = self.client.create_event_source_mapping(
                    EventSourceArn=self.arn_prefix + queue,
                    FunctionName=self.function,
                    Enabled=on,
                    FunctionResponseTypes=["ReportBatchItemFailures"],
                    **options,
                )
            return made["UUID"]
        except CallFailed as error:
            if error.code != EXISTS:
                raise
            mappings = self._list_mapping_ids(queue)
            if not mappings:  # the mapping is being deleted, or isn't listed yet
                raise
        self._update(mappings[0], Enabled=on, **_scaling_options(queue, scaling))
        return mappings[0]

    def rescale(self, mapping: str, queue: str, scaling: MappingScaling) -> None:
        """Change batch size and concurrency of the queue's mapping while it runs. Raises `MappingGone`, `CallFailed`.

        An up-to-date mapping isn't updated, because it can't be switched for some seconds after an update.
        """
        with _translate_missing(mapping), calls("GetEventSourceMapping"):
            response = self.client.get_event_source_mapping(UUID=mapping)
        limit = response.get("ScalingConfig", {}).get("MaximumConcurrency")
        if (response["BatchSize"], limit) != (scaling.batch_size, scaling.max_concurrency):
            self._update(mapping, **_scaling_options(queue, scaling))

    def switch(self, mapping: str, *, on: bool) -> None:
        """Enable or disable a mapping. Raises `MappingGone`, `CallFailed`."""
        self._update(mapping, Enabled=on)

    def is_on(self, mapping: str) -> bool:
        """Whether the mapping is or will be enabled; one being deleted is gone. Raises `MappingGone`, `CallFailed`."""
        with _translate_missing(mapping), calls("GetEventSourceMapping"):
            response = self.client.get_event_source_mapping(UUID=mapping)
        if response["State"] == "Deleting":
            raise MappingGone(mapping)
        return response["State"] in {"Enabled", "Enabling", "Creating", "Updating"}

    def delete(self, queue: str) -> None:
        """Delete the queue's mapping if it exists. Raises `CallFailed`."""
        for mapping in self._list_mapping_ids(queue):
            with suppress(MappingGone), _translate_missing(mapping), calls("DeleteEventSourceMapping"):
                self.client.delete_event_source_mapping(UUID=mapping)

    def _update(self, mapping: str, **options: Any) -> None:
        with _translate_missing(mapping), calls("UpdateEventSourceMapping"):
            self.client.update_event_source_mapping(UUID=mapping, **options)

    def _list_mapping_ids(self, queue: str) -> list[str]:
        with calls("ListEventSourceMappings"):
            response = self.client.list_event_source_mappings(
                EventSourceArn=self.arn_prefix + queue, FunctionName=self.function
            )
        return [mapping["UUID"] for mapping in response["EventSourceMappings"]]


def switch_on_peer_mappings(client: LambdaClient, queue_arns: Sequence[str]) -> None:
    """Enable the mappings of queues that peers send to. Stacks create them disabled, because idle polls cost money.

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


def _scaling_options(queue: str, scaling: MappingScaling) -> dict[str, Any]:
    """Return options that replace a mapping's batch size, concurrency and batching window."""
    # An empty scaling configuration removes the concurrency limit.
    concurrency = {} if scaling.max_concurrency is None else {"MaximumConcurrency": scaling.max_concurrency}
    options: dict[str, Any] = {"BatchSize": scaling.batch_size, "ScalingConfig": concurrency}
    if not queue.endswith(FIFO_SUFFIX):  # FIFO queues' mappings have no batching window
        options["MaximumBatchingWindowInSeconds"] = WINDOW_S if scaling.batch_size > MAX_UNWINDOWED_BATCH else 0
    return options


@contextmanager
def _translate_missing(mapping: str) -> Iterator[None]:
    """Raise `MappingGone` if Lambda reports that the mapping doesn't exist."""
    try:
        yield
    except CallFailed as error:
        if error.code == GONE:
            raise MappingGone(mapping) from error
        raise
