"""Sluice, a serverless switching fabric for Amazon SQS.

`publish` sends a message to an exchange, `Publisher` many, each a `Publishing`. botocore is imported when the first of
these is asked for, and boto3 when the first message goes: what else is in the package can be had without.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # at run time they come from __getattr__
    from sluice.aws.federation.publisher import BadPublishing, NotPublished, Publisher, Publishing, publish

__all__ = ["BadPublishing", "NotPublished", "Publisher", "Publishing", "publish"]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module("sluice.aws.federation.publisher"), name)
