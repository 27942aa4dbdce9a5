"""Limits functions' concurrent executions: an account's limit in a region, and functions' reserved concurrency."""

import json
from collections.abc import Mapping
from threading import Lock
from typing import Any

import ministack.core.responses
import ministack.services.cloudformation.provisioners
import ministack.services.lambda_svc

from sluice.aws_rules import STAYS_UNRESERVED

RESERVED = "ReservedConcurrentExecutions"


def limit_concurrency(limit: int) -> None:
    """Throttle functions above the account's limit in a region, and refuse to reserve too much of the limit.

    "Unreserved concurrency" is the limit without all reserves, and all functions without a reserve share it. "You can
    reserve up to the Unreserved account concurrency value minus 100": a new account, whose limit may be 10, can't
    reserve anything. The error names the minimum that must stay unreserved.
    https://docs.aws.amazon.com/lambda/latest/dg/configuration-concurrency.html
    https://github.com/awslabs/fhir-works-on-aws-deployment/issues/691

    ministack accepts any reserved concurrency in API calls, ignores templates', and has one limit for all accounts.
    """
    functions, provisioners = ministack.services.lambda_svc, ministack.services.cloudformation.provisioners
    put, settings, acquire = (
        functions._put_function_concurrency,  # noqa: SLF001 - no public hook
        functions._get_account_settings,  # noqa: SLF001 - see above
        functions._acquire_execution_slot,  # noqa: SLF001 - see above
    )
    table = provisioners._RESOURCE_HANDLERS["AWS::Lambda::Function"]  # noqa: SLF001 - see above
    create, update, lock = table["create"], table["update"], Lock()

    def reserve_within_limit(name: str, data: dict[str, Any]) -> Any:
        if refusal := _find_refusal(limit, name, data[RESERVED]):
            return functions.error_response_json("InvalidParameterValueException", refusal, 400)
        return put(name, data)

    def provision_within_limit(name: str | None, properties: Mapping[str, Any], act: Any, *arguments: Any) -> Any:
        reserved = properties.get(RESERVED)
        if refusal := _find_refusal(limit, name, int(reserved or 0)):
            raise ValueError(refusal)
        made = act(*arguments)
        functions._functions[made[0]]["concurrency"] = None if reserved is None else int(reserved)  # noqa: SLF001
        return made

    def create_within_limit(logical_id: str, properties: dict[str, Any], *rest: Any) -> Any:
        return provision_within_limit(properties.get("FunctionName"), properties, create, logical_id, properties, *rest)

    def update_within_limit(physical_id: str, old: Any, properties: dict[str, Any], *rest: Any) -> Any:
        return provision_within_limit(physical_id, properties, update, physical_id, old, properties, *rest)

    def describe_limit() -> Any:
        status, headers, body = settings()
        document = json.loads(body)
        left = {
            "ConcurrentExecutions": limit,
            "UnreservedConcurrentExecutions": limit - sum(_get_reserved_concurrency().values()),
        }
        document["AccountLimit"] |= left
        return status, headers, json.dumps(document).encode()

    def acquire_within_limit(function: dict[str, Any], config: dict[str, Any]) -> Any:
        """Acquire an execution slot unless the limit is reached. ministack has set the account and the region."""
        with lock:
            reserves = _get_reserved_concurrency()
            shared = limit - sum(reserves.values())
            if config["FunctionName"] not in reserves and _count_in_flight(without=reserves) >= shared:
                return None, "account"
            return acquire(function, config)

    functions._put_function_concurrency, functions._get_account_settings = reserve_within_limit, describe_limit  # noqa: SLF001
    functions._acquire_execution_slot = acquire_within_limit  # noqa: SLF001 - see above
    table["create"], table["update"] = create_within_limit, update_within_limit


def _count_in_flight(*, without: Mapping[str, int]) -> int:
    here = f"{ministack.core.responses.get_account_id()}:{ministack.core.responses.get_region()}:"
    _, in_flight = ministack.services.lambda_svc.executions_in_flight()
    names = (key.removeprefix(here) for key in in_flight if key.startswith(here))
    return sum(in_flight[f"{here}{name}"] for name in names if name not in without)


def _find_refusal(limit: int, name: str | None, reserved: int) -> str | None:
    others = sum(number for function, number in _get_reserved_concurrency().items() if function != name)
    minimum = min(STAYS_UNRESERVED, limit)
    if not reserved or limit - others - reserved >= minimum:
        return None
    return (
        f"Specified {RESERVED} for function decreases account's UnreservedConcurrentExecution below its minimum value "
        f"of [{minimum}]."
    )


def _get_reserved_concurrency() -> Mapping[str, int]:
    """Return the reserved concurrency of functions in the request's account and region, by function name."""
    known = ministack.services.lambda_svc._functions.items()  # noqa: SLF001 - no public hook
    return {name: int(function["concurrency"]) for name, function in known if function.get("concurrency") is not None}
