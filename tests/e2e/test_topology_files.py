"""A file of four sites: exported, changed, planned, applied, killed amid it, and nothing is lost.

`tests/unit/cli/federation/test_topology_files.py` kills it after any number of steps, of any file; here a process
is killed.
"""

import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from sluice.local.cloud import Cloud
from tests.e2e.federated import FederatedSite, bodies_of_all

APPLIED_WITHIN_S = 240
KILLED_AFTER = (2, 8, 4)  # steps: amid what is made, at its end, and amid what goes


@dataclass
class Operator:
    """Who has a profile for each account, and the file."""

    cloud: Cloud
    sites: Sequence[FederatedSite]
    folder: Path

    def __post_init__(self) -> None:
        accounts = sorted({site.site.account for site in self.sites})
        keys = (
            f"[of-{account}]\naws_access_key_id = {account}\naws_secret_access_key = test\n" for account in accounts
        )
        self.credentials = self.folder / "credentials"
        self.credentials.write_text("".join(keys))
        self.file = self.folder / "topology.yaml"
        self.names = [f"of-{site.site.account}@{site.site.region}" for site in self.sites]

    def begin(self, *arguments: str) -> "subprocess.Popen[str]":
        environment = {
            **os.environ,
            **self.cloud.environment(self.sites[0].site),
            "AWS_SHARED_CREDENTIALS_FILE": str(self.credentials),
            "AWS_RETRY_MODE": "standard",
        }
        return subprocess.Popen(
            [sys.executable, "-m", "sluice.cli.main", "topology", *arguments],
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def run(self, *arguments: str, code: int = 0) -> tuple[str, str]:
        """`sluice topology ARGUMENTS` until it ends: what it says, and what it notes."""
        with self.begin(*arguments) as process:
            said, noted = process.communicate(timeout=APPLIED_WITHIN_S)
        assert process.returncode == code, said + noted
        return said, noted

    def exported(self) -> Any:
        return yaml.safe_load(self.run("export", *self.names)[0])

    def write(self, document: Any) -> str:
        self.file.write_text(yaml.safe_dump(document))
        return str(self.file)

    def kill_amid_apply(self, steps: int) -> None:
        """Once so many steps are done; there are more."""
        with self.begin("apply", str(self.file), "--prune", "--yes") as process:
            assert process.stderr is not None
            done = 0
            while done < steps:
                line = process.stderr.readline()
                assert line, f"ended after {done} steps"
                done += line.startswith("done: ")
            process.kill()
            process.communicate()
        assert process.returncode == -signal.SIGKILL


@pytest.fixture
def operator(cloud: Cloud, sites: list[FederatedSite], tmp_path: Path) -> Operator:
    return Operator(cloud, sites, tmp_path)


def spokes(operator: Operator, queues: dict[str, str], *, link: str, key: str, exchange: str) -> Any:
    """All sites know each other, and all but the first pull from that, over one link each."""
    document = operator.exported()
    hub, *others = [site.tag for site in operator.sites]
    for tag, site in document["sites"].items():
        site["peers"] = [{"tag": each, "queues": ["*"]} for each in document["sites"] if each != tag]
    for tag in others:
        document["sites"][tag] |= {
            "exchanges": [{"name": exchange, "type": "topic", "alternate": "amq.fanout"}],
            "bindings": [{"exchange": "amq.topic", "queue": queues[tag], "key": key}],
            "links": [{"name": link, "peer": hub}],
            "routes": [{"name": f"{link}-r", "link": link, "src": "amq.topic", "dest": "amq.topic", "key": "order.#"}],
        }
    return document


@pytest.mark.slow
def test_a_file_of_four_sites_is_made_true_and_every_message_comes_once(operator: Operator) -> None:
    hub, *others = operator.sites
    queues = {site.tag: site.queue("bound") for site in others}
    published: list[str] = []

    def publish(when: str) -> None:
        bodies = [f"{when} {number}" for number in range(5)]
        published.extend(bodies)
        hub.publish("amq.topic", "order.new", bodies)

    file = operator.write(spokes(operator, queues, link="first", key="order.#", exchange="one"))
    said, _ = operator.run("plan", file, code=2)
    assert said.count("first-r") == len(others)
    operator.run("apply", file)
    assert operator.run("plan", file) == ("", "nothing to do\n")
    assert operator.run("apply", file) == ("", "nothing to do\n")
    for site in others:
        site.until_operational("first-r")
    publish("before")

    changed = spokes(operator, queues, link="second", key="#", exchange="two")
    file = operator.write(changed)
    operator.run("plan", file, "--prune", code=2)
    for steps in KILLED_AFTER:
        operator.kill_amid_apply(steps)
        publish(f"killed after {steps}")
    operator.run("apply", file, "--prune", "--yes")
    assert operator.run("plan", file, "--prune") == ("", "nothing to do\n")
    publish("after")

    left = operator.exported()
    for tag in queues:
        assert left["sites"][tag] | {"peers": None} == changed["sites"][tag] | {"peers": None}
    got = bodies_of_all([(site, queues[site.tag]) for site in others], len(published), quiet_s=3)
    assert [Counter(bodies) for bodies in got] == [Counter(published)] * len(others)
