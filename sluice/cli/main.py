"""`sluice`: all commands under one name, and what becomes of an error."""

from collections.abc import Iterator, Mapping
from functools import cache
from importlib import import_module
from importlib.metadata import version as version_of
from typing import Annotated, Any

import typer
from typer.core import TyperCommand, TyperGroup
from typer.exceptions import TyperException
from typer.main import get_group

from sluice.cli.terminal import SETTINGS, VARIABLE, ShortHelp, log_all, show_error, show_fault
from sluice.errors import SluiceError


class Commands(ShortHelp, TyperGroup):
    """All commands. What we raise on purpose is told in its own words; else it is a bug, and is told with its place."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings | {"commands": Deferred()})

    def list_commands(self, _: Any) -> list[str]:
        """Name the commands, in the order of the help."""
        return list(COMMANDS)

    def get_command(self, _: Any, name: str) -> TyperCommand | None:
        """Give what stands for a command where commands are listed or completed: nothing is imported for that."""
        return TyperCommand(name, help=COMMANDS[name][1]) if name in COMMANDS else None

    def resolve_command(self, ctx: Any, args: list[str]) -> tuple[str | None, Any, list[str]]:
        """Find the command that the arguments begin with. Raises `UsageError` where there is none."""
        name, _, rest = super().resolve_command(ctx, args)
        return name, None if name is None else load(name), rest

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


class Deferred(Mapping[str, Any]):
    """Commands by name. Each is imported, with all that it imports, when somebody asks for it."""

    def __getitem__(self, name: str) -> Any:
        return load(name)

    def __iter__(self) -> Iterator[str]:
        return iter(COMMANDS)

    def __len__(self) -> int:
        return len(COMMANDS)


@cache
def load(name: str) -> Any:
    """Import a command, or a group of commands."""
    module, text = COMMANDS[name]
    group = get_group(import_module(module).app)
    if name in group.commands:
        return group.commands[name]
    group.name, group.help = name, text
    return group


# By name: the module that has the command, or a group of them, and what `sluice --help` says of it.
COMMANDS = {
    "status": ("sluice.cli.site_status", "Show the whole site: all its parts, and dead letters."),
    "console": ("sluice.cli.console", "Show sites on one live page, served on loopback."),
    "deploy": ("sluice.cli.deploying", "Deploy all stacks of this clone to a site."),
    "destroy": ("sluice.cli.deploying", "Delete all stacks from a site."),
    "publish": ("sluice.cli.federation.publishing", "Publish a message to an exchange of a site."),
    "consume": ("sluice.cli.federation.publishing", "Print messages of a queue, and take them out of it."),
    "rendezvous": ("sluice.cli.rendezvous.commands", "Offers to volunteers' proxies: look, be a client, be a proxy."),
    "split": ("sluice.cli.splitting.commands", "Sessions: a queue's messages that match a filter, for you alone."),
    "exchange": ("sluice.cli.federation.exchanges", "Exchanges: what messages are published to."),
    "binding": ("sluice.cli.federation.bindings", "Bindings: which queue gets what of an exchange."),
    "peer": ("sluice.cli.federation.peers", "Peers: who may link to a site, and what each of them may."),
    "link": ("sluice.cli.federation.links", "Links: from a site to its peers. Routes go over them."),
    "route": ("sluice.cli.federation.routes", "Routes: what is published at one site goes to another's exchange."),
    "queue": ("sluice.cli.federation.queues", "Queues to bind; with add and del, routes from a queue."),
    "dynamic": ("sluice.cli.federation.dynamic_routes", "Dynamic routes: a site gets what its exchange is bound for."),
    "topology": ("sluice.cli.federation.topology_files", "Exchanges, bindings, links, routes, permissions as files."),
    "pipeline": ("sluice.cli.pipeline.commands", "Spark jobs: from the main pipeline queue into tables."),
    "dlq": ("sluice.cli.dead_letters", "Dead letters: look at them, put them back, throw them away."),
    "local": ("sluice.cli.local", "The embedded cloud: AWS on loopback, with our stacks deployed to it."),
}  # fmt: skip
app = typer.Typer(
    cls=Commands,
    pretty_exceptions_enable=False,  # its tracebacks show the values of variables, secrets included
    help="A serverless switching fabric for Amazon SQS.",
    **SETTINGS,
)


def _say_version(said: bool) -> None:  # noqa: FBT001 - as typer calls it
    if said:
        typer.echo(f"sluice {version_of('sluice-sqs')}")
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
