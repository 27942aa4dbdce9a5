"""Fetches and removes payloads in S3, with the identity that calls the queue.

Errors of S3 are translated only here, into permanently unreadable objects and refused calls.
"""

import logging
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError, ParamValidationError

from sluice_spark.errors import ObjectRefused, ObjectUnreadable
from sluice_spark.sqs.access import Identity, client_session

log = logging.getLogger(__name__)

ATTEMPTS = 10  # maximum number of botocore's attempts for one request
BODY_ATTEMPTS = 3  # attempts to read a body, which botocore doesn't retry
REMOVE_LIMIT = 1000  # maximum number of objects in one DeleteObjects request
_GONE = {"NoSuchKey", "NoSuchVersion", "NoSuchBucket", "MethodNotAllowed"}  # A delete marker is MethodNotAllowed.
_UNREADABLE = {
    "InvalidObjectState",  # the object is archived in Glacier
    "InvalidRequest",  # the object is encrypted with a customer-provided key
    "InvalidArgument",
    "InvalidBucketName",
    "KeyTooLongError",
}

_BUCKET = re.compile(r"[A-Za-z0-9._-]{1,255}")


@dataclass(frozen=True, slots=True)
class Pointer:
    """A payload's bucket and key."""

    bucket: str
    key: str


FetchObject = Callable[[Pointer], bytes]


@lru_cache(maxsize=16)  # Spark reuses worker processes, and creating an S3 client takes 100 ms.
def open_s3_client(identity: Identity, *, region: str | None, endpoint: str | None) -> Any:
    """Create a botocore client for S3.

    The client follows S3's redirects to a bucket's region. At a custom endpoint the bucket is part of the URL's path.
    """
    config = Config(
        retries={"mode": "standard", "max_attempts": ATTEMPTS}, s3={"addressing_style": "path" if endpoint else "auto"}
    )
    session = client_session(identity, region=region)
    return session.create_client("s3", region_name=region, endpoint_url=endpoint, config=config)


def fetch_object(client: Any, pointer: Pointer, limit: int) -> bytes:
    """Fetch an object's content.

    Raises ObjectUnreadable if the object is gone, larger than `limit` bytes, or never readable; else ObjectRefused.
    """
    place = f"s3://{pointer.bucket}/{pointer.key}"
    if not _BUCKET.fullmatch(pointer.bucket):
        raise ObjectUnreadable(f"{place}: not a bucket's name")  # botocore would accept ARNs, but not all.
    for attempt in range(1, BODY_ATTEMPTS + 1):
        try:
            answer = client.get_object(Bucket=pointer.bucket, Key=pointer.key)
            with answer["Body"] as body:
                if answer["ContentLength"] > limit:
                    raise ObjectUnreadable(f"{place} has {answer['ContentLength']} bytes, s3MaxObjectBytes is {limit}")
                content: bytes = body.read()
                return content
        except ParamValidationError as error:  # The pointer's bucket or key is invalid.
            raise ObjectUnreadable(f"{place}: {error}") from error
        except ClientError as error:
            code = error.response.get("Error", {}).get("Code", "")
            if code in _GONE:
                raise ObjectUnreadable(f"{place} is gone: {code}") from error
            kind = ObjectUnreadable if code in _UNREADABLE else ObjectRefused
            raise kind(f"{place}: {error}") from error
        except BotoCoreError as error:
            if attempt == BODY_ATTEMPTS:
                raise ObjectRefused(f"{place}: {error}") from error
            log.warning("%s again: %s", place, error)
    raise AssertionError("unreachable")


def remove_objects(client: Any, bucket: str, keys: Sequence[str]) -> None:
    """Remove objects; an object that is already gone is no error. Raises ObjectRefused for other errors."""
    for start in range(0, len(keys), REMOVE_LIMIT):
        part = keys[start : start + REMOVE_LIMIT]
        delete = {"Objects": [{"Key": key} for key in part], "Quiet": True}
        try:
            refused = client.delete_objects(Bucket=bucket, Delete=delete).get("Errors")
        except (ClientError, BotoCoreError) as error:
            raise ObjectRefused(f"s3://{bucket}: {error}") from error
        if refused:
            first = refused[0]
            summary = f"{first.get('Code')}, {first.get('Message')}; {len(refused)} of {len(part)} were refused"
            raise ObjectRefused(f"s3://{bucket}/{first.get('Key')}: {summary}")
