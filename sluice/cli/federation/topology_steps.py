"""The steps of a topology's plan, done one after the other at its sites."""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from sluice.cli.federation.sites import OpenSite
from sluice.errors import RequestRefused, SluiceError
from sluice.federation.links.links import DUPLICATE, NAME_TAKEN
from sluice.federation.topology.plan import PlannedStage, PlannedStep, Until
from sluice.federation.topology.states import closing, idle

POLL_S = 0.5
FOLLOWS_WITHIN_S = 1.1  # exchange functions look for new bindings every second


class NotThereYet(SluiceError):
    """A topology that didn't come about in time. What was done stays: the same command goes on from there."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Applying:
    """What is done at `sites`, by tag. `routes` are the file's; nothing is waited for longer than `timeout_s`."""

    sites: Mapping[str, OpenSite]
    routes: Mapping[str, Sequence[str]]
    timeout_s: float
    now_s: Callable[[], float] = time.monotonic
    sleep: Callable[[float], None] = time.sleep

    def steps(self, stages: Sequence[PlannedStage]) -> Iterator[PlannedStep]:
        """Do the steps in order, and yield each when it is done.

        Raises `NotThereYet`, or what a site refuses a step with: what was done stays.
        """
        for stage in stages:
            match stage.until:
                case Until.GONE:
                    self.wait("about to go", self.closing)
                case Until.CARRYING:
                    self.wait("not Operational, so nothing was taken away", self.idle)
                    self.sleep(FOLLOWS_WITHIN_S)
            for step in stage.steps:
                self.do(step)
                yield step

    def do(self, step: PlannedStep) -> None:
        """Do a step. A route that is there otherwise, and that its site can't change in place, goes first."""
        client = self.sites[step.site].client
        try:
            client.ask(step.operation)
        except RequestRefused as error:
            if step.instead is None or not any(each in str(error) for each in (DUPLICATE, NAME_TAKEN)):
                raise
            client.ask(step.instead)
            self.wait("about to go", self.closing)
            client.ask(step.operation)

    def wait(self, what: str, left: Callable[[], list[str]]) -> None:
        """Wait until nothing is left. Raises `NotThereYet` with what is."""
        deadline_s = self.now_s() + self.timeout_s
        while found := left():
            if self.now_s() >= deadline_s:
                raise NotThereYet(f"after {self.timeout_s:g} s still {what}: {'; '.join(found)}: apply it again")
            self.sleep(POLL_S)

    def closing(self) -> list[str]:
        """Return all that is about to go at the sites."""
        return [f"{name} at {tag}" for tag, site in self.sites.items() for name in closing(site.view())]

    def idle(self) -> list[str]:
        """Return the routes of the file that don't carry messages."""
        return [f"{each} at {tag}" for tag, site in self.sites.items() for each in idle(site.view(), self.routes[tag])]
