"""One grammar: every command has the options that all have, and no error names an option that its command hasn't."""

import ast
import inspect
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from typer.main import get_command

import sluice
from sluice.cli.program import app
from sluice.cli.sites import OPTIONS, SITES
from tests.sources import parse_source

COMMON = {f"--{name}" for name in OPTIONS}
NOT_OF_A_SITE = {
    "split import": "reads files, and prints what stands in cdk.json",
    "split test": "tries a filter on a message, both from files",
    "topology schema": "prints a file",
    "local down": "is about the embedded cloud's process",
    "local status": "is about the embedded cloud's process",
}
LACKS = {
    "local up": {"--profile": "no profile leads to the embedded cloud"},
    "local env": {"--profile": "no profile leads to the embedded cloud"},
    "topology plan": {"--site": "the file names its sites"},
    "topology apply": {"--site": "the file names its sites"},
}
NO_JSON = {
    "topology schema": "prints JSON, and nothing else",
    "split run": "its standard output is the program's",
    "pipeline run-local": "its standard output is the job's",
}
STARTS_NO_JOB = "status", "local down", "pipeline stop", "pipeline status", "pipeline logs"
NEVER_SAID = {
    **{("split test", f"--{name}"): "its filters are in a file" for name in ("filter", "filter-file", "jq", "mirror")},
    **{(f"route {name}", "--mirror"): "a route's filter takes or leaves" for name in ("add", "change")},
    **{(f"route {name}", "--filter-file"): "a route's filter is in options" for name in ("add", "change")},
    **dict.fromkeys(((name, "--spark-python") for name in STARTS_NO_JOB), "starts no job"),
}


def walk(command: Any, *path: str) -> Iterator[tuple[str, Any]]:
    commands: Mapping[str, Any] = getattr(command, "commands", {})
    for name, each in commands.items():
        yield from walk(each, *path, name)
    if not commands:
        yield " ".join(path), command


COMMANDS = dict(walk(get_command(app)))
each_command = pytest.mark.parametrize("name", COMMANDS)


def options_of(name: str) -> set[str]:
    return {option for param in COMMANDS[name].params for option in (*param.opts, *param.secondary_opts)}


def test_the_tree_is_walked() -> None:
    assert len(COMMANDS) > 60
    named = {*NOT_OF_A_SITE, *LACKS, *NO_JSON, *(name for name, _ in NEVER_SAID)}
    assert named <= COMMANDS.keys()


@each_command
def test_a_command_says_what_it_does_and_what_each_of_its_words_means(name: str) -> None:
    command = COMMANDS[name]
    assert command.help
    assert [param.name for param in command.params if not param.help] == []


@each_command
def test_a_command_about_a_site_takes_all_that_says_which(name: str) -> None:
    left_out = COMMON if name in NOT_OF_A_SITE else LACKS.get(name, {}).keys()
    assert options_of(name) & COMMON == COMMON - left_out


@each_command
def test_a_command_that_prints_prints_json(name: str) -> None:
    assert ("--json" in options_of(name)) != (name in NO_JSON)


@each_command
def test_a_site_is_the_first_argument_and_means_the_same_everywhere(name: str) -> None:
    arguments = [param.metavar for param in COMMANDS[name].params if param.param_type_name == "argument"]
    sites = [argument for argument in arguments if argument in SITES]
    assert sites == arguments[: len(sites)]
    assert not sites or (COMMON - LACKS.get(name, {}).keys()) <= options_of(name)


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("route add", ["DEST", "SRC", "EXCHANGE", "KEY", "TAG", "EXCLUDES"]),
        ("dynamic add", ["DEST", "SRC", "EXCHANGE", "TAG", "EXCLUDES"]),
        ("queue add", ["DEST", "SRC", "DEST-EXCHANGE", "SRC-QUEUE", "TAG", "EXCLUDES"]),
        ("link add", ["DEST", "SRC"]),
        ("route del", ["DEST", "SRC", "EXCHANGE", "KEY"]),
        ("dynamic del", ["DEST", "SRC", "EXCHANGE"]),
        ("queue del", ["DEST", "SRC", "DEST-EXCHANGE", "SRC-QUEUE"]),
        ("link del", ["DEST", "SRC"]),
    ],
)
def test_arguments_are_in_qpid_routes_order(name: str, arguments: list[str]) -> None:
    found = [param for param in COMMANDS[name].params if param.param_type_name == "argument"]
    assert [(each.metavar or each.name).upper() for each in found] == arguments
    short = {"-q"} if "link" in name else {"-q", "-e"} if "del" in name else {"-q", "-d"}
    assert short <= options_of(name)


# What errors say


SOURCES = Path(sluice.__file__).parents[1]


@cache
def parsed(module: str) -> ast.Module:
    return parse_source(file_of(module).read_text(encoding="utf-8"))


@cache
def defined(module: str) -> Mapping[str, ast.AST]:
    found: dict[str, ast.AST] = {}
    # Commands that differ in a word are made in a loop, by a function within another.
    for node in ast.walk(parsed(module)):
        if isinstance(node, ast.FunctionDef):
            found.setdefault(node.name, node)
    for node in parsed(module).body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            found[node.name] = node
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            names = node.targets if isinstance(node, ast.Assign) else [node.target]
            found |= {name.id: node for name in names if isinstance(name, ast.Name)}
    return found


@cache
def imported(module: str) -> Mapping[str, tuple[str, str]]:
    """Names by what they stand for in ours: a module, and a name in it."""
    found = {}
    for node in ast.walk(parsed(module)):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.startswith("sluice"):
            for alias in node.names:
                found[alias.asname or alias.name] = (node.module, alias.name)
    return found


def target(module: str, name: str) -> tuple[str, str] | None:
    if name in defined(module):
        return module, name
    there = imported(module).get(name)
    return there if there is not None and is_module(there[0]) and there[1] in defined(there[0]) else None


def file_of(module: str) -> Path:
    return SOURCES.joinpath(*module.split(".")).with_suffix(".py")


@cache
def is_module(name: str) -> bool:
    return file_of(name).exists()


def reached(module: str, name: str) -> list[ast.AST]:
    """Whatever a function may call, by names: of a class the methods whose names somebody says who is reached."""
    todo, seen, attributes = [(module, name)], set[tuple[str, str]](), set[str]()
    methods: list[tuple[str, ast.AST]] = []
    bodies: list[tuple[str, ast.AST]] = []
    while todo:
        while todo:
            at = todo.pop()
            if at in seen:
                continue
            seen.add(at)
            node = defined(at[0])[at[1]]
            if isinstance(node, ast.ClassDef):
                methods += [(at[0], each) for each in node.body if isinstance(each, ast.FunctionDef)]
            else:
                bodies.append((at[0], node))
                todo += references(at[0], node)[0]
                attributes |= references(at[0], node)[1]
        for at_module, method in list(methods):
            called = getattr(method, "name", "")
            if called in attributes or called.startswith("__"):
                methods.remove((at_module, method))
                bodies.append((at_module, method))
                todo += references(at_module, method)[0]
                attributes |= references(at_module, method)[1]
    return [node for _, node in bodies]


@cache
def references(module: str, node: ast.AST) -> tuple[list[tuple[str, str]], set[str]]:
    """What a body refers to, and the attributes that it names."""
    found, attributes = list[tuple[str, str]](), set[str]()
    for each in ast.walk(node):
        if isinstance(each, ast.Name):
            there = target(module, each.id)
            found += [] if there is None else [there]
        elif isinstance(each, ast.Attribute):
            attributes.add(each.attr)
            if isinstance(each.value, ast.Name) and each.value.id in imported(module):
                inside = ".".join(imported(module)[each.value.id])
                if is_module(inside) and each.attr in defined(inside):
                    found.append((inside, each.attr))
    return found, attributes


SAYING = {"note", "show_error", "fail", "tell", "append"}


@cache
def errors(node: ast.AST) -> set[str]:
    """Texts that are raised or noted; what isn't written in them is a gap."""
    found = set()
    for each in ast.walk(node):
        function = each.func if isinstance(each, ast.Call) else None
        called = getattr(function, "id", getattr(function, "attr", None))
        if isinstance(each, ast.Raise) or called in SAYING:
            for text in ast.walk(each):
                if isinstance(text, ast.JoinedStr):
                    found.add("".join(part.value if isinstance(part, ast.Constant) else "…" for part in text.values))  # type: ignore[misc]
                elif isinstance(text, ast.Constant) and isinstance(text.value, str):
                    found.add(text.value)
    return found


OPTION = re.compile(r"(?<![\w-])--[a-z][a-z-]*[a-z]")
QUOTED = re.compile(r"`([^`]*)`")


def callback(name: str) -> tuple[str, str]:
    function = inspect.unwrap(COMMANDS[name].callback)
    return function.__module__, function.__name__


@each_command
def test_an_error_names_options_that_its_command_has(name: str) -> None:
    texts = {text for node in reached(*callback(name)) for text in errors(node)}
    named = {option for text in texts for option in OPTION.findall(QUOTED.sub("", text))}
    never = {option for command, option in NEVER_SAID if command == name}
    assert named - options_of(name) - never == set()


@pytest.mark.parametrize("name", ["status", "exchange list", "publish", "route add", "pipeline status", "dlq list"])
def test_what_lacks_credentials_or_a_region_names_options(name: str) -> None:
    """The test above would prove nothing if it didn't find what they say."""
    texts = {text for node in reached(*callback(name)) for text in errors(node)}
    assert "no AWS credentials: set AWS_PROFILE or pass --profile, or --local for the embedded cloud" in texts
    assert "no region: pass --region, or --local for the embedded cloud, or set AWS_REGION" in texts


@each_command
def test_a_command_that_an_error_quotes_is_one_and_takes_the_options(name: str) -> None:
    texts = {text for node in reached(*callback(name)) for text in errors(node)}
    for quoted in {each for text in texts for each in QUOTED.findall(text) if each.startswith("sluice ")}:
        words = quoted.removeprefix("sluice ").split(" -- ")[0].split()
        found = next((there for there in (" ".join(words[:2]), words[0]) if there in COMMANDS), None)
        assert found is not None or words[0].startswith("-"), quoted
        assert set(OPTION.findall(quoted)) <= (options_of(found) if found else {"--debug"}), quoted


# What --help costs

HEAVY = "aiohttp", "aiortc", "asyncio", "boto3", "botocore", "jq", "msgspec", "regex", "rich", "urllib.request", "yaml"


@pytest.mark.parametrize("arguments", [["--help"], ["--version"], ["-h"]])
def test_help_imports_nothing_that_takes_long(arguments: list[str]) -> None:
    code = (
        "import sys\nfrom sluice.cli.main import main\n"
        f"sys.argv = ['sluice', *{arguments!r}]\n"
        "try:\n    main()\nexcept SystemExit as end:\n    assert end.code in {0, None}\n"
        f"print([name for name in {HEAVY!r} if name in sys.modules], file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stderr.strip() == "[]"
    assert done.stdout.startswith(("Usage: sluice", "sluice 0."))
