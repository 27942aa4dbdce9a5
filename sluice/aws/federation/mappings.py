"""Event source mappings: the bridge function's, and those of what peers send."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

import msgspec

from sluice.aws.clients import calls
from sluice.errors import CallFailed, MappingGone
from sluice.federation.links.links import MappingScaling
from sluice.message import FIFO_SUFFIX

if TYPE_CHECKING:  # boto3-stubs are for the type checker: bundles don't hold them
    from mypy_boto3_lambda import LambdaClient

EXISTS = "ResourceConflictException"
GONE = "ResourceNotFoundException"
BUSY = "ResourceInUseException"
MAX_UNWINDOWED = 10  # messages: a larger batch needs a window
WINDOW_S = 1


class BridgeMappings(msgspec.Struct, frozen=True, kw_only=True):
    """Through a boto3 client. `arn_prefix` is an ARN of the site's queues without the name."""

    client: "LambdaClient"
    function: str
    arn_prefix: str

    def create(self, queue: str, pace: MappingScaling, *, on: bool) -> str:
        """Make a mapping for the queue, or take the one that is there; its id.

        Raises `CallFailed`, and `MappingGone` for one that went meanwhile.
        """
        options = {name: value for name, value in _pace_options(queue, pace).items() if value}
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
            if not mappings:  # one that is being deleted, or isn't listed yet
                raise
        self._update(mappings[0], Enabled=on, **_pace_options(queue, pace))
        return mappings[0]

    def pace(self, mapping: str, queue: str, pace: MappingScaling) -> None:
        """Let the queue's mapping, while it goes on, read with this pace. Raises `MappingGone`, `CallFailed`.

        One that reads so already is left alone: for some seconds after an update nobody may switch it.
        """
        with _translate_missing(mapping), calls("GetEventSourceMapping"):
            response = self.client.get_event_source_mapping(UUID=mapping)
        limit = response.get("ScalingConfig", {}).get("MaximumConcurrency")
        if (response["BatchSize"], limit) != (pace.batch_size, pace.max_concurrency):
            self._update(mapping, **_pace_options(queue, pace))

    def switch(self, mapping: str, *, on: bool) -> None:
        """Enable or disable it. Raises `MappingGone`, `CallFailed`."""
        self._update(mapping, Enabled=on)

    def is_on(self, mapping: str) -> bool:
        """Whether it is enabled, or about to be; one about to go is gone. Raises `MappingGone`, `CallFailed`."""
        with _translate_missing(mapping), calls("GetEventSourceMapping"):
            response = self.client.get_event_source_mapping(UUID=mapping)
        if response["State"] == "Deleting":
            raise MappingGone(mapping)
        return response["State"] in {"Enabled", "Enabling", "Creating", "Updating"}

    def delete(self, queue: str) -> None:
        """Delete the queue's mapping; none is no error. Raises `CallFailed`."""
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


def switch_on_peer_mappings(client: "LambdaClient", queue_arns: Sequence[str]) -> None:
    """Enable the mappings of queues that peers send to: stacks create them disabled, as idle polls cost money.

    One that changes just now is left for the next time. Raises `CallFailed`.
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


def _pace_options(queue: str, pace: MappingScaling) -> dict[str, Any]:
    """Options that let a mapping read so, however it read before."""
    # An empty configuration takes a limit away.
    scaling = {} if pace.max_concurrency is None else {"MaximumConcurrency": pace.max_concurrency}
    options: dict[str, Any] = {"BatchSize": pace.batch_size, "ScalingConfig": scaling}
    if not queue.endswith(FIFO_SUFFIX):  # whose mappings have no window
        options["MaximumBatchingWindowInSeconds"] = WINDOW_S if pace.batch_size > MAX_UNWINDOWED else 0
    return options


@contextmanager
def _translate_missing(mapping: str) -> Iterator[None]:
    """Turn what a call says of a mapping that isn't there into `MappingGone`."""
    try:
        yield
    except CallFailed as error:
        if error.code == GONE:
            raise MappingGone(mapping) from error
        raise
