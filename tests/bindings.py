"""A site's bindings, made at once: for tests and benchmarks that have them before there is a store."""

from collections import defaultdict
from collections.abc import Iterable

from sluice.federation.exchange_store import replace_bindings
from sluice.federation.matching.bindings import Binding, Bindings, Destination, SiteBindings
from sluice.federation.matching.exchanges import STANDARD_EXCHANGES, Exchange


def bound(
    bindings: Iterable[Binding],
    queues: Iterable[Destination],
    exchanges: Iterable[Exchange] = STANDARD_EXCHANGES,
    version: int = 1,
) -> Bindings:
    """The queues with these bindings. Raises `BadBinding`, as binding them one by one would."""
    by_queue = defaultdict[str, list[Binding]](list)
    for binding in bindings:
        by_queue[binding.queue].append(binding)
    site = SiteBindings(Bindings(version=version, exchanges=tuple(exchanges)))
    for queue in queues:
        change = replace_bindings((queue, by_queue[queue.queue]))(site)
        if change is not None:
            site.apply(change)
    return site.snapshot()
