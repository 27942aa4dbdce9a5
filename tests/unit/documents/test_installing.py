"""Nobody is told to install a package that isn't ours, or that we don't depend on.

No package index has `sluice-sqs` or `sluice-spark`, and `sluice` there is another project's package. So documents,
examples, sources and messages install ours from a folder, or from a wheel of `make packages`, and of others' packages
only those that a lock pins.
"""

import json
import re
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cache
from importlib.metadata import PathDistribution
from pathlib import Path
from typing import Any

import pytest

from sluice.building import project
from sluice.building.locks import normalize_name, parse_lock, requirement_name
from tests.unit.documents.repository import ROOT, tracked_files

COMMAND = re.compile(r"\b(?:pip3?(?: --\S+(?: [^\s-]\S*)?)*|pipx|uv tool) (?:install|wheel|download)\b|\buv add\b")
# What may stand between words of a command, and the words. A word ends before a blank: what closes a string, a bracket
# or code in a sentence ends the command, as a comment and the shell's own signs do.
BLANK = re.compile(r"(?:[ \t]|\\\n)+")
WORD = re.compile(r"""'(?P<single>[^'\n]*)'|"(?P<double>[^"\n]*)"|(?P<bare>[^\s'"`#;|&()<>]+)""")
WITH_VALUE = frozenset({"-c", "-d", "-i", "-t", "--constraint", "--dest", "--index-url", "--python", "--target"})
FILE_OPTIONS = frozenset({"-r", "--requirement"})
EDITABLE = frozenset({"-e", "--editable"})
OURS = frozenset({"sluice", "sluice-spark", "sluice-sqs"})
MAKES = ("build/", ".venv/")  # where make puts what it installs from
EXTRAS = re.compile(r"(?P<path>[^\[\]]+)(?:\[(?P<extras>[^\]]*)\])?")
# Has the one function whose commands name an extra that is known only at run time.
WRITER = "sluice/building/project.py"
ITSELF = Path(__file__).relative_to(ROOT).as_posix()  # whose bad lines are examples


@dataclass(frozen=True, slots=True)
class Named:
    """A requirement as a command or a requirements file has it, and the file that has it."""

    place: str
    file: str
    text: str


@cache
def texts() -> Mapping[str, str]:
    """Read all text files but the locks and this one."""
    read = {}
    for name in tracked_files(ROOT):
        if name != ITSELF and name not in locks() and (ROOT / name).is_file():
            content = (ROOT / name).read_bytes()
            if b"\0" not in content:
                read[name] = content.decode(errors="replace")
    return read


@cache
def locks() -> tuple[str, ...]:
    folders = (ROOT, ROOT / "requirements", ROOT / "spark")
    return tuple(path.relative_to(ROOT).as_posix() for folder in folders for path in sorted(folder.glob("*.txt")))


@cache
def projects() -> Mapping[str, Mapping[str, Any]]:
    """Read what each of our projects says of itself, by its folder."""
    return {folder: tomllib.loads((ROOT / folder / "pyproject.toml").read_text()) for folder in (".", "spark")}


@cache
def known_packages() -> frozenset[str]:
    """List others' packages that we depend on: pinned, listed, or asked for by name where a location needs one."""
    pinned = {name for lock in locks() for name in parse_lock((ROOT / lock).read_text())}
    listed = {
        normalize_name(requirement_name(requirement))
        for described in projects().values()
        for group in (
            described["project"]["dependencies"],
            *described["project"]["optional-dependencies"].values(),
            *described.get("dependency-groups", {}).values(),
        )
        for requirement in group
    }
    return frozenset((pinned | listed) - OURS)


def named_in_commands(file: str, text: str) -> Iterator[Named]:
    """Give what the commands in a text install."""
    for command in COMMAND.finditer(text):
        place = f"{file}:{text.count(chr(10), 0, command.start()) + 1}"
        words = iter(_words(text, command.end()))
        for word in words:
            option, is_joined, value = word.partition("=")
            if option in FILE_OPTIONS:
                yield from named_in_requirements(place, file, value if is_joined else next(words, ""))
            elif option in EDITABLE:
                yield Named(place, file, value if is_joined else next(words, ""))
            elif option in WITH_VALUE:
                if not is_joined:
                    next(words, "")
            elif not word.startswith(("-", "$")):  # a variable of make's, whose values are other commands' words
                yield Named(place, file, word)


def _words(text: str, at: int) -> Iterator[str]:
    while blank := BLANK.match(text, at):
        word = WORD.match(text, blank.end())
        if word is None:
            return
        yield next(group for group in word.groups() if group is not None)
        at = word.end()


def named_in_requirements(place: str, file: str, requirements: str) -> Iterator[Named]:
    """Give the lines of a requirements file that lies beside the file that names it, or at the top."""
    if requirements.startswith(("$", *MAKES)):
        return
    found = [folder / requirements for folder in ((ROOT / file).parent, ROOT) if (folder / requirements).is_file()]
    if found:
        relative = found[0].relative_to(ROOT).as_posix()
        if relative not in locks():
            yield from listed_in(relative, found[0].read_text())
    else:
        yield Named(place, file, f"-r {requirements}")


def listed_in(file: str, text: str) -> Iterator[Named]:
    for number, line in enumerate(text.splitlines(), start=1):
        requirement = re.sub(r"(^|\s)#.*", "", line).strip()
        if requirement:
            yield Named(f"{file}:{number}", file, requirement)


def fault(named: Named) -> str:
    """Say what is wrong with a requirement, or nothing."""
    if "{" in named.text:
        return "" if named.file == WRITER else f"only {WRITER} names a package at run time"
    name, is_direct, origin = named.text.partition(" @ ")
    if is_direct:
        base, _, extras = name.partition("[")
        return _path_fault(named, f"{origin.removeprefix('file://')}[{extras.rstrip(']')}]" if base in OURS else origin)
    if re.match(r"[./]|.*/|.*\.whl\b", named.text):
        return _path_fault(named, named.text)
    if normalize_name(requirement_name(named.text)) in OURS:
        return "isn't on a package index, or is another project's there"
    return (
        ""
        if normalize_name(requirement_name(named.text)) in known_packages()
        else "no lock pins it, and no pyproject lists it"
    )


def _path_fault(named: Named, text: str) -> str:
    parsed = EXTRAS.fullmatch(text)
    if parsed is None:
        return "is no path"
    path = parsed["path"]
    described = next((each for each in projects().values() if Path(path).name == wheel_name(each)), None)
    if described is None:
        folders = [(base / path).resolve() for base in ((ROOT / named.file).parent, ROOT)]
        described = next((each for at, each in projects().items() if (ROOT / at).resolve() in folders), None)
    if described is None:
        return "is neither a folder of ours nor a wheel that make packages builds"
    extras = [extra.strip() for extra in (parsed["extras"] or "").split(",") if extra.strip()]
    unknown = [extra for extra in extras if extra not in described["project"]["optional-dependencies"]]
    return f"has no extra {', '.join(unknown)}" if unknown else ""


def wheel_name(described: Mapping[str, Any]) -> str:
    name, version = (described["project"][field] for field in ("name", "version"))
    return f"{name.replace('-', '_')}-{version}-py3-none-any.whl"


def faults(all_named: Iterable[Named]) -> list[str]:
    return [f"{named.place}: {named.text}: {said}" for named in all_named if (said := fault(named))]


def test_every_command_installs_ours_from_a_clone_or_what_we_depend_on() -> None:
    all_named = [named for file, text in texts().items() for named in named_in_commands(file, text)]
    files = {named.file for named in all_named}
    assert {"README.md", "docs/tutorial.md", "docs/spark.md", "spark/README.md", WRITER} <= files
    assert faults(all_named) == []


def test_every_requirements_file_of_an_example_does() -> None:
    examples = [file for file in texts() if re.fullmatch(r"docs/.*requirements[^/]*\.txt", file)]
    assert "docs/examples/orders/requirements.txt" in examples
    assert faults(named for file in examples for named in listed_in(file, texts()[file])) == []


def test_no_address_of_ours_is_named_where_nothing_is() -> None:
    named = re.compile(r"(?:github\.com|pypi\.org/project)/sluice", re.IGNORECASE)
    assert [file for file, text in texts().items() if named.search(text)] == []


@pytest.mark.parametrize(
    "bad",
    [
        "pip install sluice",
        "pip install 'sluice[local]' deltalake",
        "pip install -U sluice-sqs==0.1.0",
        "env/bin/python -m pip install --quiet 'sluice-spark[jobs]' 'pyspark==4.1.1'",
        "pip install deltalake \\\n  sluice",
        "pip install --target folder Sluice_SQS",
        "pipx install sluice-sqs",
        "uv pip install --python .venv sluice",
        "uv tool install sluice",
        "uv add sluice-sqs",
        "pip wheel sluice-spark",
        "`pip install 'sluice[console]'` brings it",
        "raise Missing(\"it needs pyarrow: pip install 'sluice[console]'\")",
        "raise Missing(f\"pip install 'sluice[{extra}]'\")",
        'say("pip install sluice", "elsewhere")',
        "pip install requestz",
        "pip install './spark[nothing]'",
        "pip install ./nowhere",
        "pip install 'build/dist/sluice-0.1.0-py3-none-any.whl[local]'",
        "pip install build/dist/sluice_sqs-0.0.9-py3-none-any.whl",
        "pip install 'sluice-sqs[local] @ https://example.org/sluice.git'",
        "pip install -r nowhere.txt",
        "pip install -e ../elsewhere",
    ],
)
def test_a_command_that_installs_anything_else_is_found(bad: str) -> None:
    assert len(faults(named_in_commands("docs/console.md", bad))) == 1


@pytest.mark.parametrize("bad", ["sluice[deploy]", "sluice-sqs  # ours", "sluice_spark==0.1.0", "../..[deploy]"])
def test_a_requirements_file_that_lists_anything_else_is_found(bad: str) -> None:
    listed = f"# an example's\nboto3\n../../..[deploy]\n{bad}\n"
    [said] = faults(listed_in("docs/examples/orders/requirements.txt", listed))
    assert said.startswith("docs/examples/orders/requirements.txt:4: ")


WHEEL = wheel_name(projects()["."])


@pytest.mark.parametrize(
    "good",
    [
        "pip install '.[local]' deltalake  # not sluice",
        'pip install "./spark[fast,jobs]" "pyspark==4.1.1"',
        f"pip install 'build/dist/{WHEEL}[local]' && sluice status",
        "`make` and `pip install` aren't run",
        "pip install -r requirements.txt",
        "uv pip install --python .venv --editable .",
    ],
)
def test_a_command_that_installs_ours_or_a_dependency_is_none(good: str) -> None:
    assert faults(named_in_commands("README.md", good)) == []


URL = f"file:///home/me/dist/{WHEEL}"
VERSION = projects()["."]["project"]["version"]


@pytest.mark.parametrize(
    ("origin", "said"),
    [
        ({"url": URL, "archive_info": {}}, f"sluice-sqs[local] @ {URL}"),
        ({"url": ROOT.as_uri(), "dir_info": {}}, f"sluice-sqs[local] @ {ROOT.as_uri()}"),
        ({"url": "https://example.org/s.git", "vcs_info": {}}, f"{WHEEL}[local]"),
        (None, f"{WHEEL}[local]"),
    ],
)
def test_a_missing_extra_is_installed_from_where_the_package_is_from(
    origin: Mapping[str, Any] | None, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "METADATA").write_text(f"Name: sluice-sqs\nVersion: {VERSION}\n")
    if origin is not None:
        (tmp_path / "direct_url.json").write_text(json.dumps(origin))
    monkeypatch.setattr("importlib.metadata.distribution", lambda _: PathDistribution(tmp_path))
    monkeypatch.setattr(project, "PROJECT", replace(project.PROJECT, files=tmp_path))
    command = project.install_command("local")
    assert command == f"pip install '{said}'"
    assert faults(named_in_commands("README.md", command)) == []


def test_in_a_clone_make_installs_all_extras() -> None:
    with pytest.raises(project.NotInstalled, match=r"^no_such_module isn't installed: make setup$"):
        project.require_modules("local", "no_such_module")


def test_the_extras_that_messages_name_are_there() -> None:
    calls = re.compile(r"\b(?:require_modules|install_command)\(['\"]([a-z]+)")
    sources = {file: text for file, text in texts().items() if re.fullmatch(r"sluice/.*\.py", file)}
    named = {extra for text in sources.values() for extra in calls.findall(text)}
    assert {"console", "deploy", "kubernetes", "local", "webrtc"} <= named
    assert named - projects()["."]["project"]["optional-dependencies"].keys() == set()
