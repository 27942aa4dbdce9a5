"""Event source mappings of the bridge function: `sluice.federation.ports.Mappings`."""

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
        """See the port."""
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
        return self._taken(queue, on=on)

    def _taken(self, queue: str, *, on: bool) -> str:
        mapping = self._of(queue)[0]
        self.switch(mapping, on=on)
        return mapping

    def _of(self, queue: str) -> list[str]:
        with calls("ListEventSourceMappings"):
            found = self.client.list_event_source_mappings(
                EventSourceArn=self.arn_prefix + queue, FunctionName=self.function
            )
        return [mapping["UUID"] for mapping in found["EventSourceMappings"]]

    def switch(self, mapping: str, *, on: bool) -> None:
        """See the port."""
        try:
            with calls("UpdateEventSourceMapping"):
                self.client.update_event_source_mapping(UUID=mapping, Enabled=on)
        except CallFailed as error:
            if error.code == GONE:
                raise MappingGone(mapping) from error
            raise

    def is_on(self, mapping: str) -> bool:
        """Whether it is enabled, or about to be. Raises `MappingGone`."""
        try:
            with calls("GetEventSourceMapping"):
                found = self.client.get_event_source_mapping(UUID=mapping)
        except CallFailed as error:
            if error.code == GONE:
                raise MappingGone(mapping) from error
            raise
        return found["State"] in {"Enabled", "Enabling", "Creating", "Updating"}

    def delete(self, queue: str) -> None:
        """See the port."""
        for mapping in self._of(queue):
            self._delete(mapping)

    def _delete(self, mapping: str) -> None:
        try:
            with calls("DeleteEventSourceMapping"):
                self.client.delete_event_source_mapping(UUID=mapping)
        except CallFailed as error:
            if error.code != GONE:
                raise
