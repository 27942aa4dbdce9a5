"""What the pipeline stack promises, each read from the templates that are deployed."""

import re
from collections.abc import Callable
from ipaddress import IPv4Network
from itertools import combinations
from typing import Any

import pytest

from sluice.errors import BadParameter
from sluice.parameters import Parameters
from sluice.pipeline.catalogue import JobCatalogue
from sluice.pipeline.endpoints import EndpointSettings
from sluice.pipeline.jobs import COMPACT, STATISTICS
from sluice.pipeline.settings import JobsSettings
from tests.stacks.conftest import CONTEXT, KEY_ARN, Resource, Templates
from tests.stacks.test_promises import WRITE_LOGS, pairs, settings_of
from tests.stacks.test_promises import text as plain_text

Synth = Callable[..., Templates]

KEY = "sluice.pipeline"
OBJECTS = {
    f"s3:{action}"
    for action in ("GetObject", "PutObject", "DeleteObject", "AbortMultipartUpload", "ListMultipartUploadParts")
}
FOLDERS = ("staging", "checkpoint", "tables", "quarantine", "statistics")
BUCKET = "PipelineBucket.Arn"
SUBNETS, GROUPS = ["subnet-0123456789abcdef0"], ["sg-0123456789abcdef0"]
VPC = {
    f"{KEY}.vpc_id": "vpc-0123456789abcdef0",
    f"{KEY}.subnet_ids": SUBNETS,
    f"{KEY}.security_group_ids": GROUPS,
    f"{KEY}.route_table_ids": ["rtb-0123456789abcdef0"],
    f"{KEY}.vpc_endpoints": ["sqs", "sts", "logs", "kms", "s3"],
}
OWN = {"vpc_id": "vpc-0123456789abcdef0", "subnet_ids": SUBNETS, "security_group_ids": GROUPS}
EC2 = "arn:{AWS::Partition}:ec2:{AWS::Region}:{AWS::AccountId}"
PLACES = ("vpc/Vpc.VpcId", "subnet/Subnet0.SubnetId", "security-group/EndpointsGroup.GroupId")
ENDPOINT, SUBNET = "AWS::EC2::VPCEndpoint", "AWS::EC2::Subnet"


def text(value: Any) -> str:
    """As for other stacks; here assets are named too, and parts of what is joined are imported."""
    match value:
        case {"Fn::Sub": str(template)}:
            return template
    return plain_text(value)


def resources(template: Resource, kind: str) -> dict[str, Resource]:
    return {id_: found["Properties"] for id_, found in template["Resources"].items() if found["Type"] == kind}


def one(template: Resource, kind: str, prefix: str = "") -> Resource:
    [found] = [properties for id_, properties in resources(template, kind).items() if id_.startswith(prefix)]
    return found


def statements(templates: Templates, role: str) -> list[Resource]:
    [policy] = one(templates.pipeline, "AWS::IAM::Role", role)["Policies"]
    return list(policy["PolicyDocument"]["Statement"])


def granted(templates: Templates, role: str) -> set[tuple[str, str]]:
    plain = [each for each in statements(templates, role) if "Condition" not in each]
    found = set()
    for each in plain:
        assert set(each) == {"Effect", "Action", "Resource"}
        assert each["Effect"] == "Allow"
        actions = each["Action"] if isinstance(each["Action"], list) else [each["Action"]]
        on = each["Resource"] if isinstance(each["Resource"], list) else [each["Resource"]]
        found |= {(action, text(resource)) for action in actions for resource in on}
    return found


def test_the_application_is_spark_on_arm_and_costs_nothing_at_rest(templates: Templates) -> None:
    application = one(templates.pipeline, "AWS::EMRServerless::Application")
    assert (application["ReleaseLabel"], application["Type"]) == ("emr-spark-8.1.0", "SPARK")
    assert application["Architecture"] == "ARM64"
    assert application["AutoStartConfiguration"] == {"Enabled": True}
    assert application["AutoStopConfiguration"] == {"Enabled": True, "IdleTimeoutMinutes": 15}
    assert application["MaximumCapacity"] == {"Cpu": "16 vCPU", "Memory": "64 GB", "Disk": "400 GB"}
    assert application["SchedulerConfiguration"] == {"MaxConcurrentRuns": 5, "QueueTimeoutMinutes": 360}
    assert not application.keys() & {"InitialCapacity", "Name"}


def test_the_application_logs_to_the_bucket_and_to_a_group_of_its_own(templates: Templates) -> None:
    monitoring = one(templates.pipeline, "AWS::EMRServerless::Application")["MonitoringConfiguration"]
    assert text(monitoring["S3MonitoringConfiguration"]["LogUri"]) == "s3://PipelineBucket/logs/"
    assert monitoring["CloudWatchLoggingConfiguration"]["LogGroupName"]["Ref"].startswith("JobLogs")


@pytest.mark.slow  # installs and packs all packages anew
def test_packages_are_of_the_architecture_and_python_that_are_asked_for(templates: Templates, synth: Synth) -> None:
    other = synth(**{"sluice.architecture": "x86_64", f"{KEY}.python": "3.13"})
    assert one(other.pipeline, "AWS::EMRServerless::Application")["Architecture"] == "X86_64"
    assert told(other).program.configuration["spark.executorEnv.PYSPARK_PYTHON"] == "/usr/bin/python3.13"
    assert archive(other) != archive(templates)


def archive(templates: Templates) -> str:
    return told(templates).program.environment


def test_jobs_may_do_exactly_this(templates: Templates) -> None:
    programs = {resource for action, resource in granted(templates, "JobRole") if "cdk-hnb659fds-assets" in resource}
    assert {program.rpartition(".")[2] for program in programs} == {"py", "tgz"}
    assert len(programs) == 4
    queue = {"ReceiveMessage", "DeleteMessage", "ChangeMessageVisibility", "GetQueueAttributes", "GetQueueUrl"}
    assert granted(templates, "JobRole") == pairs(
        ({f"sqs:{action}" for action in queue}, {"SplitpipelineMain.Arn"}),
        ({"sqs:SendMessage"}, {"FederationIngress.Arn"}),
        (OBJECTS, {f"{BUCKET}/{folder}/*" for folder in FOLDERS}),
        ({"s3:GetBucketLocation"}, {BUCKET}),
        ({"s3:GetObject"}, programs),
        ({"s3:PutObject"}, {f"{BUCKET}/logs/*"}),
        (WRITE_LOGS | {"logs:DescribeLogStreams"}, {"JobLogs.Arn"}),
        ({"logs:DescribeLogGroups"}, {"arn:{AWS::Partition}:logs:{AWS::Region}:{AWS::AccountId}:*"}),
    )


def test_jobs_list_their_own_folders_and_are_told_what_is_not_there(templates: Templates) -> None:
    [listing] = [each for each in statements(templates, "JobRole") if each["Action"] == "s3:ListBucket"]
    assert text(listing["Resource"]) == BUCKET
    [(operator, keys)] = listing["Condition"].items()
    assert (operator, set(keys)) == ("StringLikeIfExists", {"s3:prefix"})
    assert set(keys["s3:prefix"]) == {f"{folder}{of}" for folder in FOLDERS for of in ("", "/*")}


def test_only_this_application_of_this_account_runs_as_the_job_role(templates: Templates) -> None:
    [statement] = one(templates.pipeline, "AWS::IAM::Role", "JobRole")["AssumeRolePolicyDocument"]["Statement"]
    assert statement["Principal"] == {"Service": "emr-serverless.amazonaws.com"}
    assert statement["Condition"] == {
        "StringEquals": {"aws:SourceAccount": {"Ref": "AWS::AccountId"}},
        "ArnEquals": {"aws:SourceArn": {"Fn::GetAtt": ["Application", "Arn"]}},
    }


def test_jobs_take_on_roles_and_use_keys_where_they_are_named(otherwise: Templates) -> None:
    assert granted(otherwise, "JobRole") >= pairs(
        ({"sts:AssumeRole"}, {"arn:aws:iam::123456789012:role/theirs"}),
        ({"kms:Decrypt", "kms:GenerateDataKey"}, {KEY_ARN}),
    )


def test_the_jobs_function_may_do_exactly_this(templates: Templates) -> None:
    assert granted(templates, "JobsRole") == pairs(
        ({"emr-serverless:StartJobRun", "emr-serverless:ListJobRuns"}, {"Application.Arn"}),
        ({"emr-serverless:CancelJobRun", "emr-serverless:TagResource"}, {"Application.Arn/jobruns/*"}),
        ({"dynamodb:GetItem", "dynamodb:PutItem"}, {"PipelineTable.Arn"}),
        ({"ec2:CreateVpcEndpoint"}, {f"{EC2}:{place}" for place in PLACES}),
        ({"ec2:DescribeVpcEndpoints"}, {"*"}),
        settings_of("Pipeline", "Jobs"),
        (WRITE_LOGS, {"JobsLogs.Arn"}),
    )
    conditions = {each["Action"]: each for each in statements(templates, "JobsRole") if "Condition" in each}
    passed = conditions.pop("iam:PassRole")
    assert text(passed["Resource"]) == "JobRole.Arn"
    assert passed["Condition"] == {"StringEquals": {"iam:PassedToService": "emr-serverless.amazonaws.com"}}
    assert {text(each["Resource"]) for each in conditions.values()} == {f"{EC2}:vpc-endpoint/*"}
    owner = {"Fn::GetAtt": ["Application", "ApplicationId"]}
    equal = {action: dict(each["Condition"]["StringEquals"]) for action, each in conditions.items()}
    services = equal["ec2:CreateVpcEndpoint"].pop("ec2:VpceServiceName")
    assert list(map(text, services)) == [f"com.amazonaws.{{AWS::Region}}.{service}" for service in ("sqs", "logs")]
    assert equal == {
        "ec2:CreateVpcEndpoint": {"aws:RequestTag/sluice:application": owner},
        "ec2:CreateTags": {"ec2:CreateAction": "CreateVpcEndpoint"},
        "ec2:DeleteVpcEndpoints": {"aws:ResourceTag/sluice:application": owner},
    }


def test_the_jobs_function_reconciles_every_minute(templates: Templates) -> None:
    rule = one(templates.pipeline, "AWS::Events::Rule")
    assert rule["ScheduleExpression"] == "rate(1 minute)"
    assert [(text(each["Arn"]), each["Input"]) for each in rule["Targets"]] == [("Jobs.Arn", '{"op":"reconcile"}')]
    assert one(templates.pipeline, "AWS::Lambda::Function")["Timeout"] < 60


def told(templates: Templates) -> JobsSettings:
    """What the function reads when it is deployed so."""
    variables = one(templates.pipeline, "AWS::Lambda::Function")["Environment"]["Variables"]
    stored = resources(templates.pipeline, "AWS::SSM::Parameter").items()
    parameters = {f"{{{id_}}}": text(each["Value"]) for id_, each in stored}
    return JobsSettings.read(
        {name: text(value) for name, value in variables.items()},
        lambda names: "".join(parameters[name] for name in names),
    )


def test_what_is_asked_for_reaches_the_jobs_and_makes_others_of_them(
    templates: Templates, otherwise: Templates
) -> None:
    land = JobCatalogue(told(otherwise)).build_land_job()
    configuration = land.program.configuration
    assert configuration["spark.executor.cores"] == configuration["spark.driver.cores"] == "2"
    assert configuration["spark.executor.memory"] == configuration["spark.executor.memoryOverhead"] == "4096m"
    allocation = "spark.dynamicAllocation."
    executors = {name.removeprefix(allocation): configuration[name] for name in configuration if allocation in name}
    assert executors == {"enabled": "true", "minExecutors": "1", "initialExecutors": "1", "maxExecutors": "7"}
    assert land.arguments[land.arguments.index("--trigger-seconds") + 1] == "5"
    assert {job.name for job in JobCatalogue(told(templates)).build_due_jobs(0)} == {STATISTICS, COMPACT}
    assert land.digest != JobCatalogue(told(templates)).build_land_job().digest


def test_batch_jobs_are_scheduled_where_a_time_is_given(otherwise: Templates) -> None:
    assert [job.name for job in JobCatalogue(told(otherwise)).build_due_jobs(0)] == [COMPACT]


def test_archives_are_named_as_spark_unpacks_them(templates: Templates) -> None:
    configuration = told(templates).program.configuration
    assert re.fullmatch(
        r"s3://\S+/[0-9a-f]{64}\.tgz", configuration["spark.emr-serverless.driverEnv.SLUICE_DRIVER_PACKAGES"]
    )
    archives = configuration["spark.archives"].split(",")
    assert [re.fullmatch(r"s3://\S+/[0-9a-f]{64}\.tgz#(\w+)", each)[1] for each in archives] == ["environment", "code"]  # type: ignore[index]  # None fails the test too


def test_the_bucket_is_kept_encrypted_and_closed(templates: Templates) -> None:
    [bucket] = [each for each in templates.state["Resources"].values() if each["Type"] == "AWS::S3::Bucket"]
    assert (bucket["DeletionPolicy"], bucket["UpdateReplacePolicy"]) == ("Retain", "Retain")
    properties = bucket["Properties"]
    [encryption] = properties["BucketEncryption"]["ServerSideEncryptionConfiguration"]
    assert encryption["ServerSideEncryptionByDefault"] == {"SSEAlgorithm": "AES256"}
    assert set(properties["PublicAccessBlockConfiguration"].values()) == {True}
    [statement] = one(templates.state, "AWS::S3::BucketPolicy")["PolicyDocument"]["Statement"]
    assert (statement["Effect"], statement["Action"]) == ("Deny", "s3:*")
    assert statement["Condition"] == {"Bool": {"aws:SecureTransport": "false"}}
    assert "BucketName" not in properties


def test_logs_and_unfinished_uploads_go_and_segments_stay_until_the_source_removes_them(otherwise: Templates) -> None:
    bucket = one(otherwise.state, "AWS::S3::Bucket")
    rules = {rule["Id"]: rule for rule in bucket["LifecycleConfiguration"]["Rules"]}
    assert (rules["logs"]["Prefix"], rules["logs"]["ExpirationInDays"]) == ("logs/", 7)
    assert rules["unfinished-uploads"]["AbortIncompleteMultipartUpload"] == {"DaysAfterInitiation": 1}
    assert {id_ for id_, rule in rules.items() if "ExpirationInDays" in rule} == {"logs"}


def test_a_bucket_that_needn_t_be_kept_goes_with_its_stack(otherwise: Templates) -> None:
    [bucket] = [each for each in otherwise.state["Resources"].values() if each["Type"] == "AWS::S3::Bucket"]
    assert bucket["DeletionPolicy"] == "Delete"


def gateways(templates: Templates) -> list[Resource]:
    """The endpoints that the stack itself creates, which are free."""
    found = [*resources(templates.pipeline, ENDPOINT).values()]
    assert {(text(each["ServiceName"]).rpartition(".")[2], each["VpcEndpointType"]) for each in found} <= {
        ("s3", "Gateway")
    }
    return found


def endpoints(templates: Templates) -> EndpointSettings:
    """What the jobs function creates while jobs run."""
    found = told(templates).endpoints
    assert found
    return found


def of_network(name: str, attribute: str) -> Resource:
    return {"Fn::GetAtt": [name, attribute]}


def network(templates: Templates) -> Any:
    return one(templates.pipeline, "AWS::EMRServerless::Application")["NetworkConfiguration"]


def test_workers_are_in_two_zones_and_nothing_leads_to_the_internet(templates: Templates) -> None:
    subnets = resources(templates.pipeline, SUBNET)
    zones = {id_: each["AvailabilityZone"] for id_, each in subnets.items()}
    assert zones == {f"Subnet{place}": {"Fn::Select": [place, {"Fn::GetAZs": ""}]} for place in (0, 1)}
    assert network(templates) == {
        "SubnetIds": [of_network(id_, "SubnetId") for id_ in subnets],
        "SecurityGroupIds": [of_network("WorkersGroup", "GroupId")],
    }
    of_ec2 = {each["Type"] for each in templates.pipeline["Resources"].values() if each["Type"].startswith("AWS::EC2")}
    routes = {"AWS::EC2::RouteTable", "AWS::EC2::SubnetRouteTableAssociation"}  # and no route
    assert of_ec2 == {"AWS::EC2::VPC", SUBNET, *routes, "AWS::EC2::SecurityGroup", ENDPOINT}
    [leaves] = one(templates.pipeline, "AWS::EC2::SecurityGroup", "Workers")["SecurityGroupEgress"]
    assert (leaves["IpProtocol"], leaves["FromPort"], leaves["ToPort"]) == ("tcp", 443, 443)


def test_from_there_jobs_reach_their_queue_by_its_usual_name(templates: Templates) -> None:
    """Private names need both attributes of the VPC."""
    found, vpc = endpoints(templates), one(templates.pipeline, "AWS::EC2::VPC")
    assert found.services == ("sqs", "logs")
    assert (vpc["EnableDnsSupport"], vpc["EnableDnsHostnames"]) == (True, True)
    assert (found.vpc_id, found.security_group_id) == ("Vpc.VpcId", "EndpointsGroup.GroupId")
    [ingress] = one(templates.pipeline, "AWS::EC2::SecurityGroup", "Endpoints")["SecurityGroupIngress"]
    assert (ingress["IpProtocol"], ingress["FromPort"], ingress["ToPort"]) == ("tcp", 443, 443)
    assert ingress["SourceSecurityGroupId"] == of_network("WorkersGroup", "GroupId")
    assert "CidrIp" not in ingress


def test_every_subnet_has_the_routes_that_lead_to_the_bucket(templates: Templates) -> None:
    [s3] = gateways(templates)
    assert s3["RouteTableIds"] == [of_network("Routes", "RouteTableId")]
    associated = resources(templates.pipeline, "AWS::EC2::SubnetRouteTableAssociation").values()
    assert [each["SubnetId"] for each in associated] == network(templates)["SubnetIds"]
    assert {each["RouteTableId"]["Fn::GetAtt"][0] for each in associated} == {"Routes"}


def passed(endpoint: Resource) -> set[tuple[str, str]]:
    """The actions and resources that an endpoint lets the account through for."""
    found = set()
    for each in endpoint["PolicyDocument"]["Statement"]:
        if each["Condition"] == {"StringEquals": {"aws:PrincipalAccount": {"Ref": "AWS::AccountId"}}}:
            actions = each["Action"] if isinstance(each["Action"], list) else [each["Action"]]
            on = each["Resource"] if isinstance(each["Resource"], list) else [each["Resource"]]
            found |= {(action, text(resource)) for action in actions for resource in on}
    return found


def test_the_bucket_s_endpoint_lets_through_what_jobs_may_do_and_nothing_else(templates: Templates) -> None:
    [s3] = gateways(templates)
    # Of which folders, the role says.
    may = {grant for grant in granted(templates, "JobRole") if grant[0].startswith("s3:")}
    assert passed(s3) == may | {("s3:ListBucket", BUCKET)}


def test_only_jobs_pass_the_other_endpoints_and_their_role_says_what_they_may_do(templates: Templates) -> None:
    assert endpoints(templates).role_arns == ("JobRole.Arn",)


def test_emr_s_own_copy_of_logs_passes_from_this_vpc(templates: Templates) -> None:
    """The console's Spark UI is made of it; the statement is AWS's."""
    [s3] = gateways(templates)
    *_, of_emr = s3["PolicyDocument"]["Statement"]
    assert of_emr["Action"] == ["s3:PutObject", "s3:PutObjectAcl"]
    assert text(of_emr["Resource"]) == "arn:{AWS::Partition}:s3:::prod.{AWS::Region}.appinfo.src/*"
    by_emr = {"aws:PrincipalServiceName": "emr-serverless.amazonaws.com", "aws:SourceVpc": of_network("Vpc", "VpcId")}
    assert of_emr["Condition"] == {"StringEquals": by_emr}


def test_no_job_starts_before_the_bucket_is_reached(templates: Templates) -> None:
    [function] = [each for each in templates.pipeline["Resources"].values() if each["Type"] == "AWS::Lambda::Function"]
    assert "S3Endpoint" in function["DependsOn"]


def test_roles_that_jobs_take_on_are_reached_and_pass(otherwise: Templates) -> None:
    assert endpoints(otherwise).services == ("sqs", "logs", "sts")
    assert endpoints(otherwise).role_arns == ("JobRole.Arn", "arn:aws:iam::123456789012:role/theirs")


@pytest.mark.parametrize(("count", "subnets"), [(1, ["Subnet2"]), (2, ["Subnet2", "Subnet0"])])
def test_endpoints_by_the_hour_are_in_the_first_zones_that_are_asked_for(
    synth: Synth, count: int, subnets: list[str]
) -> None:
    templates = synth(**{f"{KEY}.zones": [2, 0], f"{KEY}.endpoint_subnets": count})
    assert [each["Fn::GetAtt"][0] for each in network(templates)["SubnetIds"]] == ["Subnet2", "Subnet0"]
    assert endpoints(templates).subnet_ids == tuple(f"{each}.SubnetId" for each in subnets)


def test_zones_have_addresses_of_their_own_also_while_others_take_their_place(synth: Synth) -> None:
    """CloudFormation makes new subnets before old ones go."""
    every = [resources(synth(**{f"{KEY}.zones": zones}).pipeline, SUBNET) for zones in ([0, 1, 2], [3, 4, 5])]
    addresses = [IPv4Network(each["CidrBlock"]) for subnets in every for each in subnets.values()]
    assert len(addresses) == 6
    assert not any(one.overlaps(other) for one, other in combinations(addresses, 2))
    assert all(each.subnet_of(IPv4Network("10.0.0.0/16")) for each in addresses)


def test_workers_are_in_subnets_that_are_named_and_no_vpc_is_made(synth: Synth) -> None:
    templates = synth(**VPC)
    assert network(templates) == {"SubnetIds": SUBNETS, "SecurityGroupIds": GROUPS}
    assert not resources(templates.pipeline, "AWS::EC2::VPC")
    assert len(gateways(templates)) == 1
    found = endpoints(templates)
    assert found.services == ("sqs", "sts", "logs", "kms")
    assert (found.vpc_id, found.subnet_ids) == (OWN["vpc_id"], tuple(SUBNETS))
    [ingress] = one(templates.pipeline, "AWS::EC2::SecurityGroup")["SecurityGroupIngress"]
    assert (ingress["FromPort"], ingress["ToPort"], ingress["SourceSecurityGroupId"]) == (443, 443, GROUPS[0])


def test_whatever_else_is_in_a_vpc_of_ones_own_may_use_its_endpoints_as_before(synth: Synth) -> None:
    """With private names all of the VPC's calls go there: who may do what, roles say."""
    templates = synth(**VPC)
    assert not any("PolicyDocument" in each for each in gateways(templates))
    assert endpoints(templates).policy is None


def test_subnets_with_a_way_to_sqs_need_no_endpoint(synth: Synth) -> None:
    own = {f"{KEY}.subnet_ids": SUBNETS, f"{KEY}.security_group_ids": GROUPS, f"{KEY}.own_way_to_sqs": True}
    templates = synth(**own)
    assert network(templates) == {"SubnetIds": SUBNETS, "SecurityGroupIds": GROUPS}
    assert not any(each["Type"].startswith("AWS::EC2") for each in templates.pipeline["Resources"].values())
    assert told(templates).endpoints is None
    assert not any(action.startswith("ec2:") for action, _ in granted(templates, "JobsRole"))


@pytest.mark.parametrize("given", [{}, VPC], ids=["made", "own"])
def test_a_deployment_creates_nothing_that_costs_by_the_hour(synth: Synth, given: dict[str, object]) -> None:
    assert len(gateways(synth(**given))) == 1


def test_somebody_hears_that_the_stream_is_down_or_a_job_failed(templates: Templates) -> None:
    alarms = resources(templates.pipeline, "AWS::CloudWatch::Alarm").values()
    assert {alarm["MetricName"] for alarm in alarms if "MetricName" in alarm} == {"StreamsDown", "JobsFailed"}


def outputs(template: Resource) -> set[str]:
    """Without those that other stacks read."""
    return set(template["Outputs"])


def test_programs_find_these_outputs(templates: Templates) -> None:
    always = {"QueueUrl", "IngressUrl", "BucketName", "TableFormat"}
    assert outputs(templates.pipeline) == always | {"ApplicationId", "JobsFunctionName", "JobLogGroupName"}


def test_for_this_machine_there_is_the_role_alone(synth: Synth) -> None:
    """The embedded cloud has no EMR Serverless: local Spark runs the jobs, and no packages are uploaded for it."""
    local = synth(**{"sluice.architecture": "local"}).pipeline
    assert {found["Type"] for found in local["Resources"].values()} == {"AWS::IAM::Role"}
    assert outputs(local) == {"QueueUrl", "IngressUrl", "BucketName", "TableFormat"}


def test_without_its_queue_there_is_no_pipeline(synth: Synth) -> None:
    templates = synth(**{"sluice.splitting.queues": [{"queue_id": "other"}]})
    assert templates.pipeline == {}
    assert not resources(templates.state, "AWS::S3::Bucket")


def test_the_queue_may_be_a_fifo_queue_that_is_adopted(synth: Synth) -> None:
    arn = "arn:aws:sqs:eu-central-1:123456789012:theirs.fifo"
    queue = {"queue_id": "q", "fifo": True, "existing_main_queue_arn": arn}
    templates = synth(**{"sluice.splitting.queues": [queue], f"{KEY}.queue_id": "q"})
    assert {("sqs:ReceiveMessage", arn), ("sqs:DeleteMessage", arn)} <= granted(templates, "JobRole")


@pytest.mark.parametrize(
    ("given", "cause"),
    [
        ({"release_label": "emr-7.13.0"}, "release_label: emr-7.13.0: this release has Spark 3 or older"),
        (
            {"release_label": "emr-spark-8.0-preview", "python": "3.13"},
            "release_label: emr-spark-8.0-preview: its image has Python 3.9, 3.11, 3.12, not 3.13",
        ),
        ({"worker_vcpu": 3}, "worker_vcpu: 3 is not one of 1, 2, 4, 8, 16"),
        ({"worker_memory_gb": 9}, "worker_memory_gb: 9: workers with 1 vCPU have 2 to 8 GB"),
        ({"worker_vcpu": 8, "worker_memory_gb": 18}, "worker_memory_gb: 18: .* in steps of 4"),
        ({"max_vcpu": 1}, "max_vcpu: 1 is less than one driver and one executor need, 2"),
        ({"subnet_ids": SUBNETS}, "security_group_ids: required with subnet_ids"),
        (OWN, "vpc_endpoints: jobs in subnet_ids can't reach SQS: list sqs here, or set own_way_to_sqs"),
        ({**OWN, "vpc_endpoints": ["logs"]}, "vpc_endpoints: jobs in subnet_ids can't reach SQS"),
        ({**OWN, "vpc_id": None, "vpc_endpoints": ["sqs"]}, "vpc_id: required with vpc_endpoints"),
        ({**OWN, "vpc_endpoints": ["sqs", "s3"]}, "route_table_ids: required with s3"),
        ({**OWN, "vpc_endpoints": ["sqs"], "route_table_ids": ["rtb-01234567"]}, "route_table_ids: required with s3"),
        ({**OWN, "vpc_endpoints": ["sqs", "sqs"]}, "vpc_endpoints: sqs is listed twice"),
        (
            {**OWN, "own_way_to_sqs": True, "endpoint_subnets": 2},
            "endpoint_subnets: 2 is more than the number of subnets",
        ),
        ({"endpoint_subnets": 3}, "endpoint_subnets: 3 is more than the number of subnets, 2"),
        ({"endpoint_subnets": 0}, "endpoint_subnets: 0 is not a whole number from 1 to 16"),
        ({"zones": []}, "zones: list at least one zone"),
        ({"zones": [1, 1]}, "zones: 1 is listed twice"),
        ({"zones": [6]}, r"zones: \[0\]: 6 is not a whole number from 0 to 5"),
        ({"zones": [True]}, r"zones: \[0\]: True is not a whole number from 0 to 5"),
        ({"zones": ["eu-central-1a"]}, r"zones: \[0\]: 'eu-central-1a' is not a whole number from 0 to 5"),
        ({"vpc_id": "vpc-01234567"}, "vpc_id: can be set only together with subnet_ids"),
        ({"vpc_endpoints": ["sqs"]}, "vpc_endpoints: can be set only together"),
        ({"own_way_to_sqs": True}, "own_way_to_sqs: can be set only together"),
        ({"vpc_endpoints": ["ec2"]}, r"vpc_endpoints: \[0\]: 'ec2' is not one of"),
        ({"statistics_at": "24:00"}, "statistics_at: '24:00' is not a time of day"),
        ({"shutdown_grace_s": 5}, "shutdown_grace_s: 5 is not a whole number from 15"),
        ({"table_format": "orc"}, "table_format: 'orc' is not one of"),
        ({"security_group_ids": ["mine"]}, r"security_group_ids: \[0\]: 'mine' is not a security group id, sg-"),
    ],
)
def test_what_can_t_be_is_refused_by_its_name(given: dict[str, object], cause: str) -> None:
    with pytest.raises(BadParameter, match=f"{KEY}.{cause}"):
        Parameters.from_context({**CONTEXT, **{f"{KEY}.{name}": value for name, value in given.items()}})


@pytest.mark.parametrize("label", ["emr-spark-8.0.0", "emr-spark-8.1.0", "emr-spark-8.0-preview", "emr-spark-9.0.0"])
def test_releases_with_spark_4_and_those_to_come_are_taken(label: str) -> None:
    python = {f"{KEY}.python": "3.11" if label.endswith("preview") else "3.13"}
    assert Parameters.from_context({**CONTEXT, **python, f"{KEY}.release_label": label}).pipeline.release_label == label
