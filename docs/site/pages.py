"""What the site has beside the documents: pages that are made of the program itself, and of the files beside `docs`.

mkdocs calls the functions named `on_…` while it builds.
"""

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import typer.main
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from typer.cli import get_docs_for_click
from typer.models import Context

from docs.tables import render_permissions
from sluice.cli.program import app

ROOT = Path(__file__).parents[2]
BESIDE = {
    "README.md": "index.md",
    "CHANGELOG.md": "changelog.md",
    "CONTRIBUTING.md": "contributing.md",
    "SECURITY.md": "security.md",
    "tests/hostile/README.md": "hostile.md",
}

# What somebody who programs with Sluice calls; a module that isn't there yet is left out.
PUBLIC = {
    "sluice": "sluice/__init__.py",
    "sluice.constructs": "sluice/constructs",
    "sluice_spark": "spark/sluice_spark",
}
AFTER_GUIDES = 3  # in the navigation
# Links to files of the repository that the site lacks.
OUTSIDE = re.compile(r"\[([^]]+)\]\((?:\.\./)*(?:LICENSE|decisions|(?:benchmarks|sluice)/[^)]+)\)")
CLIENTS = ("publish", "Publisher", "PublishRequest", "BadPublishRequest", "NotPublished")


def on_config(config: MkDocsConfig) -> None:
    """Fill in the parts of the navigation that follow from what there is."""
    own_app = _pages("constructs.md", "examples/*/README.md")
    if own_app and config.nav is not None:
        config.nav.insert(AFTER_GUIDES, {"In your own app": own_app})
    _fill(
        config.nav, {"Commands": [*command_pages(), "reference/permissions.md"], "Decisions": _pages("decisions/*.md")}
    )


def _pages(*patterns: str) -> list[str]:
    documents = ROOT / "docs"
    return [str(path.relative_to(documents)) for each in patterns for path in sorted(documents.glob(each))]


def on_files(files: Files, config: MkDocsConfig) -> None:
    """Add the pages that are made."""
    made = {**command_pages(), "reference/python.md": python_page()}
    made["reference/permissions.md"] = f"# Permissions\n\n{render_permissions()}"
    made |= {page: (ROOT / name).read_text().replace("](docs/", "](") for name, page in BESIDE.items()}
    made["assets/iframe-worker.js"] = (ROOT / "node_modules/iframe-worker/shim/index.js").read_text()
    for path, content in made.items():
        files.append(File.generated(config, path, content=content))


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Lead links to what stands beside `docs` to its page here, and unlink files that have none."""
    for name, page in BESIDE.items():
        markdown = re.sub(rf"\]\((?:\.\./)?{re.escape(name)}", f"]({page}", markdown)
    return OUTSIDE.sub(r"\1", markdown)


def command_pages() -> dict[str, str]:
    """Give a page for each group of commands, by its path; the first is that of commands of no group."""
    root: Any = typer.main.get_command(app)
    single = "\n\n".join(_described(name, each) for name, each in root.commands.items() if not _is_group(each))
    groups = {name: each for name, each in root.commands.items() if _is_group(each)}
    head = "# sluice\n\n`--help` says the same in a terminal.\n\n"
    pages = {f"reference/commands/{name}.md": _described(name, each) for name, each in groups.items()}
    return {"reference/commands/sluice.md": head + single.replace("\n# ", "\n## ").replace("# `", "## `", 1)} | pages


def _described(name: str, command: Any) -> str:
    for each in getattr(command, "commands", {}).values():
        each.short_help = str(each.help).partition("\n\n")[0]  # in full, where typer would cut it
    return get_docs_for_click(obj=command, ctx=Context(command, info_name="sluice"), name=name, call_prefix="sluice")


def _is_group(command: Any) -> bool:
    return bool(getattr(command, "commands", None))


def python_page() -> str:
    """Have mkdocstrings describe what is for programs: names, types and docstrings."""
    return "\n\n".join(["# Python", *_modules()])


def _modules() -> Iterator[str]:
    for module, path in PUBLIC.items():
        if (ROOT / path).exists() or (ROOT / f"{path}.py").exists():
            yield f"## {module}"
            if module == "sluice":
                yield from (f"::: sluice.aws.federation.publisher.{name}" for name in CLIENTS)
            else:
                yield f"::: {module}\n    options:\n      show_root_heading: false\n      show_root_toc_entry: false"


def _fill(nav: Any, parts: Mapping[str, list[str]]) -> None:
    for entry in nav if isinstance(nav, list) else []:
        for title, under in entry.items() if isinstance(entry, dict) else ():
            if title in parts:
                entry[title] = parts[title]
            else:
                _fill(under, parts)
