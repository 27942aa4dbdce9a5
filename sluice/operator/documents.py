"""Files in JSON and YAML, as the person at the terminal wrote them: decoded, and no more."""

import re
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import yaml

from sluice.documents import MAX_DEPTH, read_json
from sluice.errors import BadConfiguration

MAX_PAIRS = 1_000  # of one mapping, with all that merge keys bring: as many as there may be queues
MAX_BYTES = 2**20  # of a file whose places are known by line
MAX_VALUES = 200_000  # that it stands for, each alias counted as what it repeats


class BadFile(BadConfiguration):
    """A file that can't be read, or isn't what it is to be."""

    def __init__(self, file: Path, cause: str) -> None:
        """`cause` is what is wrong with it."""
        super().__init__(f"{file}: {cause}")
        self.cause = cause


class _Loader(yaml.SafeLoader):
    """Refuses keys that are there twice, of which PyYAML takes the last, and merges that multiply: it copies all.

    What is nested too deep it refuses as well, with all that aliases repeat, and what contains itself: PyYAML, and
    whoever takes the document apart, call themselves for each level.
    """

    def __init__(self, stream: str) -> None:
        """`stream` is the text."""
        super().__init__(stream)
        self._depth = 0
        self._levels: dict[int, int] = {}  # of each node of the document, by its id

    def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node | None:
        """Compose the next node, or find the one that an alias repeats."""
        event: Any = self.peek_event()  # type: ignore[no-untyped-call]  # the stubs leave the parser's types out
        anchor, mark = event.anchor or "", event.start_mark
        self._check(self._depth + isinstance(event, yaml.CollectionStartEvent), mark)
        self._depth += 1
        node = super().compose_node(parent, index)
        self._depth -= 1
        if node is None:
            return None
        if id(node) not in self._levels:
            if isinstance(event, yaml.AliasEvent):
                raise yaml.composer.ComposerError(
                    problem=f"the alias {anchor[:80]!r} is within what it repeats", problem_mark=mark
                )
            of_parts = (self._levels[id(part)] for part in _parts(node))
            self._levels[id(node)] = 1 + max(of_parts, default=0) if isinstance(node, yaml.CollectionNode) else 0
        self._check(self._depth + self._levels[id(node)], mark)
        return node

    def compose_document(self) -> yaml.Node | None:
        """Compose the next document, whose nodes are its own."""
        self._levels.clear()
        return super().compose_document()

    def _check(self, depth: int, mark: yaml.Mark) -> None:
        if depth > MAX_DEPTH:
            raise yaml.composer.ComposerError(
                problem=f"nested too deep, more than {MAX_DEPTH} levels", problem_mark=mark
            )

    def flatten_mapping(self, node: yaml.MappingNode) -> None:
        """Bring a mapping's merge keys into it."""
        written = Counter(key.value for key, _ in node.value if isinstance(key, yaml.ScalarNode))
        for key, _ in node.value:
            if isinstance(key, yaml.ScalarNode) and written[key.value] > 1:
                raise yaml.constructor.ConstructorError(
                    problem=f"the key {key.value[:80]!r} is there twice", problem_mark=key.start_mark
                )
        super().flatten_mapping(node)
        if len(node.value) > MAX_PAIRS:
            raise yaml.constructor.ConstructorError(
                problem=f"more than {MAX_PAIRS:,} pairs are merged", problem_mark=node.start_mark
            )


# PyYAML leaves it to Python to refuse what a tag can't be made of: `!!bool x` is a KeyError.
_UNREADABLE = (
    OSError, ValueError, yaml.YAMLError, LookupError, AttributeError, OverflowError
)  # fmt: skip


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Make an object of JSON. Raises ValueError for a key that is there twice, of which Python takes the last."""
    for key, number in Counter(key for key, _ in pairs).items():
        if number > 1:
            raise ValueError(f"the key {key[:80]!r} is there twice")
    return dict(pairs)


def documents_of(file: Path) -> list[Any]:
    """Read the documents of a file: one of JSON, any number of YAML. Raises `BadFile`."""
    try:
        text = file.read_text()
    except (OSError, ValueError) as error:
        raise BadFile(file, " ".join(str(error).split())) from error
    return documents_of_text(text, file)


def documents_of_text(text: str, file: Path) -> list[Any]:
    """Read the documents of a text, as of a file with this name. Raises `BadFile`."""
    try:
        # YAML reads JSON too, but says less of what is wrong with it.
        return (
            [read_json(text, object_pairs_hook=_once)] if file.suffix == ".json" else list(yaml.load_all(text, _Loader))
        )
    except _UNREADABLE as error:
        raise BadFile(file, " ".join(str(error).split())) from error


def document_of_file(file: Path) -> dict[str, Any]:
    """Read the file's one document, a map. Raises `BadFile`."""
    return _the_one(documents_of(file), file)


def document_of_text(text: str, file: Path) -> dict[str, Any]:
    """Read a text's one document, a map, as of a file with this name. Raises `BadFile`."""
    return _the_one(documents_of_text(text, file), file)


def _the_one(found: list[Any], file: Path) -> dict[str, Any]:
    if len(found) > 1:
        raise BadFile(file, f"has {len(found)} documents, not one")
    if not found or not isinstance(found[0], dict):
        raise BadFile(file, "is no map")
    return found[0]


LineOf = Callable[[str], int]  # from a place in a document, as `sites.eu.routes[3].key`; its line, counted from 1


def located_document_of_file(file: Path) -> tuple[Any, LineOf]:
    """Read the one document of a YAML file, with what knows where in it something stands. Raises `BadFile`.

    A place that isn't there stands where the last part of it does that is. What aliases repeat is limited as what is
    written out: who takes the document apart meets each repetition.
    """
    try:
        if file.stat().st_size > MAX_BYTES:
            raise BadFile(file, f"has more than {MAX_BYTES:,} bytes")
        loader = _Loader(file.read_text(encoding="utf-8"))
        root = loader.get_single_node()
        if root is None:
            raise BadFile(file, "is empty")
        if _values(root, {}) > MAX_VALUES:
            raise BadFile(file, f"stands for more than {MAX_VALUES:,} values, with all that its aliases repeat")
        document = loader.construct_document(root)
    except _UNREADABLE as error:
        raise BadFile(file, " ".join(str(error).split())) from error

    def line_of(place: str) -> int:
        node = root
        line: int = node.start_mark.line
        for part in re.findall(r"[^.\[\]]+", place):
            if isinstance(node, yaml.SequenceNode) and part.isdecimal() and int(part) < len(node.value):
                node = node.value[int(part)]
                line = node.start_mark.line
                continue
            found = [pair for pair in node.value if pair[0].value == part] if isinstance(node, yaml.MappingNode) else []
            if not found:
                break
            [(key, node)] = found
            line = key.start_mark.line
        return line + 1

    return document, line_of


def _values(node: yaml.Node, known: dict[int, int]) -> int:
    """Count what a node stands for."""
    if id(node) not in known:
        known[id(node)] = 1 + sum(_values(part, known) for part in _parts(node))
    return known[id(node)]


def _parts(node: yaml.Node) -> list[yaml.Node]:
    """List the nodes that a node consists of: a mapping's keys and values, or a list's."""
    if isinstance(node, yaml.MappingNode):
        return [part for pair in node.value for part in pair]
    return list(node.value) if isinstance(node, yaml.SequenceNode) else []
