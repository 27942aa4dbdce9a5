"""One synth's templates, and what their expressions come to once they are deployed: with names as long as AWS's are."""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any

from sluice.stages import add_stage_prefix
from tests.stacks.conftest import Templates

Template = Mapping[str, Any]
REGION, ACCOUNT = "ap-southeast-1", "123456789012"  # none is longer
PSEUDO = {
    "AWS::AccountId": ACCOUNT,
    "AWS::Partition": "aws",
    "AWS::Region": REGION,
    "AWS::URLSuffix": "amazonaws.com",
    "AWS::NoValue": "",
}
# `SluiceState-SplitpipelineMain15399597-AbCdEfGhIjKl`: what CloudFormation adds, and at how many characters it cuts.
ADDED = "-AbCdEfGhIjKl"
LONGEST_NAMES = {
    "AWS::IAM::Role": 64,
    "AWS::IAM::User": 64,
    "AWS::Lambda::Function": 64,
    "AWS::S3::Bucket": 63,
    "AWS::SQS::Queue": 80,
}
LONGEST_NAME = 255
EXPRESSIONS = {"Ref", "Fn::GetAtt", "Fn::Join", "Fn::Select", "Fn::Sub"}
NAME_PROPERTIES = ("QueueName", "DashboardName", "Name")
REGIONAL = f"{REGION}:{ACCOUNT}:"
ARNS = {
    "AWS::CloudWatch::Alarm": f"arn:aws:cloudwatch:{REGIONAL}alarm:",
    "AWS::DynamoDB::Table": f"arn:aws:dynamodb:{REGIONAL}table/",
    "AWS::EMRServerless::Application": f"arn:aws:emr-serverless:{REGIONAL}/applications/",
    "AWS::Events::Rule": f"arn:aws:events:{REGIONAL}rule/",
    "AWS::IAM::Role": f"arn:aws:iam::{ACCOUNT}:role/",
    "AWS::IAM::User": f"arn:aws:iam::{ACCOUNT}:user/",
    "AWS::Lambda::Function": f"arn:aws:lambda:{REGIONAL}function:",
    "AWS::Logs::LogGroup": f"arn:aws:logs:{REGIONAL}log-group:",
    "AWS::S3::Bucket": "arn:aws:s3:::",
    "AWS::SNS::Topic": f"arn:aws:sns:{REGIONAL}",
    "AWS::SQS::Queue": f"arn:aws:sqs:{REGIONAL}",
    "AWS::SSM::Parameter": f"arn:aws:ssm:{REGIONAL}parameter",
}


Id = tuple[str, str]  # stack and logical id
DOCUMENT_KEY = re.compile(r'";(\w+?)(?:Stream)?="')  # in an expression that finds a name in another stack's document


@dataclass(frozen=True, slots=True, kw_only=True)
class Resource:
    """One resource of one stack."""

    stack: str
    id: str
    type: str
    properties: Mapping[str, Any]
    kept: bool  # when its stack goes, when it goes from its stack, when another takes its place


@dataclass(frozen=True)
class Assembly:
    """The templates of one synth, by their stacks' names."""

    stacks: Mapping[str, Template]

    @classmethod
    def of(cls, templates: Templates) -> "Assembly":
        """Without those that aren't there."""
        found = {name: template for name, template in asdict(templates).items() if template and name != "stage"}
        return cls(
            {add_stage_prefix(f"Sluice{name.capitalize()}", templates.stage): each for name, each in found.items()}
        )

    def resources(self, *types: str) -> Iterator[Resource]:
        """All, or those of some types."""
        for stack, template in self.stacks.items():
            for id_ in template["Resources"]:
                if not types or template["Resources"][id_]["Type"] in types:
                    yield self.resource(stack, id_)

    def resource(self, stack: str, id_: str) -> Resource:
        """The one with this logical id."""
        made = self.stacks[stack]["Resources"][id_]
        policies = {made.get("DeletionPolicy"), made.get("UpdateReplacePolicy")}
        kept = policies <= {"Retain", "Snapshot"}
        return Resource(stack=stack, id=id_, type=made["Type"], properties=made.get("Properties", {}), kept=kept)

    @cached_property
    def parameters(self) -> Mapping[str, Resource]:
        """Those of Systems Manager, by their names."""
        return {resource.properties["Name"]: resource for resource in self.resources("AWS::SSM::Parameter")}

    def read_by(self, stack: str) -> set[Id]:
        """The resources of other stacks that a stack's template refers to."""
        keys = set(DOCUMENT_KEY.findall(json.dumps(self.stacks[stack])))
        return {(other, id_) for other, template in self.stacks.items() for id_ in keys & template["Resources"].keys()}

    def stored(self, names: Sequence[str]) -> str:
        """What the parameters with these names hold together."""
        made = self.parameters
        return "".join(self.text(made[name].stack, made[name].properties["Value"]) for name in names)

    def text(self, stack: str, value: Any) -> str:  # noqa: PLR0911 - one case an expression
        """What a value of a stack's template comes to."""
        match value:
            case str():
                return value
            case {"Ref": str(name)} if name in self.stacks[stack].get("Parameters", {}):
                return self.stored([self.stacks[stack]["Parameters"][name]["Default"]])
            case {"Ref": str(name)}:
                return PSEUDO[name] if name in PSEUDO else _referred(self.resource(stack, name))
            case {"Fn::GetAtt": [str(id_), str(attribute)]}:
                return _attribute(self.resource(stack, id_), attribute)
            case {"Fn::Join": [str(separator), [*parts]]}:
                return separator.join(self.text(stack, part) for part in parts)
            case {"Fn::Join": [str(separator), {"Fn::Split": [str(by), split]}]}:
                return separator.join(self.text(stack, split).split(by))
            case {"Fn::Sub": str(pattern)}:
                return re.sub(r"\$\{([^}]+)\}", lambda found: PSEUDO[found[1]], pattern)
            case {"Fn::Select": [int(place), {"Fn::Split": [str(by), split]}]}:
                return self.text(stack, split).split(by)[place]
        raise AssertionError(f"no reading for {value}")

    def plain(self, stack: str, value: Any) -> Any:
        """Give a value of a stack's template with all its expressions evaluated."""
        match value:
            case list():
                return [self.plain(stack, each) for each in value]
            case dict() if value.keys() & EXPRESSIONS:
                return self.text(stack, value)
            case dict():
                return {name: self.plain(stack, each) for name, each in value.items()}
        return value


def physical_name(resource: Resource) -> str:
    """What a resource is called, where CloudFormation names it as long as the longest are."""
    for property_ in NAME_PROPERTIES:
        if property_ in resource.properties:
            return str(resource.properties[property_])
    ending = ".fifo" if resource.properties.get("FifoQueue") else ""
    room = LONGEST_NAMES.get(resource.type, LONGEST_NAME) - len(ADDED) - len(ending)
    return f"{resource.stack}-{resource.id}"[:room] + ADDED + ending


def _referred(resource: Resource) -> str:
    match resource.type:
        case "AWS::SQS::Queue":
            return f"https://sqs.{REGION}.amazonaws.com/{ACCOUNT}/{physical_name(resource)}"
        case "AWS::SNS::Topic":
            return _arn(resource)
        case "AWS::Lambda::EventSourceMapping":
            return "12345678-1234-1234-1234-123456789abc"
    return physical_name(resource)


def _attribute(resource: Resource, attribute: str) -> str:
    match attribute:
        case "Arn":
            return _arn(resource)
        case "StreamArn":
            return f"{_arn(resource)}/stream/2026-01-01T00:00:00.000"
        case "FunctionUrl":
            return f"https://{'a' * 32}.lambda-url.{REGION}.on.aws/"
    return physical_name(resource)


def _arn(resource: Resource) -> str:
    ending = ":*" if resource.type == "AWS::Logs::LogGroup" else ""
    return ARNS[resource.type] + physical_name(resource) + ending
