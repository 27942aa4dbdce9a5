"""Object stores of the staged log. `publish` must create a whole object under an unused name, or raise.

A file system with hard links (link(2) fails on an existing name, on NFS too), S3 (`If-None-Match: *`), or what fsspec
can create exclusively. `pyarrow.fs` is not used: its streams overwrite what is there, on every file system that it has.
"""

import importlib
import os
import uuid
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from datetime import datetime
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
# By the package that has fsspec's: they ask for the name to be free (ifGenerationMatch=0 at Google, If-None-Match)
FSSPEC_SCHEMES = {"gs": "gcsfs", "gcs": "gcsfs", "abfs": "adlfs", "abfss": "adlfs", "az": "adlfs"}
WRITTEN_AT = ("mtime", "last_modified", "updated", "created")  # in fsspec's descriptions of a file
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
        """Names right under `prefix/`, or with none at the top, and the epoch second of each.

        Others' files are among them, and a folder may be.
        """

    def remove(self, names: Iterable[str]) -> None:
        """Remove what is there: what is gone already is fine."""


@lru_cache(maxsize=16)  # executors' workers are reused, and an S3 client costs 100 ms to make
def open_store(location: str, profile: str | None = None) -> Store:
    """Open a location's store: a path, `file:`, `s3:`, `s3a:`, or one of FSSPEC_SCHEMES. Raises LogError."""
    parts = urlsplit(location)
    if parts.scheme in S3_SCHEMES:
        session = botocore.session.Session(profile=profile)
        config = Config(retries={"mode": "standard", "max_attempts": S3_ATTEMPTS}, max_pool_connections=32)
        return S3Store(session.create_client("s3", config=config), parts.netloc, parts.path.strip("/"))
    if parts.scheme in {"", "file"}:
        return FileStore(Path(parts.path))
    if parts.scheme in FSSPEC_SCHEMES:
        return _fsspec_store(location, FSSPEC_SCHEMES[parts.scheme])
    raise LogError(f"staging location {location}: scheme {parts.scheme!r} has no create-exclusive publish here")


def _fsspec_store(location: str, package: str) -> "FsspecStore":
    try:
        importlib.import_module(package)
        core = importlib.import_module("fsspec.core")
    except ImportError as error:
        raise LogError(f"{location}: needs {package} where the driver and the executors run") from error
    # Another process writes too: what fsspec remembers of a folder is out of date
    file_system, root = core.url_to_fs(location, use_listings_cache=False, skip_instance_cache=True)
    return FsspecStore(file_system, root)


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
                name = _join_name(prefix, entry.name)
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
                    self._client.put_object(**self._key(name), Body=content.to_pybytes(), IfNoneMatch="*")
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
                return pa.py_buffer(self._client.get_object(**self._key(name), **part)["Body"].read())
            except ClientError as error:
                if error.response["Error"]["Code"] == "NoSuchKey":
                    raise SegmentMissing(f"s3://{self._bucket}/{self._prefix}{name}") from error
                raise

    def names(self, prefix: str) -> Mapping[str, float]:
        """All pages."""
        place = {"Bucket": self._bucket, "Prefix": self._prefix + _join_name(prefix, ""), "Delimiter": "/"}
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

    def _key(self, name: str) -> dict[str, str]:
        return {"Bucket": self._bucket, "Key": self._prefix + name}


class FsspecStore:
    """A file system of fsspec whose `pipe_file` takes the mode `create`, and a folder of it."""

    def __init__(self, system: Any, root: str) -> None:
        self._system, self._root = system, root.rstrip("/")

    def publish(self, name: str, content: pa.Buffer) -> None:
        """One request that asks for the name to be free.

        fsspec's own retries ask again too, so it may be our own that is found: see `segments.publish`.
        """
        with _translate_errors(self._path(name)):
            try:
                self._system.pipe_file(self._path(name), content.to_pybytes(), mode="create")
            except FileExistsError as error:
                raise SegmentTaken(name) from error

    def read(self, name: str, size: int | None = None) -> pa.Buffer:
        """One request."""
        part = {} if size is None else {"start": 0, "end": size}
        with _translate_errors(self._path(name)):
            try:
                return pa.py_buffer(self._system.cat_file(self._path(name), **part))
            except FileNotFoundError as error:
                raise SegmentMissing(self._path(name)) from error

    def names(self, prefix: str) -> Mapping[str, float]:
        """One listing."""
        folder = self._path(prefix).rstrip("/")
        with _translate_errors(folder):
            try:
                entries = self._system.ls(folder, detail=True)
            except FileNotFoundError:
                return {}
        named = ((_join_name(prefix, info["name"].rstrip("/").rpartition("/")[2]), info) for info in entries)
        return {name: _modification_time(info) for name, info in named if info["type"] == "file"}

    def remove(self, names: Iterable[str]) -> None:
        """One by one."""
        for name in names:
            with _translate_errors(self._path(name)), suppress(FileNotFoundError):
                self._system.rm_file(self._path(name))

    def _path(self, name: str) -> str:
        return f"{self._root}/{name}"


@contextmanager
def _translate_errors(place: str) -> Iterator[None]:
    try:
        yield
    except (LogError, OSError):
        raise
    except Exception as error:  # each of fsspec's file systems has errors of its own, with no root in common
        raise LogError(f"{place}: {type(error).__name__}: {error}") from error


def _modification_time(info: Mapping[str, Any]) -> float:
    """Find the time, which each file system names otherwise. Raises LogError."""
    at = next((info[name] for name in WRITTEN_AT if info.get(name) is not None), None)
    if isinstance(at, str):
        at = datetime.fromisoformat(at)
    if isinstance(at, int | float):
        return float(at)
    if not isinstance(at, datetime):
        raise LogError(f"{info.get('name')}: the file system doesn't say when it was written")
    return at.timestamp()


def _join_name(prefix: str, name: str) -> str:
    return f"{prefix}/{name}" if prefix else name
