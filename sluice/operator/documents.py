"""Reads JSON, TOML and YAML files given on the command line, and refuses duplicate keys and oversized documents."""

import re
import tomllib
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import yaml

from sluice.documents import MAX_DEPTH, read_json
from sluice.errors import BadConfiguration

MAX_PAIRS = 1_000  # A YAML mapping has at most this number of pairs, including merged ones.
MAX_BYTES = 2**20  # A file that is read with line numbers has at most this number of bytes.
MAX_VALUES = 200_000  # A YAML document has at most this number of values; each alias counts as a copy.


class BadFile(BadConfiguration):
    """Raised if a file can't be read or has malformed content."""

    def __init__(self, file: Path, cause: str) -> None:
        """Create the error. Its text is the file's name and the cause, such as a syntax error."""
        super().__init__(f"{file}: {cause}")
        self.cause = cause


class _Loader(yaml.SafeLoader):
    """A YAML loader that refuses duplicate keys (PyYAML keeps the last) and merge keys that expand too far.

    The loader also refuses nesting that is too deep (with aliases expanded) and documents that contain themselves,
    because PyYAML and the readers of a document recurse once for each level.
    """

    def __init__(self, stream: str) -> None:
        """Create a loader for a YAML text."""
        super().__init__(stream)
        self._depth = 0
        self._levels: dict[int, int] = {}  # the number of levels within each node, by the node's `id()`

    def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node | None:
        """Build the next YAML node, or return the node that an alias repeats. Raises an error if nested too deep."""
        event: Any = self.peek_event()  # type: ignore[no-untyped-call]  # the stubs leave the parser's types out
        anchor, mark = event.anchor or "", event.start_mark
        self._check_depth(self._depth + isinstance(event, yaml.CollectionStartEvent), mark)
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
            of_parts = (self._levels[id(part)] for part in _list_child_nodes(node))
            self._levels[id(node)] = 1 + max(of_parts, default=0) if isinstance(node, yaml.CollectionNode) else 0
        self._check_depth(self._depth + self._levels[id(node)], mark)
        return node

    def compose_document(self) -> yaml.Node | None:
        """Build the nodes of the next YAML document, after clearing the nesting depths of the previous document."""
        self._levels.clear()
        return super().compose_document()

    def _check_depth(self, depth: int, mark: yaml.Mark) -> None:
        if depth > MAX_DEPTH:
            raise yaml.composer.ComposerError(
                problem=f"nested too deep, more than {MAX_DEPTH} levels", problem_mark=mark
            )

    def flatten_mapping(self, node: yaml.MappingNode) -> None:
        """Resolve a YAML mapping's merge keys. Raises an error for duplicate keys, and for too many pairs."""
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


# Reading raises these errors. PyYAML does not convert Python's errors for invalid values: `!!bool x` raises KeyError.
_UNREADABLE = (
    OSError, ValueError, yaml.YAMLError, LookupError, AttributeError, OverflowError, RecursionError
)  # fmt: skip


def _build_object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Build a JSON object from its pairs. Raises ValueError for a duplicate key: Python would keep the last value."""
    for key, number in Counter(key for key, _ in pairs).items():
        if number > 1:
            raise ValueError(f"the key {key[:80]!r} is there twice")
    return dict(pairs)


def read_documents(file: Path, *, prepare: Callable[[str], str] = str) -> list[Any]:
    """Read the documents of a JSON, TOML or YAML file; only YAML can have several. `prepare` changes the text first.

    Raises `BadFile`.
    """
    try:
        text = prepare(file.read_text())
        if file.suffix == ".toml":
            return [tomllib.loads(text)]
        # The YAML parser would accept JSON too, but its error messages are less precise.
        return (
            [read_json(text, object_pairs_hook=_build_object)]
            if file.suffix == ".json"
            else list(yaml.load_all(text, _Loader))
        )
    except _UNREADABLE as error:
        raise BadFile(file, " ".join(str(error).split())) from error


def read_document(file: Path, *, prepare: Callable[[str], str] = str) -> dict[str, Any]:
    """Read a file with a single document, which must be a mapping. Raises `BadFile`."""
    documents = read_documents(file, prepare=prepare)
    if len(documents) > 1:
        raise BadFile(file, f"has {len(documents)} documents, not one")
    if not documents or not isinstance(documents[0], dict):
        raise BadFile(file, "is no map")
    document: dict[str, Any] = documents[0]
    return document


FindLine = Callable[[str], int]  # Returns the line number (from 1) of a path such as `sites.eu.routes[3].key`.


def read_document_with_lines(file: Path) -> tuple[Any, FindLine]:
    """Read a YAML file with a single document. Also returns a function that finds a path's line. Raises `BadFile`.

    For a path that does not exist, the function returns the line of its deepest existing parent. Aliases count as
    copies for `MAX_VALUES`, because readers of the document visit each copy.
    """
    try:
        if file.stat().st_size > MAX_BYTES:
            raise BadFile(file, f"has more than {MAX_BYTES:,} bytes")
        loader = _Loader(file.read_text(encoding="utf-8"))
        root = loader.get_single_node()
        if root is None:
            raise BadFile(file, "is empty")
        if _count_values(root, {}) > MAX_VALUES:
            raise BadFile(file, f"has more than {MAX_VALUES:,} values when its aliases are expanded")
        document = loader.construct_document(root)
    except _UNREADABLE as error:
        raise BadFile(file, " ".join(str(error).split())) from error

    def find_line(place: str) -> int:
        node = root
        line: int = node.start_mark.line
        for part in re.findall(r"[^.\[\]]+", place):
            if isinstance(node, yaml.SequenceNode) and part.isdecimal() and int(part) < len(node.value):
                node = node.value[int(part)]
                line = node.start_mark.line
                continue
            pairs = [pair for pair in node.value if pair[0].value == part] if isinstance(node, yaml.MappingNode) else []
            if not pairs:
                break
            [(key, node)] = pairs
            line = key.start_mark.line
        return line + 1

    return document, find_line


def _count_values(node: yaml.Node, counts: dict[int, int]) -> int:
    """Count the values in a YAML node, with aliases expanded."""
    if id(node) not in counts:
        counts[id(node)] = 1 + sum(_count_values(part, counts) for part in _list_child_nodes(node))
    return counts[id(node)]


def _list_child_nodes(node: yaml.Node) -> list[yaml.Node]:
    """List the children of a YAML node: a mapping's keys and values, or a list's items."""
    if isinstance(node, yaml.MappingNode):
        return [part for pair in node.value for part in pair]
    return list(node.value) if isinstance(node, yaml.SequenceNode) else []
