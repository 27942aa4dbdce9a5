"""What Spark's jobs are made of: that it is enough, for the right Python and machine, and the same every time."""

import ast
import gzip
import io
import json
import os
import re
import subprocess
import sys
import tarfile
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest

from sluice.building.locks import NotPinned
from sluice.building.project import Project
from sluice.bundles.assets import BundleFailed
from sluice.bundles.environment import ENTRY_POINT, PACKAGES, SparkAssets, get_image_target
from sluice.local.jobs import find_spark_python
from sluice.parameters import Architecture
from sluice.pipeline.jobs import Program, StorageLocations
from tests.sources import parse_source
from tests.stacks.conftest import PROJECT

PYTHON = "3.11"
ASSETS = SparkAssets(Project.clone(PROJECT))
OF_SPARK = ("pyspark", "py4j")  # what the image has of Spark
ELF_MACHINES = {0xB7: "aarch64", 0x3E: "x86_64"}  # https://refspecs.linuxfoundation.org/elf/gabi4+/ch4.eheader.html
MACHINES = {Architecture.ARM64: "aarch64", Architecture.X86_64: "x86_64"}
OF_OTHERS = {"maxminddb"}  # imported by a module of `sluice` that no job imports
# Bytes that a worker unpacks: 88 to 110 MiB, and 131 to 141 more of a driver.
MIB = 2**20
MOST_BYTES = {"environment": 115 * MIB, "driver": 145 * MIB}


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """Of a package that needs nothing, so that nothing is asked of an index."""
    files = {
        "requirements.txt": "alpha==1.0\n    # via sluice (pyproject.toml)\n",
        "spark/pyproject.toml": "[project]\ndependencies = []\n",
        "spark/sluice_job.py": "import sluice_spark\n",
        "spark/sluice_spark/__init__.py": "",
        "spark/sluice_spark/py.typed": "",
        "spark/sluice_jobs/land.py": "import sluice_spark\nfrom sluice.message import Message\n",
        "sluice/__init__.py": "",
        "sluice/aws/clients.py": "",
        "sluice/federation/messages/metadata.py": "",
        "sluice/message.py": "",
        "spark/sluice_spark/__pycache__/land.cpython-311.pyc": "",
        "spark/README.md": "",
    }
    for path, content in files.items():
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(content)
    return tmp_path


def names(archive: Path) -> list[str]:
    with tarfile.open(archive) as tar:
        return tar.getnames()


def test_our_packages_are_packed_with_the_rooms_that_they_import_from_and_nothing_else(project: Path) -> None:
    files = [name for name in names(SparkAssets(Project.clone(project)).code().folder) if "." in name]
    assert files == [
        "sluice/__init__.py",
        "sluice/federation/messages/metadata.py",
        "sluice/message.py",
        "sluice_jobs/land.py",
        "sluice_spark/__init__.py",
        "sluice_spark/py.typed",
    ]


def test_equal_content_is_an_equal_archive_wherever_and_whenever_it_is_packed(
    project: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    before = SparkAssets(Project.clone(project)).code()
    packed = before.folder.read_bytes()
    elsewhere = tmp_path_factory.mktemp("elsewhere")
    moved = project.rename(elsewhere / "project")
    for path in (moved / "spark").rglob("*"):
        os.utime(path, (1, 1))
    (moved / "build").rename(elsewhere / "build-before")
    mask = os.umask(0o077)
    try:
        after = SparkAssets(Project.clone(moved)).code()
    finally:
        os.umask(mask)
    assert (after.key, after.folder.read_bytes()) == (before.key, packed)


def test_no_archive_says_who_packed_it_and_when(project: Path) -> None:
    content = SparkAssets(Project.clone(project)).code().folder.read_bytes()
    assert content[4:8] == bytes(4)  # gzip's own time: https://www.rfc-editor.org/rfc/rfc1952
    with tarfile.open(fileobj=io.BytesIO(gzip.decompress(content))) as tar:
        assert {(member.mtime, member.uid, member.uname) for member in tar.getmembers()} == {(0, 0, "")}


def test_the_key_changes_with_the_code_and_with_nothing_beside_it(project: Path) -> None:
    before = SparkAssets(Project.clone(project)).code().key
    (project / "spark" / "README.md").write_text("more")
    assert SparkAssets(Project.clone(project)).code().key == before
    (project / "spark" / "sluice_jobs" / "land.py").write_text("")
    assert SparkAssets(Project.clone(project)).code().key != before


def test_packages_that_aren_t_pinned_aren_t_packed(project: Path) -> None:
    (project / "spark" / "pyproject.toml").write_text('[project]\ndependencies = ["beta>=1"]\n')
    with pytest.raises(NotPinned, match="doesn't pin beta"):
        SparkAssets(Project.clone(project)).environment(get_image_target(Architecture.ARM64, PYTHON))


def test_packages_that_can_t_be_installed_leave_nothing_behind(project: Path) -> None:
    (project / "spark" / "pyproject.toml").write_text('[project]\ndependencies = ["alpha"]\n')
    (project / "requirements.txt").write_text("alpha==not-a-version\n")
    with pytest.raises(BundleFailed, match="pip can't install alpha:"):
        SparkAssets(Project.clone(project)).environment(get_image_target(Architecture.ARM64, PYTHON))
    assert list((project / "build" / "spark-archives").iterdir()) == []


def test_an_archive_that_is_there_isn_t_built_again() -> None:
    target = get_image_target(Architecture.ARM64, PYTHON)
    before = ASSETS.environment(target)
    packed_at = before.folder.stat().st_mtime_ns
    assert (ASSETS.environment(target), before.folder.stat().st_mtime_ns) == (before, packed_at)


@pytest.mark.parametrize("python", ["3.11", "3.13"])
def test_images_take_wheels_of_their_python_and_machine(python: str) -> None:
    target = get_image_target(Architecture.ARM64, python)
    assert (target.python, target.machine) == (python, Architecture.ARM64)
    assert "manylinux_2_28_aarch64" in target.wheels
    assert target.name != get_image_target(Architecture.X86_64, python).name


Packed = dict[str, dict[str, int]]


@pytest.fixture(scope="module", params=[Architecture.ARM64, pytest.param(Architecture.X86_64, marks=pytest.mark.slow)])
def packed(request: pytest.FixtureRequest) -> tuple[str, Packed]:
    """A machine's name, and what is in each of its archives: sizes by name."""
    target = get_image_target(request.param, PYTHON)
    return MACHINES[request.param], {
        name: sizes(built.folder)
        for name, built in {"environment": ASSETS.environment(target), "driver": ASSETS.driver(target)}.items()
    }


def sizes(archive: Path) -> dict[str, int]:
    with tarfile.open(archive) as tar:
        return {member.name: member.size for member in tar}


def packages(found: Iterable[str]) -> set[str]:
    return {name.removesuffix(".dist-info") for name in found if re.fullmatch(r"[^/]+\.dist-info", name)}


def test_every_pin_is_packed_once_and_pyspark_isn_t(packed: tuple[str, Packed]) -> None:
    shared, of_drivers = (packages(packed[1][name]) for name in ("environment", "driver"))
    assert shared | of_drivers == {f"{pin.name.replace('-', '_')}-{pin.version}" for pin in ASSETS.pins()}
    assert shared & of_drivers == set()
    assert {"botocore", "pyarrow", "orjson"} <= {name.rpartition("-")[0] for name in shared}


def test_executors_unpack_neither_deltalake_nor_what_no_job_uses(packed: tuple[str, Packed]) -> None:
    found = packed[1]
    assert {name: size for name in found if (size := sum(found[name].values())) > MOST_BYTES[name]} == {}
    assert {name.rpartition("-")[0] for name in packages(found["driver"])} >= {"deltalake", "arro3_core"}
    models = {name.split("/")[2] for name in found["environment"] if re.match(r"botocore/data/[^/]+/", name)}
    assert models == {"s3", "sqs", "signin", "sso", "sso-oidc", "sts"}


def test_compiled_modules_are_for_the_image_s_python_and_machine(packed: tuple[str, Packed]) -> None:
    machine, found = packed[0], packed[1]["environment"] | packed[1]["driver"]
    modules = [name for name in found if re.search(r"\.(cpython|abi3).*\.so$", name)]
    of_any_python = {name for name in modules if name.endswith(".abi3.so")}
    assert {name.partition("/")[0] for name in of_any_python} == {"arro3", "deltalake"}
    others = set(modules) - of_any_python
    assert {name.partition("/")[0] for name in others} == {
        "httptools",
        "msgspec",
        "orjson",
        "pyarrow",
        "ulid_transform",
        "wrapt",
    }
    assert all(name.endswith(f".cpython-311-{machine}-linux-gnu.so") for name in others)
    assert elf_machines(next(each for each in MACHINES if MACHINES[each] == machine), of_any_python) == {machine}


def elf_machines(architecture: Architecture, modules: set[str]) -> set[str]:
    """Read what their headers say: of a module for any Python the name doesn't."""
    with tarfile.open(ASSETS.driver(get_image_target(architecture, PYTHON)).folder) as tar:
        files = [tar.extractfile(name) for name in modules]
        return {ELF_MACHINES[int.from_bytes(file.read(20)[18:20], "little")] for file in files if file}


def top_levels(found: Iterable[str]) -> set[str]:
    return {name.partition("/")[0].removesuffix(".py") for name in found}


def imports(source: str) -> Iterator[str]:
    for node in ast.walk(parse_source(source)):
        if isinstance(node, ast.Import):
            yield from (alias.name.partition(".")[0] for alias in node.names)
        if isinstance(node, ast.ImportFrom) and node.module and not node.level:
            yield node.module.partition(".")[0]


def test_whatever_our_code_imports_is_in_an_archive_or_the_image(packed: tuple[str, Packed]) -> None:
    third_party = top_levels(packed[1]["environment"]) | top_levels(packed[1]["driver"]) | set(OF_SPARK) | OF_OTHERS
    known = third_party | {*PACKAGES, "sluice"} | set(sys.stdlib_module_names)
    with tarfile.open(ASSETS.code().folder) as tar:
        sources = {name: tar.extractfile(name).read().decode() for name in tar.getnames() if name.endswith(".py")}  # type: ignore[union-attr]
    sources[ENTRY_POINT] = (PROJECT / "spark" / ENTRY_POINT).read_text()
    unknown = {(path, name) for path, source in sources.items() for name in imports(source) if name not in known}
    assert unknown == set()


def test_jobs_have_only_pure_modules_of_ours() -> None:
    ours = [name for name in names(ASSETS.code().folder) if name.startswith("sluice/")]
    assert not [name for name in ours if name.startswith(("sluice/aws/", "sluice/cli/", "sluice/local/"))]


def unpacked(archive: Path, into: Path) -> Path:
    with tarfile.open(archive) as tar:
        tar.extractall(into, filter="data")
    return into


@pytest.fixture(scope="module")
def job_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """As a driver's working directory: the archives for this machine, unpacked; and of Spark what an image has."""
    folder = tmp_path_factory.mktemp("job")
    unpacked(ASSETS.environment(get_image_target(Architecture.LOCAL, "")).folder, folder / "environment")
    unpacked(ASSETS.driver(get_image_target(Architecture.LOCAL, "")).folder, folder / "driver")
    unpacked(ASSETS.code().folder, folder / "code")
    spark = subprocess.run(
        [find_spark_python(None), "-c", "import pyspark; print(pyspark.__file__)"],
        capture_output=True,
        text=True,
        check=True,
    )
    for name in OF_SPARK:
        (folder / "spark").mkdir(exist_ok=True)
        (folder / "spark" / name).symlink_to(Path(spark.stdout.strip()).parents[1] / name)
    return folder


@pytest.mark.slow  # `make test-slow` makes Spark first
def test_every_module_of_our_packages_imports_from_the_archives_alone(job_folder: Path) -> None:
    code = job_folder / "code"
    modules = [
        ".".join(path.relative_to(code).with_suffix("").parts).removesuffix(".__init__")
        for package in PACKAGES
        for path in sorted((code / package).rglob("*.py"))
    ]
    path = [str(job_folder / part) for part in ("environment", "driver", "code", "spark")]
    program = (
        f"import sys; sys.path += {path!r}\nimport importlib\nfor name in {modules!r}: importlib.import_module(name)"
    )
    # Isolated, without site-packages.
    done = subprocess.run(
        [sys.executable, "-I", "-S", "-B", "-c", program], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "sluice_jobs.land" in modules


@pytest.mark.slow  # see above
def test_the_entry_point_says_its_arguments_with_the_archives_alone(job_folder: Path) -> None:
    path = os.pathsep.join(["./environment", "./code", "./spark"])  # as Program's configuration says it
    entry_point = str(PROJECT / "spark" / ENTRY_POINT)
    done = subprocess.run(
        [sys.executable, "-S", "-B", entry_point, "land", "--help"],
        cwd=job_folder,
        env={"PYTHONPATH": path},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "--checkpoint" in done.stdout


PROBE = """
import json
from pyspark.sql import SparkSession

def files(_):
    import botocore, orjson, pyarrow, sluice_jobs.replayed_rows, sluice_spark
    yield {module.__name__: module.__file__ for module in (botocore, orjson, pyarrow, sluice_jobs, sluice_spark)}

spark = SparkSession.builder.getOrCreate()
print("FOUND", json.dumps(spark.sparkContext.parallelize([1], 1).mapPartitions(files).first()))
"""


@pytest.mark.slow  # see above
def test_executors_find_the_packages_where_spark_unpacks_the_archives(job_folder: Path, tmp_path: Path) -> None:
    """On a cluster whose executor is a process in a folder of its own, with the configuration that jobs are given."""
    home = tmp_path / "home"  # executors' folders are below it
    home.mkdir()
    for path in (job_folder / "spark" / "pyspark").resolve().iterdir():
        (home / path.name).symlink_to(path)
    environment = ASSETS.environment(get_image_target(Architecture.LOCAL, "")).folder
    program = Program(
        entry_point="",
        environment=str(environment),
        driver="",
        code=str(ASSETS.code().folder),
        places=StorageLocations(root=str(tmp_path)),
    )
    ours = {"spark.archives", "spark.executorEnv.PYTHONPATH"}
    configuration = {name: value for name, value in program.configuration.items() if name in ours}
    configuration |= {"spark.ui.enabled": "false", "spark.executorEnv.PYSPARK_PYTHON": sys.executable}
    (tmp_path / "probe.py").write_text(PROBE)
    done = subprocess.run(
        [
            *(home / "bin" / "spark-submit", "--master", "local-cluster[1,1,1024]"),
            *(word for name, value in configuration.items() for word in ("--conf", f"{name}={value}")),
            tmp_path / "probe.py",
        ],
        cwd=tmp_path,
        env={
            **{name: value for name, value in os.environ.items() if name in {"PATH", "JAVA_HOME", "HOME"}},
            "SPARK_HOME": str(home),
            "SPARK_LOCAL_IP": "127.0.0.1",
            "PYSPARK_PYTHON": sys.executable,
        },
        capture_output=True,
        text=True,
        check=False,
    )
    [found] = [json.loads(line.removeprefix("FOUND ")) for line in done.stdout.splitlines() if "FOUND" in line] or [{}]
    folders = {name: Path(file).parts[-3] for name, file in found.items()}
    expected = dict.fromkeys(("botocore", "orjson", "pyarrow"), "environment") | dict.fromkeys(PACKAGES, "code")
    assert folders == expected, done.stderr[-5_000:]
    assert all(str(home) in file for file in found.values())
