"""Sluice, a serverless switching fabric for Amazon SQS.

`publish` sends one message to an exchange; a `Publisher` sends many, each a `PublishRequest`. Sluice imports botocore
at the first use of one of these names, and boto3 with the first message; other modules of the package need neither.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # `__getattr__` imports these names at run time.
    from sluice.aws.federation.publisher import BadPublishRequest, NotPublished, Publisher, PublishRequest, publish

__all__ = ["BadPublishRequest", "NotPublished", "PublishRequest", "Publisher", "publish"]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module("sluice.aws.federation.publisher"), name)
