"""`sluice topology`: what sites are, written into a file, and a file made true at its sites."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Annotated, Any

import typer

from sluice.cli.completion import complete_sites
from sluice.cli.federation.sites import OpenSite, open_named
from sluice.cli.federation.topology_steps import Applying
from sluice.cli.output import AsJson, Quiet, note, plain, show_error, show_json, show_table, tell
from sluice.cli.site_names import BadSiteName, SiteName
from sluice.cli.sites import FileCommand, PlainCommand, SiteTyper
from sluice.errors import BadConfiguration, BadTopology
from sluice.federation.operations import ListBindings, ListQueues
from sluice.federation.topology.desired import DesiredTopology, as_document, desired_topology
from sluice.federation.topology.plan import PlannedStep, TopologyPlan, plan_of
from sluice.federation.topology.states import SiteState, described

SCHEMA = "topology.schema.json"  # beside this file; `sluice topology schema` prints it
TIMEOUT_S = 300.0  # a route is gone once its queue has been empty for a minute
CHANGES = 2  # the exit code of a plan with something to do, as of `terraform plan -detailed-exitcode`

app = SiteTyper()

File = Annotated[Path, typer.Argument(metavar="FILE", help="YAML, as `topology export` writes it.")]
Prune = Annotated[bool, typer.Option("--prune", help="What its sites have and the file hasn't goes.")]


@app.command()
def export(
    sites: Annotated[
        list[str], typer.Argument(metavar="SITE", help="Each as --site has it.", autocompletion=complete_sites)
    ],
    *,
    out: Annotated[
        Path | None, typer.Option("--out", metavar="FILE", help="Write it there.", show_default="standard output")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Write what sites have as a file: equal sites give equal files.

    Queues aren't in it, nor what peers asked for, nor pauses.
    """
    states: dict[str, SiteState] = {}
    for text in sites:
        state = _state(open_named(SiteName.parse(text)))
        other = states.setdefault(state.view.tag, state)
        if other is not state:
            raise BadConfiguration(f"{other.at} and {state.at} both have the tag {state.view.tag}")
    found = described(states)
    text = _written(found)
    if out is None:
        tell(as_document(found), lambda: typer.echo(text, nl=False), as_json=as_json)
        return
    try:
        out.write_text(text, encoding="utf-8")
    except OSError as error:
        raise BadConfiguration(f"{out}: {error.strerror}") from error
    tell({"written": str(out), "sites": list(states)}, f"{out} is written", as_json=as_json, quiet=not as_json)


@app.command(cls=FileCommand)
def plan(file: File, *, prune: Prune = False, as_json: AsJson = False) -> None:
    """Say what `apply` would do, at which site, in which order.

    The exit code is 0 where there is nothing to do, 2 where there is, 1 where it can't be done.
    """
    read = TopologyFile.read(file, prune=prune)
    made = read.plan()
    tell(_document(made), lambda: _show(made, read), as_json=as_json)
    if made.conflicts:
        raise typer.Exit(1)
    if made.stages:
        raise typer.Exit(CHANGES)


@app.command(cls=FileCommand)
def apply(
    file: File,
    *,
    prune: Prune = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Don't ask before something is taken away.")] = False,
    timeout: Annotated[
        float,
        typer.Option(
            min=0, help="Seconds to wait for routes: until they are Operational, and until old ones are gone."
        ),
    ] = TIMEOUT_S,
    quiet: Quiet = False,
    as_json: AsJson = False,
) -> None:
    """Do what `plan` says. It may be stopped anywhere, and goes on where it stopped when it is called again.

    With --json each step is a line when it is done.
    """
    read = TopologyFile.read(file, prune=prune)
    made = read.plan()
    if as_json and made.conflicts:
        show_json(_document(made))
    elif not as_json and (made.conflicts or not quiet):
        _show(made, read)
    if made.conflicts:
        raise typer.Exit(1)
    if made.takes_away and not yes:
        typer.confirm("Take away, or remake, what the plan says?", abort=True, err=True)
    for step in Applying(sites=read.sites, plan=read.plan, timeout_s=timeout).steps(made):
        said = f"done: {step.site}: {step.act} {step.what} {step.name}"
        tell(_step(step), said, as_json=as_json, quiet=quiet)


@app.command(cls=PlainCommand)
def schema() -> None:
    """Print the JSON schema of files, for editors: export names it as `topology.schema.json` beside the file."""
    typer.echo(files(__package__).joinpath(SCHEMA).read_text(encoding="utf-8"), nl=False)


# Files


def _written(topology: DesiredTopology) -> str:
    import yaml  # noqa: PLC0415 - only for this command

    body = yaml.safe_dump(as_document(topology), sort_keys=False, allow_unicode=True, width=120)
    return f"# yaml-language-server: $schema={SCHEMA}\n{body}"


@dataclass(frozen=True, slots=True)
class TopologyFile:
    """A file that was read, and its sites, by tag."""

    file: Path
    line_of: Callable[[str], int]
    desired: DesiredTopology
    sites: Mapping[str, OpenSite]
    prune: bool

    @classmethod
    def read(cls, file: Path, *, prune: bool) -> "TopologyFile":
        """Read a file, and find its sites. Raises `BadFile`, and what connecting to the sites raises."""
        from sluice.cli.documents import BadFile, located_document_of_file  # noqa: PLC0415 - it imports yaml

        document, line_of = located_document_of_file(file)
        try:
            desired = desired_topology(document)
            names = {tag: _name(tag, site.at) for tag, site in desired.sites.items()}
        except BadTopology as error:
            raise BadFile(file, f"line {line_of(error.place)}: {error}") from error
        return cls(file, line_of, desired, {tag: open_named(name) for tag, name in names.items()}, prune)

    def plan(self) -> TopologyPlan:
        """Compare it with what its sites are now. Raises what asking them raises."""
        states = {tag: _state(site) for tag, site in self.sites.items()}
        return plan_of(self.desired, states, prune=self.prune)


def _name(tag: str, at: str) -> SiteName:
    try:
        return SiteName.parse(at)
    except BadSiteName as error:
        raise BadTopology(f"sites.{tag}.at", str(error)) from error


def _state(site: OpenSite) -> SiteState:
    return SiteState(
        at=str(site.name),
        view=site.view(),
        all_bindings=site.client.ask(ListBindings()).bindings,
        queues=site.client.ask(ListQueues()),
    )


# Plans


def _show(made: TopologyPlan, read: TopologyFile) -> None:
    rows = [
        (step.act, step.site, step.what, step.name, "; ".join(filter(None, (step.change, step.costs))))
        for step in made.steps
    ]
    if rows:
        show_table(("", "site", "what", "name", ""), rows)
    if made.leftovers:
        note("not in the file:")
        show_table(
            ("site", "what", "name", ""), [(each.site, each.what, each.name, each.reason) for each in made.leftovers]
        )
    for conflict in made.conflicts:
        show_error(f"{read.file}: line {read.line_of(conflict.place)}: {conflict}")
    if not rows and not made.conflicts:
        note("nothing to do")


def _step(step: PlannedStep) -> dict[str, Any]:
    return {
        "site": step.site,
        "act": step.act,
        "what": step.what,
        "name": step.name,
        "change": step.change,
        "costs": step.costs,
        "asks": plain(step.operation),
    }


def _document(made: TopologyPlan) -> dict[str, Any]:
    return {
        "steps": [_step(step) for step in made.steps],
        "leftovers": made.leftovers,
        "conflicts": made.conflicts,
    }
