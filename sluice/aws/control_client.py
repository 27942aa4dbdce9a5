"""The control function, asked from outside: what the command line does with sessions."""

import json
from dataclasses import dataclass
from typing import Any

from sluice.aws.clients import calls
from sluice.aws.deployment import NotUsable, stack_outputs
from sluice.aws.sessions import Connection
from sluice.errors import BadConfiguration, CallFailed

STACK = "SluiceSplitting"
FUNCTION = "ControlFunctionName"


class Refused(BadConfiguration):
    """The control function says what is wrong with the request; nothing was changed."""


@dataclass(frozen=True, slots=True)
class ControlClient:
    """Asks by synchronous invocation. A retry may repeat a request; `start` then leaves a session that ends unused."""

    connection: Connection
    function: str

    @classmethod
    def of(cls, connection: Connection) -> "ControlClient":
        """The one deployed at the site. Raises `NotUsable` where there is none."""
        outputs = stack_outputs(connection, STACK)
        if FUNCTION not in outputs:
            raise NotUsable(f"stack {STACK} has no output {FUNCTION}: it is still being made; `make deploy`")
        return cls(connection, outputs[FUNCTION])

    def ask(self, op: str, **fields: Any) -> dict[str, Any]:
        """The result of an operation of `sluice.splitting.operations`. Raises `Refused`, or `CallFailed`."""
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
