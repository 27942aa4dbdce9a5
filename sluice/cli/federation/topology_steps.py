"""A topology's plan, done step by step at its sites."""

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from sluice.cli.federation.sites import OpenSite
from sluice.errors import RequestRefused, SluiceError
from sluice.federation.topology.plan import PlannedStep, TopologyPlan, Until
from sluice.federation.topology.states import closing, idle

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
