"""Objects of S3, as the queue's identity: fetched whole to a temporary file, the same content at each try or none.

An error of S3 is translated here, once: gone, unreadable for good, or refused.
"""

import logging
import re
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from functools import lru_cache
from typing import IO, Any, cast

from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError, ParamValidationError

from sluice_spark.errors import ObjectError, ObjectGone, ObjectRefused, ObjectUnreadable
from sluice_spark.formats.envelopes import LISTED
from sluice_spark.sqs.access import Identity, client_session

log = logging.getLogger(__name__)

ATTEMPTS = 10  # of a request, by botocore
BODY_ATTEMPTS = 3  # botocore tries no body again that breaks off
CHUNK_BYTES = 2**20
REMOVE_LIMIT = 1000  # of DeleteObjects
PAGE_OBJECTS = 1000  # of ListObjectsV2, which has no more
MEMORY_BYTES = 4 * 2**20  # a larger object lies on the executor's disk while it is read
_GONE = {"NoSuchKey", "NoSuchVersion", "NoSuchBucket", "MethodNotAllowed"}  # the last: a delete marker
_OVERWRITTEN = "PreconditionFailed"
_UNREADABLE = {
    "InvalidObjectState",  # archived: Glacier
    "InvalidRequest",  # encrypted with a key that its writer gave
    "InvalidArgument",
    "InvalidBucketName",
    "KeyTooLongError",
}

_BUCKET = re.compile(r"[A-Za-z0-9._-]{1,255}")

FetchObject = Callable[[Mapping[str, str]], IO[bytes]]


@lru_cache(maxsize=16)  # executors' workers are reused, and an S3 client costs 100 ms to make
def open_objects(identity: Identity, *, region: str | None, endpoint: str | None) -> Any:
    """Open a client of botocore.

    Another region's bucket is found by its redirect. An endpoint of one's own is called with the bucket in the path.
    """
    config = Config(
        retries={"mode": "standard", "max_attempts": ATTEMPTS}, s3={"addressing_style": "path" if endpoint else "auto"}
    )
    session = client_session(identity, region=region)
    return session.create_client("s3", region_name=region, endpoint_url=endpoint, config=config)


def fetch_object(client: Any, facts: Mapping[str, str], limit: int) -> IO[bytes]:
    """Fetch what the notification's record named, and no later content: by version, else by eTag.

    Raises ObjectGone if it was removed or overwritten since, ObjectUnreadable beyond `limit` bytes or where S3 will
    never give it, ObjectRefused for all else.
    """
    place = f"s3://{facts['bucket']}/{facts['key']}"
    if not _BUCKET.fullmatch(facts["bucket"]):
        raise ObjectUnreadable(f"{place}: not a bucket's name")  # botocore would take an ARN, and some of these fail
    for attempt in range(1, BODY_ATTEMPTS + 1):
        try:
            return _fetch_once(client, facts, limit, place)
        except ParamValidationError as error:  # a notification that names no possible object
            raise ObjectUnreadable(f"{place}: {error}") from error
        except ClientError as error:
            raise _translate_error(error, place) from error
        except BotoCoreError as error:
            if attempt == BODY_ATTEMPTS:
                raise ObjectRefused(f"{place}: {error}") from error
            log.warning("%s again: %s", place, error)
    raise AssertionError("unreachable")


def _fetch_once(client: Any, facts: Mapping[str, str], limit: int, place: str) -> IO[bytes]:
    answer = client.get_object(Bucket=facts["bucket"], Key=facts["key"], **_condition(facts))
    body = answer["Body"]
    with body:
        if answer["ContentLength"] > limit:
            raise ObjectUnreadable(f"{place} has {answer['ContentLength']} bytes, s3MaxObjectBytes is {limit}")
        content = cast("IO[bytes]", tempfile.SpooledTemporaryFile(max_size=MEMORY_BYTES))  # noqa: SIM115  the caller closes it
        try:
            for chunk in body.iter_chunks(CHUNK_BYTES):
                content.write(chunk)
        except BaseException:
            content.close()
            raise
    content.seek(0)
    return content


@dataclass(frozen=True, slots=True)
class Page:
    """Objects in the order of their keys, each as its notification would say; `answered_at`: by S3's clock."""

    objects: Sequence[Mapping[str, str]]
    answered_at: datetime


def list_pages(client: Any, bucket: str, prefix: str, *, after: str = "", size: int = PAGE_OBJECTS) -> Iterator[Page]:
    """List what is in a bucket, after a key. Markers of folders are left out. Raises ObjectRefused."""
    place = {"Bucket": bucket, "Prefix": prefix, **({"StartAfter": after} if after else {})}
    try:
        for answer in client.get_paginator("list_objects_v2").paginate(**place, PaginationConfig={"PageSize": size}):
            objects = [
                _object_facts(bucket, item) for item in answer.get("Contents", ()) if not item["Key"].endswith("/")
            ]
            headers = answer["ResponseMetadata"]["HTTPHeaders"]
            date = headers.get("date")
            yield Page(objects, parsedate_to_datetime(date) if date else datetime.now(UTC))
    except (ClientError, BotoCoreError) as error:
        raise ObjectRefused(f"s3://{bucket}/{prefix}: {error}") from error


def _object_facts(bucket: str, item: Mapping[str, Any]) -> Mapping[str, str]:
    at = item["LastModified"].astimezone(UTC).isoformat(timespec="milliseconds")
    facts = {"bucket": bucket, "key": item["Key"], "size": str(item["Size"]), "eTag": item["ETag"].strip('"')}
    return {**facts, "event": LISTED, "eventTime": at}


def remove_objects(client: Any, bucket: str, keys: Sequence[str]) -> None:
    """Remove objects; what is gone already is fine. Raises ObjectRefused for all else."""
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


def _condition(facts: Mapping[str, str]) -> Mapping[str, str]:
    if "versionId" in facts:
        return {"VersionId": facts["versionId"]}
    return {"IfMatch": f'"{facts["eTag"]}"'} if "eTag" in facts else {}


def _translate_error(error: ClientError, place: str) -> ObjectError:
    code = error.response.get("Error", {}).get("Code", "")
    if code == _OVERWRITTEN:
        return ObjectGone(f"{place} was overwritten since")
    if code in _GONE:
        return ObjectGone(f"{place} is gone: {code}")
    kind = ObjectUnreadable if code in _UNREADABLE else ObjectRefused
    return kind(f"{place}: {error}")
