"""Re-points applications that read their queue's name from a Systems Manager parameter.

`PutParameter` isn't conditional but returns the new version. If the version that was read isn't its predecessor, the
update has overwritten another writer's value. That value is still in the parameter's history and is restored from
there. https://docs.aws.amazon.com/systems-manager/latest/APIReference/API_PutParameter.html
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
MAX_WRITES = 5  # A parameter is written at most this often in one call, if others write it too.
# An update must repeat these settings, or `PutParameter` would reset some of them. `PutParameter` keeps the policies.
KEPT = ("AllowedPattern", "DataType", "Description", "Tier", "Type")


class Parameters(msgspec.Struct, frozen=True, kw_only=True):
    """Re-points applications by parameters. `arn_prefix` is the ARN of the site's queues up to their names."""

    client: Any  # This client has no type because boto3-stubs[ssm] is not installed.
    arn_prefix: str
    now_ms: Callable[[], int]

    def read_original(self, target: SystemsManagerParameter, *, queue: str) -> str:
        """Read the parameter's value, which must name the queue. Raises `BadConsumer` and `CallFailed`."""
        value: str = self._read_parameter(target, target.name)["Value"]
        check_named(value, target.place, queue=self.arn_prefix + queue, of=describe_target(target))
        return value

    def point(self, target: SystemsManagerParameter, _: str, *, queue: str, instead_of: Collection[str]) -> bool:
        """Make the parameter name `queue` instead of one of `instead_of`.

        Returns True once all readers' caches have expired. Raises `BadConsumer` and `CallFailed`.
        """
        response = self._read_parameter(target, target.name)
        value = self._rewrite_value(target, response["Value"], queue=queue, instead_of=instead_of)
        if value == response["Value"]:
            written_ms: float = response["LastModifiedDate"].timestamp() * 1_000
            return self.now_ms() >= written_ms + target.refresh_s * 1_000
        expected = response["Version"] + 1
        for _attempt in range(MAX_WRITES):
            version = self._write_value(response["Name"], value)  # `target.name` may be an ARN, this name isn't.
            if version == expected:
                return False
            # The update overwrote another writer's value: write that value again, with only the queue's name changed.
            value = self._read_parameter(target, f"{response['Name']}:{version - 1}")["Value"]
            with suppress(BadConsumer):  # A value that can't be changed is restored, and the next call raises.
                value = self._rewrite_value(target, value, queue=queue, instead_of=instead_of)
            expected = version + 1
        raise CallFailed("PutParameter", "Changing", f"others wrote {describe_target(target)} {MAX_WRITES} times")

    def _rewrite_value(
        self, target: SystemsManagerParameter, value: str, *, queue: str, instead_of: Collection[str]
    ) -> str:
        old, new = [self.arn_prefix + name for name in instead_of], self.arn_prefix + queue
        return rewrite(value, target.place, old=old, new=new, of=describe_target(target))

    def _read_parameter(self, target: SystemsManagerParameter, name: str) -> dict[str, Any]:
        """Read a version of the parameter. Raises `BadConsumer` for a secret, which the registry would expose."""
        with calls("GetParameter"):
            response: dict[str, Any] = self.client.get_parameter(Name=name)["Parameter"]
        if response["Type"] == SECURE:
            raise BadConsumer(
                describe_target(target), f"is a {SECURE}: a queue's name is no secret, put it into a String"
            )
        return response

    def _write_value(self, name: str, value: str) -> int:
        """Write the value, keeping the parameter's other settings. Returns the new version."""
        pages = self.client.get_paginator("describe_parameters").paginate(
            ParameterFilters=[{"Key": "Name", "Option": "Equals", "Values": [name]}]
        )
        with calls("DescribeParameters"):  # Pages before the one with the parameter may be empty.
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
