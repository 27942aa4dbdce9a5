"""`sluice`: all commands under one name, and what becomes of an error of ours."""

from collections.abc import Iterator
from typing import Any

import typer
from typer.core import TyperGroup

from sluice.cli import dead_letters, deploying, local, site_status
from sluice.cli.federation import (
    bindings,
    dynamic_routes,
    exchanges,
    links,
    peers,
    publishing,
    queue_routes,
    routes,
    topology_files,
)
from sluice.cli.output import show_error
from sluice.cli.pipeline import commands as pipeline
from sluice.cli.rendezvous import commands as rendezvous
from sluice.cli.sites import SiteTyper
from sluice.cli.splitting import commands as splitting
from sluice.errors import SluiceError


class Commands(TyperGroup):
    """What we raise on purpose is told in its own words; whatever else is raised is a bug and keeps its traceback."""

    def invoke(self, ctx: Any) -> Any:
        """Run the command. Exit code 1 for an error of ours."""
        try:
            return super().invoke(ctx)
        except SluiceError as error:
            show_error(str(error))
            raise typer.Exit(1) from error
        except ExceptionGroup as group:
            # What fails side by side fails in a group; the same words once are enough.
            ours, others = group.split(SluiceError)
            if ours is None or others is not None:
                raise
            for text in sorted({str(error) for error in _leaves(ours)}):
                show_error(text)
            raise typer.Exit(1) from group


def _leaves(group: ExceptionGroup[SluiceError]) -> Iterator[SluiceError]:
    for error in group.exceptions:
        if isinstance(error, ExceptionGroup):
            yield from _leaves(error)
        else:
            yield error


app = SiteTyper(
    cls=Commands,
    no_args_is_help=True,
    pretty_exceptions_enable=False,  # its tracebacks show the values of variables, secrets included
    help="A serverless switching fabric for Amazon SQS.",
)
app.command()(site_status.status)
app.command()(deploying.deploy)
app.command()(deploying.destroy)
app.add_typer(rendezvous.app, name="rendezvous")
app.add_typer(splitting.app, name="split")
app.add_typer(exchanges.app, name="exchange")
app.add_typer(bindings.app, name="binding")
app.add_typer(peers.app, name="peer")
app.add_typer(links.app, name="link")
app.add_typer(routes.app, name="route")
app.add_typer(queue_routes.app, name="queue")
app.add_typer(dynamic_routes.app, name="dynamic")
app.add_typer(topology_files.app, name="topology")
app.command()(publishing.publish)
app.command()(publishing.consume)
app.add_typer(pipeline.app, name="pipeline")
app.add_typer(dead_letters.app, name="dlq")
app.add_typer(local.app, name="local")


def main() -> None:
    """Run the program."""
    app()


if __name__ == "__main__":
    main()
