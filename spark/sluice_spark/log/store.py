"""Where segments lie. One promise matters: `publish` makes a whole object under a name that nobody has, or raises.

A file system with hard links (link(2) fails on an existing name, on NFS too), or S3 (`If-None-Match: *`).
"""

import os
import uuid
from collections.abc import Iterable, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import urlsplit

import botocore.session
import pyarrow as pa
from botocore.config import Config
from botocore.exceptions import ClientError

from sluice_spark.errors import LogError, SegmentMissing, SegmentTaken

S3_SCHEMES = {"s3", "s3a", "s3n"}
S3_DELETE_LIMIT = 1000
S3_ATTEMPTS = 10


class Store(Protocol):
    """Objects by name, `/` in names. All raise OSError or LogError."""

    def publish(self, name: str, content: pa.Buffer) -> None:
        """Durable when it returns. Raises SegmentTaken if the name exists, also if an earlier try of ours made it."""

    def read(self, name: str) -> pa.Buffer:
        """Read the whole. Raises SegmentMissing."""

    def head(self, name: str, size: int) -> bytes:
        """Read the first `size` bytes. Raises SegmentMissing."""

    def names(self, prefix: str, after: str = "") -> Mapping[str, float]:
        """Names right under `prefix/`, or with none at the top, that sort after `after`, and the epoch second of each.

        Others' files are among them, and a folder may be.
        """

    def remove(self, names: Iterable[str]) -> None:
        """Remove what is there: what is gone already is fine."""


@lru_cache(maxsize=16)  # executors' workers are reused, and an S3 client costs 100 ms to make
def open_store(location: str, profile: str | None = None) -> Store:
    """By the location's scheme: a path, `file:`, or `s3:`, `s3a:`."""
    parts = urlsplit(location)
    if parts.scheme in S3_SCHEMES:
        session = botocore.session.Session(profile=profile)
        config = Config(retries={"mode": "standard", "max_attempts": S3_ATTEMPTS}, max_pool_connections=32)
        return S3Store(session.create_client("s3", config=config), parts.netloc, parts.path.strip("/"))
    if parts.scheme in {"", "file"}:
        return FileStore(Path(parts.path))
    raise LogError(f"staging location {location}: scheme {parts.scheme!r} has no create-exclusive publish here")


class FileStore:
    """A directory, seen by the driver and all executors."""

    def __init__(self, root: Path) -> None:
        self._root = root

    def publish(self, name: str, content: pa.Buffer) -> None:
        """Written beside, flushed, then linked: a reader sees all or nothing, and a second writer fails."""
        final = self._root / name
        final.parent.mkdir(parents=True, exist_ok=True)
        written = final.parent / f".{final.name}.{uuid.uuid4().hex}"
        try:
            with written.open("xb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            try:
                os.link(written, final)
            except FileExistsError as error:
                raise SegmentTaken(name) from error
        finally:
            written.unlink(missing_ok=True)
        _flush_directory(final.parent)

    def read(self, name: str) -> pa.Buffer:
        """Map the file: nothing is copied."""
        try:
            with pa.memory_map(str(self._root / name)) as file:
                return file.read_buffer()
        except FileNotFoundError as error:
            raise SegmentMissing(f"{self._root / name}") from error

    def head(self, name: str, size: int) -> bytes:
        """Read the beginning."""
        try:
            with (self._root / name).open("rb") as file:
                return file.read(size)
        except FileNotFoundError as error:
            raise SegmentMissing(f"{self._root / name}") from error

    def names(self, prefix: str, after: str = "") -> Mapping[str, float]:
        """Without files that are still being written."""
        try:
            with os.scandir(self._root / prefix) as entries:
                found = {_under(prefix, entry.name): entry for entry in entries if not entry.name.startswith(".")}
        except FileNotFoundError:
            return {}
        published = ((name, _published_at(entry)) for name, entry in found.items() if name > after)
        return {name: at for name, at in published if at is not None}

    def remove(self, names: Iterable[str]) -> None:
        """One by one."""
        for name in names:
            (self._root / name).unlink(missing_ok=True)


class S3Store:
    """A bucket and a prefix. S3 is strongly consistent; conditional writes are since August 2024."""

    def __init__(self, client: Any, bucket: str, prefix: str) -> None:
        self._client, self._bucket, self._prefix = client, bucket, f"{prefix}/" if prefix else ""

    def publish(self, name: str, content: pa.Buffer) -> None:
        """Put it if nothing is there.

        A 409 is a race with another conditional write: botocore doesn't retry it, so it counts as taken only if the
        object is there.
        """
        for _ in range(S3_ATTEMPTS):
            try:
                self._client.put_object(**self._key(name), Body=content.to_pybytes(), IfNoneMatch="*")
            except ClientError as error:
                code = error.response["Error"]["Code"]
                if code == "PreconditionFailed":
                    raise SegmentTaken(name) from error
                if code != "ConditionalRequestConflict":
                    raise LogError(f"s3://{self._bucket}/{self._prefix}{name}: {error}") from error
            else:
                return
        raise LogError(f"s3://{self._bucket}/{self._prefix}{name}: conditional writes keep conflicting")

    def read(self, name: str) -> pa.Buffer:
        """One GET."""
        return pa.py_buffer(self._get(name))

    def head(self, name: str, size: int) -> bytes:
        """GET a range."""
        return self._get(name, Range=f"bytes=0-{size - 1}")

    def names(self, prefix: str, after: str = "") -> Mapping[str, float]:
        """All pages."""
        place = {"Bucket": self._bucket, "Prefix": self._prefix + _under(prefix, ""), "Delimiter": "/"}
        if after:
            place["StartAfter"] = self._prefix + after
        pages = self._client.get_paginator("list_objects_v2").paginate(**place)
        found = (item for page in pages for item in page.get("Contents", ()))
        return {item["Key"].removeprefix(self._prefix): item["LastModified"].timestamp() for item in found}

    def remove(self, names: Iterable[str]) -> None:
        """Remove a thousand a request."""
        keys = [{"Key": self._prefix + name} for name in names]
        for start in range(0, len(keys), S3_DELETE_LIMIT):
            part = keys[start : start + S3_DELETE_LIMIT]
            self._client.delete_objects(Bucket=self._bucket, Delete={"Objects": part, "Quiet": True})

    def _get(self, name: str, **extra: str) -> bytes:
        try:
            content: bytes = self._client.get_object(**self._key(name), **extra)["Body"].read()
        except ClientError as error:
            if error.response["Error"]["Code"] == "NoSuchKey":
                raise SegmentMissing(f"s3://{self._bucket}/{self._prefix}{name}") from error
            raise LogError(f"s3://{self._bucket}/{self._prefix}{name}: {error}") from error
        return content

    def _key(self, name: str) -> dict[str, str]:
        return {"Bucket": self._bucket, "Key": self._prefix + name}


def _under(prefix: str, name: str) -> str:
    return f"{prefix}/{name}" if prefix else name


def _published_at(entry: os.DirEntry[str]) -> float | None:
    """None if it was removed since it was listed."""
    try:
        return entry.stat().st_mtime
    except FileNotFoundError:
        return None


def _flush_directory(directory: Path) -> None:
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
