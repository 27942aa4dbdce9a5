"""Object stores of the staged log. `publish` must create a whole object under an unused name, or raise.

A file system with hard links (link(2) fails on an existing name, on NFS too), or S3 (`If-None-Match: *`). `pyarrow.fs`
is not used: its streams overwrite what is there, on every file system that it has.
"""

import os
import uuid
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import lru_cache
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import urlsplit

import botocore.session
import pyarrow as pa
from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError

from sluice_spark.errors import LogError, ObjectRefused, SegmentMissing, SegmentTaken
from sluice_spark.formats.s3_objects import remove_objects

S3_SCHEMES = {"s3", "s3a", "s3n"}
S3_ATTEMPTS = 10
# Written at once: of a write's size are the pieces of memory that Linux takes for it, and of many MiB it has none that
# are in use already. A segment in one write cost seven times as much.
PIECE_BYTES = 256 * 2**10


class Store(Protocol):
    """Objects by name, `/` in names. All raise OSError or LogError."""

    def publish(self, name: str, content: pa.Buffer) -> None:
        """Publish durably. Raises SegmentTaken if the name exists, even by an earlier attempt of this writer."""

    def read(self, name: str, size: int | None = None) -> pa.Buffer:
        """Read the whole, or the first `size` bytes. Raises SegmentMissing."""

    def names(self, prefix: str) -> Mapping[str, float]:
        """Names right under `prefix/`, and the epoch second of each.

        Others' files are among them, and a folder may be.
        """

    def remove(self, names: Iterable[str]) -> None:
        """Remove what is there: what is gone already is fine."""


@lru_cache(maxsize=16)  # executors' workers are reused, and an S3 client costs 100 ms to make
def open_store(location: str, profile: str | None = None) -> Store:
    """Open a location's store: a path, `file:`, `s3:` or `s3a:`. Raises LogError."""
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
        """Write a temporary file, flush it, then link it: a reader sees all or nothing, and a second writer fails."""
        final = self._root / name
        final.parent.mkdir(parents=True, exist_ok=True)
        written = final.parent / f".{final.name}.{uuid.uuid4().hex}"
        try:
            with written.open("xb", buffering=0) as file:
                for start in range(0, content.size, PIECE_BYTES):
                    piece = memoryview(content)[start : start + PIECE_BYTES]
                    while piece:  # an unbuffered file may take a part at a time
                        piece = piece[file.write(piece) :]
                os.fsync(file.fileno())
            try:
                os.link(written, final)
            except FileExistsError as error:
                raise SegmentTaken(name) from error
        finally:
            written.unlink(missing_ok=True)
        directory = os.open(final.parent, os.O_RDONLY)
        try:
            os.fsync(directory)
        finally:
            os.close(directory)

    def read(self, name: str, size: int | None = None) -> pa.Buffer:
        """Map the file: nothing is copied."""
        try:
            with pa.memory_map(str(self._root / name)) as file:
                return file.read_buffer(size)
        except FileNotFoundError as error:
            raise SegmentMissing(f"{self._root / name}") from error

    def names(self, prefix: str) -> Mapping[str, float]:
        """Without files that are still being written."""
        published = {}
        with suppress(FileNotFoundError), os.scandir(self._root / prefix) as entries:
            for entry in entries:
                name = f"{prefix}/{entry.name}"
                if not entry.name.startswith("."):
                    with suppress(FileNotFoundError):  # it was removed since it was listed
                        published[name] = entry.stat().st_mtime
        return published

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
            with self._translate_errors(name):
                try:
                    self._client.put_object(
                        Bucket=self._bucket, Key=self._prefix + name, Body=content.to_pybytes(), IfNoneMatch="*"
                    )
                except ClientError as error:
                    code = error.response["Error"]["Code"]
                    if code == "PreconditionFailed":
                        raise SegmentTaken(name) from error
                    if code != "ConditionalRequestConflict":
                        raise
                else:
                    return
        raise LogError(f"s3://{self._bucket}/{self._prefix}{name}: conditional writes keep conflicting")

    def read(self, name: str, size: int | None = None) -> pa.Buffer:
        """One GET."""
        part = {} if size is None else {"Range": f"bytes=0-{size - 1}"}
        with self._translate_errors(name):
            try:
                return pa.py_buffer(
                    self._client.get_object(Bucket=self._bucket, Key=self._prefix + name, **part)["Body"].read()
                )
            except ClientError as error:
                if error.response["Error"]["Code"] == "NoSuchKey":
                    raise SegmentMissing(f"s3://{self._bucket}/{self._prefix}{name}") from error
                raise

    def names(self, prefix: str) -> Mapping[str, float]:
        """All pages."""
        place = {"Bucket": self._bucket, "Prefix": f"{self._prefix}{prefix}/", "Delimiter": "/"}
        pages = self._client.get_paginator("list_objects_v2").paginate(**place)
        items = (item for page in pages for item in page.get("Contents", ()))
        with self._translate_errors(prefix):
            return {item["Key"].removeprefix(self._prefix): item["LastModified"].timestamp() for item in items}

    def remove(self, names: Iterable[str]) -> None:
        """Remove a thousand a request."""
        try:
            remove_objects(self._client, self._bucket, [self._prefix + name for name in names])
        except ObjectRefused as error:
            raise LogError(str(error)) from error

    @contextmanager
    def _translate_errors(self, name: str) -> Iterator[None]:
        """Raise LogError for what S3 refuses, and for what botocore has no answer to."""
        try:
            yield
        except (BotoCoreError, ClientError) as error:
            raise LogError(f"s3://{self._bucket}/{self._prefix}{name}: {error}") from error
