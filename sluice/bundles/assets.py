"""Builds the code of functions: our code, and third-party code as a Lambda layer. Nothing needs Docker.

Our code is one archive for all functions, so no tool has to find out which modules each function imports. Third-party
code is installed under `build/`, once for each set of pins, Python version and platform. Assets are named by the hash
of their content, and equal sources give equal assets on every machine.
"""

import hashlib
import json
import platform
import shutil
import sys
import tempfile
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from sluice.building.interpreters import LAMBDA_VERSION, Interpreter, find_lambda_python, node, node_modules, run_tool
from sluice.building.locks import Pin, normalize_name, requirement_name, resolve_pins
from sluice.building.project import PROJECT, Project, move_into_place
from sluice.errors import BadConfiguration
from sluice.parameters import Architecture

# Amazon Linux 2023 has glibc 2.34: https://docs.aws.amazon.com/lambda/latest/dg/lambda-python.html
# pip accepts wheels with older tags only if the older tags are listed, too.
GLIBC_TAGS = ("manylinux2014", "manylinux_2_17", "manylinux_2_28", "manylinux_2_34")
WHEEL_MACHINES = {Architecture.ARM64: "aarch64", Architecture.X86_64: "x86_64"}
# The Lambda runtime has boto3 and its dependencies. jmespath stays in bundles, because Powertools pins its version.
RUNTIME = frozenset({"boto3", "botocore", "python-dateutil", "s3transfer", "six", "urllib3"})
# The folders into which Lambda unpacks code and layers: https://docs.aws.amazon.com/lambda/latest/dg/python-layers.html
CODE, LAYERS = "/var/task", "/opt"
# The subpackages of `sluice` that functions import; contracts in pyproject.toml forbid importing the others.
SUBPACKAGES = ("aws", "federation", "kubernetes", "pipeline", "rendezvous", "splitting")
PIP_TIMEOUT_S = COMPILE_TIMEOUT_S = 300
COMPILER = Path(__file__).with_name("bytecode.mjs")
KEY_CHARACTERS = 32


class BundleFailed(BadConfiguration):
    """A bundle can't be built. The text is the error of pip or the compiler, or names an unreadable file."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BundleTarget:
    """A platform for which code is built: Lambda's, with the accepted wheel tags, or an interpreter on this machine."""

    machine: Architecture  # ARM64 or X86_64, not LOCAL
    python: str
    wheels: tuple[str, ...] = ()
    interpreter: Path | None = None

    @classmethod
    def of(cls, architecture: Architecture) -> "BundleTarget":
        """Return Lambda's platform; for LOCAL this machine's, with the embedded cloud's interpreter of functions."""
        if architecture is Architecture.LOCAL:
            return cls.for_this_machine(find_lambda_python())
        wheels = tuple(f"{tag}_{WHEEL_MACHINES[architecture]}" for tag in GLIBC_TAGS)
        return cls(machine=architecture, python=LAMBDA_VERSION, wheels=wheels)

    @classmethod
    def for_this_machine(cls, python: Interpreter) -> "BundleTarget":
        """Return this machine's platform, with one of its interpreters."""
        machine = Architecture.ARM64 if platform.machine() in {"arm64", "aarch64"} else Architecture.X86_64
        return cls(machine=machine, python=python.version, interpreter=python.path)

    @property
    def name(self) -> str:
        """The platform's name, which is a part of bundles' keys."""
        return f"{self.python} {' '.join(self.wheels) or f'{sys.platform} {platform.machine()}'}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Bundle:
    """Third-party code for a group of functions. `requirements` are names of packages, which the lock pins."""

    name: str
    requirements: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class BuiltFolder:
    """A folder to deploy as it is, and the hash of its content."""

    folder: Path
    key: str


def read_compiler_version() -> str:
    """Return the name and version of the bytecode compiler."""
    packages = json.loads((PROJECT.files / "package.json").read_text())["devDependencies"]
    return f"pyodide {packages['pyodide']}"


def compile_folder(folder: Path, deployed_at: str) -> None:
    """Write each module's bytecode next to the module, with the paths of its deployed files. Raises `BundleFailed`.

    The compiler is CPython in WebAssembly, from npm: one pinned version on every machine, so that equal sources give
    equal bytes. Native interpreters' bytecode differs even within a minor version. Python doesn't check it.
    """
    if error := run_tool([node(), COMPILER, folder, deployed_at, node_modules()], timeout_s=COMPILE_TIMEOUT_S):
        raise BundleFailed(f"{read_compiler_version()} can't compile {folder}: {error}")


@dataclass(frozen=True, slots=True)
class Assets:
    """Builds a project's bundles and code. `compile` takes a folder, and the path where it is deployed."""

    project: Project
    compile: Callable[[Path, str], None] = compile_folder

    def bundle(self, *names: str) -> Bundle:
        """Return a bundle of the packages that pyproject.toml lists under these extras."""
        extras = tomllib.loads((self.project.files / "pyproject.toml").read_text())["project"]["optional-dependencies"]
        requirements = [normalize_name(requirement_name(requirement)) for name in names for requirement in extras[name]]
        return Bundle(name="-".join(names), requirements=tuple(requirements))

    def pins(self, bundle: Bundle) -> tuple[Pin, ...]:
        """List a bundle's packages, as the lock pins them. Raises `NotPinned`."""
        return resolve_pins(bundle.requirements, self.project.lock_file.read_text(), without=RUNTIME)

    def layer(self, bundle: Bundle, target: BundleTarget) -> BuiltFolder:
        """Build the bundle as a Lambda layer with pip, unless it is built already. Raises `BundleFailed`."""
        pins = self.pins(bundle)
        made_of = {"pins": "\n".join(map(str, pins)), "target": target.name, "compiler": read_compiler_version()}
        key = compute_content_key({name: text.encode() for name, text in made_of.items()})
        folder = self.project.build / "bundles" / f"{bundle.name}-{key}"
        if not folder.exists():
            with open_new_folder(folder) as new:
                install_pins(pins, target, folder=new / "python")
                self.compile(new, LAYERS)
        return BuiltFolder(folder, key)

    def code(self, *, extra_files: Mapping[str, str] | None = None) -> BuiltFolder:
        """Build our code for all functions.

        `extra_files` maps names in the archive to additional workspace files. Raises `BundleFailed` if one is
        unreadable.
        """
        handlers = self.project.files / "functions"
        files = {path.relative_to(handlers.parent).as_posix(): path.read_bytes() for path in list_files_in(handlers)}
        files |= read_shared_modules(self.project, SUBPACKAGES)
        for name, path in (extra_files or {}).items():
            file = self.project.workspace / path
            try:
                files[name] = file.read_bytes()
            except OSError as error:
                raise BundleFailed(f"{file} can't be read: {error.strerror}") from error
        key = compute_content_key(files | {"": read_compiler_version().encode()})
        folder = self.project.build / "code" / key
        if not folder.exists():
            with open_new_folder(folder) as new:
                write_files(files, new)
                self.compile(new, CODE)
        return BuiltFolder(folder, key)


def list_files_in(folder: Path) -> Sequence[Path]:
    """List a folder's files, without the bytecode that Python cached."""
    return [path for path in folder.rglob("*") if path.is_file() and "__pycache__" not in path.parts]


def read_shared_modules(project: Project, subpackages: Sequence[str]) -> Mapping[str, bytes]:
    """Read the top-level modules of `sluice`, and the modules of these subpackages. Keys are paths in archives."""
    package = project.sources / "sluice"
    paths = [*package.glob("*.py"), *(path for room in subpackages for path in (package / room).rglob("*.py"))]
    return {path.relative_to(project.sources).as_posix(): path.read_bytes() for path in paths}


def install_pins(pins: Sequence[Pin], target: BundleTarget, *, folder: Path) -> None:
    """Install the pins' wheels for the target into a folder of packages. Raises `BundleFailed`."""
    python = ["--python", str(target.interpreter)] if target.interpreter else []
    command = [sys.executable, "-m", "pip", *python, "--disable-pip-version-check", "install", "--quiet"]
    # The pins are complete, so pip doesn't resolve dependencies, and the key covers everything that pip installs.
    options = ["--no-compile", "--no-deps", "--only-binary=:all:", "--require-hashes"]
    if target.wheels:
        platforms = [option for tag in target.wheels for option in ("--platform", tag)]
        options += ["--implementation", "cp", "--python-version", target.python, *platforms]
    with tempfile.NamedTemporaryFile("w", suffix=".txt") as requirements:
        requirements.write("\n".join(map(str, pins)))
        requirements.flush()
        command += [*options, "--target", str(folder), "--requirement", requirements.name]
        if error := run_tool(command, timeout_s=PIP_TIMEOUT_S):
            raise BundleFailed(f"pip can't install {', '.join(pin.name for pin in pins)}: {error}")
    # Scripts, and pip's records of the installation, would differ between machines.
    shutil.rmtree(folder / "bin", ignore_errors=True)
    for note in ("RECORD", "INSTALLER", "REQUESTED", "direct_url.json"):
        for file in folder.glob(f"*.dist-info/{note}"):
            file.unlink()


@contextmanager
def open_new_folder(folder: Path) -> Iterator[Path]:
    """Create a new folder, which is renamed to `folder` unless the block raises. Of concurrent ones the first stays."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    new = Path(tempfile.mkdtemp(prefix=".", dir=folder.parent))
    try:
        yield new
        # Modes must not depend on the builder's umask, because functions run as another user.
        for path in (new, *new.rglob("*")):
            path.chmod(0o755 if path.is_dir() else 0o644)
        move_into_place(new, folder)
    finally:
        shutil.rmtree(new, ignore_errors=True)


def write_files(files: Mapping[str, bytes], folder: Path) -> None:
    """Write files into a folder. Keys are paths in the folder."""
    for path, content in files.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_bytes(content)


def compute_content_key(content: Mapping[str, bytes]) -> str:
    """Return a hash of the files' names and content, without their times and modes."""
    digest = hashlib.sha256()
    for name, value in sorted(content.items()):
        digest.update(f"{name}\0{len(value)}\0".encode())
        digest.update(value)
    return digest.hexdigest()[:KEY_CHARACTERS]
