"""Page *Federation*: the map of all sites, this one's routes and links with their rates, exchanges and bindings."""

from collections.abc import Mapping
from functools import partial
from typing import Any

from sluice.aws.clients import now_ms
from sluice.codec import plain
from sluice.console.maps import drawn, view_of, walked_from, warnings_of
from sluice.console.readings.shared import last, own_metric, series_of, tried
from sluice.console.requests import text_in
from sluice.console.sites import Document, KnownSite, Query
from sluice.errors import BadRequest
from sluice.federation.links.links import ends
from sluice.federation.links.states import Command
from sluice.federation.operations import (
    BridgeView,
    ListBindings,
    Redrive,
    SiteView,
    TellBridge,
    TellLink,
)
from sluice.operator.functions import FEDERATION
from sluice.operator.metrics import Series
from sluice.times import MINUTE_MS

MINUTES = 15  # of which messages are counted
MAX_COUNTED = 200  # routes: each is a metric, and CloudWatch takes money for each that it gives
MAX_BINDINGS = 2_000  # that a page is told
BINDINGS_EVERY_S = 6.0
MAX_EXCHANGES = 1_000


def read(site: KnownSite, query: Query) -> Document:
    """Read it. What can't be read of it is null, with the reason in `troubles`. Raises `NotUsable`, `CallFailed`."""
    view, troubles = view_of(site), dict[str, str]()
    # Its own functions come before peers', which take what the round has left.
    ask = partial(site.kept, "bindings", lambda: site.client(FEDERATION).ask(ListBindings()), calls=0)
    bindings = tried(troubles, "bindings", lambda: ask(every_s=BINDINGS_EVERY_S))
    walked = tried(troubles, "the map", lambda: walked_from(site))
    series = tried(troubles, "rates", lambda: _series(site, view)) or {}
    lags = tried(troubles, "lags", lambda: site.lags({each.name: each.reads for each in view.bridges})) or {}
    is_narrow = query.get("narrow") == "1"
    return {
        "tag": view.tag,
        "map": walked and tried(troubles, "the drawing", lambda: drawn(site, walked, downwards=is_narrow)),
        "warnings": warnings_of(walked) if walked else [],
        "not_reached": dict(walked.not_reached) if walked else {},
        "exchanges": [plain(each) for each in view.exchanges[:MAX_EXCHANGES]],
        "bindings": bindings and [plain(each) for each in bindings.bindings[:MAX_BINDINGS]],
        "bindings_number": view.bindings,
        "links": [
            {
                "name": each.name,
                "peer": each.peer,
                "state": each.status.state.value,
                "error": each.status.last_error,
                "served": each.served,
                "declared": each.declared,
                "last_answer_ms": each.status.last_answer_ms,
            }
            for each in view.links
        ],
        "routes": [{**_route(site, view, each, series), **lags.get(each.name, {})} for each in view.bridges],
        "minutes": MINUTES,
        "troubles": troubles,
    }


def read_rates(site: KnownSite, _: Query) -> Document:
    """Read what a site's routes forwarded, for the map of another one. Raises `NotUsable`, `CallFailed`."""
    view = view_of(site)
    series = _series(site, view) or {}
    return {"tag": view.tag, "routes": {name: _minutes(each) for name, each in series.items()}}


def _route(site: KnownSite, view: SiteView, shown: BridgeView, series: Mapping[str, Series]) -> dict[str, Any]:
    """Say a route with the queue that it reads here; `queue` is null where its messages wait at its peer."""
    link = view.link_named(shown.link)
    here = (view.tag, "?") if shown.src_is_local else ("?", view.tag)
    source, dest = here if link is None else ends(shown, link, here=view.tag)
    counted = series.get(shown.name)
    return {
        "name": shown.name,
        "kind": shown.kind.value,
        "source": source,
        "src": shown.src,
        "dest": dest,
        "to": shown.dest,
        "key": shown.key,
        "state": shown.state,
        "error": shown.error,
        "served": shown.served,
        "declared": shown.declared,
        "link": shown.link,
        "last_forward_ms": shown.last_forward_ms,
        "queue": site.held_by(shown, ingress_url=view.address.ingress_url),
        "minutes": None if counted is None else _minutes(counted),
    }


def _series(site: KnownSite, view: SiteView) -> Mapping[str, Series] | None:
    """Read what each route forwarded; None where that isn't known yet. Raises `CallFailed`."""
    names = [each.name for each in view.bridges[:MAX_COUNTED]]
    wanted = {name: own_metric(site, "MessagesForwarded", service="bridge", route=name) for name in names}
    return series_of(site, "routes", wanted, last(MINUTES)) if wanted else {}


def _minutes(series: Series) -> list[int]:
    """Count each of the last minutes, the newest last."""
    now = now_ms() // MINUTE_MS
    counts = dict.fromkeys(range(now - MINUTES + 1, now + 1), 0)
    for at_ms, value in series:
        if at_ms // MINUTE_MS in counts:
            counts[at_ms // MINUTE_MS] += round(value)
    return list(counts.values())


# Actions


def tell(operation: type[TellBridge | TellLink], site: KnownSite, fields: Mapping[str, Any]) -> Document:
    """Pause, resume, drain or retry a route or a link. Raises what the command raises."""
    name, what = text_in(fields, "name"), text_in(fields, "what")
    if what not in set(Command):
        raise BadRequest(f"what: {what[:80]!r} is none of {', '.join(Command)}")
    site.client(FEDERATION).ask(operation(name=name, what=Command(what)))
    return {"name": name, "done": what}


def redrive_route(site: KnownSite, fields: Mapping[str, Any]) -> Document:
    """Put a route's dead letters back into its queue. Raises what the command raises."""
    done = site.client(FEDERATION).ask(Redrive(name=text_in(fields, "name")))
    return {"redriven": done.redriven}
