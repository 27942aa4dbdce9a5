"""Invokes a site's control functions and reads functions' configurations."""

import json
from collections.abc import Mapping
from dataclasses import dataclass

from sluice.aws.clients import calls
from sluice.aws.connections import Connection
from sluice.aws.deployment import NotUsable, read_stack_outputs
from sluice.codec import encode
from sluice.errors import CallFailed
from sluice.operations import READER, Operation, R, parse_result

SPLITTING = "SluiceSplitting", "ControlFunctionName"
FEDERATION = "SluiceFederation", "LinksFunctionName"
SWEEPER = "SluiceRendezvous", "SweeperFunctionName"


@dataclass(frozen=True, slots=True)
class ControlClient:
    """Invokes a control function synchronously.

    A retried call may apply an operation twice. If that starts a second session, this unused session expires.
    """

    connection: Connection
    function: str

    @classmethod
    def connect(cls, connection: Connection, stack_output: tuple[str, str] = SPLITTING) -> "ControlClient":
        """Find the function from a stack and the stack's output with the function's name. Raises `NotUsable`."""
        stack, output = stack_output
        outputs = read_stack_outputs(connection, stack)
        if output not in outputs:
            raise NotUsable(f"stack {stack} has no output {output}: its deployment is incomplete; run `make deploy`")
        return cls(connection, outputs[output])

    def ask(self, operation: Operation[R], /) -> R:
        """Invoke an operation and return its result. Raises `RequestRefused`, `CallFailed`, `Malformed`.

        An operation that only reads is sent to an alias of the function. Users may have permission only for the alias.
        """
        qualifier = {"Qualifier": READER} if operation.only_reads else {}
        with calls("Invoke"):
            response = self.connection.client("lambda").invoke(
                FunctionName=self.function, Payload=encode(operation), **qualifier
            )
        reply: bytes = response["Payload"].read()
        if "FunctionError" in response:
            error = json.loads(reply)
            raise CallFailed("Invoke", error.get("errorType", "Error"), error.get("errorMessage", ""))
        return parse_result(operation, reply)


@dataclass(frozen=True, slots=True, kw_only=True)
class DeployedFunction:
    """A deployed Lambda function's configuration. `handler` is None if its code is a container image."""

    name: str
    arn: str
    handler: str | None
    timeout_s: int
    memory_mb: int
    variables: Mapping[str, str]

    @classmethod
    def fetch(cls, connection: Connection, name: str) -> "DeployedFunction":
        """Fetch a function by name or ARN. Raises `CallFailed`, and `NotUsable` if its variables can't be decrypted."""
        with calls("GetFunctionConfiguration"):
            configuration = connection.client("lambda").get_function_configuration(FunctionName=name)
        environment = configuration.get("Environment", {})
        if "Error" in environment:
            raise NotUsable(f"variables of {name} can't be read: {environment['Error'].get('Message', '')}")
        return cls(
            name=configuration["FunctionName"],
            arn=configuration["FunctionArn"],
            handler=configuration.get("Handler"),
            timeout_s=configuration["Timeout"],
            memory_mb=configuration["MemorySize"],
            variables=environment.get("Variables", {}),
        )
