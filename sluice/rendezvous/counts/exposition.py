"""Counts as Prometheus reads them: its text format, version 0.0.4. Pure."""

from collections.abc import Iterator, Mapping

from sluice.rendezvous.counts.statistics import FAMILIES, Count, Family, labelled, rounded_up

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
NAMESPACE = "snowflake"
AVAILABLE = Family(
    name="available_proxies",
    labels=("type", "nat"),
    meaning="The number of proxies that wait for a client",
    rounded=False,
)


def exposition(counts: Mapping[Count, int], available: Mapping[tuple[str, str], int]) -> str:
    """The page. `available` are waiting proxies by type and NAT. A family without counts isn't in it."""
    waiting = {Count(AVAILABLE.name, labels): number for labels, number in available.items()}
    lines = list(_family(AVAILABLE, "gauge", waiting))
    for family in FAMILIES.values():
        if not family.daily:
            lines += _family(family, "counter", counts)
    return "".join(f"{line}\n" for line in lines)


def _family(family: Family, kind: str, counts: Mapping[Count, int]) -> Iterator[str]:
    name = f"{NAMESPACE}_{family.name}"
    samples = list(labelled(counts, family))
    if not samples:
        return
    yield f"# HELP {name} {family.meaning}"
    yield f"# TYPE {name} {kind}"
    for labels, number in samples:
        # Label values have nothing that would be escaped: `statistics` sees to it.
        pairs = ",".join(f'{label}="{value}"' for label, value in labels.items())
        yield f"{name}{{{pairs}}} {rounded_up(number) if family.rounded else number}"
