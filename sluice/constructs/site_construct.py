"""Base class of each capability's construct, its parameters, and the names by which other programs find it.

Commands and peers find a site by the names of our own stacks, such as `SluiceRendezvous`, after the stage's prefix. In
a stack of another name a construct writes its outputs into parameters of Systems Manager, and explicitly names the
resources that roles and peers refer to by name.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, cast

import jsii
from aws_cdk import Aspects, CfnOutput, IAspect, RemovalPolicy, Stack, Stage
from aws_cdk import aws_lambda as lambda_
from aws_cdk import aws_ssm as ssm
from constructs import Construct, IConstruct

from sluice.constructs import stored
from sluice.constructs.alarms import AlarmRule, Capability, CreatedAlarm, create_alarm
from sluice.constructs.arguments import SiteProps
from sluice.constructs.storage import encrypt_resources
from sluice.errors import BadConfiguration, BadParameter
from sluice.parameters import ROOT, Parameters
from sluice.stages import add_stage_prefix

Given = Mapping[str, object] | Parameters  # Type of a construct's argument `parameters`.
NOTHING: Mapping[str, object] = {}
CLAIMED_BY = "sluice:claimed-by"
OUTPUTS = "outputs"  # Folder in Systems Manager for outputs of constructs in users' stacks.


def parse_parameters(construct: Construct, section: str | None, argument: Given, props: SiteProps) -> Parameters:
    """Parse a construct's parameters; `section` None means all sections. Raises `BadConfiguration`, with the path."""
    place = construct.node.path
    if isinstance(argument, Parameters):
        return argument
    shared: dict[str, Any] = dict(props)
    if isinstance(architecture := props.get("architecture"), lambda_.Architecture):
        shared["architecture"] = architecture.name
    sections: dict[str, dict[str, object]] = {"rendezvous": {}, "operations": {}}
    if "removal_policy" in props:
        if props["removal_policy"] not in {RemovalPolicy.RETAIN, RemovalPolicy.DESTROY}:
            raise BadConfiguration(f"{place}: removal_policy must be RETAIN or DESTROY")
        sections["rendezvous"]["keep_state"] = shared.pop("removal_policy") is RemovalPolicy.RETAIN
    if "tracing" in props:
        sections["operations"]["tracing"] = shared.pop("tracing")
    argument_sections: Mapping[str, Any] = argument if section is None else {section: argument}
    for name, values in argument_sections.items():
        sections[name] = {**sections.get(name, {}), **values}
    return name_construct_in_errors(place, lambda: Parameters.from_context({ROOT: {**shared, **sections}}))


def name_construct_in_errors(place: str, read: Callable[[], Parameters]) -> Parameters:
    """Call the function `read`. Raises `BadConfiguration`, whose message starts with the construct's path."""
    try:
        return read()
    except BadParameter as error:
        raise BadConfiguration(f"{place}: {error}") from error


@dataclass(frozen=True, slots=True, kw_only=True)
class StackOutput:
    """A stack output that commands read. `description` is the user-chosen name of the resource in the output."""

    name: str
    value: str
    description: str | None = None


@dataclass(frozen=True, slots=True)
class StackHome:
    """The name by which commands and peers find a capability: its stack's name, with the stage's prefix."""

    stack: Stack
    name: str

    @classmethod
    def of(cls, scope: Construct, stack_name: str, stage: str | None) -> "StackHome":
        """Return the capability's home. `stack_name` has no stage prefix."""
        return cls(Stack.of(scope), add_stage_prefix(stack_name, stage))

    @property
    def is_own_stack(self) -> bool:
        """Whether generated names begin with `name`, because the stack has this name. If not, names are explicit."""
        return self.stack.stack_name == self.name

    def physical_name(self, id_: str) -> str | None:
        """Return the physical name of a resource that is looked up by name. None lets CloudFormation generate one."""
        return None if self.is_own_stack else f"{self.name}-{id_}"

    def publish(self, scope: Construct, outputs: Sequence[StackOutput]) -> None:
        """Publish outputs for commands: in Sluice's own stack as stack outputs, in another stack as SSM parameters."""
        if self.is_own_stack:
            for output in outputs:
                CfnOutput(scope, output.name, value=output.value, description=output.description)
            return
        # CloudFormation lists a stack's outputs in this format.
        listed = [
            {"OutputKey": output.name, "OutputValue": output.value}
            | ({} if output.description is None else {"Description": output.description})
            for output in outputs
        ]
        for place, part in enumerate(stored.split_into_parts(self.name, json.dumps(listed, separators=(",", ":")))):
            ssm.CfnParameter(
                scope, f"Outputs{place}", name=f"/{self.name}/{OUTPUTS}/{place}", type="String", value=part
            )


class SiteConstruct(Construct):
    """One capability of a site. Only one construct of each capability is allowed per stage, account and region.

    `finish` creates the resources that depend on later additions; it is called during synthesis at the latest.
    `watched_by_age` has the ids of functions whose queue or stream has an alarm for its oldest message: if the function
    fails, that alarm or the alarm for dead letters goes off.
    """

    capability: ClassVar[Capability | None] = None
    stack_name: ClassVar[str]  # The capability's stack in `sluice deploy` has this name.
    watched_by_age: ClassVar[frozenset[str]] = frozenset()

    def __init__(self, scope: Construct, id_: str, section: str, given: Given, props: SiteProps) -> None:
        """Add the capability to the app. Raises `BadConfiguration` if the app already has it for the same site."""
        super().__init__(scope, id_)
        self.parameters = parameters = parse_parameters(self, section, given, props)
        encrypt_resources(self, parameters.kms_key_arn)
        self.stack = Stack.of(self)
        self.home = StackHome.of(self, self.stack_name, parameters.stage)
        self.watches: list[CreatedAlarm] = []
        self.is_finished = False
        # Protocols fix some names, and each name can exist only once, so a construct reserves the capability's name.
        stage = Stage.of(self)
        within = self.node.root if stage is None else stage
        claim = f"{self.home.name} in {self.stack.environment}"
        claimed = within.node.try_find_child(claim)
        if claimed is not None:
            raise BadConfiguration(
                f"{self.node.path}: {claimed.node.metadata[0].data} is already {self.home.name}, and a region has only"
                " one: share it, or give one of them another stage"
            )
        Construct(cast("Construct", within), claim).node.add_metadata(CLAIMED_BY, self.node.path)
        Aspects.of(self).add(_Finishing(self.finish))

    def finish(self) -> None:
        """Create the resources that depend on later additions. Idempotent. Later additions raise an error."""
        if not self.is_finished:
            self.is_finished = True
            self._finish()

    def watch(self, rule: AlarmRule) -> None:
        """Create the alarm of a rule."""
        self.watches.append(create_alarm(self, rule))

    @property
    def unwatched_functions(self) -> Sequence[lambda_.Function]:
        """Functions that need an alarm on errors. For the other functions, alarms on messages' ages show failures."""
        functions = [child for child in self.node.children if isinstance(child, lambda_.Function)]
        return [function for function in functions if function.node.id not in self.watched_by_age]

    def _finish(self) -> None:
        """Create the resources that depend on later additions. The default creates none."""

    def _check_not_finished(self) -> None:
        if self.is_finished:
            raise BadConfiguration(f"{self.node.path}: the app is being synthesized: add queues earlier")


@jsii.implements(IAspect)
class _Finishing:
    def __init__(self, finish: Callable[[], None]) -> None:
        self._finish = finish

    def visit(self, _: IConstruct) -> None:
        """Finish the construct at CDK's first visit, which is the visit of the construct itself."""
        self._finish()
