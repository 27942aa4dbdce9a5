"""What the operations stack promises, each read from the templates that are deployed."""

import json
import re
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from sluice.errors import BadParameter
from stacks.parameters import Parameters
from tests.stacks.conftest import CONTEXT, Resource, Templates
from tests.stacks.test_promises import of_output, physical_names, readable

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
    value = dimension["Value"]
    if isinstance(value, str):
        return value
    return of_output(value["Fn::GetStackOutput"]["OutputName"].replace("QueueName", "Arn")).removesuffix(".Arn")


def text(value: Any) -> str:
    """All the text that a joined value has."""
    match value:
        case str():
            return value
        case {"Fn::Join": [str(), [*parts]]}:
            return "".join(text(part) for part in parts)
        case {"Fn::GetStackOutput": {"OutputName": str(output)}}:
            return f"<{output}>"
        case {"Ref": str(name)}:
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


def test_every_queue_that_our_functions_read_has_an_alarm_for_its_oldest_message(templates: Templates) -> None:
    found = {
        queue_of(alarm)
        for alarm in alarms(templates.operations).values()
        if alarm.get("MetricName") == "ApproximateAgeOfOldestMessage"
    }
    read = set()
    for stack in (templates.rendezvous, templates.splitting, templates.federation):
        for trigger in resources(stack, "AWS::Lambda::EventSourceMapping").values():
            read.add(of_output(trigger["EventSourceArn"]["Fn::GetStackOutput"]["OutputName"]).removesuffix(".Arn"))
    stream = "Table.StreamArn"
    assert found == read - {stream} | {"SplitpipelineMain"}  # and the queue that the land job reads


def test_events_that_wait_in_the_tables_stream_have_an_alarm(templates: Templates) -> None:
    [age] = resources(templates.rendezvous, "AWS::CloudWatch::Alarm").values()
    assert (age["MetricName"], age["Threshold"], age["EvaluationPeriods"]) == ("IteratorAge", 300_000, 5)


def test_every_queue_of_dead_letters_has_an_alarm(synth: Synth) -> None:
    queues = [{"queue_id": "pipeline"}, {"queue_id": "orders", "fifo": True}]
    templates = synth(**{"sluice.splitting.queues": queues})
    ids = map(readable, resources(templates.state, "AWS::SQS::Queue"))
    made = {id_ for id_ in ids if id_.endswith("DeadLetters")}
    watched = {
        queue_of(alarm)
        for stack in (templates.operations, templates.federation)
        for alarm in alarms(stack).values()
        if alarm.get("MetricName") == "ApproximateNumberOfMessagesVisible"
    }
    assert watched == made
    assert "SplitordersfifoDeadLetters" in made


def test_a_threshold_is_what_its_parameter_says(synth: Synth) -> None:
    given = {
        "OffersAge": ("offers_age_s", 71),
        "SplitpipelineSourceAge": ("queue_age_s", 72),
        "PipelineAge": ("pipeline_age_s", 73),
        "BridgeLag": ("bridge_lag_s", 74),
        "Denied": ("denied_percent", 75),
        "Stale": ("denied_least_offers", 77),
        "DeadLetters": ("dead_letters", 76),
    }
    parameters = {f"{KEY}.{name}": value for name, value in given.values()}
    found = alarms(synth(**parameters, **{"sluice.pipeline.streaming": True}).operations)
    thresholds = {alarm: value for alarm, (_, value) in given.items()} | {"BridgeLag": 74_000}  # its metric is in ms
    assert {alarm: found[alarm]["Threshold"] for alarm in given} == thresholds
    assert {alarm["ComparisonOperator"] for alarm in found.values()} == {"GreaterThanOrEqualToThreshold"}


def test_the_denied_rate_is_of_enough_offers_that_ended_over_both_ways(templates: Templates) -> None:
    metrics = {each["Id"]: each for each in alarms(templates.operations)["Denied"]["Metrics"]}
    [expression] = [each["Expression"] for each in metrics.values() if "Expression" in each]
    assert ">= 20" in expression
    asked = {
        (stat["Metric"]["MetricName"], stat["Metric"]["Dimensions"][0]["Value"], stat["Stat"])
        for each in metrics.values()
        if (stat := each.get("MetricStat"))
    }
    unanswered = {(name, f) for name in ("OffersDenied", "OffersTimedOut") for f in ("sweeper", "proxy")}
    assert asked == {(*each, "Sum") for each in unanswered | {("AnswersDelivered", "proxy")}}


def test_offers_that_come_too_late_are_an_alarm(templates: Templates) -> None:
    stale = alarms(templates.operations)["Stale"]
    [dimension] = stale["Dimensions"]
    assert (stale["MetricName"], dimension["Value"], stale["Statistic"]) == ("OffersStale", "broker", "Sum")
    assert stale["EvaluationPeriods"] == 3


def test_failed_deletions_count_from_one_look_to_the_next(templates: Templates) -> None:
    """The source counts them since its log began, over restarts."""
    metrics = alarms(templates.operations)["DeletionsFailed"]["Metrics"]
    [stat] = [each["MetricStat"] for each in metrics if "MetricStat" in each]
    assert [each["Expression"] for each in metrics if "Expression" in each] == ["DIFF(total)"]
    assert (stat["Metric"]["Namespace"], stat["Metric"]["MetricName"]) == ("Sluice/Spark", "numSqsDeletionsFailed")


def test_no_alarm_of_a_search(templates: Templates) -> None:
    """CloudWatch refuses those when they are deployed, and no sooner."""
    found = alarms(templates.operations).values()
    expressions = [each.get("Expression", "") for alarm in found for each in alarm.get("Metrics", [])]
    assert expressions
    assert not [each for each in expressions if "SEARCH" in each]


def test_a_silent_links_function_is_an_alarm_and_no_offers_are_none(templates: Templates) -> None:
    found = alarms(templates.operations)
    breaching = {name for name, alarm in found.items() if alarm["TreatMissingData"] != "notBreaching"}
    assert breaching == {"RoutesDown"}


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


def test_an_address_is_told_of_every_alarm_of_every_stack(called: Templates) -> None:
    [topic] = resources(called.state, "AWS::SNS::Topic")
    [subscription] = resources(called.state, "AWS::SNS::Subscription").values()
    assert (subscription["Protocol"], subscription["Endpoint"]) == ("email", ADDRESS)
    told = [alarm for stack in every_stack(called) for alarm in alarms(stack).values()]
    assert len(told) > 20
    for alarm in told:
        for actions in (alarm["AlarmActions"], alarm["OKActions"]):
            [action] = actions
            assert topic in action["Fn::GetStackOutput"]["OutputName"]


def budget_of(templates: Templates) -> Any:
    [budget] = resources(templates.operations, "AWS::Budgets::Budget").values()
    return budget


def test_there_is_a_budget_and_whoever_hears_of_alarms_hears_of_it(
    templates: Templates, called: Templates, otherwise: Templates
) -> None:
    for each, amount in ((templates, 100), (called, 100), (otherwise, 50)):
        assert budget_of(each)["Budget"]["BudgetLimit"] == {"Amount": amount, "Unit": "USD"}
    assert not budget_of(templates).get("NotificationsWithSubscribers")
    notified = budget_of(otherwise)["NotificationsWithSubscribers"]
    assert {each["Notification"]["NotificationType"] for each in notified} == {"ACTUAL", "FORECASTED"}
    theirs = {"Address": "arn:aws:sns:eu-central-1:123456789012:theirs", "SubscriptionType": "SNS"}
    assert [each["Subscribers"] for each in notified] == [[theirs], [theirs]]


def test_this_accounts_alarms_may_publish_to_the_topic_and_nobody_over_plain_http(called: Templates) -> None:
    """A topic with a policy of its own lacks the one that lets its account's alarms in."""
    [policy] = resources(called.state, "AWS::SNS::TopicPolicy").values()
    statements = policy["PolicyDocument"]["Statement"]
    let_in = {each["Principal"]["Service"]: each.get("Condition") for each in statements if each["Effect"] == "Allow"}
    of_account = {"StringEquals": {"aws:SourceAccount": {"Ref": "AWS::AccountId"}}}
    services = ("cloudwatch.amazonaws.com", "events.amazonaws.com", "budgets.amazonaws.com")
    assert let_in == dict.fromkeys(services, of_account)
    [refused] = [each for each in statements if each["Effect"] == "Deny"]
    assert refused["Condition"] == {"Bool": {"aws:SecureTransport": "false"}}


def test_a_topic_of_their_own_is_used_as_it_is(otherwise: Templates) -> None:
    assert not resources(otherwise.state, "AWS::SNS::Topic")
    assert {tuple(alarm["AlarmActions"]) for stack in every_stack(otherwise) for alarm in alarms(stack).values()} == {
        (TOPIC,)
    }


def test_each_failed_run_of_our_application_is_told(called: Templates) -> None:
    [rule] = resources(called.operations, "AWS::Events::Rule").values()
    pattern = rule["EventPattern"]
    assert (pattern["source"], pattern["detail-type"]) == (
        ["aws.emr-serverless"],
        ["EMR Serverless Job Run State Change"],
    )
    [application] = pattern["detail"]["applicationId"]
    assert application["Fn::GetStackOutput"]["StackName"] == "SluicePipeline"
    assert pattern["detail"]["state"] == ["FAILED"]
    assert len(rule["Targets"]) == 1


# The dashboard


def test_the_dashboard_draws_every_metric_that_an_alarm_holds_on_to(templates: Templates) -> None:
    body = json.dumps(board(templates))
    for alarm in alarms(templates.operations).values():
        asked = [each["MetricStat"]["Metric"] for each in alarm.get("Metrics", []) if "MetricStat" in each] or [alarm]
        for metric in asked:
            assert f'"{metric["MetricName"]}"' in body or f'\\"{metric["MetricName"]}\\"' in body, metric


def test_what_is_made_at_run_time_is_searched_for(templates: Templates) -> None:
    searches = [
        options["expression"]
        for [options] in (row for row in drawn(templates) if len(row) == 1)
        if "expression" in options
    ]
    for part in ("QueueName=sluice QueueName=bridge", "{Sluice,route,service}", "FunctionName=SluiceRendezvous OR "):
        assert [each for each in searches if part in each], part
    assert all(re.fullmatch(r"(SEARCH\('.*', '\w+', 300\)|IF\(.*\))", each) for each in searches)


def test_no_two_widgets_of_a_row_go_over_its_end(templates: Templates) -> None:
    assert all(widget["x"] + widget["width"] <= 24 for widget in board(templates)["widgets"])


def test_without_a_pipeline_there_is_nothing_of_it(synth: Synth) -> None:
    templates = synth(**{"sluice.splitting.queues": [{"queue_id": "other"}]})
    found = alarms(templates.operations)
    assert {"PipelineAge", "DeletionsFailed"}.isdisjoint(found)
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
        assert sorted(TRACED) in [sorted(each) for each in actions if isinstance(each, list)]


# The stack itself


def test_nothing_has_a_physical_name(called: Templates) -> None:
    assert physical_names(called.operations) == set()


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
    local = synth(**{"sluice.architecture": "local"})
    assert set(alarms(templates.operations)) - set(alarms(local.operations)) == {"Denied", "DeletionsFailed"}
    assert not [alarm for alarm in alarms(local.operations).values() if "Metrics" in alarm]
    assert board(local)["widgets"]


@pytest.mark.parametrize(
    ("given", "cause"),
    [
        ({"alarm_email": "nobody"}, "alarm_email: 'nobody' is not an e-mail address"),
        ({"alarm_topic_arn": "arn:aws:sns:eu-central-1:123456789012:t.fifo"}, "alarm_topic_arn: .* is not the ARN"),
        ({"alarm_email": ADDRESS, "alarm_topic_arn": TOPIC}, "alarm_email: either an address or alarm_topic_arn"),
        ({"denied_percent": 0}, "denied_percent: 0 is not a whole number from 1 to 100"),
        ({"tracing": "some"}, "tracing: 'some' is not true or false"),
    ],
)
def test_what_can_t_be_is_refused_by_its_name(given: dict[str, object], cause: str) -> None:
    with pytest.raises(BadParameter, match=f"{KEY}.{cause}"):
        Parameters.read({**CONTEXT, **{f"{KEY}.{name}": value for name, value in given.items()}})
