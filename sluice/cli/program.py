"""The top-level command `sluice`: imports the requested command, prints errors and sets the exit code."""

import signal
from collections.abc import Iterator, Mapping
from functools import cache
from importlib import import_module
from importlib.metadata import version as version_of
from typing import Annotated, Any

import typer
from typer.core import TyperCommand, TyperGroup
from typer.exceptions import TyperException
from typer.main import get_group

from sluice.cli.terminal import (
    DEBUG_VARIABLE,
    SETTINGS,
    SIGNAL_EXIT_BASE,
    ShortHelp,
    enable_debug_log,
    show_error,
    show_unexpected_error,
)
from sluice.errors import SluiceError


class RootCommands(ShortHelp, TyperGroup):
    """The group of all commands. Prints a `SluiceError` as its text, and other errors (bugs) with the line of code."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings | {"commands": CommandsByName()})

    def list_commands(self, _: Any) -> list[str]:
        """List the commands' names, in the order of --help."""
        return list(COMMANDS)

    def get_command(self, _: Any, name: str) -> TyperCommand | None:
        """Return a placeholder with the command's help text, so that listing commands doesn't import their modules."""
        return TyperCommand(name, help=COMMANDS[name][1]) if name in COMMANDS else None

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Accept the option `--debug` anywhere before `--`. Arguments after `--` belong to another program."""
        ours = args[: args.index("--")] if "--" in args else args
        rest = [*(argument for argument in ours if argument != "--debug"), *args[len(ours) :]]
        return super().parse_args(ctx, [*["--debug"] * (len(rest) < len(args)), *rest])

    def resolve_command(self, ctx: Any, args: list[str]) -> tuple[str | None, Any, list[str]]:
        """Import the command whose name the arguments begin with. Raises `UsageError` for an unknown command."""
        name, _, rest = super().resolve_command(ctx, args)
        command = None if name is None else load_command(name)
        if signal.getsignal(signal.SIGINT) is signal.SIG_DFL:
            signal.signal(signal.SIGINT, signal.default_int_handler)  # ctrl-C raises KeyboardInterrupt from here on.
        return name, command, rest

    def invoke(self, ctx: Any) -> Any:
        """Run the command. The exit code is 1 for an error, and 130, without an error message, for ctrl-C."""
        debug: bool = ctx.params["debug"]
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt as interrupt:
            raise typer.Exit(SIGNAL_EXIT_BASE + signal.SIGINT) from interrupt
        except (typer.Exit, typer.Abort, TyperException, EOFError, BrokenPipeError):
            raise  # typer handles normal exits, usage errors and closed pipes itself.
        except SluiceError as error:
            if debug:
                show_unexpected_error(error, debug=True)
            show_error(str(error))
            raise typer.Exit(1) from error
        except ExceptionGroup as group:
            # Concurrent tasks can fail with the same error text, which is printed once.
            ours, others = group.split(SluiceError)
            if debug or ours is None or others is not None:
                show_unexpected_error(group, debug=debug)
            for text in sorted({str(error) for error in _iter_leaf_errors(ours)} if ours is not None else ()):
                show_error(text)
            raise typer.Exit(1) from group
        except Exception as error:
            show_unexpected_error(error, debug=debug)
            raise typer.Exit(1) from error


def _iter_leaf_errors(group: ExceptionGroup[SluiceError]) -> Iterator[SluiceError]:
    for error in group.exceptions:
        if isinstance(error, ExceptionGroup):
            yield from _iter_leaf_errors(error)
        else:
            yield error


class CommandsByName(Mapping[str, Any]):
    """A mapping of all commands by name. A command's module is imported when the command is first looked up."""

    def __getitem__(self, name: str) -> Any:
        return load_command(name)

    def __iter__(self) -> Iterator[str]:
        return iter(COMMANDS)

    def __len__(self) -> int:
        return len(COMMANDS)


@cache
def load_command(name: str) -> Any:
    """Import the module of a command or of a group of commands, and return the command or group."""
    module, text = COMMANDS[name]
    group = get_group(import_module(module).app)
    if name in group.commands:
        return group.commands[name]
    group.name, group.help = name, text
    return group


# The module of each command or group, and the command's line in `sluice --help`.
COMMANDS = {
    "status": ("sluice.cli.site_status", "Show the state of a whole site, dead letters included."),
    "console": ("sluice.cli.console", "Show sites on one live page, served on loopback."),
    "deploy": ("sluice.cli.deploying", "Deploy all stacks of this clone to a site."),
    "destroy": ("sluice.cli.deploying", "Delete all stacks from a site."),
    "permissions": ("sluice.cli.deploying", "Print the IAM policy of a user who may run certain commands."),
    "publish": ("sluice.cli.federation.publishing", "Publish a message to an exchange of a site."),
    "consume": ("sluice.cli.federation.publishing", "Print the messages of a queue and delete them from it."),
    "rendezvous": ("sluice.cli.rendezvous.commands", "Rendezvous: show its status, run a client, run a proxy."),
    "split": ("sluice.cli.splitting.commands", "Queue splitting: receive only the messages that match a filter."),
    "exchange": ("sluice.cli.federation.exchanges", "Exchanges, to which messages are published."),
    "binding": ("sluice.cli.federation.bindings", "Bindings: which messages a queue receives."),
    "peer": ("sluice.cli.federation.peers", "Peers: other sites that may link to a site, with their permissions."),
    "link": ("sluice.cli.federation.links", "Links from a site to its peers, used by routes."),
    "route": ("sluice.cli.federation.routes", "Routes: forward messages from one site to another's exchange."),
    "queue": ("sluice.cli.federation.queues", "Queues that can be bound; with add and del, routes from a queue."),
    "dynamic": ("sluice.cli.federation.dynamic_routes", "Dynamic routes: follow the destination's bindings."),
    "topology": ("sluice.cli.federation.topology_files", "Files of exchanges, bindings, links, routes, peers."),
    "pipeline": ("sluice.cli.pipeline.commands", "Spark jobs that land the messages of a queue in tables."),
    "dlq": ("sluice.cli.dead_letters", "Dead-letter queues: list, show, redrive and purge."),
    "local": ("sluice.cli.local", "The embedded cloud: AWS emulated on loopback."),
}  # fmt: skip
app = typer.Typer(
    cls=RootCommands,
    pretty_exceptions_enable=False,  # Typer's pretty tracebacks would show the values of variables, even secrets.
    help="A serverless switching fabric for Amazon SQS.",
    **SETTINGS,
)


def _print_version(is_requested: bool) -> None:  # noqa: FBT001 - as typer calls it
    if is_requested:
        typer.echo(f"sluice {version_of('sluice-sqs')}")
        raise typer.Exit


@app.callback()
def configure(
    *,
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version.")
    ] = False,
    debug: Annotated[
        bool,
        typer.Option(
            "--debug",
            envvar=DEBUG_VARIABLE,
            help="Log everything to standard error, with tracebacks; secrets are masked.",
        ),
    ] = False,
) -> None:
    """Apply the options that precede the command's name."""
    del version  # `_print_version` has already printed the version.
    if debug:
        enable_debug_log()
