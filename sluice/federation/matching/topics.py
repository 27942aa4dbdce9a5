"""Topic patterns: which keys they match, and an index of many patterns. Pure.

Keys and patterns are split on `.`. A token may be empty, so `""` has one token. In a pattern, the token `*` matches
exactly one token, and `#` matches any number of tokens, including none. Within a longer token they are ordinary
characters. All this is as in Qpid.
"""

from collections.abc import Iterable, Sequence
from itertools import groupby

from sluice.federation.matching.indexes import (
    NO_QUEUES,
    BindingIndex,
    BoundKeys,
    Publication,
    QueueNames,
    add_queue,
    collect_queues,
    remove_queue,
)

SEPARATOR = "."
ONE = "*"
ANY = "#"
MAX_KEPT_TOKENS = 4_096  # An index stores equal tokens only once, up to this many distinct tokens.


def _tokenize(pattern: str) -> list[str]:
    """Split a pattern into tokens. Among adjacent wildcards `*` comes first, so equivalent patterns are equal."""
    tokens = pattern.split(SEPARATOR)
    if ANY not in tokens:
        return tokens
    normalized: list[str] = []
    for is_wild, run in groupby(tokens, key={ONE, ANY}.__contains__):
        row = list(run)
        normalized += [ONE] * row.count(ONE) + [ANY] * (ANY in row) if is_wild else row
    return normalized


def covers(pattern: str, narrower_pattern: str) -> bool:
    """Return whether every key that matches the pattern `narrower_pattern` also matches `pattern`."""
    tokens = _tokenize(pattern)
    # The positions in `pattern` that can be reached by the tokens read so far, as in a nondeterministic automaton.
    reached = add_positions_after_any(tokens, {0})
    for token in _tokenize(narrower_pattern):
        reached = advance_positions(tokens, reached, token)
    return len(tokens) in reached


def advance_positions(tokens: Sequence[str], reached: frozenset[int], token: str) -> frozenset[int]:
    """Return the positions in a pattern that are possible after one more token. The token may be `#`."""
    stays = {index for index in reached if index < len(tokens) and tokens[index] == ANY}
    goes = {index + 1 for index in reached if index < len(tokens) and token != ANY and tokens[index] in {token, ONE}}
    return add_positions_after_any(tokens, stays | goes)


def add_positions_after_any(tokens: Sequence[str], reached: Iterable[int]) -> frozenset[int]:
    """Return the positions together with those behind a `#`, because `#` may match no token."""
    positions = set(reached)
    for index, token in enumerate(tokens):
        if index in positions and token == ANY:
            positions.add(index + 1)
    return frozenset(positions)


class _Node:
    """A trie node for patterns with the same first tokens. `after_any` is the child for `#`, `after_one` for `*`.

    Most nodes of a large index have at most one child for a literal token. This child is stored in `token` and `next`,
    without a table.
    """

    __slots__ = ("after_any", "after_one", "follows_any", "literals", "next", "queues", "token")

    def __init__(self, *, follows_any: bool = False) -> None:
        self.follows_any = follows_any
        self.token: str | None = None
        self.next: _Node | None = None
        self.literals: dict[str, _Node] | None = None  # the children for all other literals
        self.after_one: _Node | None = None
        self.after_any: _Node | None = None
        self.queues: QueueNames = NO_QUEUES

    @property
    def is_empty(self) -> bool:
        """Whether the node has neither queues nor children, so that it can be removed."""
        return self.queues == NO_QUEUES and self.next is self.after_one is self.after_any is None

    def find_child(self, token: str) -> "_Node | None":
        """Return the child for a pattern's token; None if there is no such child."""
        if token == ANY:
            return self.after_any
        if token == ONE:
            return self.after_one
        if token == self.token:
            return self.next
        return None if self.literals is None else self.literals.get(token)

    def add_child(self, token: str) -> "_Node":
        """Create and return the child for a pattern's token."""
        grown = _Node(follows_any=token == ANY)
        if token == ANY:
            self.after_any = grown
        elif token == ONE:
            self.after_one = grown
        elif self.next is None:
            self.token, self.next = token, grown
        else:
            self.literals = self.literals or {}
            self.literals[token] = grown
        return grown

    def remove_child(self, token: str) -> None:
        """Remove the child for a pattern's token."""
        if token == ANY:
            self.after_any = None
        elif token == ONE:
            self.after_one = None
        elif token != self.token:
            del self.literals[token]  # type: ignore[union-attr]  # it leads somewhere, so it is there
        elif self.literals:
            self.token, self.next = self.literals.popitem()
        else:
            self.token = self.next = None
        self.literals = self.literals or None


class TopicIndex(BindingIndex):
    """Matches messages whose key matches a binding's pattern, by a trie of patterns.

    One walk through the trie finds all patterns for a key. Its cost depends on the key's tokens and on the patterns
    that begin with them, not on the number of patterns. The walk has a set of nodes after each token, so `#` needs no
    backtracking.
    """

    __slots__ = ("_root", "_tokens")
    follows_keys = has_patterns = True

    def __init__(self) -> None:
        self._root = _Node()
        self._tokens: dict[str, str] = {}  # up to `MAX_KEPT_TOKENS` distinct tokens, each stored once

    def add(self, queue: str, keys: BoundKeys) -> None:
        """Add a queue's patterns."""
        for pattern in keys:
            node = self._root
            for token in _tokenize(pattern):
                node = node.find_child(token) or node.add_child(self._intern_token(token))
            node.queues = add_queue(node.queues, queue)

    def remove(self, queue: str, keys: BoundKeys) -> None:
        """Remove a queue's patterns. Raises `KeyError` if a pattern is missing."""
        for pattern in keys:
            node, way = self._root, list[tuple[_Node, str]]()
            for token in _tokenize(pattern):
                after = node.find_child(token)
                if after is None:
                    raise KeyError(pattern)
                way.append((node, token))
                node = after
            node.queues = remove_queue(node.queues, queue)
            while way and node.is_empty:
                node, token = way.pop()
                node.remove_child(token)

    def _intern_token(self, token: str) -> str:
        if len(self._tokens) < MAX_KEPT_TOKENS:
            return self._tokens.setdefault(token, token)
        return self._tokens.get(token, token)

    def find_queues(self, publication: Publication) -> set[str]:
        """Return the queues of all patterns that match the message's key."""
        matched_queues: set[str] = set()
        reached_nodes: list[_Node] = []
        _enter_node(self._root, reached_nodes)
        here = _select_continuing(reached_nodes, matched_queues)
        for token in publication.key.split(SEPARATOR):
            if not here:
                return matched_queues
            here = _select_continuing(_advance_nodes(here, token), matched_queues)
        for node in here:
            collect_queues(node.queues, matched_queues)
        return matched_queues


def _enter_node(node: _Node, reached: list[_Node]) -> None:
    """Add a node to the reached nodes, together with the node behind its `#`, which may match no token."""
    reached.append(node)
    if node.after_any is not None:
        reached.append(node.after_any)


def _advance_nodes(nodes: Iterable[_Node], token: str) -> Iterable[_Node]:
    reached: list[_Node] = []
    again = False
    for node in nodes:
        if node.follows_any:
            reached.append(node)
            again = True
        if token == node.token:
            _enter_node(node.next, reached)  # type: ignore[arg-type]  # a token leads somewhere
        elif node.literals is not None and (literal := node.literals.get(token)) is not None:
            _enter_node(literal, reached)
        if node.after_one is not None:
            _enter_node(node.after_one, reached)
    # Only nodes behind a `#` can be reached in two ways: by the token before the node, and by staying at the node.
    return dict.fromkeys(reached) if again else reached


def _select_continuing(nodes: Iterable[_Node], collected: set[str]) -> list[_Node]:
    """Return the nodes from which the walk continues. Patterns that end in `#` have already matched."""
    carried: list[_Node] = []
    for node in nodes:
        # Patterns are normalized with `*` before `#`, so a `#` is followed only by a literal or the end.
        if node.follows_any and node.next is None:
            collect_queues(node.queues, collected)
        else:
            carried.append(node)
    return carried
