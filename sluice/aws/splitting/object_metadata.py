"""What S3 knows of an object: `sluice.splitting.ports.ObjectMetadata`."""

from dataclasses import dataclass, field
from functools import cached_property
from threading import Lock
from typing import Any

from botocore.config import Config
from botocore.exceptions import (
    ClientError,
    ParamValidationError,
    UnsupportedS3AccesspointConfigurationError,
    UnsupportedS3ArnError,
)

from sluice.aws import clients
from sluice.aws.clients import calls
from sluice.errors import CallFailed
from sluice.splitting.filters.envelopes import S3Object

# Gone, not ours to see, or a request that S3 doesn't understand, such as of an object with a customer's key: the filter
# then sees no metadata, and the message goes its way.
ABSENT = frozenset({"404", "NoSuchKey", "403", "AccessDenied", "400", "InvalidBucketName"})
# A name that no bucket or object can have: nothing was asked.
IMPOSSIBLE = (ParamValidationError, UnsupportedS3ArnError, UnsupportedS3AccesspointConfigurationError)
# A batch waits for no more than a few seconds.
CONFIG = clients.CONFIG.merge(Config(connect_timeout=1, read_timeout=2, retries={"total_max_attempts": 2}))


@dataclass(frozen=True)
class S3Metadata:
    """One `HeadObject` an object; safe for threads."""

    _lock: Lock = field(default_factory=Lock)

    @cached_property
    def _s3(self) -> Any:
        # Made when the first program asks: most splits have none.
        return clients.make_client("s3", config=CONFIG)

    def __call__(self, found: S3Object) -> dict[str, str]:
        """Ask for the object's metadata. Raises `CallFailed`.

        Empty where there can be no such object, or it is gone or may not be read.
        """
        with self._lock:
            client = self._s3
        version = {"VersionId": found.version_id} if found.version_id else {}
        try:
            with calls("HeadObject"):
                head = client.head_object(Bucket=found.bucket, Key=found.key, **version)
        except CallFailed as error:
            cause = error.__cause__
            if isinstance(cause, IMPOSSIBLE) or (isinstance(cause, ClientError) and error.code in ABSENT):
                return {}
            raise
        return dict(head.get("Metadata", {}))
