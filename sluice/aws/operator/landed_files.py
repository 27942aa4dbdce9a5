"""What jobs keep in a bucket: `sluice.pipeline.tables.Files` in S3."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from sluice.aws.clients import calls


@dataclass(frozen=True, slots=True)
class BucketFiles:
    """The files of a bucket. `client` is boto3's for `s3`."""

    client: Any
    bucket: str

    def names(self, folder: str, *, after: str = "") -> Sequence[str]:
        """See the port: a request for each thousand names."""
        prefix = f"{folder}/"
        pages = self.client.get_paginator("list_objects_v2").paginate(
            Bucket=self.bucket, Prefix=prefix, StartAfter=f"{prefix}{after}", Delimiter="/"
        )
        with calls("ListObjectsV2"):
            return [each["Key"].removeprefix(prefix) for page in pages for each in page.get("Contents", [])]

    def read(self, path: str) -> bytes:
        """See the port."""
        with calls("GetObject"):
            found: bytes = self.client.get_object(Bucket=self.bucket, Key=path)["Body"].read()
        return found
