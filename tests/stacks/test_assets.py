"""What is deployed of our code and of others', and that it is enough."""

import os
import shutil
import subprocess
import tomllib
from pathlib import Path, PurePosixPath

import boto3
import pytest

from sluice.building import interpreters
from sluice.building.locks import normalize_name, parse_lock, requirement_name
from sluice.building.project import Project
from sluice.bundles.assets import CODE, LAYERS, Assets, Bundle, BundleFailed, BundleTarget
from sluice.bundles.environment import SparkAssets
from sluice.parameters import Architecture
from tests.stacks.conftest import PROJECT

FUNCTIONS = sorted(path.parent.name for path in PROJECT.glob("functions/*/handler.py"))
EVALUATE_FILTERS = ("bridge", "control", "exchange", "links", "splitter")  # whose layer has jq and regex
RUNTIME_PACKAGES = ("boto3", "botocore", "s3transfer", "dateutil", "urllib3", "six.py")
LOCKS = sorted(
    path
    for pattern in ("requirements.txt", "requirements/*.txt", "spark/requirements.txt", "spark/pyspark-*.txt")
    for path in PROJECT.glob(pattern)
)
PYSPARK = [lock.name for lock in LOCKS if lock.name.startswith("pyspark-")]
LOCK = """\
alpha==1.0 \\
    --hash=sha256:0000000000000000000000000000000000000000000000000000000000000000
    # via sluice (pyproject.toml)
"""


@pytest.fixture
def project(tmp_path: Path) -> Path:
    files = {
        "pyproject.toml": '[project.optional-dependencies]\nfunctions = ["alpha>=1"]\n',
        "requirements.txt": LOCK,
        "functions/broker/handler.py": "import sluice.one\n",
        "functions/broker/table.json": "{}",
        "functions/broker/__pycache__/handler.cpython-311.pyc": "",
        "sluice/__init__.py": "",
        "sluice/one.py": "",
        "sluice/cli/main.py": "import sluice.one\n",
        "sluice/aws/__init__.py": "",
        "sluice/operator/deployments.py": "",
        "sluice/rendezvous/deep/two.py": "",
    }
    for path, content in files.items():
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(content)
    return tmp_path


def test_the_code_is_all_functions_and_the_rooms_that_they_import_and_nothing_else(project: Path) -> None:
    folder = Assets(Project.clone(project), _not_compiled).code().folder
    assert sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()) == [
        "functions/broker/handler.py",
        "functions/broker/table.json",
        "sluice/__init__.py",
        "sluice/aws/__init__.py",
        "sluice/one.py",
        "sluice/rendezvous/deep/two.py",
    ]


def test_a_file_lies_beside_the_code_by_another_name(project: Path) -> None:
    (project / "data").mkdir()
    (project / "data" / "v1.mmdb").write_bytes(b"1")
    built = Assets(Project.clone(project), _not_compiled).code(extra_files={"countries.mmdb": "data/v1.mmdb"})
    assert (built.folder / "countries.mmdb").read_bytes() == b"1"
    assert built.key != Assets(Project.clone(project), _not_compiled).code().key


def test_a_file_that_isnt_there_is_named(project: Path) -> None:
    with pytest.raises(BundleFailed, match=r"v1\.mmdb can't be read: No such file"):
        Assets(Project.clone(project), _not_compiled).code(extra_files={"countries.mmdb": "v1.mmdb"})


def test_the_codes_key_doesnt_depend_on_time_or_on_what_isnt_deployed(project: Path) -> None:
    before = Assets(Project.clone(project), _not_compiled).code()
    os.utime(project / "sluice/one.py", (1, 1))
    (project / "sluice/cli/main.py").write_text("")
    assert Assets(Project.clone(project), _not_compiled).code() == before


def test_the_codes_key_changes_with_what_is_deployed(project: Path) -> None:
    before = Assets(Project.clone(project), _not_compiled).code().key
    (project / "sluice/rendezvous/deep/two.py").write_text("import sluice.one\n")
    assert Assets(Project.clone(project), _not_compiled).code().key != before


def test_the_key_is_the_same_in_another_folder(project: Path, tmp_path: Path) -> None:
    before = Assets(Project.clone(project), _not_compiled).code().key
    moved = project.rename(tmp_path.with_name("moved"))
    assert Assets(Project.clone(moved), _not_compiled).code().key == before


def test_lambda_can_read_what_was_built_under_a_strict_umask(project: Path) -> None:
    before = os.umask(0o077)
    try:
        folder = Assets(Project.clone(project), _not_compiled).code().folder
    finally:
        os.umask(before)
    modes = {path.is_dir(): path.stat().st_mode & 0o777 for path in (folder, *folder.rglob("*"))}
    assert modes == {True: 0o755, False: 0o644}


def test_a_bundle_is_what_the_extra_lists(project: Path) -> None:
    assert Assets(Project.clone(project)).bundle("functions") == Bundle(name="functions", requirements=("alpha",))


def test_a_bundle_that_fails_leaves_nothing_behind(project: Path) -> None:
    (project / "requirements.txt").write_text("alpha==not-a-version\n")
    assets = Assets(Project.clone(project))
    with pytest.raises(BundleFailed, match="pip can't install alpha:"):
        assets.layer(assets.bundle("functions"), BundleTarget.of(Architecture.ARM64))
    assert list((project / "build" / "bundles").iterdir()) == []


def test_lambdas_wheels_are_for_its_python_and_machine() -> None:
    target = BundleTarget.of(Architecture.ARM64)
    assert (target.machine, target.python) == (Architecture.ARM64, "3.13")
    assert "manylinux2014_aarch64" in target.wheels
    assert "manylinux2014_x86_64" in BundleTarget.of(Architecture.X86_64).wheels


def test_every_platform_has_a_bundle_of_its_own() -> None:
    assert len({BundleTarget.of(architecture).name for architecture in Architecture}) == len(Architecture)


def test_this_machine_is_one_that_lambda_has_with_the_python_that_runs_functions() -> None:
    target = BundleTarget.of(Architecture.LOCAL)
    assert target.machine in {Architecture.ARM64, Architecture.X86_64}
    python = interpreters.find_lambda_python()
    assert (target.python, target.interpreter) == (python.version, python.path)


def test_the_layer_is_what_is_pinned_and_holds_no_noise(layer: Path) -> None:
    installed = layer / "python"
    assets = Assets(Project.clone(PROJECT))
    pins = assets.pins(assets.bundle("functions"))
    names = {pin.name for pin in pins}
    assert names == {"aws-lambda-powertools", "jmespath", "msgspec", "typing-extensions", "ulid-transform"}
    assert {path.name for path in installed.glob("*.dist-info")} == {
        f"{pin.name.replace('-', '_')}-{pin.version}.dist-info" for pin in pins
    }
    assert [path.name for path in layer.iterdir()] == ["python"]
    noise = {"bin", "RECORD", "INSTALLER", "REQUESTED", "direct_url.json"}
    assert not [path for path in installed.rglob("*") if path.name in noise]


def test_what_is_deployed_is_pinned_with_hashes_and_for_every_platform() -> None:
    assets = Assets(Project.clone(PROJECT))
    pins = assets.pins(assets.bundle("functions", "splitter")) + SparkAssets(Project.clone(PROJECT)).pins()
    assert [pin.name for pin in pins if pin.marker or not pin.hashes] == []


@pytest.mark.parametrize("lock", LOCKS, ids=str)
def test_whatever_is_installed_is_pinned_with_its_hash(lock: Path) -> None:
    pins = parse_lock(lock.read_text())
    named = [line for line in lock.read_text().splitlines() if line and not line.startswith((" ", "#"))]
    assert len(pins) == len(named)
    assert [pin.name for pin in pins.values() if not pin.hashes] == []


def test_a_package_has_one_version_and_one_set_of_files_in_all_locks() -> None:
    pins = [pin for lock in LOCKS if lock.name not in PYSPARK for pin in parse_lock(lock.read_text()).values()]
    assert len({pin.name for pin in pins}) == len({(pin.name, pin.version, frozenset(pin.hashes)) for pin in pins})


def test_a_version_of_spark_is_pyspark_alone_and_the_lock_of_spark_has_all_else() -> None:
    assert len(PYSPARK) > 1
    for name in PYSPARK:
        pins = parse_lock((PROJECT / "spark" / name).read_text())
        assert {pin.name: f"pyspark-{pin.version}.txt" for pin in pins.values()} == {"pyspark": name}
    shared = parse_lock((PROJECT / "spark" / "requirements.txt").read_text())
    assert "pyspark" not in shared
    assert "pyspark" in shared["py4j"].needed_by


def test_requirements_txt_has_what_deploys_and_is_deployed_and_nothing_of_tests_and_documents() -> None:
    pins = parse_lock((PROJECT / "requirements.txt").read_text())
    assert {"aws-cdk-lib", "aws-lambda-powertools", "boto3", "constructs", "ministack", "typer"} <= pins.keys()
    assert pins.keys() & {"hypothesis", "matplotlib", "mkdocs", "moto", "mypy", "pre-commit", "pytest", "ruff"} == set()


def test_what_pyproject_lists_is_locked() -> None:
    described = tomllib.loads((PROJECT / "pyproject.toml").read_text())
    of_package = described["project"]["dependencies"], *described["project"]["optional-dependencies"].values()
    listed = {"requirements.txt": [requirement for extra in of_package for requirement in extra]}
    listed |= {f"requirements/{name}.txt": group for name, group in described["dependency-groups"].items()}
    assert {path for lock in LOCKS if not (path := lock.relative_to(PROJECT).as_posix()).startswith("spark/")} == {
        *listed
    }
    for lock, requirements in listed.items():
        names = {normalize_name(requirement_name(requirement)) for requirement in requirements} - {
            described["project"]["name"]
        }
        assert names - parse_lock((PROJECT / lock).read_text()).keys() == set()


def test_a_file_with_another_hash_isnt_installed(project: Path) -> None:
    real = next(pin for pin in Assets(Project.clone(PROJECT)).pins(Bundle(name="x", requirements=("jmespath",))))
    (project / "requirements.txt").write_text(f"{real.name}=={real.version} \\\n    --hash=sha256:{'0' * 64}\n")
    with pytest.raises(BundleFailed, match="DO NOT MATCH THE HASHES"):
        Assets(Project.clone(project)).layer(
            Bundle(name="x", requirements=("jmespath",)), BundleTarget.of(Architecture.ARM64)
        )


def test_every_module_of_a_layer_has_its_bytecode(layer: Path) -> None:
    assert next(layer.rglob("*.py"))
    assert _uncompiled(layer) == set()


def test_every_module_of_our_code_has_its_bytecode() -> None:
    folder = Assets(Project.clone(PROJECT)).code().folder
    assert next(folder.rglob("*.py"))
    assert _uncompiled(folder) == set()


@pytest.mark.slow
def test_bytecode_is_the_same_whatever_else_is_compiled(project: Path) -> None:
    before = _bytecode(Assets(Project.clone(project)).code().folder)
    (project / "sluice/before.py").write_text("name = other = 'sluice.two'\n")
    (project / "sluice/rendezvous/deep/more.py").write_text("def f(name):\n    return {name, 'sluice.one', 1000000}\n")
    after = _bytecode(Assets(Project.clone(project)).code().folder)
    assert {path: after[path] for path in before} == before
    assert len(after) == len(before) + 2


def test_bytecode_is_loaded_without_a_look_at_its_source_and_names_where_that_is_deployed() -> None:
    folder = Assets(Project.clone(PROJECT)).code().folder
    module = PurePosixPath("functions/broker/handler.py")
    compiled = (folder / bytecode_of(module)).read_bytes()
    unchecked_hash = (0b01).to_bytes(4, "little")  # PEP 552
    assert compiled[4:8] == unchecked_hash
    assert f"{CODE}/{module}".encode() in compiled


def test_a_layers_bytecode_names_where_it_is_deployed(layer: Path) -> None:
    compiled = next(layer.rglob("jmespath/__pycache__/parser.*.pyc")).read_bytes()
    assert f"{LAYERS}/python/jmespath/parser.py".encode() in compiled


def _uncompiled(folder: Path) -> set[PurePosixPath]:
    modules = {PurePosixPath(path.relative_to(folder)) for path in folder.rglob("*.py")}
    return {module for module in modules if not (folder / bytecode_of(module)).exists()}


def bytecode_of(source: PurePosixPath) -> PurePosixPath:
    """Where Lambda's Python looks for a module's bytecode: https://peps.python.org/pep-3147/."""
    return source.parent / "__pycache__" / f"{source.stem}.cpython-{interpreters.LAMBDA_VERSION.replace('.', '')}.pyc"


def _not_compiled(folder: Path, deployed_at: str) -> None:
    pass


def _bytecode(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*.pyc")}


def test_a_layer_that_is_there_isnt_built_again(layer: Path) -> None:
    before = layer.stat().st_mtime_ns
    assets = Assets(Project.clone(PROJECT))
    built = assets.layer(assets.bundle("functions"), BundleTarget.of(Architecture.ARM64))
    assert (built.folder, layer.stat().st_mtime_ns) == (layer, before)


def test_no_function_has_what_only_the_command_line_and_a_synth_use() -> None:
    folder = Assets(Project.clone(PROJECT)).code().folder
    modules = {path.relative_to(folder) for path in folder.rglob("*.py")}
    assert {path.parts[1] for path in modules if path.parts[0] == "functions" and len(path.parts) > 2} == {*FUNCTIONS}
    others = {"bundles", "cli", "console", "constructs", "demo", "local", "operator", "parameters", "peers", "smoke"}
    assert not [path for path in modules if {*path.parts} & others]
    assert not [path for path in folder.rglob("*") if path.is_file() and path.suffix not in {".py", ".pyc"}]


@pytest.fixture(scope="session")
def runtime(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the packages of the Lambda runtime and no others, not even what they need of the layer."""
    site_packages = Path(boto3.__file__).parents[1]
    folder = tmp_path_factory.mktemp("runtime")
    for name in RUNTIME_PACKAGES:
        (folder / name).symlink_to(site_packages / name)
    return folder


@pytest.mark.parametrize("function", FUNCTIONS)
def test_a_handler_imports_from_its_bundle_alone(function: str, runtime: Path) -> None:
    _import_handler(function, Assets(Project.clone(PROJECT)).code().folder, runtime)


@pytest.mark.skipif(
    interpreters.find_lambda_python().version != interpreters.LAMBDA_VERSION, reason="no Python of Lambda's here"
)
def test_a_handler_imports_from_its_bytecode_alone(runtime: Path, tmp_path: Path) -> None:
    code = shutil.copytree(Assets(Project.clone(PROJECT)).code().folder, tmp_path / "code")
    for source in code.rglob("*.py"):
        source.write_text("raise AssertionError('compiled when imported')")
    _import_handler("broker", code, runtime)


def _import_handler(function: str, code: Path, runtime: Path) -> None:
    assets = Assets(Project.clone(PROJECT))
    extras = ("functions", "splitter") if function in EVALUATE_FILTERS else ("functions",)
    layer = assets.layer(assets.bundle(*extras), BundleTarget.of(Architecture.LOCAL)).folder  # with compiled parts
    program = (
        f"import sys; sys.path += {[str(code), str(layer / 'python'), str(runtime)]!r}; "
        f"from functions.{function}.handler import handler; assert callable(handler)"
    )
    # Isolated, without site-packages, and writing no bytecode into what is deployed.
    isolated = [str(interpreters.find_lambda_python().path), "-I", "-S", "-B", "-c", program]
    done = subprocess.run(isolated, env={}, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
