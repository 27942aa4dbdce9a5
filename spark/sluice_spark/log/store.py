"""Object stores of the staged log. `publish` must create a whole object under an unused name, or raise an error.

The stores are a file system with hard links (link(2) fails if the name exists, on NFS too) and S3 (`If-None-Match: *`).
`pyarrow.fs` is not used, as its output streams overwrite existing files on every file system.
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
# Bytes per write. Writing a segment at once makes Linux allocate large pages, at seven times the CPU time.
PIECE_BYTES = 256 * 2**10


class Store(Protocol):
    """A store of objects by name; names may contain `/`. All methods raise OSError or LogError."""

    def publish(self, name: str, content: pa.Buffer) -> None:
        """Publish durably. Raises SegmentTaken if the name exists, even from an earlier attempt of this writer."""

    def read(self, name: str, size: int | None = None) -> pa.Buffer:
        """Read a whole object, or its first `size` bytes. Raises SegmentMissing if the object doesn't exist."""

    def list_names(self, prefix: str) -> Mapping[str, float]:
        """Return the objects directly under `prefix/`, each with its modification time in epoch seconds.

        The result may contain a folder, and files that Sluice didn't write.
        """

    def remove(self, names: Iterable[str]) -> None:
        """Remove objects; an object that is already gone is no error."""


@lru_cache(maxsize=16)  # Spark reuses worker processes, and creating an S3 client takes 100 ms.
def open_store(location: str, profile: str | None = None) -> Store:
    """Open the store of a location: a path, or a URL of scheme `file`, `s3` or `s3a`. Raises LogError."""
    parts = urlsplit(location)
    if parts.scheme in S3_SCHEMES:
        session = botocore.session.Session(profile=profile)
        config = Config(retries={"mode": "standard", "max_attempts": S3_ATTEMPTS}, max_pool_connections=32)
        return S3Store(session.create_client("s3", config=config), parts.netloc, parts.path.strip("/"))
    if parts.scheme in {"", "file"}:
        return FileStore(Path(parts.path))
    raise LogError(f"staging location {location}: scheme {parts.scheme!r} has no create-exclusive publish here")


class FileStore:
    """A store in a directory that the driver and all executors share."""

    def __init__(self, root: Path) -> None:
        self._root = root

    def publish(self, name: str, content: pa.Buffer) -> None:
        """Write and flush a temporary file, then link it to the name. Readers see whole files; later writers fail."""
        final = self._root / name
        final.parent.mkdir(parents=True, exist_ok=True)
        written = final.parent / f".{final.name}.{uuid.uuid4().hex}"
        try:
            with written.open("xb", buffering=0) as file:
                for start in range(0, content.size, PIECE_BYTES):
                    piece = memoryview(content)[start : start + PIECE_BYTES]
                    while piece:  # An unbuffered file might write only a part.
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
        """Map the object's file into memory, without a copy."""
        try:
            with pa.memory_map(str(self._root / name)) as file:
                return file.read_buffer(size)
        except FileNotFoundError as error:
            raise SegmentMissing(f"{self._root / name}") from error

    def list_names(self, prefix: str) -> Mapping[str, float]:
        """Return the names of published files, without files that are still being written."""
        published = {}
        with suppress(FileNotFoundError), os.scandir(self._root / prefix) as entries:
            for entry in entries:
                name = f"{prefix}/{entry.name}"
                if not entry.name.startswith("."):
                    with suppress(FileNotFoundError):  # The file was removed after the listing.
                        published[name] = entry.stat().st_mtime
        return published

    def remove(self, names: Iterable[str]) -> None:
        """Remove the files one by one."""
        for name in names:
            (self._root / name).unlink(missing_ok=True)


class S3Store:
    """A store in a bucket. S3 is strongly consistent, and has had conditional writes since August 2024."""

    def __init__(self, client: Any, bucket: str, prefix: str) -> None:
        self._client, self._bucket, self._prefix = client, bucket, f"{prefix}/" if prefix else ""

    def publish(self, name: str, content: pa.Buffer) -> None:
        """Write the object if the name is unused.

        S3 answers 409 while another conditional write is in progress. botocore doesn't retry then, so this method does.
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
        """Read the object with one GET request."""
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

    def list_names(self, prefix: str) -> Mapping[str, float]:
        """Return the names of all objects, from all pages of the listing."""
        place = {"Bucket": self._bucket, "Prefix": f"{self._prefix}{prefix}/", "Delimiter": "/"}
        pages = self._client.get_paginator("list_objects_v2").paginate(**place)
        items = (item for page in pages for item in page.get("Contents", ()))
        with self._translate_errors(prefix):
            return {item["Key"].removeprefix(self._prefix): item["LastModified"].timestamp() for item in items}

    def remove(self, names: Iterable[str]) -> None:
        """Remove objects, up to a thousand in each request."""
        try:
            remove_objects(self._client, self._bucket, [self._prefix + name for name in names])
        except ObjectRefused as error:
            raise LogError(str(error)) from error

    @contextmanager
    def _translate_errors(self, name: str) -> Iterator[None]:
        """Convert errors of S3 and botocore to LogError."""
        try:
            yield
        except (BotoCoreError, ClientError) as error:
            raise LogError(f"s3://{self._bucket}/{self._prefix}{name}: {error}") from error
