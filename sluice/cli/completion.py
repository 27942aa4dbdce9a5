"""Completes names in the shell. Names are read from the site that the typed part of the command line selects.

A completion prints and raises nothing, and takes at most `DEADLINE_S` seconds.
"""

from collections.abc import Callable, Iterable
from contextlib import redirect_stderr, redirect_stdout
from contextvars import copy_context
from io import StringIO
from threading import Thread
from typing import Any

import typer

from sluice.aws.connections import list_profiles
from sluice.federation.operations import ListBindings, ListQueues
from sluice.local.cloud import find_cloud
from sluice.operator.dead_letters import read_queue_urls
from sluice.operator.federated_sites import OpenSite, open_site
from sluice.operator.functions import ControlClient
from sluice.operator.site_names import HERE, SiteOptions, find_default_region, get_site_options, use_site_options
from sluice.splitting.operations import ShowSplitting

DEADLINE_S = 2.0

Names = Callable[[typer.Context], Iterable[str]]
Completion = Callable[[typer.Context, str], list[str]]


def complete_from(list_names: Names) -> Completion:
    """Return a completion that offers the names that start with the typed word, or nothing if reading them fails."""

    def complete(ctx: typer.Context, incomplete: str) -> list[str]:
        completed_names: list[list[str]] = []

        def read_names() -> None:
            try:
                with use_site_options(SiteOptions.from_parameters(ctx.params)):
                    completed_names.append([name for name in list_names(ctx) if name.startswith(incomplete)])
            except Exception:  # noqa: BLE001, S110 - a completion has nowhere to report an error
                pass

        # The thread is a daemon, because a slow request for names must not keep the program from exiting.
        thread = Thread(target=copy_context().run, args=(read_names,), daemon=True)
        with redirect_stdout(StringIO()), redirect_stderr(StringIO()):
            thread.start()
            thread.join(DEADLINE_S)
        return completed_names[0] if completed_names else []

    return complete


def _list_local_sites(_: Any) -> list[str]:
    cloud = find_cloud()
    return [] if cloud is None else [str(site) for site in cloud.sites]


def _list_site_names(ctx: typer.Context) -> list[str]:
    own_region = find_default_region(None)
    profile_sites = [f"{profile}@{region}" for profile, region in list_profiles().items() if region]
    return [*_list_local_sites(ctx), *([own_region] if own_region else []), *profile_sites]


def _open_site(ctx: typer.Context) -> OpenSite:
    return open_site(ctx.params.get("site") or ctx.params.get("dest") or HERE)


def _list_bindings(ctx: typer.Context) -> Iterable[Any]:
    wanted_names = {name: ctx.params.get(name) for name in ("exchange", "queue")}
    for binding in _open_site(ctx).client.ask(ListBindings(exchange=wanted_names["exchange"])).bindings:
        if wanted_names["queue"] in {None, binding.queue}:
            yield binding


def _connect_control_client() -> ControlClient:
    return ControlClient.connect(get_site_options().connect())


complete_sites = complete_from(_list_site_names)
complete_local_sites = complete_from(_list_local_sites)


def complete_local_option(ctx: typer.Context, incomplete: str) -> list[str]:
    """Complete the word after `--local`: its optional value, a site of the embedded cloud, or the next argument."""
    arguments: list[Any] = [argument for argument in ctx.command.params if argument.param_type_name == "argument"]
    sources = {argument.name: ctx.get_parameter_source(argument.name) for argument in arguments}
    missing = (argument for argument in arguments if getattr(sources[argument.name], "name", None) != "COMMANDLINE")
    following = next(missing, None)
    values = [] if following is None else [item.value for item in following.shell_complete(ctx, incomplete)]
    return list(dict.fromkeys([*complete_local_sites(ctx, incomplete), *values]))


complete_profiles = complete_from(lambda _: list_profiles())
complete_exchanges = complete_from(lambda ctx: [exchange.name for exchange in _open_site(ctx).view().exchanges])
complete_links = complete_from(lambda ctx: [link.name for link in _open_site(ctx).view().links])
complete_peers = complete_from(lambda ctx: [peer.tag for peer in _open_site(ctx).view().peers])
complete_routes = complete_from(lambda ctx: [bridge.name for bridge in _open_site(ctx).view().bridges])
complete_bound_queues = complete_from(
    lambda ctx: [queue.name for queue in _open_site(ctx).client.ask(ListQueues()).queues]
)
complete_keys = complete_from(lambda ctx: sorted({binding.key for binding in _list_bindings(ctx)}))
complete_split_queues = complete_from(
    lambda _: [queue.queue_id for queue in _connect_control_client().ask(ShowSplitting()).queues]
)
complete_sessions = complete_from(
    lambda _: [session.session_id for session in _connect_control_client().ask(ShowSplitting()).sessions]
)
complete_dead_letter_queues = complete_from(lambda _: read_queue_urls(get_site_options().connect()))
