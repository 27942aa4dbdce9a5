"""Counts as Prometheus reads them: its text format, version 0.0.4. Pure."""

from collections.abc import Mapping

from sluice.rendezvous.counts.statistics import FAMILIES, Count, Family, labelled, rounded_up

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
NAMESPACE = "snowflake"
AVAILABLE = Family("available_proxies", ("type", "nat"), "The number of proxies that wait for a client", rounded=False)


def exposition(counts: Mapping[Count, int], available: Mapping[tuple[str, str], int]) -> str:
    """Write the page. `available` are waiting proxies by type and NAT. A family without counts isn't in it."""
    waiting = {Count(AVAILABLE.name, labels): number for labels, number in available.items()}
    lines: list[str] = []
    for family in (AVAILABLE, *FAMILIES.values()):
        kind, numbers = ("gauge", waiting) if family is AVAILABLE else ("counter", counts)
        samples = [] if family.daily else list(labelled(numbers, family))
        name = f"{NAMESPACE}_{family.name}"
        if samples:
            lines += [f"# HELP {name} {family.meaning}", f"# TYPE {name} {kind}"]
        for labels, number in samples:
            # Label values have nothing that would be escaped: `statistics` sees to it.
            pairs = ",".join(f'{label}="{value}"' for label, value in labels.items())
            lines.append(f"{name}{{{pairs}}} {rounded_up(number) if family.rounded else number}")
    return "".join(f"{line}\n" for line in lines)
