"""AWS clients of a simulated world: one call is one occasion for faults, and retried as botocore retries it.

A client knows no world: it finds that of the running actor, so production code may cache it for a process's life.
"""

from collections.abc import Callable, Iterator
from itertools import count
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from botocore.exceptions import ClientError, ConnectionClosedError, EndpointConnectionError, ReadTimeoutError

from tests.simulation.kernel.faults import Kind
from tests.simulation.kernel.scheduler import Killed, Unsupported
from tests.simulation.models.errors import ServiceError

if TYPE_CHECKING:
    from tests.simulation.kernel.world import World

# Of botocore's standard mode: https://docs.aws.amazon.com/sdkref/latest/guide/feature-retry-behavior.html
RETRIED = frozenset(
    {
        "RequestThrottled",
        "ThrottlingException",
        "ProvisionedThroughputExceededException",
        "TooManyRequestsException",
        "TransactionInProgressException",
        "RequestTimeout",
        "InternalError",
    }
)
SERVER_ERROR = 500
THROTTLED = {
    "sqs": "RequestThrottled",
    "dynamodb": "ProvisionedThroughputExceededException",
    "lambda": "TooManyRequestsException",
}
PAGES = {  # parameter of the first, field of the last, field with what is found
    "query": ("ExclusiveStartKey", "LastEvaluatedKey"),
    "scan": ("ExclusiveStartKey", "LastEvaluatedKey"),
    "list_queues": ("NextToken", "NextToken"),
    "describe_parameters": ("NextToken", "NextToken"),
    "list_event_source_mappings": ("Marker", "NextMarker"),
}
MAX_BACKOFF_S = 20.0
QUICK_S = 0.004
GOES_ON = 0.6

_worlds: list["World"] = []
_tokens = count(1)


def world() -> "World":
    """Find the world that is simulated now."""
    if not _worlds:
        raise Unsupported("there is no simulated world")
    return _worlds[-1]


class Client:
    """Stands for one botocore client. `region` None is that of the caller's site."""

    def __init__(self, service: str, *, config: Any = None, region: str | None = None) -> None:
        self.service = service
        self.region = region
        retries = getattr(config, "retries", None) or {}
        self.attempts = int(retries.get("total_max_attempts", 3))
        self.timeout_s = float(getattr(config, "read_timeout", None) or 60)

    def __getattr__(self, operation: str) -> Callable[..., Any]:
        if operation.startswith("_"):
            raise AttributeError(operation)

        def call(**parameters: Any) -> Any:
            return perform(self, operation, parameters)

        self.__dict__[operation] = call
        return call

    @property
    def meta(self) -> Any:
        """Say where its services are."""
        return SimpleNamespace(partition="aws", region_name=self.region or world().site.region)

    def get_paginator(self, operation: str) -> "Paginator":
        """Give what botocore gives."""
        return Paginator(self, operation)


class Paginator:
    """Pages of one operation."""

    def __init__(self, client: Client, operation: str) -> None:
        self.client, self.operation = client, operation
        self.start, self.end = PAGES[operation]

    def paginate(self, **parameters: Any) -> Iterator[Any]:
        """Ask for page after page."""
        how = parameters.pop("PaginationConfig", {})
        if how.keys() - {"PageSize"}:
            raise Unsupported(f"PaginationConfig {how}")
        if "PageSize" in how:
            parameters["MaxResults"] = how["PageSize"]
        page = perform(self.client, self.operation, parameters)
        yield page
        while page.get(self.end):
            page = perform(self.client, self.operation, parameters | {self.start: page[self.end]})
            yield page


def perform(client: Client, operation: str, parameters: dict[str, Any]) -> Any:
    """Make one call, with its retries. Raises what botocore raises."""
    here = world()
    if operation == "transact_write_items":
        # botocore draws one for a call, and all its attempts have it.
        parameters.setdefault("ClientRequestToken", f"token-{next(_tokens)}")
    fault = here.decisions.of_call(here.scheduler.current)
    for attempt in range(1, client.attempts + 1):
        try:
            return _attempt(here, client, operation, parameters, fault)
        except ServiceError as error:
            if attempt == client.attempts or not (error.code in RETRIED or error.status >= SERVER_ERROR):
                raise _client_error(error, operation) from None
        except (ReadTimeoutError, ConnectionClosedError, EndpointConnectionError):
            if attempt == client.attempts:
                raise
        here.scheduler.pause(here.chance.random() * min(2.0 ** (attempt - 1), MAX_BACKOFF_S))
        # What goes wrong goes on, or there would hardly be a call that fails for good.
        fault = fault if here.chance.random() < GOES_ON else here.decisions.of_call(here.scheduler.current)
    raise AssertionError("unreachable")


def _attempt(here: "World", client: Client, operation: str, parameters: dict[str, Any], fault: Kind | None) -> Any:
    actor, scheduler = here.scheduler.current, here.scheduler
    model = getattr(here.models.get(client.service), operation, None)
    if model is None:
        raise Unsupported(f"{client.service}.{operation}")
    here.counted(operation)
    scheduler.say(operation, (fault, parameters))
    scheduler.pause(QUICK_S * here.pace * (0.5 + 2 * actor.chance.random() ** 3))
    if here.outages.by_site:
        here.outages.reach(parameters)
    if fault is None:
        return model(**parameters)
    if fault is Kind.KILL_BEFORE:
        actor.doomed = True
        raise Killed
    if fault is Kind.THROTTLE:
        raise ServiceError(THROTTLED.get(client.service, "ThrottlingException"), "Rate exceeded", status=400)
    late_s = actor.chance.random() * client.timeout_s / 2
    if fault is Kind.HUNG:
        scheduler.pause(client.timeout_s)
        raise ReadTimeoutError(endpoint_url=client.service)
    if fault is Kind.SLOW and actor.chance.random() < 0.5:  # as often before as after
        scheduler.pause(late_s)
        return model(**parameters)
    answer = model(**parameters)
    if fault is Kind.KILL_AFTER:
        actor.doomed = True
        raise Killed
    if fault is Kind.LOST_ANSWER:
        ends = late_s < client.timeout_s / 4  # as often it is the connection, and the next attempt comes at once
        scheduler.pause(0.0 if ends else client.timeout_s)
        raise (ConnectionClosedError if ends else ReadTimeoutError)(endpoint_url=client.service)
    scheduler.pause(late_s)
    return answer


def _client_error(error: ServiceError, operation: str) -> ClientError:
    name = "".join(part.capitalize() for part in operation.split("_"))
    response: Any = {
        "Error": {"Code": error.code, "Message": error.message},
        "ResponseMetadata": {"HTTPStatusCode": error.status},
        **error.more,
    }
    return ClientError(response, name)


class Session:
    """Stands for botocore's session."""

    def create_client(
        self, service: str, *, region_name: str | None = None, endpoint_url: str | None = None, config: Any = None
    ) -> Client:
        """Make a client."""
        return Client(service, config=config, region=region_name)
