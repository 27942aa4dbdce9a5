"""What the construct of each capability has: its parameters, its place in a site, and the time when it is finished.

Commands and peers find a site by names: of our own stacks, `SluiceRendezvous` and so on, after the stage's prefix. In a
stack of another name a construct writes what they look for into parameters of Systems Manager, and names so what roles
and peers know by its name.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, TypedDict, cast

import jsii
from aws_cdk import Aspects, CfnOutput, IAspect, RemovalPolicy, Stack, Stage
from aws_cdk import aws_lambda as lambda_
from aws_cdk import aws_ssm as ssm
from constructs import Construct, IConstruct

from sluice.constructs import stored
from sluice.constructs.alarms import Capability, Rule, Watch, alarm
from sluice.errors import BadConfiguration, BadParameter
from sluice.parameters import ROOT, Architecture, Parameters
from sluice.stages import staged

NOTHING: Mapping[str, object] = {}
CLAIMED_BY = "sluice:claimed-by"
OUTPUTS = "outputs"  # the folder of Systems Manager where commands look for what no stack of ours says


class SiteProps(TypedDict, total=False):
    """What all constructs of a site take, with the defaults of the parameters of these names.

    `stage` is the prefix of names by which several sites live in one account and region. `removal_policy` is that of
    tables, buckets and users' queues: RETAIN, which is the default, or DESTROY.
    """

    stage: str | None
    architecture: lambda_.Architecture | Architecture
    removal_policy: RemovalPolicy
    log_retention_days: int
    log_level: str
    tracing: bool


def parameters_of(
    scope: Construct, id_: str, section: str | None, given: Mapping[str, object] | Parameters, props: SiteProps
) -> Parameters:
    """Check what a construct is given; `section` None takes all sections. Raises `BadConfiguration` with its path."""
    if isinstance(given, Parameters):
        return given
    common: dict[str, object] = {
        name: props[name] for name in ("stage", "log_level", "log_retention_days") if name in props
    }
    if "architecture" in props:
        asked = props["architecture"]
        common["architecture"] = asked.name if isinstance(asked, lambda_.Architecture) else asked
    sections: dict[str, dict[str, object]] = {"rendezvous": {}, "operations": {}}
    if "removal_policy" in props:
        if props["removal_policy"] not in {RemovalPolicy.RETAIN, RemovalPolicy.DESTROY}:
            raise BadConfiguration(f"{path(scope, id_)}: removal_policy is RETAIN or DESTROY")
        sections["rendezvous"]["keep_state"] = props["removal_policy"] is RemovalPolicy.RETAIN
    if "tracing" in props:
        sections["operations"]["tracing"] = props["tracing"]
    of_sections: Mapping[str, Any] = given if section is None else {section: given}
    for name, values in of_sections.items():
        sections[name] = {**sections.get(name, {}), **values}
    return refused_at(path(scope, id_), lambda: Parameters.read({ROOT: {**common, **sections}}))


def refused_at(place: str, read: Callable[[], Parameters]) -> Parameters:
    """Raise what is wrong with parameters with the path of the construct that has them."""
    try:
        return read()
    except BadParameter as error:
        raise BadConfiguration(f"{place}: {error}") from error


def path(scope: Construct, id_: str) -> str:
    """Give the path that a construct will have, which messages name it by."""
    return "/".join(each for each in (scope.node.path, id_) if each)


@dataclass(frozen=True, slots=True, kw_only=True)
class Output:
    """What a command reads of a deployed site. `description` is the name by which people know what it is of."""

    name: str
    value: str
    description: str | None = None


@dataclass(frozen=True, slots=True)
class Home:
    """Where commands and peers look for a capability: the name of our own stack of it, at the site's stage."""

    stack: Stack
    name: str

    @classmethod
    def of(cls, scope: Construct, stack_name: str, stage: str | None) -> "Home":
        """`stack_name` is without the stage."""
        return cls(Stack.of(scope), staged(stack_name, stage))

    @property
    def is_own_stack(self) -> bool:
        """Whether CloudFormation's own names begin so: else what is known by its name is named."""
        return self.stack.stack_name == self.name

    def name_of(self, id_: str) -> str | None:
        """Give the physical name of what roles or peers know by its name; None is what CloudFormation makes of it."""
        return None if self.is_own_stack else f"{self.name}-{id_}"

    def publish(self, scope: Construct, outputs: Sequence[Output]) -> None:
        """Let commands find these: as the stack's outputs, or stored under the name that the stack would have."""
        if self.is_own_stack:
            for each in outputs:
                CfnOutput(scope, each.name, value=each.value, description=each.description)
            return
        # As CloudFormation lists a stack's.
        listed = [
            {"OutputKey": each.name, "OutputValue": each.value}
            | ({} if each.description is None else {"Description": each.description})
            for each in outputs
        ]
        for place, part in enumerate(stored.parts(self.name, json.dumps(listed, separators=(",", ":")))):
            ssm.CfnParameter(
                scope, f"Outputs{place}", name=f"/{self.name}/{OUTPUTS}/{place}", type="String", value=part
            )


class SiteConstruct(Construct):
    """One capability of a site. There is one of each in an account and region for a stage.

    `finish` makes what depends on all that was said of it; at the latest it is called when the app is synthesized.
    `watched_by_age` are the ids of functions whose queue or stream has an alarm for its oldest message: where they die,
    it goes off, and their dead letters' does.
    """

    capability: ClassVar[Capability | None] = None
    stack_name: ClassVar[str]  # of our own stack that has it
    watched_by_age: ClassVar[frozenset[str]] = frozenset()

    def __init__(self, scope: Construct, id_: str, parameters: Parameters) -> None:
        """Raise `BadConfiguration` where the app has one already for the same site."""
        super().__init__(scope, id_)
        self.parameters = parameters
        self.stack = Stack.of(self)
        self.home = Home.of(self, self.stack_name, parameters.stage)
        self.watches: list[Watch] = []
        self.is_finished = False
        _claim(self)
        Aspects.of(self).add(_Finishing(self.finish))

    def finish(self) -> None:
        """Make what isn't made yet. Afterwards nothing more can be said of it."""
        if not self.is_finished:
            self.is_finished = True
            self._finish()

    def watch(self, rule: Rule) -> None:
        """Make the alarm of a rule."""
        self.watches.append(alarm(self, rule))

    @property
    def unwatched_functions(self) -> Sequence[lambda_.Function]:
        """The functions that no alarm by age is about. AWS charges for each whose errors are watched."""
        functions = [child for child in self.node.children if isinstance(child, lambda_.Function)]
        return [each for each in functions if each.node.id not in self.watched_by_age]

    def _finish(self) -> None:
        """Nothing, where all is made at once."""

    def _check_open(self) -> None:
        if self.is_finished:
            raise BadConfiguration(f"{self.node.path}: it is made already, as the app is being synthesized")


@jsii.implements(IAspect)
class _Finishing:
    def __init__(self, finish: Callable[[], None]) -> None:
        self._finish = finish

    def visit(self, _: IConstruct) -> None:
        """Finish at the first visit, which is the construct's own."""
        self._finish()


def _claim(construct: SiteConstruct) -> None:
    """Hold a capability's name for one construct: names that the protocols fix can't be there twice."""
    stage = Stage.of(construct)
    within = construct.node.root if stage is None else stage
    id_ = f"{construct.home.name} in {construct.stack.environment}"
    claimed = within.node.try_find_child(id_)
    if claimed is not None:
        other = claimed.node.metadata[0].data
        raise BadConfiguration(
            f"{construct.node.path}: {other} is {construct.home.name} already, of which an account and region has one: "
            "share it, or give one of them another stage"
        )
    Construct(cast("Construct", within), id_).node.add_metadata(CLAIMED_BY, construct.node.path)
