"""Checks that names and docstrings of the product read as plain English; `make check` runs it.

A function is a verb (`send_reply`), not a participle (`sent`) or a relation (`reply_of`). A variable has the name of
the thing (`message`), not of its role in the sentence (`each`, `found`). A docstring begins with a verb or a noun, not
with a pronoun. A line that has to differ says why: `# naming: <reason>`.
"""

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

PRODUCT = ("app.py", "functions", "sluice", "spark", "stacks")
IRREGULAR = re.compile(
    "begun|brought|built|done|drawn|drunk|fallen|found|given|gone|heard|held|kept|known|left|let|lost|made|met|put|said|"
    "seen|sent|shown|sold|spent|spoken|taken|thought|thrown|told|understood|won|worn|written"
)
REGULAR = re.compile("(?!feed|need|seed|embed|exceed|proceed|succeed|speed|shed)[a-z]{3,}ed")
VARIABLES = frozenset({"each", "found", "wanted", "told", "given", "asked", "there"})
OPENING = re.compile(r"(Who|Whom|Whoever|What|Whatever|Which|That|Of|For whom|Where)\b")
DOCUMENTED = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
REASON = "# naming: "


def main() -> int:
    files = subprocess.run(["git", "ls-files", "-z", *PRODUCT], capture_output=True, check=True, text=True).stdout
    problems = [
        f"{path}:{line}: {problem}"
        for path in files.split("\0")
        if path.endswith(".py") and Path(path).exists()
        for line, problem in check(Path(path).read_text(encoding="utf-8"))
    ]
    sys.stdout.write("\n".join([*problems, f"names and docstrings: {len(problems)} problems"]) + "\n")
    return bool(problems)


def check(source: str) -> Iterator[tuple[int, str]]:
    """Yield the line and the problem of each name or docstring that isn't plain."""
    lines = source.splitlines()
    for node in ast.walk(ast.parse(source)):
        for line, problem in problems_at(node):
            if REASON not in lines[line - 1]:
                yield line, problem


def problems_at(node: ast.AST) -> Iterator[tuple[int, str]]:
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and not is_value(node):
        if is_participle(node.name):
            yield node.lineno, f"the function {node.name} is named by a participle: use a verb"
        if node.name.endswith("_of"):
            yield node.lineno, f"the function {node.name} ends in _of: say what it does or returns"
    if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store) and node.id in VARIABLES:
        yield node.lineno, f"the variable {node.id} has no meaning: name the thing"
    if isinstance(node, DOCUMENTED) and OPENING.match(ast.get_docstring(node) or ""):
        first = node.body[0]
        yield first.lineno, "the docstring opens with a pronoun: open with a verb, or name the thing"


def is_value(function: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    """Return whether it is read as a value, so that a noun or a participle names it."""
    is_property = any("property" in ast.unparse(decorator) for decorator in function.decorator_list)
    return is_property or function.name.startswith("__")


def is_participle(name: str) -> bool:
    first = name.strip("_").split("_")[0]
    return bool(IRREGULAR.fullmatch(first) or REGULAR.fullmatch(first))


if __name__ == "__main__":
    sys.exit(main())
