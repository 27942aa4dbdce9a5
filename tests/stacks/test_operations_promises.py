"""What the operations stack promises, each read from the templates that are deployed."""

import json
import re
from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import Any

import pytest

from sluice.errors import BadParameter
from sluice.parameters import Parameters
from tests.stacks.conftest import CONTEXT, Resource, Templates, find_referred
from tests.stacks.test_promises import physical_names, readable
from tests.stacks.test_promises import text as plain_text

Synth = Callable[..., Templates]

KEY = "sluice.operations"
ENDPOINT = {
    "region": "us-west-2",
    "account": "123456789012",
    "control_queue_url": "https://sqs.us-west-2.amazonaws.com/123456789012/SluiceState-FederationLinks.fifo",
}
ADDRESS = "ops@example.org"
TOPIC = "arn:aws:sns:eu-central-1:123456789012:theirs"
TRACED = ("xray:PutTelemetryRecords", "xray:PutTraceSegments")


def resources(template: Resource, kind: str) -> dict[str, Resource]:
    return {id_: found["Properties"] for id_, found in template["Resources"].items() if found["Type"] == kind}


def alarms(template: Resource) -> dict[str, Resource]:
    """By the names that their ids begin with."""
    found = resources(template, "AWS::CloudWatch::Alarm")
    return {readable(re.sub(r"Alarm[0-9A-F]{8}$", "", id_)): alarm for id_, alarm in found.items()}


def queue_of(alarm: Resource) -> str:
    [dimension] = alarm["Dimensions"]
    return named(dimension["Value"])


named = plain_text  # what another stack has by the name of its construct


def text(value: Any) -> str:
    """All the text that a joined value has."""
    match value:
        case str():
            return value
        case {"Fn::Join": [str(), [*parts]]}:
            return "".join(text(part) for part in parts)
        case {"Fn::Select": [4, {"Fn::Split": ["/", url]}]}:
            return text(url)
        case {"Fn::Select": _} if (id_ := find_referred(value)) is not None:
            return f"<{id_}>"
        case {"Ref": str(name)} | {"Fn::GetAtt": [str(name), "Arn"]}:
            return f"<{name}>"
    raise AssertionError(f"no reading for {value}")


def board(templates: Templates) -> Any:
    [dashboard] = resources(templates.operations, "AWS::CloudWatch::Dashboard").values()
    return json.loads(text(dashboard["DashboardBody"]))


def drawn(templates: Templates) -> Iterator[list[Any]]:
    for widget in board(templates)["widgets"]:
        yield from widget["properties"].get("metrics", [])


@pytest.fixture(scope="module")
def called(synth: Synth) -> Templates:
    return synth(**{f"{KEY}.alarm_email": ADDRESS})


# Alarms


INTERNAL = {"ControlQueue", "FederationLinks", "FederationTicks"}  # what functions send to functions


def test_every_queue_that_users_and_peers_send_to_has_an_alarm_for_its_oldest_message(templates: Templates) -> None:
    found = {
        queue_of(alarm)
        for alarm in alarms(templates.operations).values()
        if alarm.get("MetricName") == "ApproximateAgeOfOldestMessage"
    }
    read = set()
    for stack in (templates.rendezvous, templates.splitting, templates.federation):
        for trigger in resources(stack, "AWS::Lambda::EventSourceMapping").values():
            read.add(plain_text(trigger["EventSourceArn"]).removesuffix(".Arn"))
    stream = "Table.StreamArn"
    assert read >= INTERNAL
    assert found == read - INTERNAL - {stream} | {"SplitpipelineMain"}  # and the queue that the land job reads


# Their queues, and the table's stream, have alarms for the oldest message.
WATCHED_BY_AGE = {"Broker", "Counters", "Splitter", "Exchange"}


def test_the_errors_of_every_function_whose_messages_age_unseen_are_an_alarm_of_its_capability(
    templates: Templates,
) -> None:
    for capability in ("rendezvous", "splitting", "federation", "pipeline"):
        stack = getattr(templates, capability)
        errors = alarms(stack)[f"{capability.capitalize()}Errors"]
        asked = {
            metric["MetricStat"]["Metric"]["Dimensions"][0]["Value"]["Ref"]
            for metric in errors["Metrics"]
            if "MetricStat" in metric
        }
        functions = set(resources(stack, "AWS::Lambda::Function"))
        assert asked == {function for function in functions if function[:-8] not in WATCHED_BY_AGE}
        assert (errors["Threshold"], errors["EvaluationPeriods"]) == (3, 2)
        assert [metric["Expression"] for metric in errors["Metrics"] if "Expression" in metric] == [
            "SUM(FILL(METRICS(), 0))"
        ]


def test_throttles_are_of_all_functions_that_share_the_accounts_pool(templates: Templates) -> None:
    throttles = alarms(templates.operations)["Throttles"]
    assert (throttles["Namespace"], throttles["MetricName"]) == ("AWS/Lambda", "Throttles")
    assert "Dimensions" not in throttles


def test_concurrency_near_its_limit_is_an_alarm(synth: Synth, templates: Templates, otherwise: Templates) -> None:
    account = alarms(templates.operations)["AccountConcurrency"]
    assert (account["MetricName"], account["Threshold"]) == ("ClaimedAccountConcurrency", 800)
    assert "ProxyConcurrency" not in alarms(templates.rendezvous)
    assert alarms(otherwise.rendezvous)["ProxyConcurrency"]["Threshold"] == 200
    changed = synth(**{f"{KEY}.account_concurrency": 3000, f"{KEY}.concurrency_percent": 50})
    assert alarms(changed.operations)["AccountConcurrency"]["Threshold"] == 1500


def test_events_that_wait_in_the_tables_stream_have_an_alarm(templates: Templates) -> None:
    age = alarms(templates.rendezvous)["CountersAge"]
    assert (age["MetricName"], age["Threshold"], age["EvaluationPeriods"]) == ("IteratorAge", 300_000, 5)


def test_consumers_that_are_not_back_are_an_alarm_where_there_are_any(synth: Synth, templates: Templates) -> None:
    assert "ConsumersAway" not in alarms(templates.operations)
    trigger = {"type": "lambda trigger", "function": "invoices"}
    source = "arn:aws:sqs:eu-central-1:123456789012:theirs"
    queue = {"queue_id": "theirs", "existing_source_queue_arn": source, "consumers": [trigger]}
    seen = synth(**{"sluice.splitting.queues": [queue], f"{KEY}.dashboard": True})
    away = alarms(seen.operations)["ConsumersAway"]
    assert (away["MetricName"], away["Statistic"], away["EvaluationPeriods"]) == ("ConsumersAway", "Minimum", 3)
    assert '"ConsumersAway"' in json.dumps(board(seen))


def test_every_queue_of_dead_letters_has_an_alarm(synth: Synth) -> None:
    queues = [{"queue_id": "pipeline"}, {"queue_id": "orders", "fifo": True}]
    templates = synth(**{"sluice.splitting.queues": queues})
    ids = map(readable, resources(templates.state, "AWS::SQS::Queue"))
    made = {id_ for id_ in ids if id_.endswith("DeadLetters")}
    watched = {
        named(stat["Metric"]["Dimensions"][0]["Value"])
        for alarm in alarms(templates.operations).values()
        for metric in alarm.get("Metrics", [])
        if (stat := metric.get("MetricStat")) and stat["Metric"]["MetricName"] == "ApproximateNumberOfMessagesVisible"
    }
    assert watched == made
    assert "SplitordersfifoDeadLetters" in made


def metric_math(expression: str, values: list[float | None]) -> list[float]:
    """What CloudWatch makes of these, read as its page on metric math has it."""
    assert expression == "DIFF(FILL(letters, 0))"
    filled = [value or 0 for value in values]
    return [after - before for before, after in pairwise(filled)]


@pytest.mark.parametrize(
    ("visible", "rings"),
    [
        ([None, None, None], [False, False]),  # a site that was just deployed
        ([None, 1, 1, 1], [True, False, False]),  # the first letter, of a queue that said nothing until then
        ([1, 1, 3, 3], [False, True, False]),  # new ones beside old ones that nobody looked at
        ([3, 0, None, 2], [False, False, True]),  # some were put back, then others come
    ],
)
def test_dead_letters_ring_when_they_come_and_again_for_new_ones(
    templates: Templates, visible: list[float | None], rings: list[bool]
) -> None:
    alarm = alarms(templates.operations)["SplittingDeadLetters"]
    [expression] = [metric["Expression"] for metric in alarm["Metrics"] if "Expression" in metric]
    assert [came >= alarm["Threshold"] for came in metric_math(expression, visible)] == rings
    assert alarm["EvaluationPeriods"] == 1


def test_a_threshold_is_what_its_parameter_says(synth: Synth) -> None:
    given = {
        "OffersAge": ("offers_age_s", 71),
        "SplitpipelineSourceAge": ("queue_age_s", 72),
        "PipelineAge": ("pipeline_age_s", 73),
        "BridgeLag": ("bridge_lag_s", 74),
        "Unanswered": ("unanswered_percent", 75),
        "Stale": ("unanswered_least_offers", 77),
        "Errors": ("errors", 78),
        "DeadLetters": ("dead_letters", 76),
    }
    parameters = {f"{KEY}.{name}": value for name, value in given.values()}
    templates = synth(**parameters, **{"sluice.pipeline.streaming": True})
    found = alarms(templates.operations) | {"Errors": alarms(templates.federation)["FederationErrors"]}
    thresholds = {alarm: value for alarm, (_, value) in given.items()} | {"BridgeLag": 74_000}  # its metric is in ms
    assert {alarm: found[alarm]["Threshold"] for alarm in given} == thresholds
    assert {alarm["ComparisonOperator"] for alarm in found.values()} == {"GreaterThanOrEqualToThreshold"}


def test_the_unanswered_rate_is_of_enough_offers_that_ended_over_both_ways(templates: Templates) -> None:
    metrics = {metric["Id"]: metric for metric in alarms(templates.operations)["Unanswered"]["Metrics"]}
    [expression] = [metric["Expression"] for metric in metrics.values() if "Expression" in metric]
    assert ">= 20" in expression
    asked = {
        (stat["Metric"]["MetricName"], stat["Metric"]["Dimensions"][0]["Value"], stat["Stat"])
        for metric in metrics.values()
        if (stat := metric.get("MetricStat"))
    }
    unanswered = {(name, f) for name in ("OffersDenied", "OffersTimedOut") for f in ("sweeper", "client")}
    assert asked == {
        (*each, "Sum") for each in unanswered | {("AnswersDelivered", "proxy"), ("OffersDenied", "broker")}
    }


def test_offers_that_come_too_late_are_an_alarm(templates: Templates) -> None:
    stale = alarms(templates.operations)["Stale"]
    [dimension] = stale["Dimensions"]
    assert (stale["MetricName"], dimension["Value"], stale["Statistic"]) == ("OffersStale", "broker", "Sum")
    assert stale["EvaluationPeriods"] == 3


def test_no_alarm_of_a_search(templates: Templates) -> None:
    """CloudWatch refuses those when they are deployed, and no sooner."""
    found = alarms(templates.operations).values()
    expressions = [metric.get("Expression", "") for alarm in found for metric in alarm.get("Metrics", [])]
    assert expressions
    assert not [expression for expression in expressions if "SEARCH" in expression]


def test_no_alarm_goes_off_for_want_of_data(templates: Templates) -> None:
    """A site that was just deployed has none, and CloudWatch looks at once."""
    found = [alarm for stack in every_stack(templates) for alarm in alarms(stack).values()]
    assert len(found) > 20
    assert {alarm["TreatMissingData"] for alarm in found} == {"notBreaching"}


def test_a_declared_route_has_an_alarm_for_its_own_queue(synth: Synth) -> None:
    link = {"name": "west", "peer": "WEST", "endpoints": [ENDPOINT]}
    route = {"name": "r", "link": "west", "src": "orders", "dest": "amq.topic", "src_is_queue": True}
    routes = [route | {"src_is_local": True}, route | {"name": "pulled"}]
    declared = {"links": [link], "routes": routes, "queues": [{"name": "orders"}]}
    templates = synth(**{f"sluice.federation.{name}": value for name, value in declared.items()})
    found = alarms(templates.operations)
    assert [queue_of(alarm) for name, alarm in found.items() if name.startswith("Router")] == ["FederationBoundorders"]


def test_the_queue_that_a_declared_route_will_get_is_known_where_the_site_has_a_tag(synth: Synth) -> None:
    link = {"name": "west", "peer": "WEST", "endpoints": [ENDPOINT]}
    route = {"name": "r", "link": "west", "src": "amq.topic", "dest": "amq.topic", "key": "#", "src_is_local": True}
    given = {"sluice.federation.links": [link], "sluice.federation.routes": [route]}
    [alarm] = [
        found
        for name, found in alarms(synth(**given, **{"sluice.federation.tag": "EAST"}).operations).items()
        if name == "RouterAge"
    ]
    assert re.fullmatch(r"sluice-bridge-[0-9a-f]{24}\.fifo", queue_of(alarm))
    assert "RouterAge" not in alarms(synth(**given).operations)


# Who is told


def test_nobody_is_told_by_default(templates: Templates) -> None:
    assert not resources(templates.state, "AWS::SNS::Topic")
    assert not resources(templates.operations, "AWS::Events::Rule")
    for stack in every_stack(templates):
        assert not [alarm for alarm in alarms(stack).values() if "AlarmActions" in alarm or "OKActions" in alarm]


def every_stack(templates: Templates) -> list[Resource]:
    return [
        template
        for template in (
            templates.rendezvous,
            templates.splitting,
            templates.federation,
            templates.pipeline,
            templates.operations,
        )
        if template
    ]


def outages(templates: Templates) -> dict[str, Resource]:
    """Composite alarms by capability."""
    found = resources(templates.operations, "AWS::CloudWatch::CompositeAlarm")
    return {re.sub(r"Outage[0-9A-F]{8}$", "", id_): alarm for id_, alarm in found.items()}


def parts(outage: Resource) -> set[str]:
    """The ids of the alarms that it is made of."""
    rule = text(outage["AlarmRule"])
    assert re.fullmatch(r'ALARM\("<\w+>"\)( OR ALARM\("<\w+>"\))*', rule), rule
    return set(re.findall(r"<(\w+)>", rule))


def test_an_outage_is_one_mail_that_names_the_capability(called: Templates) -> None:
    [topic] = resources(called.state, "AWS::SNS::Topic")
    [subscription] = resources(called.state, "AWS::SNS::Subscription").values()
    assert (subscription["Protocol"], subscription["Endpoint"]) == ("email", ADDRESS)
    found = outages(called)
    assert set(found) == {"Rendezvous", "Splitting", "Federation", "Pipeline"}
    for outage in found.values():
        for actions in (outage["AlarmActions"], outage["OKActions"]):
            [action] = actions
            assert find_referred(action) == topic
    named = {re.sub("Alarm[0-9A-F]{8}$", "", id_) for id_ in parts(found["Pipeline"])}
    assert named == {"StreamsDown", "JobsFailed", "PipelineErrors", "PipelineAge"}
    every = {
        id_: alarm for stack in every_stack(called) for id_, alarm in resources(stack, "AWS::CloudWatch::Alarm").items()
    }
    alone = {id_ for id_, alarm in every.items() if "AlarmActions" in alarm}
    merged = set().union(*map(parts, found.values()))
    assert merged | alone == set(every)  # somebody hears of each
    assert not merged & alone  # and of none twice


def test_letters_that_came_are_not_over_because_no_more_come(called: Templates) -> None:
    found = alarms(called.operations)
    assert {name for name, alarm in found.items() if "AlarmActions" in alarm and "OKActions" not in alarm} == {
        name for name in found if name.endswith("DeadLetters")
    }


def test_without_anybody_to_tell_no_composite_alarm_costs_anything(templates: Templates) -> None:
    assert not outages(templates)


ALARM_METRIC_USD, FREE_METRICS = 0.10, 10  # a month: https://aws.amazon.com/cloudwatch/pricing/


def test_what_is_watched_by_default_costs_little(templates: Templates) -> None:
    """An alarm costs by its metrics; the first ten of the account are free."""
    found = [alarm for stack in every_stack(templates) for alarm in alarms(stack).values()]
    metrics = sum(sum("MetricStat" in metric for metric in alarm.get("Metrics", [])) or 1 for alarm in found)
    assert (metrics - FREE_METRICS) * ALARM_METRIC_USD <= 2.5
    assert not resources(templates.operations, "AWS::CloudWatch::Dashboard")


def budget_of(templates: Templates, unit: str = "MONTHLY") -> Any:
    [budget] = [
        resource
        for resource in resources(templates.operations, "AWS::Budgets::Budget").values()
        if resource["Budget"]["TimeUnit"] == unit
    ]
    return budget


def test_a_day_that_costs_too_much_is_told_and_none_is_foretold(synth: Synth, called: Templates) -> None:
    daily = budget_of(called, "DAILY")
    assert daily["Budget"]["BudgetLimit"] == {"Amount": 10, "Unit": "USD"}
    [notified] = daily["NotificationsWithSubscribers"]
    assert notified["Notification"]["NotificationType"] == "ACTUAL"
    none = synth(
        **{f"{KEY}.alarm_email": "me@example.org", f"{KEY}.budget_daily_usd": "null", f"{KEY}.budget_usd": "null"}
    )
    assert not resources(none.operations, "AWS::Budgets::Budget")


def test_a_budget_exists_only_if_somebody_hears_of_it(
    templates: Templates, called: Templates, otherwise: Templates
) -> None:
    assert not resources(templates.operations, "AWS::Budgets::Budget")
    for each, amount in ((called, 100), (otherwise, 50)):
        assert budget_of(each)["Budget"]["BudgetLimit"] == {"Amount": amount, "Unit": "USD"}
    notified = budget_of(otherwise)["NotificationsWithSubscribers"]
    assert {each["Notification"]["NotificationType"] for each in notified} == {"ACTUAL", "FORECASTED"}
    theirs = {"Address": "arn:aws:sns:eu-central-1:123456789012:theirs", "SubscriptionType": "SNS"}
    assert [each["Subscribers"] for each in notified] == [[theirs], [theirs]]


def test_this_accounts_alarms_may_publish_to_the_topic_and_nobody_over_plain_http(called: Templates) -> None:
    """A topic with a policy of its own lacks the one that lets its account's alarms in."""
    [policy] = resources(called.state, "AWS::SNS::TopicPolicy").values()
    statements = policy["PolicyDocument"]["Statement"]
    let_in = {
        statement["Principal"]["Service"]: statement.get("Condition")
        for statement in statements
        if statement["Effect"] == "Allow"
    }
    of_account = {"StringEquals": {"aws:SourceAccount": {"Ref": "AWS::AccountId"}}}
    services = ("cloudwatch.amazonaws.com", "events.amazonaws.com", "budgets.amazonaws.com")
    assert let_in == dict.fromkeys(services, of_account)
    [refused] = [statement for statement in statements if statement["Effect"] == "Deny"]
    assert refused["Condition"] == {"Bool": {"aws:SecureTransport": "false"}}


def test_a_topic_of_their_own_is_used_as_it_is(otherwise: Templates) -> None:
    assert not resources(otherwise.state, "AWS::SNS::Topic")
    told = [alarm for stack in every_stack(otherwise) for alarm in alarms(stack).values() if "AlarmActions" in alarm]
    assert {tuple(alarm["AlarmActions"]) for alarm in (*told, *outages(otherwise).values())} == {(TOPIC,)}


def test_each_failed_run_of_our_application_is_told(called: Templates) -> None:
    [rule] = resources(called.operations, "AWS::Events::Rule").values()
    pattern = rule["EventPattern"]
    assert (pattern["source"], pattern["detail-type"]) == (
        ["aws.emr-serverless"],
        ["EMR Serverless Job Run State Change"],
    )
    [application] = pattern["detail"]["applicationId"]
    assert find_referred(application) == "Application"
    assert pattern["detail"]["state"] == ["FAILED"]
    assert len(rule["Targets"]) == 1


# The dashboard


@pytest.fixture(scope="module")
def seen(synth: Synth) -> Templates:
    return synth(**{f"{KEY}.dashboard": True})


def test_the_dashboard_begins_with_alarms_and_single_values(seen: Templates) -> None:
    title, status, *values = board(seen)["widgets"][:8]
    assert (title["type"], status["type"]) == ("text", "alarm")
    assert len(status["properties"]["alarms"]) == sum(len(alarms(stack)) for stack in every_stack(seen))
    assert {each["properties"]["view"] for each in values} == {"singleValue"}


def test_where_an_alarm_goes_off_there_is_a_line(seen: Templates) -> None:
    lines = {
        line["label"]: line["value"]
        for widget in board(seen)["widgets"]
        for line in widget["properties"].get("annotations", {}).get("horizontal", [])
    }
    found = alarms(seen.operations)
    for name in ("PipelineAge", "BridgeLag", "Unanswered", "RoutesDown", "AccountConcurrency"):
        assert lines[name] == found[name]["Threshold"], name
    assert lines["OffersAge, s"] == found["OffersAge"]["Threshold"]
    assert lines["SourceAge, IngressAge"] == found["SplitpipelineSourceAge"]["Threshold"]


def test_the_dashboard_draws_every_metric_that_an_alarm_holds_on_to(seen: Templates) -> None:
    body = json.dumps(board(seen))
    for alarm in (alarm for stack in every_stack(seen) for alarm in alarms(stack).values()):
        asked = [each["MetricStat"]["Metric"] for each in alarm.get("Metrics", []) if "MetricStat" in each] or [alarm]
        for metric in asked:
            assert f'"{metric["MetricName"]}"' in body or f'\\"{metric["MetricName"]}\\"' in body, metric


def test_what_is_made_at_run_time_is_searched_for(seen: Templates) -> None:
    searches = [
        options["expression"] for [options] in (row for row in drawn(seen) if len(row) == 1) if "expression" in options
    ]
    for part in ("QueueName=sluice QueueName=bridge", "{Sluice,route,service}", "FunctionName=SluiceRendezvous OR "):
        assert [search for search in searches if part in search], part
    assert all(re.fullmatch(r"(SEARCH\('.*', '\w+', 300\)|IF\(.*\)|SUM\(.*\))", search) for search in searches)


def test_no_two_widgets_of_a_row_go_over_its_end(seen: Templates) -> None:
    assert all(widget["x"] + widget["width"] <= 24 for widget in board(seen)["widgets"])


def test_without_a_pipeline_there_is_nothing_of_it(synth: Synth) -> None:
    templates = synth(**{"sluice.splitting.queues": [{"queue_id": "other"}], f"{KEY}.dashboard": True})
    assert "PipelineAge" not in alarms(templates.operations)
    assert "AWS/EMRServerless" not in json.dumps(board(templates))


def test_without_a_stream_messages_may_wait_but_not_until_they_are_lost(synth: Synth) -> None:
    kept_s = 14 * 24 * 60 * 60
    drained = synth(**{"sluice.pipeline.streaming": False})
    assert alarms(drained.operations)["PipelineAge"]["Threshold"] == kept_s / 2
    assert {
        queue["MessageRetentionPeriod"]
        for id_, queue in resources(drained.state, "AWS::SQS::Queue").items()
        if readable(id_) == "SplitpipelineMain"
    } == {kept_s}


# Tracing


def functions_and_roles(templates: Templates) -> tuple[list[Resource], list[Resource]]:
    stacks = (templates.rendezvous, templates.splitting, templates.federation, templates.pipeline)
    functions = [found for stack in stacks for found in resources(stack, "AWS::Lambda::Function").values()]
    roles = [
        role
        for stack in stacks
        for role in resources(stack, "AWS::IAM::Role").values()
        if "lambda.amazonaws.com" in json.dumps(role["AssumeRolePolicyDocument"])
    ]
    return functions, roles


def test_functions_send_nothing_to_x_ray_by_default(templates: Templates) -> None:
    functions, roles = functions_and_roles(templates)
    assert not [function for function in functions if "TracingConfig" in function]
    assert "xray:" not in json.dumps(roles)


def test_all_functions_do_where_asked_to_and_may(otherwise: Templates) -> None:
    functions, roles = functions_and_roles(otherwise)
    assert functions
    assert all(function["TracingConfig"] == {"Mode": "Active"} for function in functions)
    assert len(roles) == len(functions)
    for role in roles:
        [policy] = role["Policies"]
        actions = [each["Action"] for each in policy["PolicyDocument"]["Statement"] if each["Resource"] == "*"]
        assert sorted(TRACED) in [sorted(action) for action in actions if isinstance(action, list)]


# The stack itself


def test_status_finds_every_queue_of_dead_letters(templates: Templates) -> None:
    output = templates.operations["Outputs"]["DeadLetterUrls"]["Value"]
    urls = json.loads(text(output))
    assert set(urls) == {
        "dead letters of the rendezvous",
        "dead letters of splitting",
        "dead letters of federation",
        "dead letters of federation, FIFO",
    }


def test_for_this_machine_there_is_all_but_what_the_embedded_cloud_refuses(synth: Synth, templates: Templates) -> None:
    local = synth(**{"sluice.architecture": "local", f"{KEY}.dashboard": True, f"{KEY}.alarm_email": ADDRESS})
    missing = set(alarms(templates.operations)) - set(alarms(local.operations))
    assert missing == {"Unanswered", *(name for name in missing if name.endswith("DeadLetters"))}
    for stack in every_stack(local):
        assert not [alarm for alarm in alarms(stack).values() if "Metrics" in alarm]
    assert board(local)["widgets"]
    # It has no composite alarms either, and so each tells by itself.
    assert not outages(local)
    assert all("AlarmActions" in alarm for alarm in alarms(local.operations).values())


@pytest.mark.parametrize(
    ("given", "cause"),
    [
        ({"alarm_email": "nobody"}, "alarm_email: 'nobody' is not an e-mail address"),
        ({"alarm_topic_arn": "arn:aws:sns:eu-central-1:123456789012:t.fifo"}, "alarm_topic_arn: .* is not the ARN"),
        ({"alarm_email": ADDRESS, "alarm_topic_arn": TOPIC}, "alarm_email: set either alarm_email or alarm_topic_arn"),
        ({"unanswered_percent": 0}, "unanswered_percent: 0 is not a whole number from 1 to 100"),
        ({"tracing": "some"}, "tracing: 'some' is not true or false"),
    ],
)
def test_what_can_t_be_is_refused_by_its_name(given: dict[str, object], cause: str) -> None:
    with pytest.raises(BadParameter, match=f"{KEY}.{cause}"):
        Parameters.from_context({**CONTEXT, **{f"{KEY}.{name}": value for name, value in given.items()}})


def test_the_topic_of_alarms_has_no_physical_name(called: Templates) -> None:
    assert physical_names(called.operations) == set()
