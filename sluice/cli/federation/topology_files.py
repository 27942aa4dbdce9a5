"""Implements `sluice topology`: exports the topology of sites to a file, and applies a file to its sites."""

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from importlib.resources import files
from pathlib import Path
from typing import Annotated, Any

import typer
import yaml

from sluice.cli.completion import complete_sites
from sluice.cli.output import is_json, is_quiet, print_result, show_json, show_table
from sluice.cli.sites import FileCommand, PlainCommand, SiteCommands
from sluice.cli.terminal import print_note, show_error
from sluice.codec import to_document
from sluice.errors import BadConfiguration, BadTopology, RequestRefused, SluiceError
from sluice.federation.operations import AddBridge, ListBindings, ListQueues
from sluice.federation.topology.desired import DesiredTopology, parse_topology, to_plain_values
from sluice.federation.topology.plan import PlannedStage, PlannedStep, Stage, TopologyPlan, plan_topology
from sluice.federation.topology.states import SiteState, describe_blocking, export_topology, list_idle_routes
from sluice.operator.documents import BadFile, read_document_with_lines
from sluice.operator.federated_sites import OpenSite, open_named
from sluice.operator.site_names import BadSiteName, SiteName

SCHEMA = "topology.schema.json"  # This file is in the same folder as this module.
TIMEOUT_S = 300.0  # This number of seconds is enough: a route closes after its queue has been empty for a minute.
EXIT_CHANGES = 2  # `sluice topology plan` has this exit code for changes, as `terraform plan -detailed-exitcode`.

app = SiteCommands()

File = Annotated[Path, typer.Argument(metavar="FILE", help="YAML, as `topology export` writes it.")]
Prune = Annotated[bool, typer.Option("--prune", help="Delete entries of the sites that are not in the file.")]


@app.command("export")
def print_topology(
    sites: Annotated[
        list[str], typer.Argument(metavar="SITE", help="Sites, written as for --site.", autocompletion=complete_sites)
    ],
) -> None:
    """Print the topology of sites in the format of topology files. Equal topologies give equal files.

    Queues, routes requested by peers, and pauses are not exported.
    """
    states: dict[str, SiteState] = {}
    for text in sites:
        state = fetch_state(open_named(SiteName.parse(text)))
        other = states.setdefault(state.view.tag, state)
        if other is not state:
            raise BadConfiguration(f"{other.at} and {state.at} both have the tag {state.view.tag}")
    document = to_plain_values(export_topology(states))
    body = yaml.safe_dump(document, sort_keys=False, allow_unicode=True, width=120)
    print_result(document, lambda: typer.echo(f"# yaml-language-server: $schema={SCHEMA}\n{body}", nl=False))


@app.command("plan", cls=FileCommand)
def print_plan(file: File, *, prune: Prune = False) -> None:
    """Show the steps of `apply` with their sites, in order.

    Exit code 0: nothing to do; 2: there are changes; 1: the file can't be applied.
    """
    read = TopologyFile.load(file, prune=prune)
    made = read.plan()
    print_result(_build_plan_document(made), lambda: show_plan(made, read))
    if made.conflicts:
        raise typer.Exit(1)
    if made.stages:
        raise typer.Exit(EXIT_CHANGES)


@app.command("apply", cls=FileCommand, quiet=True)
def apply_file(
    file: File,
    *,
    prune: Prune = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Delete without asking for confirmation.")] = False,
    timeout: Annotated[
        float,
        typer.Option(
            min=0, help="Seconds to wait for routes: until they are Operational, and until old ones are gone."
        ),
    ] = TIMEOUT_S,
) -> None:
    """Apply the changes that `plan` shows. If it is stopped, run it again to continue.

    With --json, print one line when each step is done.
    """
    read = TopologyFile.load(file, prune=prune)
    made = read.plan()
    if is_json() and made.conflicts:
        show_json(_build_plan_document(made))
    elif not is_json() and (made.conflicts or not is_quiet()):
        show_plan(made, read)
    if made.conflicts:
        raise typer.Exit(1)
    if made.is_destructive and not yes:
        typer.confirm("Delete or recreate the entries that the plan names?", abort=True, err=True)
    for step in TopologyApplier(sites=read.sites, plan=read.plan, timeout_s=timeout).apply_steps(made):
        said = f"done: {step.site}: {step.act} {step.kind} {step.name}"
        print_result(_build_step_document(step), said)


@app.command("schema", cls=PlainCommand, json=False)
def print_schema() -> None:
    """Print the JSON schema of topology files, for editors. Save it as `topology.schema.json` beside the files."""
    typer.echo(files(__package__).joinpath(SCHEMA).read_text(encoding="utf-8"), nl=False)


@dataclass(frozen=True, slots=True)
class TopologyFile:
    """A parsed topology file with a connection to each of its sites, by the site's tag."""

    file: Path
    find_line: Callable[[str], int]
    topology: DesiredTopology
    sites: Mapping[str, OpenSite]
    prune: bool

    @classmethod
    def load(cls, file: Path, *, prune: bool) -> "TopologyFile":
        """Read a file, and connect to its sites. Raises `BadFile`, and the errors of `open_named`."""
        document, find_line = read_document_with_lines(file)
        site_names: dict[str, SiteName] = {}
        try:
            topology = parse_topology(document)
            for tag, site in topology.sites.items():
                try:
                    site_names[tag] = SiteName.parse(site.at)
                except BadSiteName as error:
                    raise BadTopology(f"sites.{tag}.at", str(error)) from error
        except BadTopology as error:
            raise BadFile(file, f"line {find_line(error.place)}: {error}") from error
        return cls(file, find_line, topology, {tag: open_named(name) for tag, name in site_names.items()}, prune)

    def plan(self) -> TopologyPlan:
        """Compare the file with the current state of its sites. Raises the errors of the requests to them."""
        states = {tag: fetch_state(site) for tag, site in self.sites.items()}
        return plan_topology(self.topology, states, prune=self.prune)


def fetch_state(site: OpenSite) -> SiteState:
    """Fetch a site's state, which a plan compares with the file. Raises the errors of the requests."""
    return SiteState(
        at=str(site.name),
        view=site.view(),
        all_bindings=site.client.ask(ListBindings()).bindings,
        queues=site.client.ask(ListQueues()),
    )


def show_plan(plan: TopologyPlan, topology: TopologyFile) -> None:
    """Print a plan: its steps, the entries that are not in the file, and its conflicts with line numbers."""
    rows = [
        (step.act, step.site, step.kind, step.name, "; ".join(filter(None, (step.change, step.message_effect))))
        for step in plan.steps
    ]
    if rows:
        show_table(("", "site", "what", "name", ""), rows)
    if plan.leftovers:
        print_note("not in the file:")
        show_table(
            ("site", "what", "name", ""),
            [(leftover.site, leftover.kind, leftover.name, leftover.reason) for leftover in plan.leftovers],
        )
    for conflict in plan.conflicts:
        show_error(f"{topology.file}: line {topology.find_line(conflict.place)}: {conflict}")
    if not rows and not plan.conflicts:
        print_note("nothing to do")


def _build_step_document(step: PlannedStep) -> dict[str, Any]:
    return {
        "site": step.site,
        "act": step.act,
        "what": step.kind,
        "name": step.name,
        "change": step.change,
        "costs": step.message_effect,
        "asks": to_document(step.operation),
    }


def _build_plan_document(plan: TopologyPlan) -> dict[str, Any]:
    return {
        "steps": [_build_step_document(step) for step in plan.steps],
        "leftovers": plan.leftovers,
        "conflicts": plan.conflicts,
    }


POLL_S = 0.5
BINDINGS_REFRESH_S = 1.1  # Exchange functions read new bindings every second, so this wait (in seconds) is enough.
MAX_PLANS = 10  # The second plan is already empty unless another operator changes the sites meanwhile.


class TopologyIncomplete(SluiceError):
    """Raised if the sites don't match the file yet. Finished steps stay: repeat the command to continue."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TopologyApplier:
    """Applies topology plans to `sites`, which are keyed by tag. Each wait ends after `timeout_s` seconds."""

    sites: Mapping[str, OpenSite]
    plan: Callable[[], TopologyPlan]  # This function makes a new plan from the current state of the sites.
    timeout_s: float
    now_s: Callable[[], float] = time.monotonic
    sleep: Callable[[float], None] = time.sleep

    def apply_steps(self, agreed_plan: TopologyPlan) -> Iterator[PlannedStep]:
        """Apply the steps of a plan in order, yield each when it is done, and repeat until no step is left.

        If a step no longer fits a site, the remaining steps are planned again. Only entries that the `agreed_plan`
        deletes are deleted. Raises `TopologyIncomplete`, or a site's refusal of a step; finished steps are not undone.
        """
        confirmed = {step.entry for step in agreed_plan.steps if step.is_destructive}
        plan = agreed_plan
        for _ in range(MAX_PLANS):
            if plan.conflicts or any(step.is_destructive and step.entry not in confirmed for step in plan.steps):
                raise TopologyIncomplete("another operator has changed these sites meanwhile: apply the file again")
            if not plan.stages:
                return
            yield from self.apply_stages(plan)
            plan = self.plan()
        raise TopologyIncomplete("the sites still differ from the file: apply the file again")

    def apply_stages(self, plan: TopologyPlan) -> Iterator[PlannedStep]:
        """Apply a plan's steps in order, and yield each when it is done. Stops at a step that no longer fits a site."""
        for stage in plan.stages:
            match stage.stage:
                case Stage.RECREATE | Stage.REMOVE:
                    self.wait("closing", partial(self.list_closing_entries, stage))
                case Stage.CLOSE:
                    self.wait("not Operational, so nothing was deleted", lambda: self.list_idle_routes(plan))
                    self.sleep(BINDINGS_REFRESH_S)
            for step in stage.steps:
                client = self.sites[step.site].client
                try:
                    client.ask(step.operation)
                except RequestRefused:
                    if self.plan().steps[:1] == [step]:
                        raise
                    return  # The step is obsolete, for example because a link has closed with its last route.
                yield step

    def wait(self, kind: str, list_remaining: Callable[[], list[str]]) -> None:
        """Wait until `list_remaining` returns an empty list. Raises `TopologyIncomplete` after `timeout_s` seconds."""
        deadline_s = self.now_s() + self.timeout_s
        while remaining := list_remaining():
            if self.now_s() >= deadline_s:
                raise TopologyIncomplete(
                    f"after {self.timeout_s:g} s still {kind}: {'; '.join(remaining)}: apply the file again"
                )
            self.sleep(POLL_S)

    def list_closing_entries(self, stage: PlannedStage) -> list[str]:
        """Return the links and routes that must finish closing before this part of the plan can be applied."""
        created = [(step.site, step.operation) for step in stage.steps]
        identities = {(tag, *made.bridge.identity) for tag, made in created if isinstance(made, AddBridge)}
        views = {tag: site.view() for tag, site in self.sites.items()}
        return describe_blocking(views, {step.entry for step in stage.steps}, identities)

    def list_idle_routes(self, plan: TopologyPlan) -> list[str]:
        """Return the routes of the plan that aren't Operational and therefore forward no messages."""
        return [
            f"{route} at {tag}"
            for tag, site in self.sites.items()
            for route in list_idle_routes(site.view(), plan.routes[tag])
        ]
