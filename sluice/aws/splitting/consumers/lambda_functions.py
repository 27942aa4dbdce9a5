"""Re-points Lambda functions, by event source mappings or environment variables. Switches the splitter's mappings.

A mapping can't change its queue, so another queue needs another mapping with the same settings:
https://docs.aws.amazon.com/lambda/latest/api/API_UpdateEventSourceMapping.html The original mapping is only disabled,
and keeps its id. It is disabled before the other mapping is enabled: if both queues were read at once, messages of a
FIFO queue's group would lose their order.

Invocations that begin after an update see a variable's new value. A running invocation keeps the old value, at most
until the function's time-out. Published versions can't be changed:
https://docs.aws.amazon.com/lambda/latest/dg/configuration-versions.html
"""

from collections.abc import Callable, Collection
from typing import TYPE_CHECKING, Any

import msgspec

from sluice.aws.client_types import LambdaClient
from sluice.aws.clients import calls
from sluice.codec import Format, Struct
from sluice.errors import BadConsumer, CallFailed
from sluice.splitting.consumers.rewriting import check_named, rewrite
from sluice.splitting.consumers.targets import LambdaTrigger, LambdaVariable, describe_target

if TYPE_CHECKING:  # These imports are only for type hints: the bundles don't include boto3-stubs.
    from mypy_boto3_lambda.type_defs import EventSourceMappingConfigurationTypeDef, FunctionConfigurationResponseTypeDef

LATEST = "$LATEST"
ON, OFF = "Enabled", "Disabled"
STEADY = {ON: True, OFF: False}  # All other states are transient, and Lambda refuses changes until they end.
# These are the settings of a mapping from a queue. Lambda returns unset ones as empty, zero or missing.
COPIED = (
    "BatchSize",
    "FilterCriteria",
    "FunctionResponseTypes",
    "KMSKeyArn",
    "LoggingConfig",
    "MaximumBatchingWindowInSeconds",
    "MetricsConfig",
    "ProvisionedPollerConfig",
    "ScalingConfig",
)


class Mapping(Struct, frozen=True, kw_only=True):
    """The original state of an event source mapping. `settings` are arguments of `CreateEventSourceMapping`."""

    mapping_id: str
    on: bool
    settings: dict[str, Any]


MAPPINGS = Format(kind="event source mapping", version=1, type=Mapping)


class LambdaTriggers(msgspec.Struct, frozen=True, kw_only=True):
    """Re-points functions' event source mappings. `arn_prefix` is the ARN of the site's queues up to their names."""

    client: LambdaClient
    arn_prefix: str

    def read_original(self, target: LambdaTrigger, *, queue: str) -> str:
        """Read the mapping from the queue. Raises `BadConsumer`, or `CallFailed`, also while it is changing."""
        response = self._find_mapping(target, queue)
        if response is None:
            raise BadConsumer(describe_target(target), f"there is none from {queue}")
        if "FilterCriteriaError" in response:
            raise BadConsumer(describe_target(target), f"its filter can't be read: {response['FilterCriteriaError']}")
        if response["State"] not in STEADY:
            raise CallFailed("ListEventSourceMappings", response["State"], f"{describe_target(target)} is changing")
        settings = {key: value for key, value in response.items() if key in COPIED and value}
        return MAPPINGS.text(Mapping(mapping_id=response["UUID"], on=response["State"] == ON, settings=settings))

    def point(self, target: LambdaTrigger, original: str, *, queue: str, instead_of: Collection[str]) -> bool:
        """Disable the mappings from `instead_of`, then enable one from `queue` if the original one was enabled.

        Returns True once done. Only the original mapping is disabled; all others are deleted. A new mapping is first
        created disabled, because Lambda refuses it if the function's role may not read the queue. Raises `BadConsumer`,
        `CallFailed`.
        """
        kept, response = MAPPINGS.from_text(original), self._find_mapping(target, queue)
        if response is None:
            with calls("CreateEventSourceMapping"):
                self.client.create_event_source_mapping(
                    EventSourceArn=self.arn_prefix + queue, FunctionName=target.function, Enabled=False, **kept.settings
                )
            return False
        if response["State"] not in STEADY or not all(self._disable_mapping(target, kept, name) for name in instead_of):
            return False
        if response["State"] == (ON if kept.on else OFF):
            return True
        self._switch_mapping(response["UUID"], on=kept.on)
        return False

    def reads(self, target: LambdaTrigger, *, queue: str) -> bool:
        """Return whether the function has an enabled mapping from this queue. Raises `BadConsumer` and `CallFailed`."""
        response = self._find_mapping(target, queue)
        return response is not None and response["State"] in {ON, "Enabling", "Creating", "Updating"}

    def _disable_mapping(self, target: LambdaTrigger, kept: Mapping, queue: str) -> bool:
        response = self._find_mapping(target, queue)
        if response is None or (response["UUID"], response["State"]) == (kept.mapping_id, OFF):
            return True
        if response["State"] not in STEADY:
            return False
        if response["UUID"] == kept.mapping_id:
            self._switch_mapping(response["UUID"], on=False)
        else:
            with calls("DeleteEventSourceMapping"):
                self.client.delete_event_source_mapping(UUID=response["UUID"])
        return False

    def _switch_mapping(self, mapping_id: str, *, on: bool) -> None:
        with calls("UpdateEventSourceMapping"):
            self.client.update_event_source_mapping(UUID=mapping_id, Enabled=on)

    def _find_mapping(self, target: LambdaTrigger, queue: str) -> "EventSourceMappingConfigurationTypeDef | None":
        """Find the only mapping from the queue to the function. Returns None without such a mapping."""
        with calls("ListEventSourceMappings"):
            response = self.client.list_event_source_mappings(
                EventSourceArn=self.arn_prefix + queue, FunctionName=target.function
            )["EventSourceMappings"]
        if len(response) > 1:
            raise BadConsumer(describe_target(target), f"there are {len(response)} from {queue}: name the alias")
        return response[0] if response else None


class LambdaVariables(msgspec.Struct, frozen=True, kw_only=True):
    """Re-points functions by environment variables. `arn_prefix` is the ARN of the site's queues up to their names."""

    client: LambdaClient
    arn_prefix: str

    def read_original(self, target: LambdaVariable, *, queue: str) -> str:
        """Read the environment variable's value, which must name the queue. Raises `BadConsumer` and `CallFailed`."""
        value = _read_variables(target, self._get_configuration(target))[target.variable]
        check_named(value, target.place, queue=self.arn_prefix + queue, of=describe_target(target))
        return value

    def read_role(self, target: LambdaVariable) -> str:
        """Return the ARN of the function's execution role. Raises `CallFailed`."""
        return self._get_configuration(target)["Role"]

    def point(self, target: LambdaVariable, _: str, *, queue: str, instead_of: Collection[str]) -> bool:
        """Make the variable name `queue` instead of one of `instead_of`.

        Returns True once new invocations see the change. Raises `BadConsumer`, or `CallFailed`, also if the function's
        configuration was changed since it was read: then the caller should retry.
        """
        response = self._get_configuration(target)
        status = response.get("LastUpdateStatus", "Successful")
        if status == "InProgress":  # Lambda would refuse another update.
            return False
        variables = _read_variables(target, response)
        old, new = [self.arn_prefix + name for name in instead_of], self.arn_prefix + queue
        value = rewrite(variables[target.variable], target.place, old=old, new=new, of=describe_target(target))
        if value != variables[target.variable]:
            with calls("UpdateFunctionConfiguration"):
                self.client.update_function_configuration(
                    FunctionName=target.function,
                    Environment={"Variables": variables | {target.variable: value}},
                    RevisionId=response["RevisionId"],
                )
            return False
        if status == "Failed":
            code = response.get("LastUpdateStatusReasonCode", status)
            raise CallFailed("UpdateFunctionConfiguration", code, response.get("LastUpdateStatusReason", ""))
        return True

    def _get_configuration(self, target: LambdaVariable) -> "FunctionConfigurationResponseTypeDef":
        with calls("GetFunctionConfiguration"):
            return self.client.get_function_configuration(FunctionName=target.function)


def _read_variables(target: LambdaVariable, response: "FunctionConfigurationResponseTypeDef") -> dict[str, str]:
    """Return all environment variables, since an update replaces them all. Raises `BadConsumer` if unreadable."""
    if response.get("Version", LATEST) != LATEST:
        raise BadConsumer(describe_target(target), "a published version can't be changed")
    environment = response.get("Environment", {})
    if "Error" in environment:
        raise BadConsumer(describe_target(target), f"can't be read: {environment['Error'].get('Message', '')}")
    variables = environment.get("Variables", {})
    if target.variable not in variables:
        raise BadConsumer(describe_target(target), "isn't set")
    return dict(variables)


class LambdaSplitterTriggers(msgspec.Struct, frozen=True):
    """Enables and disables splitters' event source mappings. The client is created on first use."""

    client: Callable[[], LambdaClient]

    def is_on(self, trigger_id: str) -> bool | None:
        """Return whether a mapping is enabled; None while its state is changing. Raises `CallFailed`."""
        with calls("GetEventSourceMapping"):
            state = self.client().get_event_source_mapping(UUID=trigger_id)["State"]
        return STEADY.get(state)

    def switch(self, trigger_id: str, *, on: bool) -> None:
        """Start to enable or disable an event source mapping. Raises `CallFailed`."""
        with calls("UpdateEventSourceMapping"):
            self.client().update_event_source_mapping(UUID=trigger_id, Enabled=on)
