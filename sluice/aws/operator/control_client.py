"""A site's control and links functions, asked from outside: what the command line does."""

import json
from dataclasses import dataclass
from typing import Any

from sluice.aws.clients import calls
from sluice.aws.operator.connections import Connection
from sluice.aws.operator.deployment import NotUsable, stack_outputs
from sluice.errors import BadConfiguration, CallFailed

SPLITTING = "SluiceSplitting", "ControlFunctionName"
FEDERATION = "SluiceFederation", "LinksFunctionName"


class Refused(BadConfiguration):
    """The function says what is wrong with the request; nothing was changed."""


@dataclass(frozen=True, slots=True)
class ControlClient:
    """Asks by synchronous invocation. A retry may repeat a request; `start` then leaves a session that ends unused."""

    connection: Connection
    function: str

    @classmethod
    def of(cls, connection: Connection, where: tuple[str, str] = SPLITTING) -> "ControlClient":
        """The one deployed at the site; `where` are its stack and the output. Raises `NotUsable` where it isn't."""
        stack, output = where
        outputs = stack_outputs(connection, stack)
        if output not in outputs:
            raise NotUsable(f"stack {stack} has no output {output}: it is still being made; `make deploy`")
        return cls(connection, outputs[output])

    def ask(self, op: str, **fields: Any) -> dict[str, Any]:
        """The result of an operation of its `operations`. Raises `Refused`, or `CallFailed`."""
        with calls("Invoke"):
            done = self.connection.client("lambda").invoke(
                FunctionName=self.function, Payload=json.dumps({"op": op, **fields}).encode()
            )
        answer = json.loads(done["Payload"].read())
        if "FunctionError" in done:
            raise CallFailed("Invoke", answer.get("errorType", "Error"), answer.get("errorMessage", ""))
        if "error" in answer:
            raise Refused(answer["error"])
        result: dict[str, Any] = answer["result"]
        return result
