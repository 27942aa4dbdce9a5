"""Implements `sluice route`: static exchange routes, and the commands for routes of all kinds."""

from dataclasses import fields
from pathlib import Path
from typing import Annotated, Any

import typer
from msgspec import UNSET
from msgspec.structs import asdict, replace

from sluice.cli.completion import complete_exchanges, complete_routes, complete_sites
from sluice.cli.federation.dynamic_routes import PATH_COLUMNS, build_path_row
from sluice.cli.federation.links import add_control_commands
from sluice.cli.federation.route_options import (
    DelEmptyLink,
    LinkOption,
    Patterns,
    Program,
    RouteOptions,
    SrcLocal,
    add_and_show_route,
    read_filter,
    remove_route,
    report_closing,
    wait_and_show_route,
    with_route_options,
)
from sluice.cli.output import format_time, is_json, print_result, show_json, show_pairs, show_table
from sluice.cli.sites import DestText, SiteCommands, SiteText, SrcText
from sluice.cli.terminal import print_note
from sluice.codec import encode
from sluice.errors import BadConfiguration, BadRoute
from sluice.federation import operations
from sluice.federation.links.links import BridgeDeclaration, RouteKind, find_site_tags
from sluice.federation.links.watch import Repairs
from sluice.federation.map.drawings import draw_svg, draw_text
from sluice.federation.map.findings import list_findings
from sluice.operator.federated_sites import DiscoveredSites, discover_sites, open_site
from sluice.operator.routes import withdraw_all_grants

app = SiteCommands()

Exchange = Annotated[
    str, typer.Argument(metavar="EXCHANGE", help="The exchange at SRC, and at DEST.", autocompletion=complete_exchanges)
]
Key = Annotated[str, typer.Argument(metavar="KEY", help="Binding key at SRC, as in a queue's binding.")]
DestExchange = Annotated[str | None, typer.Option(metavar="NAME", help="Exchange at DEST, if its name differs.")]
Name = Annotated[str, typer.Argument(metavar="NAME", help="Name of the route.", autocompletion=complete_routes)]


@app.command(quiet=True)
@with_route_options(RouteKind.STATIC)
def add(
    dest: DestText,
    src: SrcText,
    exchange: Exchange,
    key: Key = "",
    *,
    dest_exchange: DestExchange = None,
    options: RouteOptions,
    patterns: Patterns = None,
    jq: Program = None,
    standard: Annotated[
        bool, typer.Option("--standard", help="Use a standard bridge queue: cheaper, without order or deduplication.")
    ] = False,
) -> None:
    """Forward an exchange's messages with a key from SRC to DEST, which pulls them. Creates the link if needed.

    If two static routes reach the same queue, only FIFO queues drop the duplicate, and only within five minutes. Use
    dynamic routes instead.
    """
    declaration = options.build_declaration(
        src=exchange, dest=dest_exchange or exchange, key=key, filter=read_filter(patterns or (), jq), fifo=not standard
    )
    add_and_show_route(dest, src, declaration, options)


@app.command(quiet=True)
@with_route_options(None)
def change(
    site: SiteText,
    name: Name,
    *,
    options: RouteOptions,
    patterns: Patterns = None,
    jq: Program = None,
    no_filter: Annotated[
        bool, typer.Option("--no-filter", help="Remove the filter: forward all messages with the key.")
    ] = False,
) -> None:
    """Change a route's options in place. Its bridge queue stays, and no message is lost or forwarded twice."""
    opened = open_site(site)
    shown = _find_own_route(opened.view(), name, "change it")
    new_filter = read_filter(patterns or (), jq)
    if no_filter and new_filter is not UNSET:
        raise typer.BadParameter("--no-filter can't be combined with a filter")
    changes = {**options.route_fields, **({"filter": new_filter} if no_filter or new_filter is not UNSET else {})}
    opened.client.ask(operations.ChangeBridge(bridge=replace(shown.to_bridge(), **changes)))
    wait_and_show_route(opened, name, timeout_s=options.timeout_s)


@app.command("del", quiet=True)
def delete(
    dest: DestText,
    src: Annotated[
        str,
        typer.Argument(
            metavar="SRC", help="The other site, its tag, or a route's name.", autocompletion=complete_routes
        ),
    ],
    exchange: Annotated[
        str | None, typer.Argument(metavar="EXCHANGE", help="The exchange at SRC.", autocompletion=complete_exchanges)
    ] = None,
    key: Key = "",
    *,
    dest_exchange: DestExchange = None,
    src_local: SrcLocal = False,
    link: LinkOption = None,
    del_empty_link: DelEmptyLink = False,
) -> None:
    """Delete a route between two sites, or any route of a site by its name, as in `route del SITE NAME`.

    Messages in its queue are forwarded first.
    """
    if exchange is None:
        site = open_site(dest)
        view = site.view()
        route = _find_own_route(view, src, "delete it")
        site.client.ask(operations.CloseBridge(name=route.name, del_empty_link=del_empty_link))
        report_closing(site, [route.name], kept_permissions=withdraw_all_grants(site, view, [route]))
        return
    declaration = BridgeDeclaration(src=exchange, dest=dest_exchange or exchange, key=key, src_is_local=src_local)
    remove_route(dest, src, declaration, link=link, del_empty_link=del_empty_link)


def _find_own_route(view: operations.SiteView, name: str, remedy: str) -> operations.BridgeView:
    """Find a route that the site declared. Raises `BadRoute` with the `remedy` for a route that a peer declared."""
    route = view.find_bridge(name)
    if route is None:
        raise BadRoute(f"no such route at {view.tag}: {name}")
    if route.served:
        raise BadRoute(f"{name} is pulled by {name.rpartition('@')[2]}: {remedy} there")
    return route


@app.command("flush", quiet=True)
def delete_all(site: SiteText, *, del_empty_link: DelEmptyLink = False) -> None:
    """Delete all routes that the site has declared."""
    opened = open_site(site)
    view = opened.view()
    own = [shown for shown in view.bridges if not shown.served]
    for shown in own:
        opened.client.ask(operations.CloseBridge(name=shown.name))
    # These links can be closed now. A closing link's routes first forward the messages that are still in their queues.
    emptied = {shown.link for shown in own} if del_empty_link else set()
    for link in opened.view().links:
        if link.name in emptied:
            opened.client.ask(operations.CloseLink(name=link.name))
    report_closing(opened, [shown.name for shown in own], kept_permissions=withdraw_all_grants(opened, view, own))


@app.command("list")
def list_routes(site: SiteText) -> None:
    """List a site's routes with their states. Routes with an @ in the name are pulled by their peer."""
    opened = open_site(site)
    view = opened.view()
    if is_json():
        show_json(view.bridges)
        return
    rows = []
    for shown in view.bridges:
        source, dest = find_route_ends(view, shown)
        cells = (shown.name, shown.kind.value, f"{source} {shown.src}", f"{dest} {shown.dest}", shown.key, shown.state)
        rows.append((*cells, format_time(shown.last_forward_ms), shown.error))
    show_table(("route", "kind", "from", "to", "key", "state", "last forward", "error"), rows)
    if any(shown.dynamic and shown.src_is_local for shown in view.bridges):
        show_table(PATH_COLUMNS, [build_path_row(path) for path in opened.client.ask(operations.ListPaths()).paths])


def find_route_ends(view: operations.SiteView, route: operations.BridgeView) -> tuple[str, str]:
    """Return the tags of a route's source and destination; the peer's tag is `?` if the link no longer exists."""
    link = view.find_link(route.link)
    if link is not None:
        return find_site_tags(route, link, here=view.tag)
    return (view.tag, "?") if route.src_is_local else ("?", view.tag)


@app.command("map")
def map_routes(
    sites: Annotated[list[str], typer.Argument(metavar="SITE", help="First sites.", autocompletion=complete_sites)],
    *,
    svg: Annotated[Path | None, typer.Option(metavar="FILE", help="Also write the map to this file as SVG.")] = None,
) -> None:
    """Draw a map of the routes of sites and of all sites linked to them, and warn of lost or duplicated messages.

    Credentials of one account can't query a site in another account: name that site too, with its profile.
    """
    result = discover_sites(sites)
    if svg is not None:
        try:
            svg.write_text(draw_svg(result.topology), encoding="utf-8")
        except OSError as error:
            raise BadConfiguration(f"{svg}: {error.strerror}") from error
    if is_json():
        show_json(build_map_document(result))
        return
    typer.echo(draw_text(result.topology), nl=False)
    rows = [(tag, *build_path_row(path)) for tag, paths in sorted(result.dynamic_paths.items()) for path in paths]
    if rows:
        show_table(("at", *PATH_COLUMNS), rows)
    for tag, reason in sorted(result.not_reached.items()):
        print_note(f"{tag} was not reached: {reason}")


def build_map_document(result: DiscoveredSites) -> dict[str, Any]:
    """Return the map's JSON document: sites, routes, warnings, sites that couldn't be read, and advertised paths."""
    topology = result.topology
    return {
        "sites": [
            {"tag": tag, "region": topology.sites[tag].region if tag in topology.sites else None}
            for tag in topology.tags
        ],
        "routes": [
            {field.name: getattr(route, field.name) for field in fields(route)} | {"kind": route.bridge.kind}
            for route in topology.routes
        ],
        "findings": [
            {field.name: getattr(finding, field.name) for field in fields(finding)}
            | {"routes": [route.name for route in finding.routes]}
            for finding in list_findings(topology)
        ],
        "not_reached": dict(result.not_reached),
        "paths": [{"at": tag, **asdict(path)} for tag, paths in sorted(result.dynamic_paths.items()) for path in paths],
    }


@app.command("status")
def show_status(site: SiteText, name: Name) -> None:
    """Show a route's settings, state and last error."""
    view = open_site(site).view()
    shown = view.find_bridge(name)
    if shown is None:
        raise BadRoute(f"no such route at {view.tag}: {name}")
    source, dest = find_route_ends(view, shown)
    link = view.find_link(shown.link)
    pairs: list[tuple[str, object]] = [
        ("route", shown.name),
        ("kind", f"{shown.kind}, {'pushed' if shown.src_is_local else 'pulled'}"),
        ("from", f"{source} {'queue' if shown.src_is_queue else 'exchange'} {shown.src}"),
        ("to", f"{dest} exchange {shown.dest}"),
        ("key", shown.key),
        ("key at destination", "the message's own" if shown.dest_key is UNSET else shown.dest_key),
        ("filter", None if shown.filter is UNSET else encode(shown.filter).decode()),
        ("state", shown.state),
        ("error", shown.error),
        ("link", shown.link if link is None else f"{shown.link}, {link.status.state}"),
        ("link's last error", None if link is None else link.status.last_error),
        ("reads", shown.reads),
        ("last forward", format_time(shown.last_forward_ms)),
        ("repaired", describe_repairs(shown.repairs)),
        ("tag", shown.tag or f"{source}, the source's"),
        ("excludes", ", ".join(sorted(shown.excludes))),
        ("acknowledges", f"in batches of {shown.sync}"),
        ("credit", shown.credit or "no limit"),
        ("rate", "no limit" if shown.rate is UNSET else f"{shown.rate} messages a second"),
        ("max hops", shown.max_hops),
        ("declared", "by the peer" if shown.served else "in cdk.json" if shown.declared else "at run time"),
    ]
    print_result(shown, lambda: show_pairs(pairs))


def describe_repairs(repairs: Repairs) -> str | None:
    """Describe how often a route was repaired, the last repair, and lost messages; None if it was never repaired."""
    if not repairs.number:
        return None
    often = "once:" if repairs.number == 1 else f"{repairs.number} times, the last time"
    lost = f"; about {repairs.lost_messages} messages were lost with its queue" if repairs.lost_messages else ""
    return f"{often} its {repairs.last}, {format_time(repairs.last_ms)}{lost}"


add_control_commands(
    app,
    lambda name, what: operations.CommandBridge(name=name, command=what),
    target_kind="route",
    name_argument=Name,
    help_texts=(
        "Pause a route: its queue keeps new messages.",
        "Resume a paused or draining route.",
        "Drain a route: accept no new messages, and send the queued ones.",
        "Retry a route's waiting or failed link now.",
    ),
)


@app.command("redrive")
def redrive_route(site: SiteText, name: Name) -> None:
    """Redrive up to 1,000 of a route's dead letters into its queue."""
    done = open_site(site).client.ask(operations.Redrive(name=name))
    print_result(done, f"{name}: {done.redriven} dead letters are back in its queue")
