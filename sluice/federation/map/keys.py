"""Keys that several topic patterns have in common. Pure."""

from collections import deque
from collections.abc import Iterable, Sequence

from sluice.federation.matching.topics import ANY, ONE, SEPARATOR


def common_key(patterns: Sequence[str]) -> str | None:
    """Find a key that matches every one of the patterns, of those with the fewest tokens; None where there is none.

    What it costs grows with the product of their lengths: it is for a handful of patterns.
    """
    split = [pattern.split(SEPARATOR) for pattern in patterns]
    words = sorted({token for tokens in split for token in tokens} - {ONE, ANY})
    words.append(_word_beside(words))
    places = tuple(_past_any(tokens, {0}) for tokens in split)
    to_visit, seen = deque([(places, list[str]())]), {places}
    while to_visit:
        here, key = to_visit.popleft()
        if key and all(len(tokens) in at for tokens, at in zip(split, here, strict=True)):
            return SEPARATOR.join(key)
        for word in words:
            after = tuple(_after(tokens, at, word) for tokens, at in zip(split, here, strict=True))
            if all(after) and (after not in seen or not key):
                seen.add(after)
                to_visit.append((after, [*key, word]))
    return None


def _word_beside(words: Iterable[str]) -> str:
    """Make a word that no pattern has: only wildcards match it."""
    return max(words, key=len, default="") + "x"


def _after(tokens: Sequence[str], at: Iterable[int], word: str) -> frozenset[int]:
    """Where a pattern may stand after one more word of a key, of where it may have stood before."""
    stay = {place for place in at if place < len(tokens) and tokens[place] == ANY}
    step = {place + 1 for place in at if place < len(tokens) and tokens[place] in {ONE, word}}
    return _past_any(tokens, stay | step)


def _past_any(tokens: Sequence[str], at: Iterable[int]) -> frozenset[int]:
    """With the places behind a `#`, which may be no word at all."""
    found = set(at)
    for place, token in enumerate(tokens):
        if place in found and token == ANY:
            found.add(place + 1)
    return frozenset(found)
