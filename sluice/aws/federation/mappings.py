"""Event source mappings of the bridge function: `sluice.federation.ports.Mappings`."""

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from sluice.aws.clients import calls
from sluice.errors import CallFailed
from sluice.federation.ports import MappingGone

if TYPE_CHECKING:  # boto3-stubs are for the type checker: bundles don't hold them
    from mypy_boto3_lambda import LambdaClient

EXISTS = "ResourceConflictException"
GONE = "ResourceNotFoundException"
MAX_UNWINDOWED = 10  # messages: a larger batch needs a window
WINDOW_S = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class BridgeMappings:
    """Through a boto3 client. `arn_prefix` is an ARN of the site's queues without the name."""

    client: "LambdaClient"
    function: str
    arn_prefix: str

    def create(self, queue: str, *, batch_size: int, max_concurrency: int | None, on: bool) -> str:
        """Make a mapping for the queue, or take the one that is there; its id. Raises `CallFailed`."""
        options: dict[str, Any] = {}
        if max_concurrency is not None:
            options["ScalingConfig"] = {"MaximumConcurrency": max_concurrency}
        if batch_size > MAX_UNWINDOWED:
            options["MaximumBatchingWindowInSeconds"] = WINDOW_S
        try:
            with calls("CreateEventSourceMapping"):
                made = self.client.create_event_source_mapping(
                    EventSourceArn=self.arn_prefix + queue,
                    FunctionName=self.function,
                    BatchSize=batch_size,
                    Enabled=on,
                    FunctionResponseTypes=["ReportBatchItemFailures"],
                    **options,
                )
            return made["UUID"]
        except CallFailed as error:
            if error.code != EXISTS:
                raise
        mapping = self._of(queue)[0]
        self.switch(mapping, on=on)
        return mapping

    def switch(self, mapping: str, *, on: bool) -> None:
        """Enable or disable it. Raises `MappingGone`, `CallFailed`."""
        with _known(mapping), calls("UpdateEventSourceMapping"):
            self.client.update_event_source_mapping(UUID=mapping, Enabled=on)

    def is_on(self, mapping: str) -> bool:
        """Whether it is enabled, or about to be. Raises `MappingGone`, `CallFailed`."""
        with _known(mapping), calls("GetEventSourceMapping"):
            found = self.client.get_event_source_mapping(UUID=mapping)
        return found["State"] in {"Enabled", "Enabling", "Creating", "Updating"}

    def delete(self, queue: str) -> None:
        """Delete the queue's mapping; none is no error. Raises `CallFailed`."""
        for mapping in self._of(queue):
            with suppress(MappingGone), _known(mapping), calls("DeleteEventSourceMapping"):
                self.client.delete_event_source_mapping(UUID=mapping)

    def _of(self, queue: str) -> list[str]:
        with calls("ListEventSourceMappings"):
            found = self.client.list_event_source_mappings(
                EventSourceArn=self.arn_prefix + queue, FunctionName=self.function
            )
        return [mapping["UUID"] for mapping in found["EventSourceMappings"]]


@contextmanager
def _known(mapping: str) -> Iterator[None]:
    """Turn what a call says of a mapping that isn't there into `MappingGone`."""
    try:
        yield
    except CallFailed as error:
        if error.code == GONE:
            raise MappingGone(mapping) from error
        raise
