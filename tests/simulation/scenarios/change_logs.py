"""A value that several change bit by bit, as others read it: each sees one history, whatever goes wrong.

The value is a list of names. A writer is an environment that is there for a while: it appends a name, writes a snapshot
of what it knows, or a bulk change, and may die at each call.
"""

from contextlib import suppress

from sluice.aws.change_logs import DynamoChangeLog
from sluice.errors import CallFailed
from tests.simulation.kernel.faults import Faults
from tests.simulation.kernel.scheduler import Killed
from tests.simulation.kernel.world import Scenario

TABLE, NAME = "changes", "names"
WRITERS, READERS = 3, 2
SEPARATOR = b","


class Environment:
    """Who knows the value as of some version."""

    def __init__(self, scenario: "ChangeLogs", who: str) -> None:
        self.scenario, self.who = scenario, who
        client = scenario.world.client("dynamodb")
        self.log = DynamoChangeLog(client=client, table=TABLE, name=NAME, new_token=self.new_token)
        self.tokens: set[str] = set()
        self.names: list[bytes] | None = None

    def new_token(self) -> str:
        """Draw one that nobody else has, and remember it."""
        token = self.scenario.new_token()
        self.tokens.add(token)
        return token

    def follow(self) -> list[bytes]:
        """Take in what has come since; all that is known then is history."""
        news = self.log.read_since(None if self.names is None else len(self.names))
        if news.base is not None:
            self.names = news.snapshot.split(SEPARATOR) if news.snapshot else []
            self.scenario.world.check(len(self.names) == news.base, f"a snapshot of {news.base} has {len(self.names)}")
        self.names = [*(self.names or ()), *news.changes]
        self.scenario.world.check(len(self.names) == news.version, f"version {news.version} has {len(self.names)}")
        self.scenario.seen(self.names)
        return self.names


class ChangeLogs(Scenario):
    """Writers and readers of one value."""

    faults = Faults(kill_before=0.01, kill_after=0.01, lost_answer=0.02)
    faulty_s, settles_s = 60.0, 600.0

    def build(self) -> None:
        """Make the table, and have writers and readers."""
        self.history: list[bytes] = []
        self.mine: dict[int, bytes] = {}  # by version: what its writer was told is written
        self.tokens = 0
        self.unknown: set[str] = set()
        self.stops = False
        self.world.dynamodb.make_table(TABLE, page_items=self.world.chance.choice([2, 5, 1_000]))
        for number in range(WRITERS):
            actor = self.world.spawn(f"writer{number}", lambda number=number: self.write(f"w{number}"))  # type: ignore[misc]  # as it is now
            actor.mortal = True
        for number in range(READERS):
            self.world.spawn(f"reader{number}", lambda number=number: self.read(f"r{number}"))  # type: ignore[misc]  # as it is now

    def new_token(self) -> str:
        """Give one that nobody else has."""
        self.tokens += 1
        return f"token-{self.tokens}"

    def seen(self, names: list[bytes]) -> None:
        """Check that a version is the same for whoever sees it."""
        known = min(len(names), len(self.history))
        self.world.check(names[:known] == self.history[:known], f"{names} isn't {self.history}")
        self.history += names[known:]

    def write(self, who: str) -> None:
        """Change the value; who dies is another environment afterwards."""
        me = self.world.scheduler.current
        while not self.stops:
            environment = Environment(self, who)
            try:
                while not self.stops:
                    self.world.sleep(me.chance.random() * 2)
                    self.change(environment)
            except Killed:
                me.doomed = False
                self.note_end(environment)
            except CallFailed:
                self.note_end(environment)

    def note_end(self, environment: Environment) -> None:
        """Note who ends when another has taken its place: nobody knows what it has written since."""
        head = self.world.dynamodb.tables[TABLE].items.get((f"document#{NAME}", "head"), {})
        named = " ".join(head[name]["S"] for name in ("snapshot", "pending") if name in head)
        self.unknown |= {token for token in environment.tokens if f"{token}*" not in named}

    def change(self, environment: Environment) -> None:
        """Append, or write a snapshot, or a bulk change."""
        names = environment.follow()
        what = self.world.chance.choice(["append", "append", "snapshot", "bulk"])
        if what == "snapshot":
            environment.log.save(SEPARATOR.join(names), after=len(names), version=len(names))
            return
        name = f"{environment.who}-{self.new_token()}".encode()
        if what == "append":
            done = environment.log.append(name, after=len(names))
        else:
            done = environment.log.save(SEPARATOR.join([*names, name]), after=len(names), version=len(names) + 1)
        if done:
            version = len(names) + 1
            self.world.check(version not in self.mine, f"{version} was written twice")
            self.mine[version] = name
            environment.names = [*names, name] if what == "append" else None

    def read(self, who: str) -> None:
        """Follow the value, now often and now seldom."""
        environment = Environment(self, who)
        while not self.stops:
            with suppress(CallFailed):  # it looks again
                environment.follow()
            self.world.sleep(self.world.chance.choice([0.1, 1, 10]))

    def calm(self) -> None:
        """Write on for a moment, without faults, and stop."""
        self.world.spawn("last", self.last)

    def last(self) -> None:
        """Stop the others, and write two snapshots: with the second, nothing is left of whoever died."""
        self.world.sleep(10)
        self.stops = True
        self.world.sleep(400)  # a call that hangs is made again after a minute
        environment = Environment(self, "last")
        for _ in range(2):
            names = environment.follow()
            self.world.check(environment.log.append(b"last", after=len(names)), "the last one writes alone")
            names = environment.follow()
            done = environment.log.save(SEPARATOR.join(names), after=len(names), version=len(names))
            self.world.check(done, "the last one folds alone")

    def at_rest(self) -> None:
        """Check that what was said to be written is, and that nothing is left of what wasn't."""
        for version, name in self.mine.items():
            written = self.history[version - 1 : version]
            self.world.check(written == [name], f"{name!r} was written as {version}, and is lost: {written}")
        items = self.world.dynamodb.tables[TABLE].items
        head = items[f"document#{NAME}", "head"]
        token = head["snapshot"]["S"].rpartition("*")[0]
        parts = {sk.partition("#")[0] for _, sk in items if sk.startswith("token")}
        left = sorted(parts - {token} - self.unknown)
        self.world.check(not left, f"parts of {left} are left over")
        swept = int(head["swept"]["N"])
        changes = [sk for _, sk in items if sk.startswith("change#") and int(sk.partition("#")[2]) <= swept]
        self.world.check(not changes, f"{changes} are left over, swept up to {swept}")
