"""A site's functions as an operator asks them, and what they run with."""

import json
from collections.abc import Mapping
from dataclasses import dataclass

from sluice.aws.clients import calls
from sluice.aws.connections import Connection
from sluice.aws.deployment import NotUsable, stack_outputs
from sluice.codec import encode
from sluice.errors import CallFailed
from sluice.operations import Operation, R, result_of

SPLITTING = "SluiceSplitting", "ControlFunctionName"
FEDERATION = "SluiceFederation", "LinksFunctionName"
SWEEPER = "SluiceRendezvous", "SweeperFunctionName"


@dataclass(frozen=True, slots=True)
class ControlClient:
    """Asks by synchronous invocation. A retry may repeat an operation: a session started twice ends unused."""

    connection: Connection
    function: str

    @classmethod
    def of(cls, connection: Connection, where: tuple[str, str] = SPLITTING) -> "ControlClient":
        """Find the one deployed at the site; `where` are its stack and the output. Raises `NotUsable`."""
        stack, output = where
        outputs = stack_outputs(connection, stack)
        if output not in outputs:
            raise NotUsable(f"stack {stack} has no output {output}: it is still being made; `make deploy`")
        return cls(connection, outputs[output])

    def ask(self, operation: Operation[R], /) -> R:
        """Ask for an operation; its result. Raises `RequestRefused`, `CallFailed`, or `Malformed` for what is none."""
        return result_of(operation, self._invoke(encode(operation)))

    def _invoke(self, request: bytes) -> bytes:
        with calls("Invoke"):
            done = self.connection.client("lambda").invoke(FunctionName=self.function, Payload=request)
        reply: bytes = done["Payload"].read()
        if "FunctionError" in done:
            error = json.loads(reply)
            raise CallFailed("Invoke", error.get("errorType", "Error"), error.get("errorMessage", ""))
        return reply


@dataclass(frozen=True, slots=True, kw_only=True)
class DeployedFunction:
    """What a function runs with. `handler` is None of one that is an image."""

    name: str
    arn: str
    handler: str | None
    timeout_s: int
    memory_mb: int
    variables: Mapping[str, str]

    @classmethod
    def of(cls, connection: Connection, name: str) -> "DeployedFunction":
        """Ask Lambda, by name or ARN. Raises `CallFailed`, and `NotUsable` where its variables can't be seen."""
        with calls("GetFunctionConfiguration"):
            found = connection.client("lambda").get_function_configuration(FunctionName=name)
        environment = found.get("Environment", {})
        if "Error" in environment:
            raise NotUsable(f"variables of {name} can't be read: {environment['Error'].get('Message', '')}")
        return cls(
            name=found["FunctionName"],
            arn=found["FunctionArn"],
            handler=found.get("Handler"),
            timeout_s=found["Timeout"],
            memory_mb=found["MemorySize"],
            variables=environment.get("Variables", {}),
        )
