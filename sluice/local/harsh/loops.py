"""Stops runaway loops of functions over queues, as Lambda does."""

from contextvars import ContextVar
from typing import Any

import ministack.services.cloudformation.provisioners
import ministack.services.lambda_svc
import ministack.services.sqs

DEPTH = "InvokeDepth"  # A message's system attribute: its sender's invocation depth
LOOP = "RecursiveLoop"


def stop_loops() -> None:
    """Stop a message after 16 invocations in a chain, unless the function's `RecursiveLoop` is Allow.

    "If your function is invoked approximately 16 times in the same chain of requests, then Lambda automatically stops
    the next function invocation". The message is received again until it becomes a dead letter.
    https://docs.aws.amazon.com/lambda/latest/dg/invocation-recursion.html

    ministack counts a chain's invocations, of all functions together, but only in calls of Invoke, and ignores the
    property `RecursiveLoop`. A batch has the depth of its deepest message.
    """
    sqs, functions = ministack.services.sqs, ministack.services.lambda_svc
    handle, build, run = sqs.handle_request, sqs._build_send_sys_attrs, functions._run_sqs_batch  # noqa: SLF001
    table = ministack.services.cloudformation.provisioners._RESOURCE_HANDLERS["AWS::Lambda::Function"]  # noqa: SLF001
    create, update = table["create"], table["update"]
    sender_depth: ContextVar[int] = ContextVar("sender_depth", default=0)

    async def handle_with_depth(method: str, path: str, headers: dict[str, str], body: bytes, query: Any) -> Any:
        sender_depth.set(functions._inbound_invoke_depth(headers))  # noqa: SLF001 - no public hook
        return await handle(method, path, headers, body, query)

    def build_with_depth(*arguments: Any) -> dict[str, Any]:
        return {**build(*arguments), DEPTH: sender_depth.get()}

    def run_unless_loop(mapping: dict[str, Any], function: dict[str, Any], event: Any, batch: Any, *queue: Any) -> None:
        depth = 1 + max(message["sys"].get(DEPTH, 0) for message in batch)
        if functions._recursive_loop_drop(mapping["FunctionName"], function, depth) is not None:  # noqa: SLF001
            return
        token = functions._invoke_depth.set(depth)  # noqa: SLF001 - see above
        try:
            run(mapping, function, event, batch, *queue)
        finally:
            functions._invoke_depth.reset(token)  # noqa: SLF001 - see above

    def store_loop_setting(made: Any, properties: dict[str, Any]) -> Any:
        functions._functions[made[0]]["recursive_loop"] = properties.get(LOOP)  # noqa: SLF001 - see above
        return made

    def create_with_loop(logical_id: str, properties: dict[str, Any], *rest: Any) -> Any:
        return store_loop_setting(create(logical_id, properties, *rest), properties)

    def update_with_loop(physical_id: str, old: Any, properties: dict[str, Any], *rest: Any) -> Any:
        return store_loop_setting(update(physical_id, old, properties, *rest), properties)

    sqs.handle_request, sqs._build_send_sys_attrs = handle_with_depth, build_with_depth  # noqa: SLF001 - see above
    functions._run_sqs_batch = run_unless_loop  # noqa: SLF001 - see above
    table["create"], table["update"] = create_with_loop, update_with_loop
