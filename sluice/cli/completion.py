"""What a shell offers where a name is to be typed: read from the site that the line so far means.

Nothing here prints or raises, and nobody waits longer than `DEADLINE_S` for it.
"""

from collections.abc import Callable, Iterable
from contextlib import redirect_stderr, redirect_stdout
from contextvars import copy_context
from io import StringIO
from threading import Thread
from typing import Any

import typer

from sluice.aws.connections import profiles
from sluice.federation.operations import ListBindings
from sluice.federation.operations import ListQueues as ListBoundQueues
from sluice.local.cloud import find
from sluice.operator.dead_letters import urls_of
from sluice.operator.federated_sites import OpenSite, open_site
from sluice.operator.functions import ControlClient
from sluice.operator.site_names import HERE, SiteOptions, options_said, region_of, with_options
from sluice.splitting.operations import ListQueues, ListSessions

DEADLINE_S = 2.0

Names = Callable[[typer.Context], Iterable[str]]
Completion = Callable[[typer.Context, str], list[str]]


def offered(names: Names) -> Completion:
    """Make a completion of what reads names: those that begin as the word does, none where they can't be read."""

    def complete(ctx: typer.Context, incomplete: str) -> list[str]:
        found: list[list[str]] = []

        def look() -> None:
            try:
                with with_options(SiteOptions.of_parameters(ctx.params)):
                    found.append([each for each in names(ctx) if each.startswith(incomplete)])
            except Exception:  # noqa: BLE001, S110 - a shell that asks for names can't be told what is wrong
                pass

        # What takes longer is left behind: the program ends with its answer.
        looking = Thread(target=copy_context().run, args=(look,), daemon=True)
        with redirect_stdout(StringIO()), redirect_stderr(StringIO()):
            looking.start()
            looking.join(DEADLINE_S)
        return found[0] if found else []

    return complete


def _local_sites(_: Any) -> list[str]:
    cloud = find()
    return [] if cloud is None else [str(site) for site in cloud.sites]


def _sites(ctx: typer.Context) -> list[str]:
    here = region_of(None)
    of_profiles = [f"{profile}@{region}" for profile, region in profiles().items() if region]
    return [*_local_sites(ctx), *([here] if here else []), *of_profiles]


def _open(ctx: typer.Context) -> OpenSite:
    return open_site(ctx.params.get("site") or ctx.params.get("dest") or HERE)


def _bindings(ctx: typer.Context) -> Iterable[Any]:
    said = {name: ctx.params.get(name) for name in ("exchange", "queue")}
    for each in _open(ctx).client.ask(ListBindings(exchange=said["exchange"])).bindings:
        if said["queue"] in {None, each.queue}:
            yield each


def _control() -> ControlClient:
    return ControlClient.of(options_said().connect())


complete_sites = offered(_sites)
complete_local_sites = offered(_local_sites)


def complete_local(ctx: typer.Context, incomplete: str) -> list[str]:
    """Offer sites of the embedded cloud, and what may follow: `--local` may stand without a value."""
    arguments: list[Any] = [each for each in ctx.command.params if each.param_type_name == "argument"]
    sources = {each.name: ctx.get_parameter_source(each.name) for each in arguments}
    left = (each for each in arguments if getattr(sources[each.name], "name", None) != "COMMANDLINE")
    following = next(left, None)
    named = [] if following is None else [item.value for item in following.shell_complete(ctx, incomplete)]
    return list(dict.fromkeys([*complete_local_sites(ctx, incomplete), *named]))


complete_profiles = offered(lambda _: profiles())
complete_exchanges = offered(lambda ctx: [each.name for each in _open(ctx).view().exchanges])
complete_links = offered(lambda ctx: [each.name for each in _open(ctx).view().links])
complete_peers = offered(lambda ctx: [each.tag for each in _open(ctx).view().peers])
complete_routes = offered(lambda ctx: [each.name for each in _open(ctx).view().bridges])
complete_bound_queues = offered(lambda ctx: [each.name for each in _open(ctx).client.ask(ListBoundQueues()).queues])
complete_keys = offered(lambda ctx: sorted({each.key for each in _bindings(ctx)}))
complete_split_queues = offered(lambda _: [each.queue_id for each in _control().ask(ListQueues())])
complete_sessions = offered(lambda _: [each.session_id for each in _control().ask(ListSessions()).sessions])
complete_dead_letter_queues = offered(lambda _: urls_of(options_said().connect()))
