"""`sluice topology`: what sites are, written into a file, and a file made true at its sites."""

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Annotated, Any

import typer
import yaml

from sluice.cli.completion import complete_sites
from sluice.cli.output import is_json, is_quiet, show_json, show_table, tell
from sluice.cli.sites import FileCommand, PlainCommand, SiteTyper
from sluice.cli.terminal import note, show_error
from sluice.codec import plain
from sluice.errors import BadConfiguration, BadTopology, RequestRefused, SluiceError
from sluice.federation.operations import ListBindings, ListQueues
from sluice.federation.topology.desired import DesiredTopology, as_document, desired_topology
from sluice.federation.topology.plan import PlannedStep, TopologyPlan, Until, plan_of
from sluice.federation.topology.states import SiteState, closing, described, idle
from sluice.operator.documents import BadFile, located_document_of_file
from sluice.operator.federated_sites import OpenSite, open_named
from sluice.operator.site_names import BadSiteName, SiteName

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
        tell(as_document(found), lambda: typer.echo(text, nl=False))
        return
    try:
        out.write_text(text, encoding="utf-8")
    except OSError as error:
        raise BadConfiguration(f"{out}: {error.strerror}") from error
    if is_json():
        show_json({"written": str(out), "sites": list(states)})


@app.command(cls=FileCommand)
def plan(file: File, *, prune: Prune = False) -> None:
    """Say what `apply` would do, at which site, in which order.

    The exit code is 0 where there is nothing to do, 2 where there is, 1 where it can't be done.
    """
    read = TopologyFile.read(file, prune=prune)
    made = read.plan()
    tell(_document(made), lambda: _show(made, read))
    if made.conflicts:
        raise typer.Exit(1)
    if made.stages:
        raise typer.Exit(CHANGES)


@app.command(cls=FileCommand, quiet=True)
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
) -> None:
    """Do what `plan` says. It may be stopped anywhere, and goes on where it stopped when it is called again.

    With --json each step is a line when it is done.
    """
    read = TopologyFile.read(file, prune=prune)
    made = read.plan()
    if is_json() and made.conflicts:
        show_json(_document(made))
    elif not is_json() and (made.conflicts or not is_quiet()):
        _show(made, read)
    if made.conflicts:
        raise typer.Exit(1)
    if made.takes_away and not yes:
        typer.confirm("Take away, or remake, what the plan says?", abort=True, err=True)
    for step in Applying(sites=read.sites, plan=read.plan, timeout_s=timeout).steps(made):
        said = f"done: {step.site}: {step.act} {step.what} {step.name}"
        tell(_step(step), said)


@app.command(cls=PlainCommand, json=False)
def schema() -> None:
    """Print the JSON schema of files, for editors: export names it as `topology.schema.json` beside the file."""
    typer.echo(files(__package__).joinpath(SCHEMA).read_text(encoding="utf-8"), nl=False)


# Files


def _written(topology: DesiredTopology) -> str:
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


POLL_S = 0.5
FOLLOWS_WITHIN_S = 1.1  # exchange functions look for new bindings every second
MAX_PLANS = 10  # a second one finds that all is done, unless somebody else changes something, too


class NotThereYet(SluiceError):
    """A topology that hasn't come about. What was done stays: the same command goes on from there."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Applying:
    """What is done at `sites`, by tag. Nothing is waited for longer than `timeout_s`."""

    sites: Mapping[str, OpenSite]
    plan: Callable[[], TopologyPlan]  # from what the sites are
    timeout_s: float
    now_s: Callable[[], float] = time.monotonic
    sleep: Callable[[float], None] = time.sleep

    def steps(self, agreed: TopologyPlan) -> Iterator[PlannedStep]:
        """Do the steps of a plan in order, and yield each when it is done; at the end nothing is to be done any more.

        Where a step leads elsewhere the rest is planned anew, and nothing goes that wasn't to go in the plan that was
        `agreed`. Raises `NotThereYet`, or what a site refuses a step with: what was done stays.
        """
        going = {step.entry for step in agreed.steps if step.takes_away}
        plan = agreed
        for _ in range(MAX_PLANS):
            if plan.conflicts or any(step.takes_away and step.entry not in going for step in plan.steps):
                raise NotThereYet("somebody else has changed these sites meanwhile: apply it again")
            if not plan.stages:
                return
            yield from self.as_planned(plan)
            plan = self.plan()
        raise NotThereYet("it is still not as the file says: apply it again")

    def as_planned(self, plan: TopologyPlan) -> Iterator[PlannedStep]:
        """Do the steps, up to one with which things go otherwise."""
        for stage in plan.stages:
            match stage.until:
                case Until.GONE:
                    self.wait("about to go", self.closing)
                case Until.CARRYING:
                    self.wait("not Operational, so nothing was taken away", lambda: self.idle(plan))
                    self.sleep(FOLLOWS_WITHIN_S)
            for step in stage.steps:
                client = self.sites[step.site].client
                try:
                    client.ask(step.operation)
                except RequestRefused:
                    if self.plan().steps[:1] == [step]:
                        raise
                    return  # it came about otherwise, or needs what has gone: a link may go with the last of its routes
                yield step

    def wait(self, what: str, left: Callable[[], list[str]]) -> None:
        """Wait until nothing is left. Raises `NotThereYet` with what is."""
        deadline_s = self.now_s() + self.timeout_s
        while found := left():
            if self.now_s() >= deadline_s:
                raise NotThereYet(f"after {self.timeout_s:g} s still {what}: {'; '.join(found)}: apply it again")
            self.sleep(POLL_S)

    def closing(self) -> list[str]:
        """Return all that is about to go at the sites."""
        return [f"{what} {name} at {tag}" for tag, site in self.sites.items() for what, name in closing(site.view())]

    def idle(self, plan: TopologyPlan) -> list[str]:
        """Return the routes of the file that don't carry messages."""
        return [f"{each} at {tag}" for tag, site in self.sites.items() for each in idle(site.view(), plan.routes[tag])]
