"""Splitting under faults, of queues that others own: their consumers read a parameter, and are re-pointed.

While nothing is split the consumers read the sources themselves. All that holds of split queues holds of these, and at
rest everything is as it was.
"""

from typing import Any

from botocore.exceptions import BotoCoreError, ClientError

from sluice.splitting.consumers.targets import CONSUMERS, SystemsManagerParameter
from sluice.splitting.consumers.temporary_queues import MAIN, PREFIX
from sluice.splitting.sessions.state import SPLITS
from sluice.splitting.settings import Repointed, SplitConfig
from tests.simulation.models.queues import Queue, Stored
from tests.simulation.scenarios.splitting import TABLE, Splitting

REFRESH_S = 30
POLL_S = 8
DEPLOYED = 0.5  # of the worlds have a deployment of the consumers, split or not


class Repointing(Splitting):
    """The same people, and no main queues but temporary ones."""

    settles_s = 1_200.0
    sessions = 3
    ready_looks = 200

    def build(self) -> None:
        """Have a deployment of the consumers' owners beside all else: it writes what they know."""
        super().build()
        if self.world.chance.random() < DEPLOYED and self.world.step():
            self.world.spawn("deployment", self._deployed, after_s=self.world.chance.random() * self.faulty_s)

    def _deployed(self) -> None:
        queue_id = self.world.chance.choice(list(self.before))
        self.world.parameters.write(self.parameter(queue_id), self.before[queue_id])

    def parameter(self, queue_id: str) -> str:
        """Name the parameter that says which queue the consumers of a split queue read."""
        return f"/{queue_id}/queue"

    def deploy_mains(self, attributes: dict[str, dict[str, str]]) -> None:
        """There are none: each source's consumers are told where it is."""
        self.before = {queue_id: f'{{"url": "{source.url}"}}' for queue_id, source in self.sources.items()}
        for queue_id, text in self.before.items():
            self.world.parameters.make(self.parameter(queue_id), text)

    def config(self, queue_id: str) -> SplitConfig:
        """Name the source alone."""
        return SplitConfig(queue_id=queue_id, source=self.sources[queue_id].name)

    def repointed(self, queue_id: str, trigger_id: str) -> Repointed | None:
        """Say what is re-pointed."""
        place = {"path": ("url",)}
        target = SystemsManagerParameter(name=self.parameter(queue_id), refresh_s=REFRESH_S, place=place)  # type: ignore[arg-type]
        return Repointed(queue_id=queue_id, trigger_id=trigger_id, targets=(target,))

    def is_main(self, queue: Queue) -> bool:
        """Whether deployed consumers read the queue while another is split."""
        return queue.name.startswith(PREFIX) and f"-{MAIN}" in queue.name

    def queue_id_of(self, main: Queue) -> str:
        """Find whose main queue it is."""
        return next(queue_id for queue_id, source in self.sources.items() if main.name.endswith(source.name))

    def _deployed_consumer(self, queue_id: str) -> Any:
        def consume() -> None:
            client = self.world.client("ssm")
            while True:
                try:
                    value = client.get_parameter(Name=self.parameter(queue_id))["Parameter"]["Value"]
                except (ClientError, BotoCoreError):
                    self.world.sleep(1)
                    continue
                until = self.world.now + REFRESH_S - self.longest_poll_s
                while self.world.now < until:
                    self._take(value.split('"')[3], "main", poll_s=POLL_S)

        return consume

    longest_poll_s = 18.0  # what a receive may take, slow ones too

    def _published(self, queue: Queue, message: Stored) -> None:
        """What control puts back isn't sent anew."""
        if self._is_by("control", message):
            self.world.check(message.body in self.sent, f"{message.body} was never sent")
            return
        super()._published(queue, message)

    def at_rest(self) -> None:
        """Check that nothing is lost, and everything as it was."""
        super().at_rest()
        for queue_id, text in self.before.items():
            values = self.world.parameters.by_name[self.parameter(queue_id)].values
            self.world.check(values[-1] == text, f"the consumers of {queue_id} are left at {values[-1]}")
        on = [trigger.queue.name for trigger in self.source_triggers.values() if trigger.enabled]
        self.world.check(not on, f"splitters still read {on}")
        for item in self.world.dynamodb.tables[TABLE].partition("registry"):
            if item["sk"]["S"].startswith("split#"):
                split = SPLITS.from_text(item["value"]["S"])
                self.world.check(split.is_at_rest, f"{split.queue_id} is {split.phase}, at {split.consumer_at}")
            if item["sk"]["S"].startswith("consumers#"):
                held = CONSUMERS.from_text(item["value"]["S"]).held_by
                self.world.check(not held, f"{held} holds consumers")
