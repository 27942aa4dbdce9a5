"""Lets stacks refer to each other's resources by one document per stack, instead of a look-up for each reference.

A stack writes the names of resources that other stacks use into parameters of Systems Manager. CloudFormation reads
these parameters before it compares templates, so change sets know all values: docs/decisions/0021. Only stacks of class
`ReferencedStack` write such documents. Other stacks refer to each other as CDK's context of their app says.
"""

from dataclasses import fields, is_dataclass, replace
from typing import Any, TypeVar, cast

from aws_cdk import ArnFormat, CfnResource, Fn, Stack
from aws_cdk import aws_cloudwatch as cloudwatch
from aws_cdk import aws_dynamodb as dynamodb
from aws_cdk import aws_s3 as s3
from aws_cdk import aws_sns as sns
from aws_cdk import aws_sqs as sqs
from aws_cdk import aws_ssm as ssm
from constructs import Construct

from sluice.constructs.stored import PARAMETER_BYTES, TOKEN_BYTES
from sluice.parameters import Parameters
from sluice.stages import add_stage_prefix

NAMES = "names"  # Folder of a stack's document in Systems Manager.
END = ";"  # An entry `key=name;` ends in this character, which no name, ARN or URL contains.
QUEUE_NAME = 4  # Index of the name in https://sqs.REGION.amazonaws.com/ACCOUNT/NAME, split at `/`.
IMPORTABLE = (sqs.Queue, dynamodb.Table, s3.Bucket, sns.Topic, cloudwatch.Alarm)

T = TypeVar("T")


class ReferencedStack(Stack):
    """A stack that writes a document of its resources' names into as many parameters of 4 KB as it needs."""

    def __init__(self, scope: Construct, name: str, parameters: Parameters, *, description: str) -> None:
        super().__init__(scope, add_stage_prefix(name, parameters.stage), description=f"Sluice: {description}")
        self.parts: list[ssm.CfnParameter] = []
        self.part_of: dict[str, ssm.CfnParameter] = {}
        self.room = 0
        self.imports: dict[str, Any] = {}  # The keys name the importing stack and the resource's logical id.
        self.originals: dict[str, Any] = {}  # The original resources, by the paths of their imports.

    def read(self, reader: Stack, key: str, name: str) -> str:
        """Enter a resource's name into the document. Returns an expression that finds the name in another template.

        If a deployed document lacks the key, the expression has no value, and the deployment of stack `reader` fails.
        """
        if key not in self.part_of:
            self.part_of[key] = self._add_entry(f"{key}={name}{END}", size=len(key) + TOKEN_BYTES)
        reader.add_stack_dependency(self)
        document = ssm.StringParameter.value_for_string_parameter(reader, cast("str", self.part_of[key].name))
        return Fn.select(0, Fn.split(END, Fn.select(1, Fn.split(f"{END}{key}=", document))))

    def _add_entry(self, entry: str, *, size: int) -> ssm.CfnParameter:
        if size > self.room:
            place, self.room = len(self.parts), PARAMETER_BYTES - len(END)
            name = f"/{self.stack_name}/{NAMES}/{place}"
            self.parts.append(ssm.CfnParameter(self, f"Names{place}", name=name, type="String", value=END))
        self.parts[-1].value += entry
        self.room -= size
        return self.parts[-1]


def import_into(scope: Construct, value: T) -> T:
    """Prepare resources, or structures of resources, for use in a stack: another stack's resources become imports."""
    here, original = Stack.of(scope), cast("Any", value)
    if not isinstance(here, ReferencedStack):
        return value
    imported = original
    if isinstance(original, dict):
        imported = {name: import_into(here, member) for name, member in original.items()}
    elif isinstance(original, list):
        imported = [import_into(here, member) for member in original]
    elif is_dataclass(original) and not isinstance(original, type):
        members = {field.name: import_into(here, getattr(original, field.name)) for field in fields(original)}
        imported = replace(original, **members)
    elif hasattr(original, "node"):
        imported = _import_resource(here, original)
    return cast("T", imported)


def read_ref(scope: Construct, resource: CfnResource) -> str:
    """Return the `Ref` of any stack's resource for use in the stack of `scope`."""
    here, owner = Stack.of(scope), Stack.of(resource)
    if owner is here or not isinstance(owner, ReferencedStack):
        return resource.ref
    return owner.read(here, owner.resolve(resource.logical_id), resource.ref)


def _import_resource(stack: ReferencedStack, resource: Any) -> Any:
    owner = Stack.of(resource)
    if isinstance(owner, ReferencedStack):  # An import is replaced by the resource that it refers to.
        resource = owner.originals.get(resource.node.path, resource)
        owner = Stack.of(resource)
    if owner is stack or not isinstance(owner, ReferencedStack) or not isinstance(resource, IMPORTABLE):
        return resource
    element = cast("CfnResource", resource.node.default_child)
    key = owner.resolve(element.logical_id)
    id_ = f"{owner.node.id}{key}"
    if id_ not in stack.imports:
        ref = read_ref(stack, element)
        match resource:
            case sqs.Queue():
                name = Fn.select(QUEUE_NAME, Fn.split("/", ref))
                arn = stack.format_arn(service="sqs", resource=name, arn_format=ArnFormat.NO_RESOURCE_NAME)
                imported: Any = sqs.Queue.from_queue_attributes(
                    stack, id_, queue_arn=arn, queue_name=name, queue_url=ref, fifo=resource.fifo
                )
            case dynamodb.Table():
                stream = resource.table_stream_arn
                imported = dynamodb.Table.from_table_attributes(
                    stack,
                    id_,
                    table_name=ref,
                    table_stream_arn=None if stream is None else owner.read(stack, f"{key}Stream", stream),
                )
            case s3.Bucket():
                imported = s3.Bucket.from_bucket_name(stack, id_, ref)
            case sns.Topic():
                imported = sns.Topic.from_topic_arn(stack, id_, ref)
            case cloudwatch.Alarm():
                imported = cloudwatch.Alarm.from_alarm_name(stack, id_, ref)
        stack.imports[id_], stack.originals[imported.node.path] = imported, resource
    return stack.imports[id_]
