"""`sluice`: all commands under one name, and what becomes of an error."""

from collections.abc import Iterator, MutableMapping
from functools import cache
from importlib import import_module
from typing import Annotated, Any

import typer
from typer.core import TyperGroup
from typer.exceptions import TyperException
from typer.main import get_group

from sluice.cli import deploying, site_status
from sluice.cli.console import console
from sluice.cli.debugging import VARIABLE, log_all, show_fault
from sluice.cli.federation import publishing
from sluice.cli.output import show_error
from sluice.cli.sites import ShortHelp, SiteTyper
from sluice.errors import SluiceError


class Commands(ShortHelp, TyperGroup):
    """What we raise on purpose is told in its own words; else it is a bug, and is told with its place."""

    def invoke(self, ctx: Any) -> Any:
        """Run the command. Exit code 1 for an error."""
        debug: bool = ctx.params["debug"]
        try:
            return super().invoke(ctx)
        except (typer.Exit, typer.Abort, TyperException, EOFError, BrokenPipeError):
            raise  # the end of a program, a wrong call, and a reader that has gone
        except SluiceError as error:
            if debug:
                show_fault(error, debug=True)
            show_error(str(error))
            raise typer.Exit(1) from error
        except ExceptionGroup as group:
            # What fails side by side fails in a group; the same words once are enough.
            ours, others = group.split(SluiceError)
            if debug or ours is None or others is not None:
                show_fault(group, debug=debug)
            for text in sorted({str(error) for error in _leaves(ours)} if ours is not None else ()):
                show_error(text)
            raise typer.Exit(1) from group
        except Exception as error:
            show_fault(error, debug=debug)
            raise typer.Exit(1) from error


def _leaves(group: ExceptionGroup[SluiceError]) -> Iterator[SluiceError]:
    for error in group.exceptions:
        if isinstance(error, ExceptionGroup):
            yield from _leaves(error)
        else:
            yield error


def commands_of(module: str) -> type[TyperGroup]:
    """Make the class of a group whose commands, and all that they import, are there once somebody asks for them."""

    class Deferred(ShortHelp, TyperGroup):
        """Commands of a module, which is imported for them alone and not for `sluice --help`."""

        @property
        def commands(self) -> MutableMapping[str, Any]:
            """The module's commands, by name."""
            return _commands(module)

        @commands.setter
        def commands(self, _: Any) -> None:
            """There are no others."""

    return Deferred


@cache
def _commands(module: str) -> MutableMapping[str, Any]:
    return get_group(import_module(module).app).commands


app = SiteTyper(
    cls=Commands,
    pretty_exceptions_enable=False,  # its tracebacks show the values of variables, secrets included
    help="A serverless switching fabric for Amazon SQS.",
)
GROUPS = {
    "rendezvous": ("sluice.cli.rendezvous.commands", "Offers to volunteers' proxies: look, be a client, be a proxy."),
    "split": ("sluice.cli.splitting.commands", "Sessions: a queue's messages that match a filter, for you alone."),
    "exchange": ("sluice.cli.federation.exchanges", "Exchanges: what messages are published to."),
    "binding": ("sluice.cli.federation.bindings", "Bindings: which queue gets what of an exchange."),
    "peer": ("sluice.cli.federation.peers", "Peers: who may link to a site, and what each of them may."),
    "link": ("sluice.cli.federation.links", "Links: from a site to its peers. Routes go over them."),
    "route": ("sluice.cli.federation.routes", "Routes: what is published at one site goes to another's exchange."),
    "queue": ("sluice.cli.federation.queue_routes", "Queues to bind; with add and del, routes from a queue."),
    "dynamic": ("sluice.cli.federation.dynamic_routes", "Dynamic routes: a site gets what its exchange is bound for."),
    "topology": ("sluice.cli.federation.topology_files", "Exchanges, bindings, links, routes, permissions as files."),
    "pipeline": ("sluice.cli.pipeline.commands", "Spark jobs: from the main pipeline queue into tables."),
    "dlq": ("sluice.cli.dead_letters", "Dead letters: look at them, put them back, throw them away."),
    "local": ("sluice.cli.local", "The embedded cloud: AWS on loopback, with our stacks deployed to it."),
}  # fmt: skip
app.command()(site_status.status)
app.command()(console)
app.command()(deploying.deploy)
app.command()(deploying.destroy)
app.command()(publishing.publish)
app.command()(publishing.consume)
for _name, (_module, _help) in GROUPS.items():
    app.add_typer(SiteTyper(), name=_name, cls=commands_of(_module), help=_help)


def _say_version(said: bool) -> None:  # noqa: FBT001 - as typer calls it
    if said:
        from importlib.metadata import version  # noqa: PLC0415 - only for this option

        typer.echo(f"sluice {version('sluice-sqs')}")
        raise typer.Exit


@app.callback()
def begin(
    *,
    version: Annotated[
        bool, typer.Option("--version", callback=_say_version, is_eager=True, help="Say which version this is.")
    ] = False,
    debug: Annotated[
        bool,
        typer.Option(
            "--debug", envvar=VARIABLE, help="Log all on standard error, with an error's traceback; no secrets."
        ),
    ] = False,
) -> None:
    """Get ready for a command."""
    del version  # its callback has said it
    if debug:
        log_all()


def main() -> None:
    """Run the program."""
    app()


if __name__ == "__main__":
    main()
