"""Re-points applications that read their queue's name from a Systems Manager parameter.

`PutParameter` isn't conditional, but returns the new version. If that isn't the version after the one that was read,
the update has overwritten another writer's value, which is still in the history, and is restored from there.
https://docs.aws.amazon.com/systems-manager/latest/APIReference/API_PutParameter.html
"""

from collections.abc import Callable, Collection
from contextlib import suppress
from typing import Any

import msgspec

from sluice.aws.clients import calls
from sluice.errors import BadConsumer, CallFailed
from sluice.splitting.consumers.rewriting import check_named, rewrite
from sluice.splitting.consumers.targets import SystemsManagerParameter, describe_target

SECURE = "SecureString"
MAX_WRITES = 5  # maximum number of attempts to write a parameter that others write too
# An update must repeat these settings of the parameter, or it would reset some of them. It keeps the policies.
KEPT = ("AllowedPattern", "DataType", "Description", "Tier", "Type")


class Parameters(msgspec.Struct, frozen=True, kw_only=True):
    """Re-points by parameters. `arn_prefix` is an ARN of the site's queues without the name."""

    client: Any  # untyped, as boto3-stubs[ssm] is not installed
    arn_prefix: str
    now_ms: Callable[[], int]

    def read_original(self, target: SystemsManagerParameter, *, queue: str) -> str:
        """Read the value of the parameter, which must name the queue. Raises `BadConsumer` and `CallFailed`."""
        value: str = self._read(target, target.name)["Value"]
        check_named(value, target.place, queue=self.arn_prefix + queue, of=describe_target(target))
        return value

    def point(self, target: SystemsManagerParameter, _: str, *, queue: str, instead_of: Collection[str]) -> bool:
        """Replace queue `instead_of` by `queue` in the parameter. Returns True once its readers' caches have expired.

        Raises `BadConsumer` and `CallFailed`.
        """
        response = self._read(target, target.name)
        value = self._rewrite_value(target, response["Value"], queue=queue, instead_of=instead_of)
        if value == response["Value"]:
            written_ms: float = response["LastModifiedDate"].timestamp() * 1_000
            return self.now_ms() >= written_ms + target.refresh_s * 1_000
        expected = response["Version"] + 1
        for _attempt in range(MAX_WRITES):
            version = self._write(response["Name"], value)  # `target.name` may be an ARN
            if version == expected:
                return False
            # Somebody else wrote in between: take that value, and change only the queue's name in it.
            value = self._read(target, f"{response['Name']}:{version - 1}")["Value"]
            with suppress(BadConsumer):  # otherwise restore it unchanged: the next call raises
                value = self._rewrite_value(target, value, queue=queue, instead_of=instead_of)
            expected = version + 1
        raise CallFailed("PutParameter", "Changing", f"others wrote {describe_target(target)} {MAX_WRITES} times")

    def _rewrite_value(
        self, target: SystemsManagerParameter, value: str, *, queue: str, instead_of: Collection[str]
    ) -> str:
        old, new = [self.arn_prefix + name for name in instead_of], self.arn_prefix + queue
        return rewrite(value, target.place, old=old, new=new, of=describe_target(target))

    def _read(self, target: SystemsManagerParameter, name: str) -> dict[str, Any]:
        """Read a version of the parameter. Raises `BadConsumer` for a secret: the registry would expose its value."""
        with calls("GetParameter"):
            response: dict[str, Any] = self.client.get_parameter(Name=name)["Parameter"]
        if response["Type"] == SECURE:
            raise BadConsumer(
                describe_target(target), f"is a {SECURE}: a queue's name is no secret, put it into a String"
            )
        return response

    def _write(self, name: str, value: str) -> int:
        """Write the value and keep the other settings. Returns the new version."""
        pages = self.client.get_paginator("describe_parameters").paginate(
            ParameterFilters=[{"Key": "Name", "Option": "Equals", "Values": [name]}]
        )
        with calls("DescribeParameters"):  # the result may follow empty pages
            kept = {
                key: response[key]
                for page in pages
                for response in page["Parameters"]
                for key in KEPT
                if response.get(key)
            }
        with calls("PutParameter"):
            version: int = self.client.put_parameter(Name=name, Value=value, Overwrite=True, **kept)["Version"]
        return version
