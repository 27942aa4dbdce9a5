"""Creates a site's dashboard. `sluice.constructs.operations` creates the alarms.

Search expressions find the metrics of resources that are created at run time, or that no alarm names. Graphs show such
metrics once the resources exist, and no stack has to export names.
"""

from collections.abc import Iterable, Mapping, Sequence

from aws_cdk import Duration
from aws_cdk import aws_cloudwatch as cloudwatch
from aws_cdk import aws_sqs as sqs
from constructs import Construct

from sluice.constructs.alarms import (
    AGE,
    FIVE_MINUTES,
    IN_FLIGHT,
    METRICS_NAMESPACE,
    SPARK_NAMESPACE,
    VISIBLE,
    build_account_metric,
    build_metric,
    build_queue_metric,
)
from sluice.constructs.pipeline import LandingPipeline
from sluice.constructs.references import import_into, read_ref
from sluice.constructs.splitting import SplitQueues
from sluice.constructs.watched import WatchedSite
from sluice.federation.bridge_provisioner import BRIDGE_QUEUE_PREFIX
from sluice.rendezvous.protocol.ends import End, list_metrics
from sluice.stages import add_stage_prefix

LAND_QUERY = {"Query": "land", "Source": "0"}  # The land job has one query with one source.
WIDTH, HALF, HEIGHT = 24, 12, 6  # The unit is a cell of the dashboard's grid.
VALUE_WIDTH, VALUE_HEIGHT = 4, 4
ALARMS_A_ROW = 6
# CloudWatch's limit: https://docs.aws.amazon.com/AmazonCloudWatch/latest/APIReference/CloudWatch-Dashboard-Body-Structure.html
MOST_ALARMS = 100  # CloudWatch allows 100 alarms per widget.

UNANSWERED = (End.OFFER_DENIED.value, End.OFFER_TIMED_OUT.value)  # The sweeper counts ends over SQS late.
OFFERS = tuple(name for name in list_metrics("offer") if name not in {*UNANSWERED, End.OFFER_ANONYMOUS})
POLLS = list_metrics("poll")
ANSWERS = (*list_metrics("answer"), "RequestsFailed", "EventsNotPublished")
SPLITTER = ("MessagesRead", "MessagesForwarded", "MessagesMirrored", "MessagesFailed", "FilterFaults")
EXCHANGE = ("MessagesReceived", "MessagesRouted", "MessagesFailed", "MessagesRefused", "MessagesUndeliverable")
JOBS = ("StreamsDown", "JobsFailed")
SPARK_RATES = ("numRecordsInPerSecond",)
SPARK_LAGS = ("currentFetchEventTimeLag", "currentEmitEventTimeLag", "sourceIdleTime")
SPARK_FAULTS = ("numSqsDeletionsFailed", "numRecordsInErrors")


def create_dashboard(
    scope: Construct, watched: WatchedSite, *, alarms: Sequence[cloudwatch.IAlarm]
) -> cloudwatch.Dashboard:
    """Create the dashboard: alarms first, then each stage of a message's path from queue to table, then errors."""
    sections = [("Now", _create_overview(watched, alarms[:MOST_ALARMS]))]
    if watched.offers_queue is not None:
        sections.append(("Rendezvous", _create_rendezvous_section(watched, watched.offers_queue)))
    sections.append(("Queues that functions read", _create_queues_section(watched)))
    if watched.splitting is not None:
        sections.append(("Splitting", _create_splitting_section(watched, watched.split_queues)))
    if watched.exchange is not None:
        sections.append(("Federation", _create_federation_section(watched)))
    if watched.pipeline is not None:
        sections.append(("Pipeline", _create_pipeline_section(watched, watched.pipeline)))
    sections.append(("What went wrong", _create_errors_section(watched)))
    dashboard = cloudwatch.Dashboard(
        scope, "Dashboard", default_interval=Duration.hours(3), period_override=cloudwatch.PeriodOverride.INHERIT
    )
    for title, widgets in sections:
        dashboard.add_widgets(cloudwatch.TextWidget(markdown=f"## {title}", width=WIDTH, height=1))
        dashboard.add_widgets(*widgets)
    return dashboard


def build_unanswered_metric(stage: str | None, *, least_offers: int) -> cloudwatch.MathExpression:
    """Return the percentage of offers over SQS and HTTP denied or timed out; zero for fewer than `least_offers`."""
    parts = {
        "sd": build_metric(End.OFFER_DENIED, "sweeper", stage=stage),
        "bd": build_metric(End.OFFER_DENIED, "broker", stage=stage),
        "cd": build_metric(End.OFFER_DENIED, "client", stage=stage),
        "st": build_metric(End.OFFER_TIMED_OUT, "sweeper", stage=stage),
        "ct": build_metric(End.OFFER_TIMED_OUT, "client", stage=stage),
        "a": build_metric(End.ANSWER_DELIVERED, "proxy", stage=stage),
    }
    unanswered = "(FILL(sd, 0) + FILL(bd, 0) + FILL(cd, 0) + FILL(st, 0) + FILL(ct, 0))"
    offers = f"({unanswered} + FILL(a, 0))"
    return cloudwatch.MathExpression(
        expression=f"IF({offers} >= {least_offers}, 100 * {unanswered} / {offers}, 0)",
        using_metrics=dict(parts),
        label="unanswered, %",
        period=FIVE_MINUTES,
    )


def _build_spark_metric(name: str, stage: str | None) -> cloudwatch.Metric:
    return cloudwatch.Metric(
        namespace=add_stage_prefix(SPARK_NAMESPACE, stage),
        metric_name=name,
        dimensions_map=LAND_QUERY,
        statistic="Maximum",
        period=FIVE_MINUTES,
        label=name,
    )


def _create_graph(
    title: str,
    *left: cloudwatch.IMetric,
    stacked: bool = False,
    width: int = HALF,
    alarms_at: Mapping[str, float] | None = None,
) -> cloudwatch.GraphWidget:
    """Create a graph widget. `alarms_at` maps labels of horizontal lines to alarm thresholds."""
    lines = [
        cloudwatch.HorizontalAnnotation(value=value, label=label, color=cloudwatch.Color.RED)
        for label, value in (alarms_at or {}).items()
    ]
    return cloudwatch.GraphWidget(
        title=title, left=list(left), stacked=stacked, width=width, height=HEIGHT, left_annotations=lines
    )


def _create_number(title: str, metric: cloudwatch.IMetric) -> cloudwatch.SingleValueWidget:
    return cloudwatch.SingleValueWidget(
        title=title, metrics=[metric], width=VALUE_WIDTH, height=VALUE_HEIGHT, sparkline=True
    )


def _create_overview(watched: WatchedSite, alarms: Sequence[cloudwatch.IAlarm]) -> list[cloudwatch.IWidget]:
    """Create widgets for alarms and for the main signs of an outage. Missing data means that there is no outage."""
    letters = {f"l{place}": build_queue_metric(dlq.queue, VISIBLE) for place, dlq in enumerate(watched.dead_letters())}
    rows = -(-len(alarms) // ALARMS_A_ROW)
    widgets: list[cloudwatch.IWidget] = [
        cloudwatch.AlarmStatusWidget(title="Alarms", alarms=list(alarms), width=WIDTH, height=rows + 1),
        _create_number(
            "Answers in 5 minutes", build_metric("AnswersDelivered", "proxy", stage=watched.stage, label="answers")
        ),
        _create_number("Offers unanswered, %", build_unanswered_metric(watched.stage, least_offers=1)),
        _create_number(
            "Routes down", build_metric("RoutesDown", "links", stage=watched.stage, statistic="Maximum", label="routes")
        ),
        _create_number(
            "Dead letters",
            cloudwatch.MathExpression(
                expression="SUM(FILL(METRICS(), 0))", using_metrics=letters, label="letters", period=FIVE_MINUTES
            ),
        ),
        _create_number("Lambda throttles, account", build_account_metric("Throttles", "Sum")),
    ]
    if watched.landed_queue is not None:
        age = build_queue_metric(watched.landed_queue, AGE, label="age")
        widgets.append(_create_number("Oldest message to land, s", age))
    return widgets


def _search(query: str, *, statistic: str, label: str = "") -> cloudwatch.MathExpression:
    """Create a search expression. It finds all matching metrics that exist when a user opens the dashboard."""
    return cloudwatch.MathExpression(
        expression=f"SEARCH('{query}', '{statistic}', {int(FIVE_MINUTES.to_seconds())})",
        using_metrics={},
        label=label,
        period=FIVE_MINUTES,
    )


def _build_metrics(
    names: Iterable[str], service: str, stage: str | None, *, statistic: str = "Sum"
) -> list[cloudwatch.IMetric]:
    return [build_metric(name, service, stage=stage, statistic=statistic, label=name) for name in names]


def _create_rendezvous_section(watched: WatchedSite, offers: sqs.IQueue) -> list[cloudwatch.IWidget]:
    stage = watched.stage
    denied = build_metric(End.OFFER_DENIED, "broker", stage=stage, label=f"{End.OFFER_DENIED}, broker")
    over_http = [build_metric(name, "client", stage=stage, label=f"{name}, HTTP") for name in UNANSWERED]
    return [
        _create_graph("Offers", *_build_metrics(OFFERS, "broker", stage), stacked=True),
        _create_graph(
            "Offers denied or timed out",
            *_build_metrics(UNANSWERED, "sweeper", stage),
            denied,
            *over_http,
            stacked=True,
        ),
        _create_graph(
            "Denied or timed out, percent of offers",
            build_unanswered_metric(stage, least_offers=1),
            alarms_at={"Unanswered": watched.options.unanswered_percent},
        ),
        _create_graph("Polls", *_build_metrics(POLLS, "proxy", stage), stacked=True),
        _create_graph(
            "Answers and requests",
            *_build_metrics(ANSWERS, "proxy", stage),
            build_metric("RequestsFailed", "client", stage=stage, label="RequestsFailed, HTTP clients"),
        ),
        _create_graph(
            "Offers queue",
            build_queue_metric(offers, VISIBLE, label="waiting"),
            build_queue_metric(offers, AGE, label="age of the oldest, s"),
            alarms_at={"OffersAge, s": watched.options.offers_age_s},
        ),
    ]


def _create_queues_section(watched: WatchedSite) -> list[cloudwatch.IWidget]:
    too_old = {"SourceAge, IngressAge": float(watched.options.queue_age_s)}
    return [
        _create_graph(
            title,
            *(build_queue_metric(source.queue, name, label=source.description) for source in watched.sources()),
            alarms_at=lines,
        )
        for title, name, lines in (("Age of the oldest message, s", AGE, too_old), ("Messages waiting", VISIBLE, {}))
    ]


def _create_splitting_section(watched: WatchedSite, queues: Sequence[SplitQueues]) -> list[cloudwatch.IWidget]:
    split = {pair.parameters.queue_id: pair for pair in queues}
    counts = [
        build_metric(name, "splitter", stage=watched.stage, dimensions={"queue": queue_id}, label=f"{queue_id} {name}")
        for queue_id in split
        for name in SPLITTER
    ]
    sessions = (
        f'{{{add_stage_prefix(METRICS_NAMESPACE, watched.stage)},queue,service,session}} MetricName="SessionMessages"'
    )
    mains = [
        build_queue_metric(pair.main, VISIBLE, label=f"{queue_id} main")
        for queue_id, pair in split.items()
        if pair.main is not None
    ]
    if any(pair.parameters.consumers for pair in queues):
        counts.append(build_metric("ConsumersAway", "control", stage=watched.stage, statistic="Maximum"))
    return [
        _create_graph("Splitter", *counts, width=WIDTH),
        _create_graph("Messages per session", _search(sessions, statistic="Sum"), stacked=True),
        _create_graph("Messages in main queues", *mains),
    ]


def _create_federation_section(watched: WatchedSite) -> list[cloudwatch.IWidget]:
    stage, late_s = watched.stage, watched.options.bridge_lag_s
    namespace = add_stage_prefix(METRICS_NAMESPACE, stage)
    by_route = f"{{{namespace},route,service}}"
    # An unquoted name matches all names that contain its words; a quoted name must be the whole name:
    # https://docs.aws.amazon.com/AmazonCloudWatch/latest/monitoring/search-expression-syntax.html
    words = [f"QueueName={word}" for word in add_stage_prefix(BRIDGE_QUEUE_PREFIX, stage).split("-") if word]
    of_bridges = f"{{AWS/SQS,QueueName}} {' '.join(words)}"
    dropped = f'{{{namespace},reason,service}} MetricName="MessagesDropped"'
    return [
        _create_graph("Exchanges", *_build_metrics(EXCHANGE, "exchange", stage)),
        _create_graph("Dropped, by reason", _search(dropped, statistic="Sum"), stacked=True),
        _create_graph("Forwarded, by route", _search(f'{by_route} MetricName="MessagesForwarded"', statistic="Sum")),
        _create_graph(
            "Lag by route, ms",
            _search(f'{by_route} MetricName="LagMs"', statistic="Maximum"),
            build_metric("LagMs", "bridge", stage=stage, statistic="Maximum", label="all routes"),
            alarms_at={"BridgeLag": late_s * 1000},
        ),
        _create_graph(
            "Bridge queues, age of the oldest, s",
            _search(f'{of_bridges} MetricName="{AGE}"', statistic="Maximum"),
            alarms_at={"RouteAge": late_s},
        ),
        _create_graph("Bridge queues, waiting", _search(f'{of_bridges} MetricName="{VISIBLE}"', statistic="Maximum")),
        _create_graph(
            "Routes",
            build_metric("RoutesDown", "links", stage=stage, statistic="Maximum", label="routes down"),
            build_metric("PeerNotReached", "bridge", stage=stage, label="batches whose peer was unreachable"),
            width=WIDTH,
            alarms_at={"RoutesDown": 1},
        ),
    ]


def _create_pipeline_section(watched: WatchedSite, pipeline: LandingPipeline) -> list[cloudwatch.IWidget]:
    stage, queue = watched.stage, import_into(watched.scope, pipeline.queue)
    widgets: list[cloudwatch.IWidget] = [
        _create_graph(
            "Main queue: messages",
            build_queue_metric(queue, VISIBLE, label="waiting"),
            build_queue_metric(queue, IN_FLIGHT, label="in flight"),
        ),
        _create_graph(
            "Main queue: age of the oldest, s",
            build_queue_metric(queue, AGE, label="age"),
            alarms_at={"PipelineAge": watched.pipeline_age_s},
        ),
        _create_graph("Land job: messages per second", *(_build_spark_metric(rate, stage) for rate in SPARK_RATES)),
        _create_graph("Land job: lags, ms", *(_build_spark_metric(lag, stage) for lag in SPARK_LAGS)),
        _create_graph(
            "Jobs", *_build_metrics(JOBS, "jobs", stage, statistic="Maximum"), alarms_at={"StreamsDown, JobsFailed": 1}
        ),
    ]
    if pipeline.application is not None:
        application_id = read_ref(watched.scope, pipeline.application)
        runs = f'Namespace="AWS/EMRServerless" ApplicationId="{application_id}" MetricName='
        for title, name in (("Failed job runs", "FailedJobs"), ("Workers", "RunningWorkerCount")):
            widgets.append(_create_graph(title, _search(f'{runs}"{name}"', statistic="Maximum")))
    return widgets


def _create_errors_section(watched: WatchedSite) -> list[cloudwatch.IWidget]:
    options = watched.options
    # CloudFormation generates functions' names, which begin with the name of their stack.
    names = " OR ".join(f"FunctionName={construct.home.name.rpartition('-')[2]}" for construct in watched.constructs)
    at_stage = f"FunctionName={watched.stage} " if watched.stage else ""
    of_functions = f"{{AWS/Lambda,FunctionName}} {at_stage}({names})"
    dead = [build_queue_metric(dlq.queue, VISIBLE, label=dlq.description) for dlq in watched.dead_letters()]
    spark = (
        []
        if watched.pipeline is None
        else [
            _create_graph(
                "Land job: errors since its start",
                *(_build_spark_metric(fault, watched.stage) for fault in SPARK_FAULTS),
            )
        ]
    )
    return [
        _create_graph("Dead letters", *dead),
        *spark,
        _create_graph(
            "Claimed concurrency of the account",
            build_account_metric("ClaimedAccountConcurrency", "Maximum"),
            alarms_at={"AccountConcurrency": options.account_concurrency * options.concurrency_percent / 100},
        ),
        *(
            _create_graph(title, _search(f'{of_functions} MetricName="{name}"', statistic=statistic))
            for title, name, statistic in (
                ("Function errors", "Errors", "Sum"),
                ("Throttles", "Throttles", "Sum"),
                ("Duration, p99, ms", "Duration", "p99"),
                ("Concurrent executions", "ConcurrentExecutions", "Maximum"),
                ("Oldest rendezvous event in the table's stream, ms", "IteratorAge", "Maximum"),
            )
        ),
    ]
