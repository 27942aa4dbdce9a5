"""Environment variables of Lambda functions.

A new value holds for invocations that begin after the update; one that runs goes on with the old value, for the
function's time-out at most. Published versions can't be changed:
https://docs.aws.amazon.com/lambda/latest/dg/configuration-versions.html
"""

from typing import TYPE_CHECKING

import msgspec

from sluice.aws.clients import calls
from sluice.errors import BadConsumer, CallFailed
from sluice.splitting.consumers.rewriting import check_named, rewritten
from sluice.splitting.consumers.targets import LambdaVariable, name_of

if TYPE_CHECKING:  # boto3-stubs are for the type checker: bundles don't hold them
    from mypy_boto3_lambda import LambdaClient
    from mypy_boto3_lambda.type_defs import FunctionConfigurationResponseTypeDef

LATEST = "$LATEST"


class LambdaVariables(msgspec.Struct, frozen=True, kw_only=True):
    """Through a client. `arn_prefix` is an ARN of the site's queues without the name."""

    client: "LambdaClient"
    arn_prefix: str

    def original(self, target: LambdaVariable, *, queue: str) -> str:
        """Read the variable, which names the queue. Raises `BadConsumer` and `CallFailed`."""
        value = _variables(target, self._configuration(target))[target.variable]
        check_named(value, target.place, queue=self.arn_prefix + queue, of=name_of(target))
        return value

    def point(self, target: LambdaVariable, *, queue: str, instead_of: str) -> bool:
        """Let the variable name a queue instead of another; True once new invocations see it.

        Raises `BadConsumer`, and `CallFailed`, also where somebody has changed the function since it was read: to call
        again is right then.
        """
        found = self._configuration(target)
        status = found.get("LastUpdateStatus", "Successful")
        if status == "InProgress":  # a second update would be refused
            return False
        variables = _variables(target, found)
        old, new = self.arn_prefix + instead_of, self.arn_prefix + queue
        value = rewritten(variables[target.variable], target.place, old=old, new=new, of=name_of(target))
        if value != variables[target.variable]:
            with calls("UpdateFunctionConfiguration"):
                self.client.update_function_configuration(
                    FunctionName=target.function,
                    Environment={"Variables": variables | {target.variable: value}},
                    RevisionId=found["RevisionId"],
                )
            return False
        if status == "Failed":
            code = found.get("LastUpdateStatusReasonCode", status)
            raise CallFailed("UpdateFunctionConfiguration", code, found.get("LastUpdateStatusReason", ""))
        return True

    def _configuration(self, target: LambdaVariable) -> "FunctionConfigurationResponseTypeDef":
        with calls("GetFunctionConfiguration"):
            return self.client.get_function_configuration(FunctionName=target.function)


def _variables(target: LambdaVariable, found: "FunctionConfigurationResponseTypeDef") -> dict[str, str]:
    """Take all the variables, as an update replaces them all. Raises `BadConsumer` where they can't be seen."""
    if found.get("Version", LATEST) != LATEST:
        raise BadConsumer(name_of(target), "a published version can't be changed")
    environment = found.get("Environment", {})
    if "Error" in environment:
        raise BadConsumer(name_of(target), f"can't be read: {environment['Error'].get('Message', '')}")
    variables = environment.get("Variables", {})
    if target.variable not in variables:
        raise BadConsumer(name_of(target), "isn't set")
    return dict(variables)
