"""Builds the code of Spark jobs that a cluster lacks: third-party packages and our code, each as one archive.

Spark unpacks an archive into the working directory of the driver and of every executor, where PYTHONPATH finds the
packages. Spark has no archives for the driver only, so the entry point unpacks the packages that executors never
import. A zip of `--py-files` can't hold compiled packages, and a virtual environment would bring an interpreter that
the image has anyway, so an archive is a plain folder of packages. Archives are built without Docker, under `build/`.
"""

import gzip
import shutil
import tarfile
import tomllib
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from pathlib import Path

from sluice.building.interpreters import describe_this_python
from sluice.building.locks import Pin, resolve_pins
from sluice.building.project import Project
from sluice.bundles.assets import (
    GLIBC_TAGS,
    WHEEL_MACHINES,
    BuiltFolder,
    BundleTarget,
    compute_content_key,
    install_pins,
    list_files_in,
    open_new_folder,
    read_shared_modules,
    write_files,
)
from sluice.parameters import Architecture

PACKAGES = ("sluice_spark", "sluice_jobs")
SUBPACKAGES = ("federation", "pipeline", "rendezvous")  # `PACKAGES` import from these subpackages of `sluice`.
ENTRY_POINT = "sluice_job.py"
DRIVER_PACKAGES = {"deltalake"}  # Only drivers import these packages: see spark/pyproject.toml.
SERVICES = {"s3", "sqs", "signin", "sso", "sso-oidc", "sts"}  # botocore uses the last four to get credentials.
# Files in packages that no job uses: Arrow's Flight and S3 client, files for compilers, and tests.
UNUSED = (
    *("pyarrow/*flight*", "pyarrow/*_s3*", "pyarrow/libarrow*.so", "pyarrow/libarrow*.so.*.*"),
    *("pyarrow/include*", "pyarrow/src", "pyarrow/tests", "pyarrow/*.pyx", "pyarrow/*.pxi", "pyarrow/*.pxd"),
)
FORMAT = b"tgz 3"  # part of each key: increment the number when packing changes
OLDER_TAG = "manylinux_2_24"  # Package arro3-core needs this tag on ARM; layers don't.
COMPRESSION = 6  # Level 9 takes twice as long and saves half a percent.
MTIME = 0  # With real times, archives of equal content would differ.


def get_image_target(architecture: Architecture, python: str) -> BundleTarget:
    """Return the platform of EMR Serverless's images: Amazon Linux 2023, as for Lambda. LOCAL is this machine.

    The embedded cloud runs jobs with a local Spark, which uses the running Python.
    """
    if architecture is Architecture.LOCAL:
        return BundleTarget.for_this_machine(describe_this_python())
    wheels = tuple(f"{tag}_{WHEEL_MACHINES[architecture]}" for tag in (*GLIBC_TAGS, OLDER_TAG))
    return BundleTarget(machine=architecture, python=python, wheels=wheels)


@dataclass(frozen=True, slots=True)
class SparkAssets:
    """Builds a project's files for Spark jobs. Each file's path contains the hash of its content, the key."""

    project: Project

    @property
    def entry_point(self) -> BuiltFolder:
        """The path of the script that EMR Serverless starts, which passes its arguments to the jobs' package."""
        script = self.project.spark_folder / ENTRY_POINT
        return BuiltFolder(script, compute_content_key({ENTRY_POINT: script.read_bytes()}))

    def pins(self, *, without: Collection[str] = ()) -> tuple[Pin, ...]:
        """List all dependencies of our Spark packages and jobs, as requirements.txt pins them. Raises `NotPinned`.

        PySpark isn't listed, because the image contains PySpark. The image's other packages are for another Python.
        """
        described = tomllib.loads((self.project.spark_folder / "pyproject.toml").read_text())["project"]
        requirements = described["dependencies"] + described.get("optional-dependencies", {}).get("jobs", [])
        return resolve_pins(set(requirements) - set(without), self.project.lock_file.read_text())

    def environment(self, target: BundleTarget) -> BuiltFolder:
        """Build the archive of third-party packages with pip, unless it exists already. Raises `BundleFailed`."""
        return self._pack_pins("environment", self.pins(without=DRIVER_PACKAGES), target)

    def driver(self, target: BundleTarget) -> BuiltFolder:
        """Build the archive of packages that only drivers need, in the same way as `environment`."""
        shared = self.pins(without=DRIVER_PACKAGES)
        return self._pack_pins("driver", [pin for pin in self.pins() if pin not in shared], target)

    def _pack_pins(self, name: str, pins: Sequence[Pin], target: BundleTarget) -> BuiltFolder:
        def fill(folder: Path) -> None:
            install_pins(pins, target, folder=folder)
            models = {path for path in folder.glob("botocore/data/*") if path.is_dir() and path.name not in SERVICES}
            for path in models.union(*(folder.glob(pattern) for pattern in UNUSED)):
                shutil.rmtree(path) if path.is_dir() else path.unlink()

        listed = "\n".join(map(str, pins))
        unused = repr((sorted(SERVICES), UNUSED))
        made_of = {"pins": listed, "target": target.name, "unused": unused}
        key = compute_content_key({name: text.encode() for name, text in made_of.items()} | {"format": FORMAT})
        return self._pack(name, key, fill)

    def code(self) -> BuiltFolder:
        """Build the archive of our packages for Spark, and of the subpackages of `sluice` that they import."""
        spark = self.project.spark_folder
        own = [path for package in PACKAGES for path in list_files_in(spark / package)]
        files = {path.relative_to(spark).as_posix(): path.read_bytes() for path in own}
        files |= read_shared_modules(self.project, SUBPACKAGES)
        key = compute_content_key(files | {"": FORMAT})
        return self._pack("code", key, lambda folder: write_files(files, folder))

    def _pack(self, name: str, key: str, fill: Callable[[Path], None]) -> BuiltFolder:
        """Pack the files that `fill` writes into a folder as an archive, unless the archive exists.

        Files are in order, without times, owners or the archive's name, so that equal content gives equal bytes.
        """
        archive = self.project.build / "spark-archives" / f"{name}-{key}" / f"{name}.tgz"
        if archive.exists():
            return BuiltFolder(archive, key)
        with open_new_folder(archive.parent) as new:
            folder = new / name
            fill(folder)
            with (
                (new / archive.name).open("wb") as file,
                gzip.GzipFile(filename="", mode="wb", fileobj=file, mtime=MTIME, compresslevel=COMPRESSION) as packed,
                tarfile.open(fileobj=packed, mode="w", format=tarfile.PAX_FORMAT) as tar,
            ):
                for path in sorted(folder.rglob("*")):
                    tar.add(path, arcname=path.relative_to(folder).as_posix(), recursive=False, filter=_remove_owner)
            shutil.rmtree(folder)
        return BuiltFolder(archive, key)


def _remove_owner(member: tarfile.TarInfo) -> tarfile.TarInfo:
    member.uid = member.gid = 0
    member.uname = member.gname = ""
    member.mtime, member.mode = MTIME, 0o755 if member.isdir() else 0o644
    return member
