"""Creates the network of the workers of the pipeline's jobs: a VPC of their own, or endpoints in existing subnets.

Through the network workers reach their queue, bucket and log group. Without a VPC, workers reach only some services of
their region, and SQS isn't one of them:
https://docs.aws.amazon.com/emr/latest/EMR-Serverless-UserGuide/considerations.html
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain

from aws_cdk import Aws, Fn
from aws_cdk import aws_ec2 as ec2
from aws_cdk import aws_iam as iam
from constructs import Construct

from sluice.constructs.roles import Statement, acknowledge
from sluice.parameters.pipeline import GATEWAY, PipelineParameters, VpcEndpoint

HTTPS = 443
# The created VPC is never connected to another network, so any address range will do. Each zone has a /20 block.
ADDRESSES, ADDRESSES_OF_ZONE = "10.0.0.0/16", "10.0.{}.0/20"
ZONE_STEP = 16
NEEDED: Sequence[VpcEndpoint] = ("sqs", "logs", GATEWAY)
NO_FLOW_LOGS = "Routes lead only to endpoints, which allow only what jobs use; CloudTrail records calls."


@dataclass(frozen=True, slots=True, kw_only=True)
class Network:
    """The workers' subnets, security groups and route tables, all in one VPC, and the endpoints created there."""

    vpc_id: str
    subnet_ids: Sequence[str]
    group_ids: Sequence[str]
    route_table_ids: Sequence[str]
    endpoints: Sequence[ec2.CfnVPCEndpoint] = ()


def create_network(scope: Construct, options: PipelineParameters, statements: Sequence[Statement]) -> Network:
    """Create the endpoints, and a VPC unless subnets exist. If `resting`, create only S3's, which is free.

    `statements` are the jobs' permissions. An endpoint in an existing VPC allows everything, because it receives all
    calls of that VPC through its private DNS name.
    """
    if options.subnet_ids:
        network = Network(
            vpc_id=options.vpc_id or "",
            subnet_ids=options.subnet_ids,
            group_ids=options.security_group_ids,
            route_table_ids=options.route_table_ids,
        )
        endpoints: dict[VpcEndpoint, iam.PolicyDocument | None] = dict.fromkeys(options.vpc_endpoints)
    else:
        network = _create_vpc(scope, options.zones)
        needed: Sequence[VpcEndpoint] = (*NEEDED, "sts") if options.assume_role_arns else NEEDED
        endpoints = {
            service: _endpoint_policy(service, network.vpc_id, statements, options.assume_role_arns)
            for service in needed
        }
    if options.resting:
        endpoints = {service: policy for service, policy in endpoints.items() if service == GATEWAY}
    return replace(network, endpoints=_create_endpoints(scope, network, endpoints, count=options.endpoint_subnets))


def _create_vpc(scope: Construct, zones: Sequence[int]) -> Network:
    """Create subnets without a route to the internet. EMR Serverless chooses one of them for each run."""
    # Private DNS names of endpoints need both DNS options of the VPC.
    vpc = ec2.CfnVPC(scope, "Vpc", cidr_block=ADDRESSES, enable_dns_hostnames=True, enable_dns_support=True)
    acknowledge(vpc, "AwsSolutions-VPC7", NO_FLOW_LOGS)
    routes = ec2.CfnRouteTable(scope, "Routes", vpc_id=vpc.attr_vpc_id)
    subnets = []
    for zone in zones:
        # The address block depends on the zone, so that old and new subnets don't overlap if the chosen zones change.
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
            # S3's addresses vary by region. All are allowed, because routes lead only to S3 and to the endpoints.
            ec2.CfnSecurityGroup.EgressProperty(
                ip_protocol="tcp", from_port=HTTPS, to_port=HTTPS, cidr_ip="0.0.0.0/0", description="To endpoints"
            )
        ],
    )
    return Network(
        vpc_id=vpc.attr_vpc_id,
        subnet_ids=subnets,
        group_ids=[workers.attr_group_id],
        route_table_ids=[routes.attr_route_table_id],
    )


def _endpoint_policy(
    service: str, vpc_id: str, statements: Sequence[Statement], role_arns: Sequence[str]
) -> iam.PolicyDocument:
    """Allow the jobs' actions on the service to this account, and for SQS also to the roles that jobs assume."""
    of_service = [statement for statement in statements if statement.actions[0].startswith(f"{service}:")]
    account = {"StringEquals": {"aws:PrincipalAccount": Aws.ACCOUNT_ID}}
    passed = [
        statement.for_policy().copy(principals=[iam.AnyPrincipal()], conditions=account) for statement in of_service
    ]
    if service == "sqs" and role_arns:
        passed.append(
            iam.PolicyStatement(
                principals=[iam.AnyPrincipal()],
                actions=sorted(set(chain.from_iterable(statement.actions for statement in of_service))),
                resources=["*"],  # other accounts' queues, which the roles' own policies limit
                conditions={"ArnEquals": {"aws:PrincipalArn": list(role_arns)}},
            )
        )
    if service == GATEWAY:
        # EMR Serverless keeps its own copy of logs for 30 days, for the Spark UI in the console:
        # https://docs.aws.amazon.com/emr/latest/EMR-Serverless-UserGuide/logging.html
        by_emr = {"aws:PrincipalServiceName": "emr-serverless.amazonaws.com", "aws:SourceVpc": vpc_id}
        passed.append(
            iam.PolicyStatement(
                principals=[iam.AnyPrincipal()],
                actions=["s3:PutObject", "s3:PutObjectAcl"],
                resources=[f"arn:{Aws.PARTITION}:s3:::prod.{Aws.REGION}.appinfo.src/*"],
                conditions={"StringEquals": by_emr},
            )
        )
    return iam.PolicyDocument(statements=passed)


def _create_endpoints(
    scope: Construct, network: Network, endpoints: Mapping[VpcEndpoint, iam.PolicyDocument | None], *, count: int
) -> Sequence[ec2.CfnVPCEndpoint]:
    """Create gateway endpoints, and interface endpoints in the first `count` subnets, for the workers' groups only."""
    interfaces = [service for service in endpoints if service != GATEWAY]
    groups: list[str] = []
    if interfaces:
        # Endpoints have their own security group, because the workers' group may allow no ingress.
        https = [
            ec2.CfnSecurityGroup.IngressProperty(
                ip_protocol="tcp", from_port=HTTPS, to_port=HTTPS, source_security_group_id=group
            )
            for group in network.group_ids
        ]
        group = ec2.CfnSecurityGroup(
            scope,
            "EndpointsGroup",
            group_description="Sluice: from jobs to AWS",
            vpc_id=network.vpc_id,
            security_group_ingress=https,
        )
        groups.append(group.attr_group_id)
    interface = {
        "vpc_endpoint_type": "Interface",
        "subnet_ids": list(network.subnet_ids[:count]),
        "security_group_ids": groups,
        "private_dns_enabled": True,
    }
    gateway = {"vpc_endpoint_type": "Gateway", "route_table_ids": list(network.route_table_ids)}
    return [
        ec2.CfnVPCEndpoint(
            scope,
            f"{service.capitalize()}Endpoint",
            service_name=f"com.amazonaws.{Aws.REGION}.{service}",
            vpc_id=network.vpc_id,
            policy_document=endpoints[service],
            **(gateway if service == GATEWAY else interface),
        )
        for service in sorted(endpoints, key=lambda service: service == GATEWAY)
    ]
