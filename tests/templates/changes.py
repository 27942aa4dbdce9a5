"""What a change of parameters does to a site that is deployed: to what is stored there, to who reads it.

CloudFormation knows a resource by its logical id: what is stored stays where that stays. Whose it then is, the settings
of the functions say, which read and fill it.
"""

import re
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, TypeVar

from cfnlint.schema import PROVIDER_SCHEMA_MANAGER

from sluice.federation.settings import ExchangeSettings, LinksSettings
from sluice.pipeline.settings import JobsSettings
from sluice.settings import Settings
from sluice.splitting.settings import SplitterSettings
from tests.templates.assembly import REGION, Assembly, Id, Resource, physical_name

# What holds something, or has a name or a secret that others know.
STATEFUL = (
    "AWS::DynamoDB::Table",
    "AWS::IAM::User",
    "AWS::Lambda::Url",
    "AWS::S3::Bucket",
    "AWS::SNS::Topic",
    "AWS::SQS::Queue",
)
# Their conditional properties are changed in place, while the application is stopped:
# https://docs.aws.amazon.com/AWSCloudFormation/latest/TemplateReference/aws-resource-emrserverless-application.html
IN_PLACE = ("AWS::EMRServerless::Application",)
NEW, LOST = "new", "lost"
LEFT = "left behind"  # kept, and nobody's: no stack has it any more
HASH = re.compile(r"[0-9A-F]{8}$")  # what CDK adds to the ids of most constructs

S = TypeVar("S", bound=Settings)


@dataclass(frozen=True)
class Change:
    """One set of parameters is deployed, then another."""

    before: Assembly
    after: Assembly

    @cached_property
    def contents(self) -> Mapping[str, str]:
        """What becomes of what is stored, by what it was: whose it is, or that it is lost or left behind.

        What stays what it was isn't there; what is new is.
        """
        before, after = held(self.before), held(self.after)
        became = {name: self._became(id_, after) for id_, name in before.items()}
        made = {name: NEW for id_, name in after.items() if id_ not in before}
        return made | {name: now for name, now in became.items() if now != name}

    @cached_property
    def unheard_of(self) -> Mapping[str, list[str]]:
        """What is replaced, and the stacks that go on with what was: they aren't deployed again.

        CDK's command line deploys a stack whose template differs, or that has a parameter of Systems Manager.
        """
        names = held(self.before)
        readers: defaultdict[str, set[str]] = defaultdict(set)
        for reader, template in self.before.stacks.items():
            if template != self.after.stacks.get(reader) or _is_always_deployed(template):
                continue
            for id_ in self.before.read_by(reader):
                if id_[1] in self.after.stacks[id_[0]]["Resources"] and self._is_replaced(id_):
                    readers[names.get(id_, _construct(id_[1]))].add(reader)
        return {name: sorted(stacks) for name, stacks in readers.items()}

    def _became(self, id_: Id, after: Mapping[Id, str]) -> str:
        if id_ in after and not self._is_replaced(id_):
            return after[id_]
        return LEFT if self.before.resource(*id_).kept else LOST

    def _is_replaced(self, id_: Id) -> bool:
        """Whether CloudFormation makes another resource in its place."""
        was, now = self.before.resource(*id_), self.after.resource(*id_)
        return was.type != now.type or any(
            _at(self.before, was, path) != _at(self.after, now, path) for path in fixed_properties(was.type)
        )


def held(assembly: Assembly) -> Mapping[Id, str]:
    """What each stateful resource holds: as it is called by a parameter, else by its construct's id."""
    called = {name: " of ".join(words) for name, words in _called(assembly)}
    return {
        (resource.stack, resource.id): called.get(physical_name(resource), _construct(resource.id))
        for resource in assembly.resources(*STATEFUL)
    }


def fixed_properties(type_: str) -> list[list[str]]:
    """The paths of properties whose change takes another resource, by the type's own schema."""
    schema = PROVIDER_SCHEMA_MANAGER.get_resource_schema(REGION, type_).schema
    conditional = () if type_ in IN_PLACE else schema.get("conditionalCreateOnlyProperties", [])
    paths = [*schema.get("createOnlyProperties", []), *conditional]
    return [path.split("/")[2:] for path in paths]


def _construct(id_: str) -> str:
    return HASH.sub("", id_)


def _called(assembly: Assembly) -> Iterator[tuple[str, tuple[str, str]]]:
    """What queues are, and whose, by their physical names."""
    called = dict(_told(assembly))
    yield from called.items()
    fed: defaultdict[str, set[str]] = defaultdict(set)
    for queue in assembly.resources("AWS::SQS::Queue"):
        if "RedrivePolicy" in queue.properties:
            target = assembly.text(queue.stack, queue.properties["RedrivePolicy"]["deadLetterTargetArn"])
            _, whose = called.get(physical_name(queue), ("", ""))
            fed[target.rsplit(":", 1)[1]].add(whose)
    for name, owners in fed.items():
        owner, *others = owners
        if owner and not others:
            yield name, ("dead letters", owner)


def _told(assembly: Assembly) -> Iterator[tuple[str, tuple[str, str]]]:
    splitter = _settings(assembly, "Splitter", SplitterSettings)
    landed = {setting.landing.queue_url.rsplit("/", 1)[1] for setting in _settings(assembly, "Jobs", JobsSettings)}
    for config in (config for each in splitter for config in each.split_queues):
        yield config.source, ("source", config.queue_id)
        if config.main is not None:
            yield config.main, ("landed main" if config.main in landed else "main", config.queue_id)
    for exchange in _settings(assembly, "Exchange", ExchangeSettings):
        for name, ingress in exchange.ingresses.items():
            if ingress.exchange is not None:
                yield name, ("FIFO ingress" if ingress.fifo else "ingress", ingress.exchange)
    for links in _settings(assembly, "Links", LinksSettings):
        for bound, name in links.names.queues.items():
            if bound not in links.names.reserved:
                yield name, ("queue", bound)


def _settings(assembly: Assembly, function: str, type_: type[S]) -> list[S]:
    """What a function is told; nothing, where there is no such function."""
    return [
        type_.read(assembly.plain(resource.stack, resource.properties["Environment"]["Variables"]), assembly.stored)
        for resource in assembly.resources("AWS::Lambda::Function")
        if _construct(resource.id) == function
    ]


def _is_always_deployed(template: Mapping[str, Any]) -> bool:
    """As CDK's command line says whether it has parameters whose values may have changed."""
    parameters = template.get("Parameters", {}).values()
    return any(
        parameter["Type"].startswith("AWS::SSM::Parameter::") and "[cdk:skip]" not in parameter.get("Description", "")
        for parameter in parameters
    )


def _at(assembly: Assembly, resource: Resource, path: list[str]) -> Any:
    found: Any = resource.properties
    for step in path:
        found = found.get(step) if isinstance(found, dict) else None
    return assembly.plain(resource.stack, found)
