"""Where a table is, as the package deltalake is told: its address, and for S3 keys, region and endpoint.

They are botocore's, as those of the staging location are: the library asks in other places, and a stream outlives keys.
"""

from collections.abc import Mapping
from functools import cached_property
from typing import Any
from urllib.parse import urlsplit

import botocore.session

from sluice_spark.errors import LogError
from sluice_spark.log.store import S3_SCHEMES

AWS_ENDPOINTS = (".amazonaws.com", ".amazonaws.com.cn")


class Place:
    """A table's: a path, `file:`, or `s3:`, `s3a:`."""

    def __init__(self, location: str) -> None:
        self.location = location
        self._parts = urlsplit(location)
        if self._parts.scheme not in {"", "file", *S3_SCHEMES}:
            raise LogError(f"table {location}: scheme {self._parts.scheme!r} is none that tables can be in")

    @property
    def uri(self) -> str:
        """Its address."""
        if self._parts.scheme in S3_SCHEMES:
            return f"s3://{self._parts.netloc}{self._parts.path}"
        return self._parts.path

    def options(self) -> Mapping[str, str]:
        """Say what the library needs to get there at this moment, as keys expire. Raises LogError without any."""
        if self._parts.scheme not in S3_SCHEMES:
            return {}
        credentials = self._session.get_credentials()
        if credentials is None:
            raise LogError(f"table {self.location}: no AWS credentials")
        keys = credentials.get_frozen_credentials()
        token = {"AWS_SESSION_TOKEN": keys.token} if keys.token else {}
        return {
            "AWS_ACCESS_KEY_ID": keys.access_key,
            "AWS_SECRET_ACCESS_KEY": keys.secret_key,
            **token,
            **self._reached,
        }

    @cached_property
    def _session(self) -> Any:
        return botocore.session.Session()

    @cached_property
    def _reached(self) -> Mapping[str, str]:
        """Region, and an endpoint that isn't AWS's own."""
        client = self._session.create_client("s3")
        endpoint = str(client.meta.endpoint_url)
        region = {"AWS_REGION": str(client.meta.region_name)}
        if str(urlsplit(endpoint).hostname).endswith(AWS_ENDPOINTS):
            return region
        return {**region, "AWS_ENDPOINT_URL": endpoint, "AWS_ALLOW_HTTP": str(endpoint.startswith("http:")).lower()}
