"""Types of parameters' values, with the descriptions that errors and the documents print.

Only code that synthesizes stacks imports this module, because no function's bundle contains pydantic.
"""

import hashlib
import json
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Annotated, Any, TypeVar

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field

from sluice.documents import read_json
from sluice.errors import SluiceError
from sluice.federation.matching.exchanges import Exchange, ExchangeType
from sluice.federation.matching.metadata import TAG
from sluice.pipeline.schedule import Daily
from sluice.rendezvous.mailbox import PREFIX as MAILBOX_PREFIX
from sluice.rendezvous.protocol.messages import ANSWER_QUEUE_PREFIX, Bridge, parse_bridges
from sluice.splitting.consumers.targets import MAX_PATTERN
from sluice.stages import MAX_STAGE_CHARACTERS, STAGE, add_stage_prefix, is_stage, parse_stage

T = TypeVar("T")

PLAIN = re.compile("[A-Za-z0-9]{1,24}")  # A construct id contains such names unchanged.


class Model(BaseModel):
    """Base class of parameters. Instances are immutable; types are not converted; unknown fields are refused."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)


def param(
    default: Any, description: str, *, ge: int | None = None, le: int | None = None, max_length: int | None = None
) -> Any:
    """Define a parameter: its default, its description in Markdown, and limits in addition to its type's limits."""
    return Field(default, description=description, ge=ge, le=le, max_length=max_length)


def value_limits(description: str, **limits: Any) -> Any:
    """Annotate a string type with its limits, and with the noun phrase that follows "is not" in an error."""
    return Field(json_schema_extra={"words": description}, **limits)


class InconsistentParameter(ValueError):
    """A parameter, valid by itself, contradicts another parameter."""

    def __init__(self, name: str, cause: str) -> None:
        """Create the error. `name` is the parameter's name in its section; `cause` describes the contradiction."""
        super().__init__(cause)
        self.name = name


def validator(check: Callable[[T], object]) -> AfterValidator:
    """Create a validator that refuses values for which `check` raises ValueError or `SluiceError`."""

    def validate(value: T) -> T:
        try:
            check(value)
        except SluiceError as error:
            raise ValueError(str(error)) from error
        return value

    return AfterValidator(validate)


def _reject_boolean(value: object) -> object:
    if isinstance(value, bool):
        raise ValueError(f"{value!r} is not a whole number")  # noqa: TRY004 - pydantic takes no TypeError
    return value


REJECT_BOOLEAN = BeforeValidator(_reject_boolean)  # In a Literal of numbers, pydantic accepts true for 1.


def describe_type(schema: Mapping[str, Any]) -> str:
    """Describe in a noun phrase which values a JSON schema allows: `a whole number from 1 to 3`, `true or false`."""
    match schema:
        case {"words": str(description)}:
            return description
        case {"anyOf": [*schemas]}:
            description = ", or ".join(map(describe_type, schemas))
        case {"oneOf": [*_], "discriminator": {"mapping": types}}:
            description = f"an object whose type is one of {', '.join(types)}"
        case {"enum": [*values]}:
            description = f"one of {', '.join(map(str, values))}"
        case {"type": "integer", "minimum": least, "maximum": most}:
            description = f"a whole number from {least} to {most}"
        case {"type": "array", "maxItems": most}:
            description = f"a list of at most {most}"
        case {"type": "boolean"}:
            description = "true or false"
        case {"type": "string"}:
            description = "a string"
        case {"type": "null"}:
            description = "null"
        case _:
            description = "an object"
    return description


def parse_option_value(text: str, schema: Mapping[str, Any]) -> object:
    """Parse a command-line value as JSON. Returns the text itself if the schema accepts strings, or it is no JSON."""
    types = {option.get("type") for option in schema.get("anyOf", [schema])}
    if "string" in types and not (text == "null" and "null" in types):
        return text
    try:
        return read_json(text)
    except ValueError:
        return text


# Lambda's limits of memory, in MB: https://docs.aws.amazon.com/lambda/latest/dg/gettingstarted-limits.html
Memory = Annotated[int, Field(ge=128, le=10_240)]
# Lambda's limits for a trigger: https://docs.aws.amazon.com/lambda/latest/dg/services-sqs-scaling.html
Concurrency = Annotated[int, Field(ge=2, le=1_000)]
# Lambda's reserved concurrency: https://docs.aws.amazon.com/lambda/latest/dg/configuration-concurrency.html
ReservedConcurrency = Annotated[int, Field(ge=1, le=10_000)]
# Lambda's limits for batches: https://docs.aws.amazon.com/lambda/latest/dg/services-sqs-configure.html
Batch = Annotated[int, Field(ge=1, le=10_000)]
Window = Annotated[int, Field(ge=0, le=300)]
Hops = Annotated[int, Field(ge=0, le=10)]
Age = Annotated[int, Field(ge=1, le=14 * 24 * 60 * 60)]  # In seconds; SQS's longest retention is 14 days.

Email = Annotated[str, value_limits("an e-mail address", pattern=r"^[^@\s]{1,64}@[^@\s]{1,190}$")]


def construct_id(kind: str, name: str) -> str:
    """Derive a construct id from a user-chosen name, independently of the name's position in a list.

    CloudFormation identifies resources by their ids. If ids depended on positions, reordering a list would swap the
    queues. Names that differ only in `-`, `_` and `.` get the same id, so `check_construct_ids` refuses to list both.
    """
    plain = re.sub("[-_.]", "", name)
    return kind + plain if PLAIN.fullmatch(plain) else unique_construct_id(kind, name)


def unique_construct_id(kind: str, name: str) -> str:
    """Derive a construct id that no other name gets, for resources that a new name must replace."""
    return f"{kind}{re.sub('[^A-Za-z0-9]', '', name)[:12]}{hashlib.sha256(name.encode()).hexdigest()[:8]}"


def add_queue_type(name: str, *, fifo: bool) -> str:
    """Mark the name of a FIFO queue, so that a queue of the other type gets another construct id."""
    return f"{name}.fifo" if fifo else name


def check_construct_ids(parameter: str, names: Iterable[str]) -> None:
    """Raise `InconsistentParameter` if two of the names would get the same construct id."""
    names_by_id: dict[str, str] = {}
    for name in names:
        id_ = construct_id("", name)
        if (other := names_by_id.get(id_)) is not None:
            raise InconsistentParameter(
                parameter, f"{name} is parameter twice" if other == name else f"{other} and {name} differ only in - _ ."
            )
        names_by_id[id_] = name


# In option `--filter` a colon ends the queue id, and `*` stands for every queue.
QueueId = Annotated[
    str,
    value_limits(
        "1 to 128 characters without `:`, `*`, control characters, and spaces at the ends",
        pattern=r"^[^*\s:\x00-\x1f\x7f](?:[^*:\x00-\x1f\x7f]{0,126}[^*\s:\x00-\x1f\x7f])?$",
    ),
]
QueueIdPattern = Annotated[
    str,
    value_limits(
        "a queue id, in which `*` and `?` are wildcards",
        pattern=r"^[^\s:\x00-\x1f\x7f](?:[^:\x00-\x1f\x7f]{0,126}[^\s:\x00-\x1f\x7f])?$",
    ),
]
# SQS's rules for names of attributes: https://docs.aws.amazon.com/AWSSimpleQueueService/latest/SQSDeveloperGuide/sqs-message-metadata.html
AttributeName = Annotated[
    str, value_limits("the name of a message attribute", pattern=r"^[A-Za-z0-9_-]+(\.[A-Za-z0-9_-]+)*$", max_length=256)
]
QueueArn = Annotated[
    str,
    value_limits(
        "the ARN of an SQS queue", pattern=r"^arn:aws[a-z-]*:sqs:[a-z0-9-]+:[0-9]{12}:[A-Za-z0-9_-]{1,80}(\.fifo)?$"
    ),
]
SenderArn = Annotated[
    str,
    value_limits(
        "the ARN of an SNS topic or an S3 bucket",
        pattern=r"^arn:aws[a-z-]*:(sns:[a-z0-9-]+:[0-9]{12}:[A-Za-z0-9_-]{1,256}(\.fifo)?|s3:::[a-z0-9.-]{3,63})$",
    ),
]
# CloudWatch alarms can't publish to FIFO topics.
TopicArn = Annotated[
    str,
    value_limits(
        "the ARN of an SNS standard topic", pattern=r"^arn:aws[a-z-]*:sns:[a-z0-9-]+:[0-9]{12}:[A-Za-z0-9_-]{1,256}$"
    ),
]
RoleArn = Annotated[
    str,
    value_limits("the ARN of an IAM role", pattern=r"^arn:aws[a-z-]*:iam::[0-9]{12}:role/[A-Za-z0-9_+=,.@/-]{1,576}$"),
]
# Lambda's rules for names: https://docs.aws.amazon.com/lambda/latest/api/API_CreateFunction.html
FunctionName = Annotated[
    str,
    value_limits(
        "a function's name or ARN",
        pattern=r"^(arn:aws[a-z-]*:lambda:[a-z0-9-]+:[0-9]{12}:function:)?[A-Za-z0-9_-]{1,64}$",
    ),
]
AliasName = Annotated[
    str,
    value_limits(
        "a function's name or ARN, optionally followed by a colon and an alias",
        pattern=r"^(arn:aws[a-z-]*:lambda:[a-z0-9-]+:[0-9]{12}:function:)?[A-Za-z0-9_-]{1,64}(:[A-Za-z0-9_-]{1,128})?$",
    ),
]
VariableName = Annotated[
    str, value_limits("the name of an environment variable", pattern="^[^=\\x00-\\x1f\\x7f]{1,256}$")
]
# Rules for names of parameters: https://docs.aws.amazon.com/systems-manager/latest/userguide/sysman-paramstore-su-create.html
ParameterName = Annotated[
    str,
    value_limits(
        "a parameter's name or ARN",
        pattern=r"^(arn:aws[a-z-]*:ssm:[a-z0-9-]+:[0-9]{12}:parameter/)?[A-Za-z0-9_./-]{1,1011}$",
    ),
]
# Services and containers have the same limit: https://docs.aws.amazon.com/AmazonECS/latest/APIReference/API_CreateService.html
EcsName = Annotated[
    str, value_limits("1 to 255 letters, digits, hyphens and underscores", pattern="^[A-Za-z0-9_-]{1,255}$")
]
# EKS's rules for names: https://docs.aws.amazon.com/eks/latest/APIReference/API_CreateCluster.html
ClusterName = Annotated[
    str,
    value_limits("the name of an EKS cluster", pattern="^[0-9A-Za-z][A-Za-z0-9_-]{0,99}$"),
]
# Names of containers and volumes have the same form: https://kubernetes.io/docs/concepts/overview/working-with-objects/names/
NamespaceName = Annotated[
    str,
    value_limits("1 to 63 lowercase letters, digits and hyphens", pattern="^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$"),
]
# The keys of a ConfigMap have the same limits as names of Kubernetes objects.
ObjectName = Annotated[
    str, value_limits("1 to 253 letters, digits, dots, hyphens and underscores", pattern="^[A-Za-z0-9._-]{1,253}$")
]
Account = Annotated[str, value_limits("the twelve digits of an AWS account id", pattern=r"^[0-9]{12}$")]
ExternalId = Annotated[str, value_limits("an external id", pattern=r"^[A-Za-z0-9+=,.@:/_-]{2,128}$")]
KmsKeyArn = Annotated[
    str,
    value_limits(
        "the ARN of a KMS key",
        # A CDK token stands for the ARN of a KMS key in the constructs' app.
        pattern=r"^(arn:aws[a-z-]*:kms:[a-z0-9-]+:[0-9]{12}:key/[A-Za-z0-9-]{1,64}|\$\{Token\[[A-Za-z0-9_.]+\]\})$",
    ),
]
SqsUrl = Annotated[str, value_limits("an http or https URL", pattern=r"^https?://[A-Za-z0-9.:-]{1,253}/?$")]
QueuePattern = Annotated[
    str, value_limits("a queue's name with wildcards", pattern=r"^[A-Za-z0-9_*?-]{1,80}(\.fifo)?$")
]
_COLUMN = r"[A-Za-z_][A-Za-z0-9_-]{0,127}:(string|boolean|int|bigint|float|double|date|timestamp)"
ReleaseLabel = Annotated[str, value_limits("an EMR release label", pattern=r"^emr-[a-z0-9.-]{1,59}$")]
Envelopes = Annotated[
    str,
    value_limits(
        "a comma-separated list of sns, eventbridge, s3",
        pattern="^((sns|eventbridge)(,(sns|eventbridge))?(,s3)?|s3)$",
    ),
]
LandedColumns = Annotated[
    str,
    value_limits(
        "a comma-separated list of name:type; types are string, boolean, int, bigint, float, double, date, timestamp",
        max_length=500,
        pattern=rf"^{_COLUMN}(,{_COLUMN})*$",
    ),
]
VpcId = Annotated[str, value_limits("a VPC id, vpc-…", pattern="^vpc-[0-9a-f]{8,17}$")]
SubnetId = Annotated[str, value_limits("a subnet id, subnet-…", pattern="^subnet-[0-9a-f]{8,17}$")]
SecurityGroupId = Annotated[str, value_limits("a security group id, sg-…", pattern="^sg-[0-9a-f]{8,17}$")]
ZoneIndex = Annotated[int, Field(ge=0, le=5)]  # No region has more than six zones.
RouteTableId = Annotated[str, value_limits("a route table id, rtb-…", pattern="^rtb-[0-9a-f]{8,17}$")]
RelayPattern = Annotated[
    str,
    value_limits(
        "the end of a host name, or the whole name after ^; a trailing $ is optional, $ matches any host",
        pattern=r"^\^?[A-Za-z0-9.-]{0,253}\$?$",
        min_length=1,
    ),
]


def _check_pattern(text: str) -> None:
    try:
        re.compile(text)
    except re.error as error:
        raise ValueError(f"{text!r} is not a regular expression: {error}") from error


Pattern = Annotated[
    str,
    value_limits(
        f"a regular expression of 1 to {MAX_PATTERN} characters",
        min_length=1,
        max_length=MAX_PATTERN,
    ),
    validator(_check_pattern),
]


def _check_project_path(path: str) -> None:
    if ".." in path.split("/"):
        raise ValueError(f"{path!r} is not the path of a .mmdb file within the project")


CountriesFile = Annotated[
    str,
    value_limits("the path of a .mmdb file within the project", pattern=r"^[A-Za-z0-9_-][A-Za-z0-9_./-]{0,250}\.mmdb$"),
    validator(_check_project_path),
]


def _check_stage(stage: str) -> None:
    if not is_stage(stage):
        raise ValueError(f"{stage!r} is reserved: it starts names of resources without a stage")


STAGE_DESCRIPTION = f"1 to {MAX_STAGE_CHARACTERS} lowercase letters and digits, starting with a letter"
Stage = Annotated[str, value_limits(STAGE_DESCRIPTION, pattern=f"^{STAGE}$"), validator(_check_stage)]
PeerStage = Annotated[
    str,
    value_limits(f"an empty string, or {STAGE_DESCRIPTION}", pattern=f"^({STAGE})?$"),
    validator(lambda stage: stage and _check_stage(stage)),
]
Tag = Annotated[str, value_limits("1 to 32 letters, digits, hyphens and underscores", pattern=f"^{TAG}$")]
TimeOfDay = Annotated[str, validator(Daily.parse), value_limits("a time of day, HH:MM")]
ExchangeName = Annotated[
    str, validator(lambda name: Exchange(name=name, type=ExchangeType.TOPIC)), value_limits("the name of an exchange")
]


def _check_not_reserved(name: str) -> None:
    """Refuse names with the prefixes of clients' queues. Clients read such queues, and the sweeper deletes them."""
    for prefix in (ANSWER_QUEUE_PREFIX, MAILBOX_PREFIX):
        if name.startswith(tuple(add_stage_prefix(prefix, stage) for stage in {None, parse_stage(name)})):
            raise ValueError(
                f"{name!r} starts with {prefix}, which is reserved for clients' queues: the sweeper would delete it"
            )


# SQS's rules for names of queues: https://docs.aws.amazon.com/AWSSimpleQueueService/latest/APIReference/API_CreateQueue.html
# The pattern excludes names of FIFO queues, which end in .fifo: rendezvous clients can't send to FIFO queues.
QUEUE_NAME_CHARACTERS = 80
OffersQueueName = Annotated[
    str,
    value_limits("1 to 80 letters, digits, hyphens and underscores", pattern="^[A-Za-z0-9_-]{1,80}$"),
    validator(_check_not_reserved),
]
OffersQueueArn = Annotated[
    str,
    value_limits(
        "the ARN of an SQS standard queue", pattern=r"^arn:aws[a-z-]*:sqs:[a-z0-9-]+:[0-9]{12}:[A-Za-z0-9_-]{1,80}$"
    ),
    validator(lambda arn: _check_not_reserved(arn.rsplit(":", 1)[1])),
]
# All environment variables of a function share 4 KB: https://docs.aws.amazon.com/lambda/latest/dg/gettingstarted-limits.html
BRIDGES_MAX_BYTES = 3_000


def parse_bridge_list(listed: tuple[dict[str, Any], ...]) -> tuple[Bridge, ...]:
    """Parse a list of Snowflake bridges. Raises `BadBridgeList`, or ValueError if the list is too long."""
    lines = "\n".join(json.dumps(bridge) for bridge in listed)
    if len(lines.encode()) > BRIDGES_MAX_BYTES:
        raise ValueError(
            f"the list has {len(lines.encode())} bytes; at most {BRIDGES_MAX_BYTES} fit into a function's environment"
        )
    return parse_bridges(lines)


BridgeList = Annotated[
    tuple[dict[str, Any], ...],
    validator(parse_bridge_list),
    value_limits("a list of {displayName, webSocketAddress, fingerprint}"),
]
