"""The types of parameters' values, each with what it is in words: refusals and the documents say it by these.

Synth's own room: pydantic checks here, and is in no function's bundle.
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
from sluice.federation.matching.metadata import is_tag
from sluice.pipeline.schedule import Daily
from sluice.rendezvous.mailbox import PREFIX as MAILBOX_PREFIX
from sluice.rendezvous.protocol.messages import ANSWER_QUEUE_PREFIX, Bridge, parse_bridges
from sluice.splitting.consumers.targets import MAX_PATTERN
from sluice.stages import MAX_STAGE_CHARACTERS, STAGE, is_stage, stage_of, staged

T = TypeVar("T")

PLAIN = re.compile("[A-Za-z0-9]{1,24}")  # what an id shows of a name


class Model(BaseModel):
    """Values as JSON has them: frozen, nothing converted, unknown fields refused."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)


def of(
    default: Any, description: str, *, ge: int | None = None, le: int | None = None, max_length: int | None = None
) -> Any:
    """Describe a parameter: its default, what it is (in Markdown), its limits beside those of its type."""
    return Field(default, description=description, ge=ge, le=le, max_length=max_length)


def said(words: str, **more: Any) -> Any:
    """Limits of a text, and what it is in words: what stands after "is not" where they don't hold."""
    return Field(json_schema_extra={"words": words}, **more)


class InconsistentParameter(ValueError):
    """A parameter that is right by itself and wrong beside the others of its section."""

    def __init__(self, name: str, cause: str) -> None:
        """`name` is the parameter's in its section."""
        super().__init__(cause)
        self.name = name


def checked(check: Callable[[T], object]) -> AfterValidator:
    """Refuses what `check` raises ValueError or an error of ours for; what it returns is dropped."""

    def validate(value: T) -> T:
        try:
            check(value)
        except SluiceError as error:
            raise ValueError(str(error)) from error
        return value

    return AfterValidator(validate)


def _no_flag(value: object) -> object:
    if isinstance(value, bool):
        raise ValueError(f"{value!r} is not a whole number")  # noqa: TRY004 - pydantic takes no TypeError
    return value


NO_FLAG = BeforeValidator(_no_flag)  # a Literal of numbers takes true for 1


def in_words(schema: Mapping[str, Any]) -> str:
    """Says what a value of a JSON schema is: `a whole number from 1 to 3`, `true or false`."""
    match schema:
        case {"words": str(words)}:
            return words
        case {"anyOf": [*each]}:
            words = " or ".join(map(in_words, each))
        case {"oneOf": [*_], "discriminator": {"mapping": types}}:
            words = f"an object whose type is one of {', '.join(types)}"
        case {"enum": [*each]}:
            words = f"one of {', '.join(map(str, each))}"
        case {"type": "integer", "minimum": least, "maximum": most}:
            words = f"a whole number from {least} to {most}"
        case {"type": "array", "maxItems": most}:
            words = f"a list of at most {most}"
        case {"type": "boolean"}:
            words = "true or false"
        case {"type": "string"}:
            words = "a text"
        case {"type": "null"}:
            words = "null"
        case _:
            words = "an object"
    return words


def of_text(text: str, schema: Mapping[str, Any]) -> object:
    """Read a text of the command line as the type that a JSON schema asks for; what isn't JSON stays text."""
    types = {each.get("type") for each in schema.get("anyOf", [schema])}
    if "string" in types and not (text == "null" and "null" in types):
        return text
    try:
        return read_json(text)
    except ValueError:
        return text


# https://docs.aws.amazon.com/lambda/latest/dg/gettingstarted-limits.html
Memory = Annotated[int, Field(ge=128, le=10_240)]
# https://docs.aws.amazon.com/lambda/latest/dg/services-sqs-scaling.html
Concurrency = Annotated[int, Field(ge=2, le=1_000)]
# https://docs.aws.amazon.com/lambda/latest/dg/configuration-concurrency.html
ReservedConcurrency = Annotated[int, Field(ge=1, le=10_000)]
# https://docs.aws.amazon.com/lambda/latest/dg/services-sqs-configure.html
Batch = Annotated[int, Field(ge=1, le=10_000)]
Window = Annotated[int, Field(ge=0, le=300)]
Age = Annotated[int, Field(ge=1, le=14 * 24 * 60 * 60)]  # at most as long as SQS keeps a message

Email = Annotated[str, said("an e-mail address", pattern=r"^[^@\s]{1,64}@[^@\s]{1,190}$")]


# A colon ends it in `--filter`, and `*` is every queue.
def id_of(kind: str, name: str) -> str:
    """Make a construct's id of what people know by a name: it is the same wherever the name is listed.

    CloudFormation knows a resource by its id alone: were ids by place, another order would be other queues' contents.
    Names that differ in `-`, `_` and `.` alone have one id, and can't be listed together.
    """
    plain = re.sub("[-_.]", "", name)
    return kind + plain if PLAIN.fullmatch(plain) else exact_id_of(kind, name)


def exact_id_of(kind: str, name: str) -> str:
    """Make an id that no other name has: of what has the name itself, so that another name is another resource."""
    return f"{kind}{re.sub('[^A-Za-z0-9]', '', name)[:12]}{hashlib.sha256(name.encode()).hexdigest()[:8]}"


def of_kind(name: str, *, fifo: bool) -> str:
    """Name queues apart that can't become each other, so that who reads them is told where one takes another's place.

    A stack is deployed again only where its template differs, and outputs of other stacks are in it by their names.
    """
    return f"{name}.fifo" if fifo else name


def check_names(listed: str, names: Iterable[str]) -> None:
    """Check that things can be told apart by their ids. Raises `InconsistentParameter`."""
    by_id: dict[str, str] = {}
    for name in names:
        id_ = id_of("", name)
        if (other := by_id.get(id_)) is not None:
            raise InconsistentParameter(
                listed, f"{name} is listed twice" if other == name else f"{other} and {name} are too alike"
            )
        by_id[id_] = name


QueueId = Annotated[
    str,
    said(
        "1 to 128 characters without `:`, `*` and control characters, nor space at its ends",
        pattern=r"^[^*\s:\x00-\x1f\x7f](?:[^*:\x00-\x1f\x7f]{0,126}[^*\s:\x00-\x1f\x7f])?$",
    ),
]
QueueIdPattern = Annotated[
    str,
    said(
        "a queue id, with `*` and `?` for characters of any kind",
        pattern=r"^[^\s:\x00-\x1f\x7f](?:[^:\x00-\x1f\x7f]{0,126}[^\s:\x00-\x1f\x7f])?$",
    ),
]
# https://docs.aws.amazon.com/AWSSimpleQueueService/latest/SQSDeveloperGuide/sqs-message-metadata.html
AttributeName = Annotated[
    str, said("the name of a message attribute", pattern=r"^[A-Za-z0-9_-]+(\.[A-Za-z0-9_-]+)*$", max_length=256)
]
QueueArn = Annotated[
    str,
    said("the ARN of an SQS queue", pattern=r"^arn:aws[a-z-]*:sqs:[a-z0-9-]+:[0-9]{12}:[A-Za-z0-9_-]{1,80}(\.fifo)?$"),
]
SenderArn = Annotated[
    str,
    said(
        "the ARN of an SNS topic or an S3 bucket",
        pattern=r"^arn:aws[a-z-]*:(sns:[a-z0-9-]+:[0-9]{12}:[A-Za-z0-9_-]{1,256}(\.fifo)?|s3:::[a-z0-9.-]{3,63})$",
    ),
]
# CloudWatch alarms can't publish to FIFO topics.
TopicArn = Annotated[
    str,
    said("the ARN of an SNS standard topic", pattern=r"^arn:aws[a-z-]*:sns:[a-z0-9-]+:[0-9]{12}:[A-Za-z0-9_-]{1,256}$"),
]
RoleArn = Annotated[
    str, said("the ARN of a role", pattern=r"^arn:aws[a-z-]*:iam::[0-9]{12}:role/[A-Za-z0-9_+=,.@/-]{1,576}$")
]
# https://docs.aws.amazon.com/lambda/latest/api/API_CreateFunction.html
FunctionName = Annotated[
    str,
    said(
        "a function's name or ARN",
        pattern=r"^(arn:aws[a-z-]*:lambda:[a-z0-9-]+:[0-9]{12}:function:)?[A-Za-z0-9_-]{1,64}$",
    ),
]
AliasName = Annotated[
    str,
    said(
        "a function's name or ARN, and after another colon its alias if it has one",
        pattern=r"^(arn:aws[a-z-]*:lambda:[a-z0-9-]+:[0-9]{12}:function:)?[A-Za-z0-9_-]{1,64}(:[A-Za-z0-9_-]{1,128})?$",
    ),
]
VariableName = Annotated[str, said("the name of a variable", pattern="^[^=\\x00-\\x1f\\x7f]{1,256}$")]
# https://docs.aws.amazon.com/systems-manager/latest/userguide/sysman-paramstore-su-create.html
ParameterName = Annotated[
    str,
    said(
        "a parameter's name or ARN",
        pattern=r"^(arn:aws[a-z-]*:ssm:[a-z0-9-]+:[0-9]{12}:parameter/)?[A-Za-z0-9_./-]{1,1011}$",
    ),
]
# Of clusters, services and containers: https://docs.aws.amazon.com/AmazonECS/latest/APIReference/API_CreateService.html
EcsName = Annotated[str, said("1 to 255 letters, digits, hyphens and underscores", pattern="^[A-Za-z0-9_-]{1,255}$")]
# https://docs.aws.amazon.com/eks/latest/APIReference/API_CreateCluster.html
ClusterName = Annotated[
    str,
    said("the name of an EKS cluster", pattern="^[0-9A-Za-z][A-Za-z0-9_-]{0,99}$"),
]
# Also of containers and volumes: https://kubernetes.io/docs/concepts/overview/working-with-objects/names/
NamespaceName = Annotated[
    str,
    said("1 to 63 small letters, digits and hyphens", pattern="^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$"),
]
# Also of a ConfigMap's keys.
ObjectName = Annotated[
    str, said("1 to 253 letters, digits, dots, hyphens and underscores", pattern="^[A-Za-z0-9._-]{1,253}$")
]
Account = Annotated[str, said("an account's twelve digits", pattern=r"^[0-9]{12}$")]
SiteName = Annotated[str, said("1 to 32 letters, digits, hyphens and underscores", pattern=r"^[A-Za-z0-9_-]{1,32}$")]
RegionName = Annotated[str, said("a region, as in eu-central-1", pattern=r"^[a-z]{2}(-[a-z]+)+-[0-9]$")]
ExternalId = Annotated[str, said("an external id", pattern=r"^[A-Za-z0-9+=,.@:/_-]{2,128}$")]
KmsKeyArn = Annotated[
    str, said("the ARN of a KMS key", pattern=r"^arn:aws[a-z-]*:kms:[a-z0-9-]+:[0-9]{12}:key/[A-Za-z0-9-]{1,64}$")
]
SqsUrl = Annotated[str, said("an http or https URL", pattern=r"^https?://[A-Za-z0-9.:-]{1,253}/?$")]
QueuePattern = Annotated[str, said("a queue's name with wildcards", pattern=r"^[A-Za-z0-9_*?-]{1,80}(\.fifo)?$")]
_COLUMN = r"[A-Za-z_][A-Za-z0-9_-]{0,127}:(string|boolean|int|bigint|float|double|date|timestamp)"
ReleaseLabel = Annotated[str, said("a release label of EMR", pattern=r"^emr-[a-z0-9.-]{1,59}$")]
Envelopes = Annotated[
    str,
    said(
        "one or several of sns, eventbridge, s3, with commas",
        pattern="^((sns|eventbridge)(,(sns|eventbridge))?(,s3)?|s3)$",
    ),
]
LandedColumns = Annotated[
    str,
    said(
        "name:type, with commas, and types of string, boolean, int, bigint, float, double, date, timestamp",
        max_length=500,
        pattern=rf"^{_COLUMN}(,{_COLUMN})*$",
    ),
]
VpcId = Annotated[str, said("an id, vpc-…", pattern="^vpc-[0-9a-f]{8,17}$")]
SubnetId = Annotated[str, said("an id, subnet-…", pattern="^subnet-[0-9a-f]{8,17}$")]
SecurityGroupId = Annotated[str, said("an id, sg-…", pattern="^sg-[0-9a-f]{8,17}$")]
ZonePlace = Annotated[int, Field(ge=0, le=5)]  # no region has more than six
RouteTableId = Annotated[str, said("an id, rtb-…", pattern="^rtb-[0-9a-f]{8,17}$")]
RelayPattern = Annotated[
    str,
    said(
        "the end of a host name, with ^ before it or $ after it; $ alone is any host",
        pattern=r"^\^?[A-Za-z0-9.-]{0,253}\$?$",
        min_length=1,
    ),
]


def _pattern(text: str) -> None:
    try:
        re.compile(text)
    except re.error as error:
        raise ValueError(f"{text!r} is no pattern: {error}") from error


Pattern = Annotated[
    str,
    said(
        f"a regular expression of 1 to {MAX_PATTERN} characters",
        min_length=1,
        max_length=MAX_PATTERN,
    ),
    checked(_pattern),
]


def _project_file(path: str) -> None:
    if ".." in path.split("/"):
        raise ValueError(f"{path!r} is not the path of a .mmdb file within the project")


CountriesFile = Annotated[
    str,
    said("the path of a .mmdb file within the project", pattern=r"^[A-Za-z0-9_-][A-Za-z0-9_./-]{0,250}\.mmdb$"),
    checked(_project_file),
]


def _tag(tag: str) -> None:
    if not is_tag(tag):
        raise ValueError(f"{tag!r} is not 1 to 32 letters, digits, hyphens and underscores")


def _stage(stage: str) -> None:
    if not is_stage(stage):
        raise ValueError(f"{stage!r} is what names begin with that have no stage")


STAGE_WORDS = f"1 to {MAX_STAGE_CHARACTERS} small letters and digits, a letter first"
Stage = Annotated[str, said(STAGE_WORDS, pattern=f"^{STAGE}$"), checked(_stage)]
PeerStage = Annotated[
    str, said(f"nothing, or {STAGE_WORDS}", pattern=f"^({STAGE})?$"), checked(lambda stage: stage and _stage(stage))
]
Tag = Annotated[str, checked(_tag), said("1 to 32 letters, digits, hyphens and underscores")]
TimeOfDay = Annotated[str, checked(Daily.parse), said("a time of day, HH:MM")]
ExchangeName = Annotated[
    str, checked(lambda name: Exchange(name=name, type=ExchangeType.TOPIC)), said("the name of an exchange")
]


def _nobodys(name: str) -> None:
    """Clients read, and the sweeper deletes, what begins with these."""
    for prefix in (ANSWER_QUEUE_PREFIX, MAILBOX_PREFIX):
        if name.startswith(tuple(staged(prefix, stage) for stage in {None, stage_of(name)})):
            raise ValueError(f"{name!r} begins with {prefix}, as queues do that the sweeper deletes and clients read")


# https://docs.aws.amazon.com/AWSSimpleQueueService/latest/APIReference/API_CreateQueue.html: 80 characters. FIFO queues
# end in .fifo, and rendezvous clients can't send to them.
QUEUE_NAME_CHARACTERS = 80
OffersQueueName = Annotated[
    str,
    said("1 to 80 letters, digits, hyphens and underscores", pattern="^[A-Za-z0-9_-]{1,80}$"),
    checked(_nobodys),
]
OffersQueueArn = Annotated[
    str,
    said("the ARN of an SQS standard queue", pattern=r"^arn:aws[a-z-]*:sqs:[a-z0-9-]+:[0-9]{12}:[A-Za-z0-9_-]{1,80}$"),
    checked(lambda arn: _nobodys(arn.rsplit(":", 1)[1])),
]
# All variables of a function share 4 KB: https://docs.aws.amazon.com/lambda/latest/dg/gettingstarted-limits.html
BRIDGES_MAX_BYTES = 3_000


def bridges_of(listed: tuple[dict[str, Any], ...]) -> tuple[Bridge, ...]:
    """Parse a list of bridges. Raises `BadBridgeList`, or ValueError for a list that is too long."""
    lines = "\n".join(json.dumps(each) for each in listed)
    if len(lines.encode()) > BRIDGES_MAX_BYTES:
        raise ValueError(
            f"the list has {len(lines.encode())} bytes; a function's environment holds {BRIDGES_MAX_BYTES}"
        )
    return parse_bridges(lines)


BridgeList = Annotated[
    tuple[dict[str, Any], ...], checked(bridges_of), said("a list of {displayName, webSocketAddress, fingerprint}")
]
