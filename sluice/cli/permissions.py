"""`sluice permissions`: the IAM policy of a user who may run certain commands."""

import json
from typing import Annotated

import typer

from sluice.aws.connections import fetch_account
from sluice.cli.output import print_result
from sluice.cli.sites import SiteCommands
from sluice.operator.permissions import build_policy
from sluice.operator.site_names import SiteOptions

app = SiteCommands()


@app.command()
def permissions(
    commands: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[COMMAND...]",
            help="Commands or groups: status 'split list' dlq. Default: all. 'execution role': CloudFormation's.",
        ),
    ] = None,
    *,
    site: SiteOptions,
) -> None:
    """Print the IAM policy of a user who may run these commands on a site."""
    connection = site.connect()
    policy = build_policy(
        commands or [],
        partition=connection.session.get_partition_for_region(connection.region),
        region=connection.region,
        account=fetch_account(connection),
        stage=connection.stage,
    )
    print_result(policy, lambda: typer.echo(json.dumps(policy, indent=2)))
