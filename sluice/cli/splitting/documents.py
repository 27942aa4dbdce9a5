"""Files in JSON and YAML, as the person at the terminal wrote them: decoded, and no more."""

import json
from collections import Counter
from pathlib import Path
from typing import Any

import yaml

from sluice.errors import BadConfiguration

MAX_PAIRS = 1_000  # of one mapping, with all that merge keys bring: as many as there may be queues


class BadFile(BadConfiguration):
    """A file that can't be read, or isn't what it is to be."""

    def __init__(self, file: Path, cause: str) -> None:
        """`cause` is what is wrong with it."""
        super().__init__(f"{file}: {cause}")
        self.cause = cause


class _Loader(yaml.SafeLoader):
    """Refuses keys that are there twice, of which PyYAML takes the last, and merges that multiply: it copies all."""

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
        # YAML reads JSON too, but says less of what is wrong with it.
        return (
            [json.loads(text, object_pairs_hook=_once)]
            if file.suffix == ".json"
            else list(yaml.load_all(text, _Loader))
        )
    # PyYAML leaves it to Python to refuse what a tag can't be made of: `!!bool x` is a KeyError.
    except (
        OSError, ValueError, RecursionError, yaml.YAMLError, LookupError, AttributeError, OverflowError
    ) as error:  # fmt: skip
        raise BadFile(file, " ".join(str(error).split())) from error


def document_of_file(file: Path) -> dict[str, Any]:
    """Read the file's one document, a map. Raises `BadFile`."""
    found = documents_of(file)
    if len(found) > 1:
        raise BadFile(file, f"has {len(found)} documents, not one")
    if not found or not isinstance(found[0], dict):
        raise BadFile(file, "is no map")
    return found[0]
