"""Whoever is rung finds what to do: each alarm's description leads to its heading, and no heading is of no alarm."""

import re
from pathlib import Path

from tests.templates.conftest import Assemblies
from tests.templates.parameter_sets import SETS, ParameterSet

PROJECT = Path(__file__).parents[2]
LINK = re.compile(r"(?P<file>docs/\w+\.md)#(?P<anchor>[\w-]+)$")
ROUTED = ParameterSet(
    name="routed",
    parameters={
        "sluice.federation.queues": [{"name": "orders"}],
        "sluice.federation.links": [
            {
                "name": "west",
                "peer": "WEST",
                "endpoints": [
                    {
                        "region": "us-west-2",
                        "account": "123456789012",
                        "control_queue_url": "https://sqs.us-west-2.amazonaws.com/123456789012/SluiceState-Links.fifo",
                    }
                ],
            }
        ],
        "sluice.federation.routes": [
            {
                "name": "r",
                "link": "west",
                "src": "orders",
                "dest": "amq.topic",
                "src_is_queue": True,
                "src_is_local": True,
            }
        ],
    },
)
ALARMS = ("AWS::CloudWatch::Alarm", "AWS::CloudWatch::CompositeAlarm")


def headings() -> set[str]:
    """Of alarms, as anchors spell them."""
    text = (PROJECT / "docs" / "runbook.md").read_text()
    part = text.split("\n## Alarms\n")[1].split("\n## ")[0]
    return {found.lower() for found in re.findall(r"^### (\w+)$", part, re.MULTILINE)}


def test_every_alarm_leads_to_its_heading_and_every_heading_is_an_alarms(assemblies: Assemblies) -> None:
    led_to = set()
    for given in (*SETS, ROUTED):
        for kind in ALARMS:
            for alarm in assemblies(given).resources(kind):
                found = LINK.search(alarm.properties["AlarmDescription"])
                assert found, alarm.id
                assert found["file"] == "docs/runbook.md"
                led_to.add(found["anchor"])
    assert led_to == headings()


def test_every_part_says_what_it_means_what_to_look_at_and_what_to_do() -> None:
    text = (PROJECT / "docs" / "runbook.md").read_text()
    part = text.split("\n## Alarms\n")[1].split("\n## ")[0]
    for section in re.split(r"^### ", part, flags=re.MULTILINE)[1:]:
        name, _, rest = section.partition("\n")
        if name not in {"Rendezvous", "Splitting", "Federation", "Pipeline"}:
            assert [word in rest for word in ("**Means**", "**Look at**", "**Do**")] == [True] * 3, name
