"""Topic patterns: which keys they match, and an index over many of them. Pure.

Keys and patterns are split on `.`; an empty token is a token, so `""` has one. In a pattern the token `*` is exactly
one token and `#` any number of them, none included; within a longer token they are ordinary characters. As in Qpid.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping
from itertools import groupby
from types import MappingProxyType

SEPARATOR = "."
ONE = "*"
ANY = "#"


def _tokens(pattern: str) -> list[str]:
    """Split into tokens, of wildcards in a row the `*` first: so patterns for the same keys have the same ones."""
    tokens = pattern.split(SEPARATOR)
    if ANY not in tokens:
        return tokens
    found: list[str] = []
    for is_wild, run in groupby(tokens, key={ONE, ANY}.__contains__):
        row = list(run)
        found += [ONE] * row.count(ONE) + [ANY] * (ANY in row) if is_wild else row
    return found


def overlap(one: str, other: str) -> bool:
    """Whether some key matches both patterns."""
    left, right = _tokens(one), _tokens(other)
    # reachable[j]: the tokens of `left` so far and `right[:j]` have a key in common.
    reachable = [True]
    for token in right:
        reachable.append(reachable[-1] and token == ANY)
    for token in left:
        before, reachable = reachable, [reachable[0] and token == ANY]
        for place, against in enumerate(right, start=1):
            if ANY in {token, against}:
                reachable.append(before[place] or reachable[-1] or before[place - 1])
            else:
                reachable.append(before[place - 1] and (token == against or ONE in {token, against}))
    return reachable[-1]


class _Node:
    """Where patterns with the same first tokens meet. `after_any` is where a `#` leads.

    Most nodes of a large index are leaves, so a leaf has nothing of its own that is empty.
    """

    __slots__ = ("after_any", "after_one", "follows_any", "literals", "members")

    def __init__(self, *, follows_any: bool = False) -> None:
        self.follows_any = follows_any
        self.literals: Mapping[str, _Node] = _NO_NODES
        self.after_one: _Node | None = None
        self.after_any: _Node | None = None
        self.members: tuple[int, ...] = ()

    def child(self, token: str) -> "_Node":
        if token == ANY:
            self.after_any = self.after_any or _Node(follows_any=True)
            return self.after_any
        if token == ONE:
            self.after_one = self.after_one or _Node()
            return self.after_one
        found = self.literals.get(token)
        if found is None:
            if not isinstance(self.literals, dict):
                self.literals = {}
            found = self.literals[token] = _Node()
        return found


_NO_NODES: Mapping[str, _Node] = MappingProxyType({})


class TopicIndex:
    """Patterns with the members (numbers) that they stand for, as a trie that is walked once for a key.

    A key's cost follows its tokens and the patterns that begin as it does, not the number of patterns. After each token
    the walk has a set of nodes, so `#` costs no backtracking, whatever the patterns.
    """

    __slots__ = ("_root",)

    def __init__(self, patterns: Iterable[tuple[str, int]]) -> None:
        self._root = _Node()
        by_pattern: defaultdict[str, list[int]] = defaultdict(list)
        for pattern, member in patterns:
            by_pattern[pattern].append(member)
        for pattern, members in by_pattern.items():
            node = self._root
            for token in _tokens(pattern):
                node = node.child(token)
            node.members += tuple(members)  # more than once only where patterns differ before wildcards are in order

    def matches(self, key: str) -> set[int]:
        """Find the members of all patterns that match the key."""
        found: set[int] = set()
        reached: list[_Node] = []
        _enter(self._root, reached)
        here = _carried(reached, found)
        for token in key.split(SEPARATOR):
            if not here:
                return found
            here = _carried(_reached(here, token), found)
        for node in here:
            found.update(node.members)
        return found


def _enter(node: _Node, reached: list[_Node]) -> None:
    """Who is at a node is also past the `#` that matches no token."""
    reached.append(node)
    if node.after_any is not None:
        reached.append(node.after_any)


def _reached(here: Iterable[_Node], token: str) -> Iterable[_Node]:
    reached: list[_Node] = []
    again = False
    for node in here:
        if node.follows_any:
            reached.append(node)
            again = True
        literal = node.literals.get(token)
        if literal is not None:
            _enter(literal, reached)
        if node.after_one is not None:
            _enter(node.after_one, reached)
    # Only what follows a `#` can be reached twice: through the token before it, and by staying.
    return dict.fromkeys(reached) if again else reached


def _carried(reached: Iterable[_Node], found: set[int]) -> list[_Node]:
    """Choose the nodes to go on from; a pattern that ends in `#` has matched already, and is done with."""
    carried: list[_Node] = []
    for node in reached:
        # Nothing but a literal follows a `#`: its tokens are in order.
        if node.follows_any and not node.literals:
            found.update(node.members)
        else:
            carried.append(node)
    return carried
