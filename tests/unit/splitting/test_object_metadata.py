"""What S3 says of an object: nothing of one that can't be, and what may pass is said."""

from types import SimpleNamespace
from typing import Any

import pytest
from botocore.exceptions import ClientError, ReadTimeoutError

from sluice.aws.splitting.queues import S3Metadata
from sluice.errors import CallFailed
from sluice.splitting.filters.texts import S3Object

OBJECT = S3Object(bucket="bucket", key="key", version_id="7")


def asking(answer: Any) -> S3Metadata:
    """With S3 that answers, or raises, this."""

    def head_object(**asked: str) -> Any:
        assert asked == {"Bucket": "bucket", "Key": "key", "VersionId": "7"}
        if isinstance(answer, Exception):
            raise answer
        return answer

    metadata = S3Metadata()
    vars(metadata)["_s3"] = SimpleNamespace(head_object=head_object)
    return metadata


def error(code: str) -> ClientError:
    return ClientError({"Error": {"Code": code, "Message": "by script"}}, "HeadObject")


def test_an_objects_metadata_is_given() -> None:
    assert asking({"Metadata": {"author": "me"}})(OBJECT) == {"author": "me"}
    assert asking({})(OBJECT) == {}


@pytest.mark.parametrize("code", ["404", "403", "400", "NoSuchKey", "AccessDenied"])
def test_an_object_that_is_gone_or_not_ours_to_see_has_none(code: str) -> None:
    assert asking(error(code))(OBJECT) == {}


@pytest.mark.parametrize(
    ("bucket", "key"), [("a bucket", "k"), ("", "k"), ("bucket", ""), ("arn:aws:s3:::b", "k"), ("x" * 300, "k")]
)
def test_an_object_that_cant_be_has_none_and_s3_isnt_asked(bucket: str, key: str) -> None:
    assert S3Metadata()(S3Object(bucket=bucket, key=key)) == {}


@pytest.mark.parametrize(
    "answer", [error("500"), error("SlowDown"), error("ExpiredToken"), ReadTimeoutError(endpoint_url="https://s3")]
)
def test_what_may_pass_is_said(answer: Exception) -> None:
    with pytest.raises(CallFailed, match="HeadObject"):
        asking(answer)(OBJECT)
