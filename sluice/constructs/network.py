"""Creates the network of the workers of the pipeline's jobs: a new VPC, or what existing subnets lack.

Through this network, workers reach their queue, bucket and log group. The jobs function creates the endpoints that cost
by the hour while jobs run; this module grants the function's permissions. Without a VPC, workers reach only some
services of their region, and SQS isn't one of them:
https://docs.aws.amazon.com/emr/latest/EMR-Serverless-UserGuide/considerations.html
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from aws_cdk import Aws, Fn, Stack
from aws_cdk import aws_ec2 as ec2
from aws_cdk import aws_iam as iam
from constructs import Construct

from sluice.constructs.roles import NO_RESOURCE, Statement, allow, suppress_finding
from sluice.parameters.pipeline import GATEWAY, PipelineParameters
from sluice.pipeline.endpoints import OWNER_TAG, EndpointSettings

HTTPS = 443
# Any address range is fine, because the created VPC is never connected to another network. Each zone has a /20 block.
ADDRESSES, ADDRESSES_OF_ZONE = "10.0.0.0/16", "10.0.{}.0/20"
ZONE_STEP = 16
OF_ENDPOINTS = "Endpoints get their ids when they are created; the conditions name the application."
NO_FLOW_LOGS = "Routes lead only to endpoints, which allow only what jobs use; CloudTrail records calls."


@dataclass(frozen=True, slots=True, kw_only=True)
class Network:
    """The workers' subnets, security groups and route tables, all in one VPC.

    `endpoints_group_id` is the security group of the interface endpoints that the jobs function creates; "" if the
    function creates none. `is_created` says that this module created the VPC.
    """

    vpc_id: str
    subnet_ids: Sequence[str]
    security_group_ids: Sequence[str]
    route_table_ids: Sequence[str]
    endpoints_group_id: str = ""
    s3_endpoint: ec2.CfnVPCEndpoint | None = None
    is_created: bool = False

    def endpoint_settings(self, options: PipelineParameters, role_arn: str) -> EndpointSettings | None:
        """Return the endpoints that the jobs function creates while jobs run; None if there are none.

        Only the job role, and roles that jobs assume, may call AWS through these endpoints. An endpoint in an existing
        VPC allows all calls, because its private name receives all calls of that VPC.
        """
        if not self.endpoints_group_id:
            return None
        return EndpointSettings(
            vpc_id=self.vpc_id,
            subnet_ids=tuple(self.subnet_ids[: options.endpoint_subnets]),
            security_group_id=self.endpoints_group_id,
            services=tuple(options.interface_endpoints),
            role_arns=(role_arn, *options.assume_role_arns) if self.is_created else (),
        )


def create_network(scope: Construct, options: PipelineParameters, statements: Sequence[Statement]) -> Network:
    """Create the VPC unless subnets exist, and S3's endpoint, which is free. `statements` are the jobs' permissions."""
    if options.subnet_ids:
        network = Network(
            vpc_id=options.vpc_id or "",
            subnet_ids=options.subnet_ids,
            security_group_ids=options.security_group_ids,
            route_table_ids=options.route_table_ids,
        )
    else:
        network = _create_vpc(scope, options.zones)
    if network.is_created or GATEWAY in options.vpc_endpoints:
        s3_endpoint = ec2.CfnVPCEndpoint(
            scope,
            "S3Endpoint",
            service_name=f"com.amazonaws.{Aws.REGION}.{GATEWAY}",
            vpc_id=network.vpc_id,
            vpc_endpoint_type="Gateway",
            route_table_ids=list(network.route_table_ids),
            policy_document=_create_s3_policy(network.vpc_id, statements) if network.is_created else None,
        )
        network = replace(network, s3_endpoint=s3_endpoint)
    if not options.interface_endpoints:
        return network
    # Endpoints have their own security group, because the workers' group may allow no ingress.
    group = ec2.CfnSecurityGroup(
        scope,
        "EndpointsGroup",
        group_description="Sluice: from jobs to AWS",
        vpc_id=network.vpc_id,
        security_group_ingress=[
            ec2.CfnSecurityGroup.IngressProperty(
                ip_protocol="tcp", from_port=HTTPS, to_port=HTTPS, source_security_group_id=id_
            )
            for id_ in network.security_group_ids
        ],
    )
    return replace(network, endpoints_group_id=group.attr_group_id)


def allow_endpoints(stack: Stack, settings: EndpointSettings, application_id: str) -> Iterator[Statement]:
    """Allow creating and deleting the application's endpoints, which have its tag, only in this network.

    https://docs.aws.amazon.com/vpc/latest/privatelink/vpc-endpoints-iam.html
    """

    def arn(kind: str, id_: str) -> str:
        return stack.format_arn(service="ec2", resource=kind, resource_name=id_)

    endpoints = arn("vpc-endpoint", "*")
    services = [f"com.amazonaws.{Aws.REGION}.{service}" for service in settings.services]
    create = {"StringEquals": {f"aws:RequestTag/{OWNER_TAG}": application_id, "ec2:VpceServiceName": services}}
    tag = {"StringEquals": {"ec2:CreateAction": "CreateVpcEndpoint"}}
    delete = {"StringEquals": {f"aws:ResourceTag/{OWNER_TAG}": application_id}}
    places = [arn("vpc", settings.vpc_id), *(arn("subnet", id_) for id_ in settings.subnet_ids)]
    yield allow("ec2", ["CreateVpcEndpoint"], *places, arn("security-group", settings.security_group_id))
    yield allow("ec2", ["CreateVpcEndpoint"], endpoints, conditions=create, wildcards=OF_ENDPOINTS)
    yield allow("ec2", ["CreateTags"], endpoints, conditions=tag, wildcards=OF_ENDPOINTS)
    yield allow("ec2", ["DeleteVpcEndpoints"], endpoints, conditions=delete, wildcards=OF_ENDPOINTS)
    yield allow("ec2", ["DescribeVpcEndpoints"], "*", wildcards=NO_RESOURCE)


def _create_vpc(scope: Construct, zones: Sequence[int]) -> Network:
    """Create subnets without a route to the internet. EMR Serverless chooses one subnet for each run."""
    # An endpoint's private DNS name needs both DNS options of the VPC.
    vpc = ec2.CfnVPC(scope, "Vpc", cidr_block=ADDRESSES, enable_dns_hostnames=True, enable_dns_support=True)
    suppress_finding(vpc, "AwsSolutions-VPC7", NO_FLOW_LOGS)
    routes = ec2.CfnRouteTable(scope, "Routes", vpc_id=vpc.attr_vpc_id)
    subnets = []
    for zone in zones:
        # The address block depends on the zone, so that other zones' subnets never overlap if the chosen zones change.
        subnet = ec2.CfnSubnet(
            scope,
            f"Subnet{zone}",
            vpc_id=vpc.attr_vpc_id,
            availability_zone=Fn.select(zone, Fn.get_azs()),
            cidr_block=ADDRESSES_OF_ZONE.format(zone * ZONE_STEP),
        )
        ec2.CfnSubnetRouteTableAssociation(
            scope,
            f"Subnet{zone}Routes",
            subnet_id=subnet.attr_subnet_id,
            route_table_id=routes.attr_route_table_id,
        )
        subnets.append(subnet.attr_subnet_id)
    # Workers communicate with each other outside the VPC, so no ingress is needed:
    # https://docs.aws.amazon.com/emr/latest/EMR-Serverless-UserGuide/vpc-access.html
    workers = ec2.CfnSecurityGroup(
        scope,
        "WorkersGroup",
        group_description="Sluice: jobs",
        vpc_id=vpc.attr_vpc_id,
        security_group_egress=[
            # S3's addresses vary by region. All are allowed, because routes lead only to S3 and to endpoints.
            ec2.CfnSecurityGroup.EgressProperty(
                ip_protocol="tcp", from_port=HTTPS, to_port=HTTPS, cidr_ip="0.0.0.0/0", description="To endpoints"
            )
        ],
    )
    return Network(
        vpc_id=vpc.attr_vpc_id,
        subnet_ids=subnets,
        security_group_ids=[workers.attr_group_id],
        route_table_ids=[routes.attr_route_table_id],
        is_created=True,
    )


def _create_s3_policy(vpc_id: str, statements: Sequence[Statement]) -> iam.PolicyDocument:
    """Allow the jobs' actions on S3, only for buckets of this account."""
    account = {"StringEquals": {"aws:PrincipalAccount": Aws.ACCOUNT_ID}}
    passed = [
        statement.for_policy().copy(principals=[iam.AnyPrincipal()], conditions=account)
        for statement in statements
        if statement.actions[0].startswith(f"{GATEWAY}:")
    ]
    # EMR Serverless keeps its own copy of logs for 30 days. The Spark UI of AWS's console shows that copy:
    # https://docs.aws.amazon.com/emr/latest/EMR-Serverless-UserGuide/logging.html
    by_emr = {"aws:PrincipalServiceName": "emr-serverless.amazonaws.com", "aws:SourceVpc": vpc_id}
    copy_logs = iam.PolicyStatement(
        principals=[iam.AnyPrincipal()],
        actions=["s3:PutObject", "s3:PutObjectAcl"],
        resources=[f"arn:{Aws.PARTITION}:s3:::prod.{Aws.REGION}.appinfo.src/*"],
        conditions={"StringEquals": by_emr},
    )
    return iam.PolicyDocument(statements=[*passed, copy_logs])
