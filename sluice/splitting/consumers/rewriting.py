"""Rewrites a configured text so that it names another queue of the same account and region. Pure.

Only the queue's name is replaced. The rest of the text stays unchanged, including spaces and JSON escapes, so that
writing the original name again restores the original text byte for byte.
"""

import json
import re
from collections.abc import Collection, Iterator, Sequence

import msgspec

from sluice.documents import read_json
from sluice.errors import BadConsumer
from sluice.splitting.consumers.targets import Place

EACH = "[]"  # This step of a path stands for every item of a list and every value of an object.
GROUP = "queue"  # The group of a pattern with this name matches the queue.

# Matches the JSON tokens that are needed to locate a string: brackets and strings. A string before a colon is a key.
_TOKEN = re.compile(r'[][{}]|(?P<string>"(?:\\.|[^"\\])*")(?P<colon>\s*:)?')
# Matches one character of a JSON string in its written form. An escaped surrogate pair counts as one character.
_WRITTEN = re.compile(
    r"\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}|\\u[0-9a-fA-F]{4}|\\.|[^\\]", re.DOTALL
)


class _TextAtPlace(msgspec.Struct, frozen=True):
    """A text that may name a queue, and the position of each of its characters in the configured text."""

    value: str
    starts: Sequence[int]  # positions of all characters and of the end


def rewrite(text: str, place: Place, *, old: Collection[str], new: str, of: str) -> str:
    """Replace the queue that this place of the text names, one of `old`, by `new`. All queues are given as ARNs.

    The text may have a queue's name, ARN or URL. A text that names `new` is returned unchanged. Raises `BadConsumer`,
    whose message begins with `of` and the place, if the text names no queue or several, or if the change couldn't be
    reverted.
    """
    where = _describe_place(place, of)
    spans_by_queue = {arn: spans for arn in (*old, new) if (spans := _find_spans(text, place, arn, where))}
    if len(spans_by_queue) > 1:
        raise BadConsumer(where, f"names both {' and '.join(map(_get_queue_name, spans_by_queue))}")
    if new in spans_by_queue:
        return text
    if not spans_by_queue:
        raise BadConsumer(where, f"doesn't name {' or '.join(map(_get_queue_name, old))}")
    [(current, spans)] = spans_by_queue.items()
    changed = _replace_spans(text, spans, _get_queue_name(new))
    again = _find_spans(changed, place, new, where)
    if _find_spans(changed, place, current, where) or _replace_spans(changed, again, _get_queue_name(current)) != text:
        raise BadConsumer(where, f"wouldn't be found again once it names {_get_queue_name(new)}")
    return changed


def check_named(text: str, place: Place, *, queue: str, of: str) -> None:
    """Check that the text names the queue, given as an ARN, at this place. Raises `BadConsumer`."""
    where = _describe_place(place, of)
    if not _find_spans(text, place, queue, where):
        raise BadConsumer(where, f"doesn't name {_get_queue_name(queue)}")


def _describe_place(place: Place, of: str) -> str:
    path = "".join(f".{step}" for step in place.path)
    return " ".join(part for part in (of, path, place.pattern) if part)


def _get_queue_name(arn: str) -> str:
    return arn.rsplit(":", 1)[-1]


def _replace_spans(text: str, spans: Sequence[tuple[int, int]], name: str) -> str:
    for start, end in reversed(spans):
        text = text[:start] + name + text[end:]
    return text


def _find_spans(text: str, place: Place, arn: str, where: str) -> list[tuple[int, int]]:
    """Find the start and end positions of the queue's name, in order."""
    account, name = arn.split(":")[-2:]
    url = re.compile(rf"https?://[^/?#]+/(?:[^?#]+/)?{account}/{re.escape(name)}")  # An endpoint can have any host.
    spans = set[tuple[int, int]]()
    for leaf in _iterate_texts(text, place.path, where):
        for start, end in _find_candidates(leaf.value, place.pattern, where):
            candidate = leaf.value[start:end]
            if candidate in {name, arn} or url.fullmatch(candidate):
                span = leaf.starts[end - len(name)], leaf.starts[end]
                if text[slice(*span)] != name:
                    raise BadConsumer(where, f"{name} is written with escapes")
                spans.add(span)
    return sorted(spans)


def _find_candidates(value: str, pattern: str | None, where: str) -> Iterator[tuple[int, int]]:
    if pattern is None:
        yield 0, len(value)
        return
    try:
        compiled = re.compile(pattern)
    except re.error as error:
        raise BadConsumer(where, f"no pattern: {error}") from None
    group = GROUP if GROUP in compiled.groupindex else min(compiled.groups, 1)
    for match in compiled.finditer(value):
        if match[group] is not None:
            yield match.span(group)


def _iterate_texts(text: str, path: Sequence[str], where: str) -> Iterator[_TextAtPlace]:
    if not path:
        yield _TextAtPlace(text, range(len(text) + 1))
        return
    try:
        read_json(text)
    except ValueError as error:
        raise BadConsumer(where, f"no JSON: {error}") from None
    steps: list[str] = []  # one step per open bracket: the current key, or `EACH`
    for token in _TOKEN.finditer(text):
        if token[0] in {"{", "["}:
            steps.append(EACH)
        elif token[0] in {"}", "]"}:
            steps.pop()
        elif token["colon"]:
            steps[-1] = json.loads(token["string"])
        elif len(steps) == len(path) and all(one in {step, EACH} for one, step in zip(path, steps, strict=True)):
            start, end = token.start() + 1, token.end() - 1
            written = [match.start() for match in _WRITTEN.finditer(text, start, end)]
            yield _TextAtPlace(json.loads(token["string"]), [*written, end])
