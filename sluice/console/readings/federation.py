"""Reads the page *Federation*: a map of all linked sites, and the site's routes, links, exchanges and bindings."""

from collections.abc import Mapping
from functools import partial
from typing import Any

from sluice.aws.clients import now_ms
from sluice.codec import to_document
from sluice.console.maps import discover_peers, draw_map, list_warnings, read_site_view
from sluice.console.readings.shared import read_cached_series, site_metric, try_reading
from sluice.console.requests import get_text_field
from sluice.console.sites import CallLimitedSite, Document, Query
from sluice.errors import BadRequest
from sluice.federation.links.links import find_site_tags
from sluice.federation.links.states import Command
from sluice.federation.operations import (
    BridgeView,
    CommandBridge,
    CommandLink,
    ListBindings,
    Redrive,
    SiteView,
)
from sluice.operator.functions import FEDERATION
from sluice.operator.metrics import Series
from sluice.times import MINUTE_MS

MINUTES = 15  # Messages are counted over this number of minutes up to now.
MAX_COUNTED = 200  # Messages of at most this number of routes are counted: CloudWatch charges for each metric read.
MAX_BINDINGS = 2_000  # A page shows at most this number of bindings.
BINDINGS_INTERVAL_S = 6.0
MAX_EXCHANGES = 1_000


def read(site: CallLimitedSite, query: Query) -> Document:
    """Read the page's data; unreadable data are null, with reasons in `troubles`. Raises `NotUsable`, `CallFailed`."""
    view, troubles = read_site_view(site), dict[str, str]()
    # The site's own function is invoked first. The calls that are left in the budget are for other sites.
    ask = partial(site.read_cached, "bindings", lambda: site.find_client(FEDERATION).ask(ListBindings()), calls=0)
    bindings = try_reading(troubles, "bindings", lambda: ask(every_s=BINDINGS_INTERVAL_S))
    sites = try_reading(troubles, "the map", lambda: discover_peers(site))
    series = try_reading(troubles, "rates", lambda: _read_forwarded(site, view)) or {}
    lags = (
        try_reading(troubles, "lags", lambda: site.read_lags({bridge.name: bridge.reads for bridge in view.bridges}))
        or {}
    )
    is_narrow = query.get("narrow") == "1"
    return {
        "tag": view.tag,
        "map": sites and try_reading(troubles, "the drawing", lambda: draw_map(site, sites, downwards=is_narrow)),
        "warnings": list_warnings(sites) if sites else [],
        "not_reached": dict(sites.not_reached) if sites else {},
        "exchanges": [to_document(exchange) for exchange in view.exchanges[:MAX_EXCHANGES]],
        "bindings": bindings and [to_document(binding) for binding in bindings.bindings[:MAX_BINDINGS]],
        "bindings_number": view.bindings,
        "links": [
            {
                "name": link.name,
                "peer": link.peer,
                "state": link.status.state.value,
                "error": link.status.last_error,
                "served": link.served,
                "declared": link.declared,
                "last_answer_ms": link.status.last_answer_ms,
            }
            for link in view.links
        ],
        "routes": [
            {**_describe_route(site, view, bridge, series), **lags.get(bridge.name, {})} for bridge in view.bridges
        ],
        "minutes": MINUTES,
        "troubles": troubles,
    }


def read_rates(site: CallLimitedSite, _: Query) -> Document:
    """Count a site's forwarded messages by route and minute, for the map. Raises `NotUsable`, `CallFailed`."""
    view = read_site_view(site)
    series = _read_forwarded(site, view) or {}
    return {"tag": view.tag, "routes": {name: _sum_minutes(counted) for name, counted in series.items()}}


def _describe_route(site: CallLimitedSite, view: SiteView, route: BridgeView, series: Mapping[str, Series]) -> Document:
    """Format a route with the queue at this site that it reads. `queue` is null if the queue is at the peer."""
    link = view.find_link(route.link)
    here = (view.tag, "?") if route.src_is_local else ("?", view.tag)
    source, dest = here if link is None else find_site_tags(route, link, here=view.tag)
    forwarded = series.get(route.name)
    return {
        "name": route.name,
        "kind": route.kind.value,
        "source": source,
        "src": route.src,
        "dest": dest,
        "to": route.dest,
        "key": route.key,
        "state": route.state,
        "error": route.error,
        "served": route.served,
        "declared": route.declared,
        "link": route.link,
        "last_forward_ms": route.last_forward_ms,
        "queue": site.read_route_queue(route, ingress_url=view.address.ingress_url),
        "minutes": None if forwarded is None else _sum_minutes(forwarded),
    }


def _read_forwarded(site: CallLimitedSite, view: SiteView) -> Mapping[str, Series] | None:
    """Read the metric of forwarded messages of each route; None if not all have been read yet. Raises `CallFailed`."""
    names = [bridge.name for bridge in view.bridges[:MAX_COUNTED]]
    metrics = {name: site_metric(site, "MessagesForwarded", service="bridge", route=name) for name in names}
    return read_cached_series(site, "routes", metrics, minutes=MINUTES) if metrics else {}


def _sum_minutes(series: Series) -> list[int]:
    """Sum a metric's values for each of the last `MINUTES` minutes, the newest last."""
    now = now_ms() // MINUTE_MS
    counts = dict.fromkeys(range(now - MINUTES + 1, now + 1), 0)
    for at_ms, value in series:
        if at_ms // MINUTE_MS in counts:
            counts[at_ms // MINUTE_MS] += round(value)
    return list(counts.values())


def send_command(
    operation: type[CommandBridge | CommandLink], site: CallLimitedSite, fields: Mapping[str, Any]
) -> Document:
    """Pause, resume, drain or retry a route or a link. Raises the same errors as `sluice route` and `sluice link`."""
    name, command = get_text_field(fields, "name"), get_text_field(fields, "what")
    if command not in set(Command):
        raise BadRequest(f"what: {command[:80]!r} is not one of {', '.join(Command)}")
    site.find_client(FEDERATION).ask(operation(name=name, command=Command(command)))
    return {"name": name, "done": command}


def redrive_route(site: CallLimitedSite, fields: Mapping[str, Any]) -> Document:
    """Redrive a route's dead letters into its queue. Raises the errors of `sluice route redrive`."""
    redriven = site.find_client(FEDERATION).ask(Redrive(name=get_text_field(fields, "name")))
    return {"redriven": redriven.redriven}
