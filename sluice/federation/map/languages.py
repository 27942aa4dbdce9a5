"""A topology in other programs' languages: Graphviz' DOT, and Mermaid, which is drawn where Markdown is. Pure."""

import re
from collections.abc import Iterator

from sluice.federation.links.links import RouteKind
from sluice.federation.map.drawings import RED, colour_of, label_of, title_of
from sluice.federation.map.findings import findings
from sluice.federation.map.topology import Topology

_DOT_STYLES = {RouteKind.QUEUE: "bold", RouteKind.STATIC: "solid", RouteKind.DYNAMIC: "dashed"}
_MERMAID_LINES = {RouteKind.QUEUE: "==>", RouteKind.STATIC: "-->", RouteKind.DYNAMIC: "-.->"}
_NOT_MERMAID = re.compile(r"[^A-Za-z0-9 .,:()_/-]")
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\ud800-\udfff]")


def as_dot(topology: Topology) -> str:
    """Write a directed graph for `dot`: solid lines are static, dashed dynamic, bold queue routes; warnings below."""
    return "\n".join(["digraph sluice {", *_dot_lines(topology), "}"]) + "\n"


def _dot_lines(topology: Topology) -> Iterator[str]:
    yield "  rankdir=LR;"
    warnings = [f"⚠ {finding}" for finding in findings(topology)]
    if warnings:
        # `\l` ends a line that stands to the left.
        text = "".join(f"{_in_dot(each)}\\l" for each in warnings)
        yield f'  label="{text}"; labelloc=b; labeljust=l; fontcolor="{RED}";'
    for tag in topology.tags:
        style = "" if tag in topology.sites else ", style=dashed"
        yield f'  "{_in_dot(tag)}" [label="{_in_dot(tag)}\\n{_in_dot(_place(topology, tag))}"{style}];'
    for route in topology.routes:
        yield (
            f'  "{_in_dot(route.source)}" -> "{_in_dot(route.dest)}" [label="{_in_dot(label_of(route))}",'
            f' style={_DOT_STYLES[route.bridge.kind]}, color="{colour_of(route)}",'
            f' tooltip="{_in_dot(title_of(route))}"];'
        )


def as_mermaid(topology: Topology) -> str:
    """Write a flowchart: `-->` is static, `-.->` dynamic, `==>` a queue route; warnings are nodes of their own."""
    return "\n".join(["flowchart LR", *_mermaid_lines(topology)]) + "\n"


def _mermaid_lines(topology: Topology) -> Iterator[str]:
    numbers = {tag: number for number, tag in enumerate(topology.tags)}
    for tag, number in numbers.items():
        yield f'  s{number}["{_in_mermaid(tag)}<br/>{_in_mermaid(_place(topology, tag))}"]'
    for route in topology.routes:
        line = _MERMAID_LINES[route.bridge.kind]
        yield f'  s{numbers[route.source]} {line}|"{_in_mermaid(label_of(route))}"| s{numbers[route.dest]}'
    for number, route in enumerate(topology.routes):
        yield f"  linkStyle {number} stroke:{colour_of(route)}"
    for number, finding in enumerate(findings(topology)):
        yield f'  w{number}["⚠ {_in_mermaid(str(finding))}"]'
        yield f"  style w{number} fill:none,stroke:none,color:{RED}"


def _place(topology: Topology, tag: str) -> str:
    return topology.sites[tag].region if tag in topology.sites else "not reached"


def _in_dot(text: str) -> str:
    """Escape for a string of DOT's."""
    return _CONTROL.sub("\ufffd", text).replace("\\", "\\\\").replace('"', '\\"')


def _in_mermaid(text: str) -> str:
    """Write what means something to Mermaid by its number."""
    return _NOT_MERMAID.sub(lambda found: f"#{ord(found[0])};", _CONTROL.sub("\ufffd", text))
