"""The dashboard over several sites: a row for each, of what tells whether it works. It is one site's, as its stack's.

A site of another account shares its metrics first:
https://docs.aws.amazon.com/AmazonCloudWatch/latest/monitoring/Cross-Account-Cross-Region.html
"""

from collections.abc import Mapping, Sequence

from aws_cdk import Duration
from aws_cdk import aws_cloudwatch as cloudwatch
from constructs import Construct

from sluice.constructs.alarms import all_functions, ours
from sluice.constructs.dashboard import WIDTH, unanswered_percent
from sluice.parameters.operations import SiteParameters

ROW_HEIGHT = 4


def draw_sites(scope: Construct, sites: Sequence[SiteParameters]) -> cloudwatch.Dashboard:
    """Draw single values, site by site."""
    dashboard = cloudwatch.Dashboard(
        scope, "SitesDashboard", default_interval=Duration.hours(3), period_override=cloudwatch.PeriodOverride.INHERIT
    )
    for site in sites:
        figures = _figures(site.stage)
        dashboard.add_widgets(cloudwatch.TextWidget(markdown=f"## {site.name} ({site.region})", width=WIDTH, height=1))
        dashboard.add_widgets(
            *(
                cloudwatch.SingleValueWidget(
                    title=title,
                    metrics=[metric],
                    region=site.region,
                    account_id=site.account,
                    width=WIDTH // len(figures),
                    height=ROW_HEIGHT,
                    sparkline=True,
                )
                for title, metric in figures.items()
            )
        )
    return dashboard


def _figures(stage: str | None) -> Mapping[str, cloudwatch.IMetric]:
    """Name, by title, what a site's metrics are: the widget says of which region and account."""
    return {
        "Answers in 5 minutes": ours("AnswersDelivered", "proxy", stage=stage),
        "Offers unanswered, %": unanswered_percent(stage, least_offers=1),
        "Messages routed": ours("MessagesRouted", "exchange", stage=stage),
        "Routes down": ours("RoutesDown", "links", stage=stage, statistic="Maximum"),
        "Lag of routes, ms": ours("LagMs", "bridge", stage=stage, statistic="Maximum"),
        "Streams down": ours("StreamsDown", "jobs", stage=stage, statistic="Maximum"),
        "Errors of the account": all_functions("Errors", "Sum"),
        "Throttles of the account": all_functions("Throttles", "Sum"),
    }
