"""What can be said of a block without running it: that it parses, and that what its commands name is there."""

import importlib.util
import json
import re
import shlex
import subprocess
from collections.abc import Callable, Iterable, Iterator
from functools import cache
from typing import Any

import botocore.loaders
import botocore.model
import typer.main
import yaml
from botocore import xform_name

from sluice.cli.program import app
from sluice.cli.sites import add_local_value
from sluice.local.sites import DEFAULT_SITE
from tests.snippets.documents import COMMANDS, COMMENT, ROOT, Block, Command, commands, is_shell
from tests.sources import parse_source

# A shell's own words and programs of every machine; what they do isn't ours to check.
KNOWN = frozenset(
    {
        ".",
        "[",
        "cat",
        "cd",
        "curl",
        "do",
        "done",
        "echo",
        "env",
        "eval",
        "export",
        "for",
        "git",
        "grep",
        "jq",
        "kubectl",
        "kill",
        "mkdir",
    }
    | {
        "pip",
        "sleep",
        "snowflake-client",
        "snowflake-proxy",
        "spark-submit",
        "tail",
        "uv",
        "{",
        "}",
        "qpid-route",
        "mirrord",
    }
)
CDK = frozenset({"bootstrap", "deploy", "destroy", "diff", "synth"})
SEPARATORS = frozenset({"--", "do", "else", "if", "then", "until", "while"})
REDIRECTION = re.compile(r"\d?[<>]")
# A variable of the shell's, as documents have them for sites.
VARIABLE = re.compile(r"\$\w+")
SITE = str(DEFAULT_SITE)
USED = re.compile(r"\$\{?([A-Za-z_]\w*)")
SET = re.compile(r"(?<![\w-])([A-Za-z_]\w*)=|\bfor (\w+) in\b|\bread (\w+)")
QUOTED = re.compile(r"'[^']*'")
ASSIGNMENT = re.compile(r"[A-Za-z_]\w*=")
# Of the AWS command line's own making, in no service's model.
AWS_OWN = frozenset({("s3", "rm"), ("s3", "cp"), ("s3", "ls"), ("logs", "tail"), ("cloudformation", "deploy")})
AWS_RENAMED = {"s3api": "s3"}
AWS_GLOBAL = frozenset({"query", "output", "region", "profile", "recursive", "follow", "since", "endpoint-url"})


def faults(block: Block) -> list[str]:
    """What is wrong with a block, each with its place; nothing of it is run."""
    if block.language in COMMANDS:
        return [fault for command in commands(block) for fault in command_faults(command)]
    check = LANGUAGES.get(block.language)
    if check is None:
        return [
            f"{block.place}: a block of {block.language or 'no language'}; known are {sorted({*COMMANDS, *LANGUAGES})}"
        ]
    try:
        check(block.text)
    except (ValueError, SyntaxError, yaml.YAMLError) as error:
        return [f"{block.place}: {error}"]
    return []


def _json(text: str) -> None:
    json.loads(f"{{{text}}}" if text.lstrip().startswith('"') else text)


def _sql(text: str) -> None:
    if text.count("'") % 2 or text.count("(") != text.count(")"):
        raise ValueError("a quote or a bracket is open")


LANGUAGES: dict[str, Callable[[str], object]] = {
    "json": _json,
    "python": parse_source,
    "sql": _sql,
    "text": str,
    "yaml": lambda text: list(yaml.safe_load_all(text)),
}


def unset_variables(typed: Iterable[Command]) -> list[str]:
    """Variables that no command before it, in the same terminal, has set: each with its command's place."""
    found, known = [], {"HOME", "PWD"}
    for command in typed:
        text = QUOTED.sub("", command.text)
        own = {name for names in SET.findall(text) for name in names}
        here = {"HOME", "PWD"} if command.elsewhere else known
        found += [f"{command.place}: {name}" for name in USED.findall(text) if name not in own | here]
        here |= own
    return found


def command_faults(command: Command) -> list[str]:
    """What is wrong with a command: its syntax, its programs, their options."""
    if not is_shell(command.text):
        return [f"{command.place}: bash can't parse {command.text!r}"]
    found = [_program_fault(words) for words in _programs(command.text)]
    return [f"{command.place}: {fault}: {command.text}" for fault in found if fault]


def _programs(text: str) -> Iterator[list[str]]:
    """The simple commands in a shell's text, without assignments, redirections and what stands in `$(…)` in a word."""
    uncommented = re.sub(COMMENT, "", text).replace("\\\n", " ")
    lexer = shlex.shlex(uncommented, posix=True, punctuation_chars=";&|()\n")
    lexer.whitespace, lexer.whitespace_split = " \t\r", True
    lexer.commenters = ""
    words: list[str] = []
    for word in lexer:
        if set(word) <= set(";&|()\n") or word in SEPARATORS:
            if words:
                yield words
            words = []
            if word == "--":  # what `sluice split run` runs
                continue
        elif words or not ASSIGNMENT.match(word):
            words.append(word)
    if words:
        yield words


def _without_redirections(words: list[str]) -> list[str]:
    at = next((at for at, word in enumerate(words) if REDIRECTION.match(word)), len(words))
    return words[:at]


def _program_fault(words: list[str]) -> str | None:
    words = _without_redirections(words)
    program = words[0].rpartition("/")[2]
    check = PROGRAMS.get(program)
    if check:
        return check(words[1:])
    return None if program in KNOWN else f"no program known here is called {program}"


def sluice_fault(words: list[str], *, is_whole: bool = True) -> str | None:
    """Whether there is such a command, and it has these options and that many arguments.

    Of one that isn't whole, as in a sentence, arguments may be left out.
    """
    command, given = _command(typer.main.get_command(app), words)
    if command is None:
        return f"no command is called sluice {' '.join(words)}"
    if is_whole and given[:1] != ["--help"] and getattr(command, "commands", None):
        return f"sluice {' '.join(words)} goes no further"
    context = command.context_class(command, info_name="sluice", **command.context_settings)
    try:
        said = [SITE if VARIABLE.fullmatch(word) else word for word in given]
        values, left, _ = command.make_parser(context).parse_args(add_local_value(said))
    except Exception as error:  # noqa: BLE001 - of click's own kinds, which typer has a copy of
        words_of_it = str(getattr(error, "message", error))
        return None if not is_whole and "requires an argument" in words_of_it else words_of_it
    if left and not command.context_settings.get("allow_extra_args"):
        return f"it has no place for {left}"
    missing = [each.name for each in command.params if each.required and not values.get(each.name)]
    return f"it lacks {missing}" if is_whole and missing and not values.get("help") else None


def _command(found: Any, words: list[str]) -> tuple[Any, list[str]]:
    while words and not words[0].startswith("-") and getattr(found, "commands", None):
        found, words = found.commands.get(words[0]), words[1:]
    return found, words


@cache
def _make_fault(words: tuple[str, ...]) -> str | None:
    done = subprocess.run(["make", "-n", *words], cwd=ROOT, capture_output=True, text=True, check=False)
    return done.stderr.strip() if done.returncode else None


def _python_fault(words: list[str]) -> str | None:
    if words[:1] == ["-m"] and not importlib.util.find_spec(words[1]):
        return f"no module is called {words[1]}"
    return None


def _cdk_fault(words: list[str]) -> str | None:
    return None if words[0] in CDK else f"cdk has no command {words[0]}"


def _aws_fault(words: list[str]) -> str | None:
    service, operation, *rest = words
    options = {word[2:].partition("=")[0] for word in rest if word.startswith("--")}
    if (service, operation) in AWS_OWN:
        return None
    shapes = _operations(service)
    if operation not in shapes:
        return f"the AWS command line has no {service} {operation}"
    unknown = {each for each in options - AWS_GLOBAL if each.removeprefix("no-") not in shapes[operation]}
    return f"aws {service} {operation} has no {sorted(unknown)}" if unknown else None


@cache
def _operations(service: str) -> dict[str, frozenset[str]]:
    """A service's operations as the command line names them, with their options."""
    loader = botocore.loaders.Loader()
    described = loader.load_service_model(AWS_RENAMED.get(service, service), "service-2")
    model = botocore.model.ServiceModel(described, service)
    found = {}
    for name in model.operation_names:
        shape = model.operation_model(name).input_shape
        found[xform_name(name, "-")] = (
            frozenset(xform_name(each, "-") for each in shape.members) if shape else frozenset()
        )
    return found


PROGRAMS: dict[str, Callable[[list[str]], str | None]] = {
    "sluice": sluice_fault,
    "make": lambda words: _make_fault(tuple(words)),
    "python": _python_fault,
    "cdk": _cdk_fault,
    "aws": _aws_fault,
}
