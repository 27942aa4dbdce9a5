"""Signature Version 4 for SQS's JSON protocol over POST /. Pure. Tests compare signatures with botocore's.

https://docs.aws.amazon.com/IAM/latest/UserGuide/reference_sigv-create-signed-request.html
"""

import hashlib
import hmac
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import lru_cache

ALGORITHM = "AWS4-HMAC-SHA256"
CONTENT_TYPE = "application/x-amz-json-1.0"


@dataclass(frozen=True, slots=True, kw_only=True)
class Credentials:
    """Current AWS credentials. Temporary ones have a `token`. The repr omits secrets, because it might be logged."""

    access_key: str
    secret_key: str
    token: str | None = None

    def __repr__(self) -> str:
        return f"Credentials(access_key={self.access_key[:4]}…)"


def sign_headers(
    credentials: Credentials,
    *,
    host: str,
    path: str,
    region: str,
    service: str,
    target: str,
    body: bytes,
    at_s: int,
) -> dict[str, str]:
    """Return all request headers including Host and the signature.

    `at_s` is in epoch seconds; `host` includes the port unless it is the scheme's default port.
    """
    common = _build_common_part(
        credentials, host=host, path=path, region=region, service=service, target=target, at_s=at_s
    )
    canonical = f"{common.canonical}{hashlib.sha256(body).hexdigest()}"
    keyed = common.keyed.copy()
    keyed.update(f"{common.to_sign}{hashlib.sha256(canonical.encode()).hexdigest()}".encode())
    return {**common.headers, "authorization": f"{common.authorization}{keyed.hexdigest()}"}


@dataclass(frozen=True, slots=True, kw_only=True)
class _CommonParts:
    """The texts to sign that all requests of one second share, up to the part that differs between requests."""

    headers: Mapping[str, str]
    canonical: str
    to_sign: str
    authorization: str
    keyed: hmac.HMAC


@lru_cache(maxsize=64)  # thousands of requests per second, but few actions
def _build_common_part(
    credentials: Credentials, *, host: str, path: str, region: str, service: str, target: str, at_s: int
) -> _CommonParts:
    stamp = datetime.fromtimestamp(at_s, UTC).strftime("%Y%m%dT%H%M%SZ")
    headers = {"content-type": CONTENT_TYPE, "host": host, "x-amz-date": stamp}
    if credentials.token:
        headers["x-amz-security-token"] = credentials.token
    headers["x-amz-target"] = target  # last, because headers must be sorted
    names = ";".join(headers)
    canonical_headers = "".join(f"{name}:{value}\n" for name, value in headers.items())
    scope = f"{stamp[:8]}/{region}/{service}/aws4_request"
    return _CommonParts(
        headers=headers,
        canonical=f"POST\n{path}\n\n{canonical_headers}\n{names}\n",
        to_sign=f"{ALGORITHM}\n{stamp}\n{scope}\n",
        authorization=f"{ALGORITHM} Credential={credentials.access_key}/{scope}, SignedHeaders={names}, Signature=",
        keyed=_derive_signing_key(credentials.secret_key, stamp[:8], region, service),
    )


@lru_cache(maxsize=16)  # one entry per day and credentials; copying the HMAC is faster than creating it
def _derive_signing_key(secret_key: str, day: str, region: str, service: str) -> hmac.HMAC:
    key = f"AWS4{secret_key}".encode()
    for part in (day, region, service, "aws4_request"):
        key = hmac.digest(key, part.encode(), "sha256")
    return hmac.new(key, digestmod="sha256")
