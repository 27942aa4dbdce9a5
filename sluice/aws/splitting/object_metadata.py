"""What S3 knows of an object: `sluice.splitting.ports.ObjectMetadata`."""

from dataclasses import dataclass
from functools import cached_property
from typing import Any

from botocore.exceptions import ClientError

from sluice.aws.clients import calls, make_client
from sluice.errors import CallFailed
from sluice.splitting.filters.envelopes import S3Object

# Gone, or not ours to see: the filter then sees no metadata, and the message goes its way.
ABSENT = frozenset({"404", "NoSuchKey", "403", "AccessDenied"})


@dataclass(frozen=True)
class S3Metadata:
    """One `HeadObject` an object. Other failures raise `CallFailed`: the message comes again."""

    @cached_property
    def _s3(self) -> Any:
        # Made when the first S3 event comes: most splits have none.
        return make_client("s3")

    def __call__(self, found: S3Object) -> dict[str, str]:
        """Ask for the object's metadata; empty where the object is gone or may not be read. Raises `CallFailed`."""
        version = {"VersionId": found.version_id} if found.version_id else {}
        try:
            with calls("HeadObject"):
                head = self._s3.head_object(Bucket=found.bucket, Key=found.key, **version)
        except CallFailed as error:
            if isinstance(error.__cause__, ClientError) and error.code in ABSENT:
                return {}
            raise
        return dict(head.get("Metadata", {}))
