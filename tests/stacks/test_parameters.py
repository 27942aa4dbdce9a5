import json
import re
from pathlib import Path
from typing import Any

import pytest

from docs import tables
from sluice.codec import encode
from sluice.errors import BadConfiguration, BadParameter
from sluice.federation.declared import Declared
from sluice.parameters import (
    Architecture,
    LogLevel,
    Parameters,
    parameter_schemas,
)
from sluice.parameters.rendezvous import RendezvousParameters
from sluice.parameters.splitting import SplitQueueParameters
from sluice.parameters.values import describe_type
from sluice.splitting.filters.values import Mode
from sluice.splitting.policies import Policy
from tests.stacks.conftest import CONTEXT, PROJECT

BRIDGE = {"displayName": "one", "webSocketAddress": "wss://bridge.example/", "fingerprint": "ab" * 20}
ARN = "arn:aws:sqs:eu-central-1:123456789012:offers"


def nested(name: str, value: object) -> dict[str, Any]:
    return {"sluice": {"rendezvous": {name: value}}}


@pytest.mark.parametrize("path", [PROJECT / "cdk.json", *tables.find_documents()], ids=lambda path: path.name)
def test_what_is_made_of_the_parameters_is_as_make_parameters_would_write_it(path: Path) -> None:
    assert path.read_text() == tables.render_file(path)


def test_every_section_and_every_parameter_is_in_the_documents() -> None:
    text = "".join(path.read_text() for path in tables.find_documents())
    first_cells = re.findall(r"^\| ((?:`\w+`(?:, )?)+) \|", text, re.MULTILINE)
    names = {name for cell in first_cells for name in re.findall(r"\w+", cell)}
    assert {key for key in parameter_schemas() if key.rsplit(".", 1)[-1] not in names} == set()


def test_cdk_json_lists_every_parameter_with_its_default() -> None:
    assert Parameters.from_context(CONTEXT) == Parameters()
    flat = {
        f"sluice.{section}.{name}" if isinstance(inner, dict) else f"sluice.{section}"
        for section, inner in CONTEXT["sluice"].items()
        for name in (inner if isinstance(inner, dict) else [""])
    }
    assert flat == set(parameter_schemas())


def test_every_parameter_says_what_it_is_and_has_limits() -> None:
    for key, schema in parameter_schemas().items():
        assert schema["description"], key
        assert describe_type(schema) not in {"a string", "an object"}, key


QUEUES = "sluice.splitting.queues"
TRIGGER = {"type": "lambda trigger", "function": "f"}
SERVICE = {"type": "ecs variable", "cluster": "c", "service": "s", "container": "app", "variable": "QUEUE"}

WORKLOAD = {"type": "kubernetes", "cluster": "c", "namespace": "n", "kind": "Deployment", "name": "o", "env": "QUEUE"}


def consumed(*consumers: dict[str, Any]) -> dict[str, Any]:
    return {"queue_id": "q", "consumers": list(consumers)}


@pytest.mark.parametrize(
    ("queues", "cause"),
    [
        ({"queue_id": "q"}, "is not a list"),
        (["q"], r"\[0\]: 'q' is not an object"),
        ([{"queue_id": "q"}, {"queue_id": "q"}], "listed twice"),
        ([{"queue_id": "a-b"}, {"queue_id": "a.b"}], "a-b and a.b differ only in"),
        ([{"queue_id": "a", "fifo": True}, {"queue_id": "a.fifo"}], "a.fifo"),
        ([{"queue_id": "a:b"}], r"\[0\]\[queue_id\]: 'a:b'"),
        ([{"queue_id": "*"}], r"\[0\]\[queue_id\]: '\*'"),
        ([{"queue_id": "q", "color": "red"}], r"\[0\]\[color\]: there is no such"),
        ([{"queue_id": "q", "fifo": "maybe"}], r"\[0\]\[fifo\]: 'maybe' is not true or false"),
        ([{"queue_id": "q", "existing_main_queue_arn": "q"}], r"\[0\]\[existing_main_queue_arn\]: 'q' is not the ARN"),
        (
            [{"queue_id": "q", "existing_main_queue_arn": "arn:aws:sqs:eu-central-1:123456789012:q.fifo"}],
            "fifo is false, which",
        ),
        ([{"queue_id": str(number)} for number in range(101)], "at most 100"),
        ([consumed({"type": "docker"})], r"\[0\]: .* is not an object whose type is one of ecs variable, kubern"),
        ([consumed({"type": "lambda trigger", "function": "a b"})], r"\[function\]: 'a b' is not a function's name or"),
        (
            [consumed({"type": "lambda variable", "function": "f:live", "variable": "V"})],
            "'f:live' is not a function's",
        ),
        ([consumed({"type": "parameter"})], r"\[name\]: is missing"),
        ([consumed({"type": "parameter", "name": "/a", "refresh_s": -1})], "-1 is not a whole number from 0 to 86400"),
        (
            [consumed({"type": "parameter", "name": "/a", "place": {"pattern": "("}})],
            r"'\(' is not a regular expression: missing",
        ),
        ([consumed({"type": "parameter", "name": "/a", "place": {"pattern": "a" * 1_025}})], "a regular expression of"),
        ([consumed({"type": "parameter", "name": "/a", "role_arns": []})], r"\[role_arns\]: there is no such"),
        ([consumed({**SERVICE, "role_arns": ["r"]})], r"\[role_arns\]\[0\]: 'r' is not the ARN of an IAM role"),
        ([consumed({**WORKLOAD, "kind": "DaemonSet"})], r"\[kind\]: 'DaemonSet' is not one of Deployment, StatefulSet"),
        ([consumed({**WORKLOAD, "env": None})], "needs one of env, env_like, and volume with file"),
        ([consumed({**WORKLOAD, "fallback": "orders"})], "fallback is for env in named containers"),
        ([consumed({**WORKLOAD, "namespace": "Shop"})], "'Shop' is not 1 to 63 lowercase letters, digits and hyphens"),
        ([consumed(*[TRIGGER] * 11)], "is not a list of at most 10"),
        ([consumed(*[SERVICE] * 10) | {"queue_id": f"{n}"} for n in range(8)], "more than 8000"),
        ([{"queue_id": "q", "tags": {f"k{n}": "v" * 256 for n in range(50)}}], "tags have .* more than 12000"),
    ],
)
def test_a_bad_split_queue_is_named(queues: object, cause: str) -> None:
    with pytest.raises(BadParameter, match=f"{QUEUES}: .*{cause}"):
        Parameters.from_context({QUEUES: queues})


def test_names_that_would_have_one_id_are_refused_together() -> None:
    queues = {QUEUES: [{"queue_id": "a-b"}], "sluice.federation.queues": [{"name": "a_b"}]}
    with pytest.raises(BadParameter, match=r"federation\.queues: a-b and a_b differ only in"):
        Parameters.from_context(queues)
    routes = [ROUTE | {"name": "r-1"}, ROUTE | {"name": "r_1", "key": "other"}]
    with pytest.raises(BadParameter, match=r"federation\.routes: r-1 and r_1 differ only in"):
        Parameters.from_context({"sluice.federation.links": [LINK], "sluice.federation.routes": routes})


@pytest.mark.parametrize(
    ("queue", "cause"),
    [
        ({"sns": True}, "q receives notifications, but .* list an SNS topic"),
        ({"sns": True, "sender_arns": ["arn:aws:s3:::bucket"]}, "q receives notifications, but .* list an SNS topic"),
        ({"sns": True, "existing_main_queue_arn": ARN}, "q receives notifications, but .* list an SNS topic"),
        ({"s3_event": True}, "q receives .* list the S3 bucket or the SNS topic between"),
    ],
)
def test_a_queue_of_notifications_that_lets_nobody_in_is_refused(queue: dict[str, Any], cause: str) -> None:
    with pytest.raises(BadParameter, match=f"{QUEUES}.sender_arns: .*{cause}"):
        Parameters.from_context({QUEUES: [{"queue_id": "q", **queue}]})


@pytest.mark.parametrize(
    "queue",
    [
        {"sns": True, "sender_arns": ["arn:aws:sns:eu-central-1:123456789012:orders"]},
        {"s3_event": True, "sender_arns": ["arn:aws:s3:::orders"]},
        {"sns": True, "s3_event": True, "sender_arns": ["arn:aws:sns:eu-central-1:123456789012:orders"]},
        {"sns": True, "s3_event": True, "existing_source_queue_arn": ARN},
    ],
)
def test_a_queue_of_notifications_lets_in_who_sends_them_or_has_its_owners_policy(queue: dict[str, Any]) -> None:
    [found] = Parameters.from_context({QUEUES: [{"queue_id": "q", **queue}]}).splitting.queues
    assert found.sns or found.s3_event


@pytest.mark.parametrize(
    ("queue", "key", "cause"),
    [
        ({"existing_main_queue_arn": ARN}, f"{QUEUES}.consumers", f"no main queue is needed, but .* is {ARN}"),
        ({"queue_id": "pipeline"}, "sluice.pipeline.queue_id", "no main queue that the land job"),
    ],
)
def test_consumers_dont_go_with_what_has_a_main_queue(queue: dict[str, Any], key: str, cause: str) -> None:
    with pytest.raises(BadParameter, match=f"^parameter {key}: .*{cause}"):
        Parameters.from_context({QUEUES: [consumed(TRIGGER) | queue]})


POLICIES = "sluice.splitting.policies"


@pytest.mark.parametrize(
    ("policies", "cause"),
    [
        ([{"queues": ["orders"]}], r"\[0\]: there is no queue orders"),
        ([{"queues": ["a:b"]}], r"\[0\]\[queues\]\[0\]: 'a:b' is not a queue id"),
        ([{"required_attributes": ["a b"]}], "'a b' is not the name of a message attribute"),
        ([{"modes": ["copy"]}], r"'copy' is not one of steal, mirror"),
        ([{"max_sessions": -1}], "-1 is not a whole number"),
        ([{"max_time_limit_s": 0}], "0 is not a whole number"),
        ([{"alow_jq": False}], "there is no such parameter"),
        ([{}] * 11, "at most 10"),
        ([{"required_attributes": ["x" * 200] * 5}] * 4, "more than 4000"),
    ],
)
def test_a_bad_policy_is_named(policies: object, cause: str) -> None:
    with pytest.raises(BadParameter, match=f"{POLICIES}: .*{cause}"):
        Parameters.from_context({POLICIES: policies})


def test_of_a_policy_only_what_was_given_is_written() -> None:
    given = [{"queues": ["pipeline", "billing-*"], "modes": ["mirror"]}, {"allow_jq": True, "max_sessions": 0}]
    first, second = (policy.policy for policy in Parameters.from_context({POLICIES: given}).splitting.policies)
    assert first == Policy(queues=("pipeline", "billing-*"), modes=(Mode.MIRROR,))
    assert encode(second) == b'{"max_sessions":0}'


def test_split_queues_can_come_as_text() -> None:
    [queue] = Parameters.from_context({QUEUES: '[{"queue_id": "q", "fifo": true}]'}).splitting.queues
    assert queue == SplitQueueParameters(queue_id="q", fifo=True)


def test_without_context_the_defaults_hold() -> None:
    assert Parameters.from_context({}) == Parameters()


def test_the_default_bridge_is_the_protocols() -> None:
    (bridge,) = RendezvousParameters().bridge_list
    assert (bridge.display_name, bridge.websocket_address) == ("default", "wss://snowflake.torproject.net/")
    assert bridge.fingerprint.hex().upper() == "2B280B23E1107BB62ABFC40DDCC8824814F80A72"


def test_an_override_goes_before_cdk_json() -> None:
    context = {**nested("held_proxies_max", 250), "sluice.rendezvous.held_proxies_max": 300}
    assert Parameters.from_context(context).rendezvous.held_proxies_max == 300


def test_the_command_lines_text_is_read_as_the_parameters_type() -> None:
    read = Parameters.from_context(
        {
            "sluice.architecture": "local",
            "sluice.log_level": "DEBUG",
            "sluice.log_retention_days": "7",
            "sluice.rendezvous.bridges": json.dumps([BRIDGE]),
            "sluice.rendezvous.held_proxies_max": "500",
            "sluice.rendezvous.proxy_max_concurrency": "null",
            "sluice.rendezvous.keep_state": "false",
            "sluice.rendezvous.trusted_hops": "2",
            "sluice.rendezvous.offers_queue_name": "12",
        }
    )
    assert (read.architecture, read.log_level, read.log_retention_days) == (Architecture.LOCAL, LogLevel.DEBUG, 7)
    assert [bridge.display_name for bridge in read.rendezvous.bridge_list] == ["one"]
    assert (read.rendezvous.held_proxies_max, read.rendezvous.keep_state) == (500, False)
    assert read.rendezvous.trusted_hops == 2
    assert read.rendezvous.proxy_max_concurrency is None
    assert read.rendezvous.offers_queue_name == "12"


@pytest.mark.parametrize(
    ("reserved", "account", "held"),
    [
        (None, 1_000, (100, 200)),
        (None, 50, (25, 25)),
        (None, 10, (5, 5)),
        (300, 10, (100, 200)),
        (75, 175, (50, 50)),
        (1, 1_000, (1, 1)),
    ],
)
def test_held_polls_leave_executions_to_answers_and_to_other_functions(
    reserved: int | None, account: int, held: tuple[int, int]
) -> None:
    rendezvous = {"proxy_max_concurrency": reserved, "held_proxies_min": 100}
    context = {"sluice": {"rendezvous": rendezvous, "operations": {"account_concurrency": account}}}
    assert Parameters.from_context(context).held_polls_range == held


def test_bridges_stay_as_they_are_given() -> None:
    other = BRIDGE | {"fingerprint": "cd" * 32}
    assert list(Parameters.from_context(nested("bridges", [BRIDGE, other])).rendezvous.bridges) == [BRIDGE, other]


def test_context_of_others_is_left_alone() -> None:
    assert Parameters.from_context({"@aws-cdk/core:x": True, "sluices.rendezvous": 1}) == Parameters()


MANY_BRIDGES = [BRIDGE | {"fingerprint": f"{number:040x}"} for number in range(40)]


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("offers_queue_name", ""),
        ("offers_queue_name", 5),
        ("offers_queue_name", "a" * 81),
        ("offers_queue_name", "offers.fifo"),
        ("offers_queue_name", "snowflake-client-offers"),
        ("offers_queue_name", "sluice-mailbox-offers"),
        ("existing_offers_queue_arn", ""),
        ("existing_offers_queue_arn", 5),
        ("existing_offers_queue_arn", "https://sqs.eu-central-1.amazonaws.com/123456789012/offers"),
        ("existing_offers_queue_arn", ARN.replace(":sqs:", ":sns:")),
        ("existing_offers_queue_arn", ARN + ".fifo"),
        ("bridges", []),
        ("bridges", "none"),
        ("bridges", BRIDGE["fingerprint"]),
        ("bridges", [BRIDGE, BRIDGE]),
        ("bridges", ["one"]),
        ("bridges", [BRIDGE | {"port": 443}]),
        ("bridges", [BRIDGE | {"fingerprint": "ab"}]),
        ("bridges", [BRIDGE | {"webSocketAddress": "https://bridge.example/"}]),
        ("bridges", MANY_BRIDGES),
        ("allowed_relay_pattern", ""),
        ("allowed_relay_pattern", "*.example"),
        ("allowed_relay_pattern", None),
        ("held_proxies_min", 0),
        ("held_proxies_min", "four"),
        ("held_proxies_min", 201),
        ("held_proxies_max", 10_001),
        ("held_proxies_max", 10.5),
        ("held_proxies_max", True),
        ("trusted_hops", True),
        ("trusted_hops", -1),
        ("trusted_hops", 11),
        ("broker_max_concurrency", 1),
        ("broker_max_concurrency", 1_001),
        ("proxy_max_concurrency", 0),
        ("proxy_max_concurrency", 10_001),
        ("proxy_max_concurrency", "none"),
        ("broker_memory_mb", 127),
        ("proxy_memory_mb", 10_241),
        ("sweeper_memory_mb", "256 MB"),
        ("keep_state", "no"),
        ("keep_state", 0),
        ("snow", 1),
    ],
)
def test_a_bad_value_names_its_key(name: str, value: object) -> None:
    with pytest.raises(BadParameter) as caught:
        Parameters.from_context(nested(name, value))
    assert caught.value.place == f"sluice.rendezvous.{name}"
    assert str(caught.value).startswith(f"parameter sluice.rendezvous.{name}: ")
    assert caught.value.cause
    assert isinstance(caught.value, BadConfiguration)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("sluice.architecture", "arm"),
        ("sluice.log_level", "info"),
        ("sluice.log_level", None),
        ("sluice.log_retention_days", 2),
        ("sluice.log_retention_days", True),
        ("sluice.log_retention_days", "[1]"),
        ("sluice.rendezvous", {}),
        ("sluice.rendezvous.snow", 1),
        ("sluice.", 1),
        ("sluice", "text"),
    ],
)
def test_a_bad_override_names_its_key(key: str, value: object) -> None:
    with pytest.raises(BadParameter) as caught:
        Parameters.from_context({key: value})
    assert caught.value.place == key


LINK = {"name": "far", "peer": "FAR", "endpoints": [{"region": "r", "account": "1", "control_queue_url": "u"}]}
ROUTE = {"name": "r", "link": "far", "src": "amq.topic", "dest": "amq.topic", "key": "a.#"}


def test_links_and_routes_are_declared() -> None:
    read = Parameters.from_context({"sluice.federation.links": [LINK], "sluice.federation.routes": json.dumps([ROUTE])})
    assert [link.peer for link in read.federation.declared.links] == ["FAR"]
    assert [route.key for route in read.federation.declared.routes] == ["a.#"]


@pytest.mark.parametrize(
    ("key", "value", "cause"),
    [
        ("tag", "a b", "not 1 to 32 letters"),
        ("peer_accounts", ["12"], "twelve digits"),
        ("access", "key", "not one of policy, role"),
        ("peer_stages", ["Dev"], "an empty string, or 1 to 7 lowercase letters"),
        ("peer_stages", ["sluice"], "is reserved"),
        ("queues", [{"name": "q", "fofi": True}], r"\[0\]\[fofi\]: there is no such"),
        ("queues", [{"fifo": True}], r"\[0\]\[name\]: is missing"),
        ("queue_names", ["a b"], "a queue's name with wildcards"),
        ("exchanges", [{"name": "x", "type": "round"}], r"'round' - at `\$\.exchanges\[0\]\.type`"),
        ("bindings", [{"exchange": "x"}], r"field `queue` - at `\$\.bindings\[0\]`"),
        ("links", [LINK, {**LINK, "endpoints": {}}], r"\$\.links\[1\]\.endpoints"),
        ("routes", [{**ROUTE, "sync": True}], r"got `bool` - at `\$\.routes\[0\]\.sync`"),
        ("routes", [{**ROUTE, "key": "k" * 20_000}], "more than 16000"),
    ],
)
def test_what_federation_cannot_be_is_refused_by_name(key: str, value: object, cause: str) -> None:
    with pytest.raises(BadParameter, match=cause):
        Parameters.from_context({f"sluice.federation.{key}": value})


@pytest.mark.parametrize("stage", ["Dev", "dev-1", "1dev", "longerer", "sluice", ""])
def test_what_is_no_stage_is_refused(stage: str) -> None:
    with pytest.raises(BadParameter, match=r"^parameter sluice\.stage: "):
        Parameters.from_context({"sluice.stage": stage})


def test_names_of_ours_are_the_stages_and_those_of_others_stay() -> None:
    context = {"sluice.stage": "dev", "sluice.federation.queue_names": ["sluice-queue-*", "orders-*"]}
    assert Parameters.from_context(context).queue_names == ("dev-sluice-queue-*", "orders-*")
    assert Parameters().queue_names == ("sluice-queue-*",)


def test_an_offers_queue_has_eighty_characters_with_its_stage() -> None:
    context = {"sluice.stage": "dev", "sluice.rendezvous.offers_queue_name": "o" * 76}
    Parameters.from_context(context)
    with pytest.raises(BadParameter, match=r"sluice\.rendezvous\.offers_queue_name: dev-o+ has more than 80"):
        Parameters.from_context({**context, "sluice.rendezvous.offers_queue_name": "o" * 77})


def test_an_offers_queue_is_called_as_nothing_that_functions_of_a_stage_make() -> None:
    with pytest.raises(BadParameter, match="is reserved for clients"):
        Parameters.from_context({"sluice.rendezvous.offers_queue_name": "dev-snowflake-client-1"})


def test_accounts_and_stages_of_peers_fit_into_a_policy() -> None:
    accounts = [f"{number:012}" for number in range(49)]
    Parameters.from_context(
        {"sluice.federation.peer_accounts": accounts[:16], "sluice.federation.peer_stages": ["", "dev"]}
    )
    with pytest.raises(BadParameter, match="peer_stages: with peer_accounts there are 100 pairs"):
        Parameters.from_context({"sluice.federation.peer_accounts": accounts, "sluice.federation.peer_stages": ["dev"]})


def test_a_peers_stage_is_listed() -> None:
    peers = [{**PEER, "stage": "dev"}]
    Parameters.from_context({"sluice.federation.peers": peers, "sluice.federation.peer_stages": ["dev"]})
    Parameters.from_context({"sluice.federation.peers": peers, "sluice.stage": "dev"})
    with pytest.raises(BadParameter, match=r"federation\.peers: peer_stages doesn't list 'dev', the stage of FAR"):
        Parameters.from_context({"sluice.federation.peers": peers})
    with pytest.raises(BadParameter, match=r"federation\.peers: peer_stages doesn't list '', the stage of FAR"):
        Parameters.from_context({"sluice.federation.peers": [PEER], "sluice.stage": "dev"})


PEER = {"tag": "FAR", "account": "111111111111", "region": "eu-west-1", "senders": ["AROAFAR"]}


def test_peers_are_declared_one_account_being_the_sites_own_perhaps() -> None:
    other = {"tag": "NEAR", "account": "222222222222", "region": "eu-west-1"}
    context = {"sluice.federation.peers": [PEER, other], "sluice.federation.peer_accounts": ["111111111111"]}
    peers = Parameters.from_context(context).federation.known_peers
    assert [(peer.tag, peer.declared) for peer in peers] == [("FAR", True), ("NEAR", True)]


@pytest.mark.parametrize(
    ("changed", "cause"),
    [
        ({"tag": "a b"}, "'a b' is no site's tag"),
        ({"tag": "HERE"}, "HERE: a site is no peer of its own"),
        ({"tag": "FAR"}, "two peers have the same tag: FAR"),
        ({"account": "5"}, "'5' is no account"),
        ({"account": "333333333333"}, "peer_accounts must list all but the site's own of 111111111111, 333333333333"),
        ({"region": "here"}, "'here' is no region"),
        ({"senders": ["AROAFAR"]}, "NEAR and FAR: one site has one tag"),
        ({"senders": ["x"]}, "an id of a role is letters and digits"),
        ({"sqs_url": "ftp://x"}, "'ftp://x' is no address of SQS"),
        ({"pushes": 5}, "pushes"),
    ],
)
def test_a_peer_that_cannot_be_is_refused_by_name(changed: dict[str, Any], cause: str) -> None:
    near = {**PEER, "tag": "NEAR", "senders": [], **changed}
    with pytest.raises(BadParameter, match=f"^parameter sluice.federation.peers: .*{cause}"):
        Parameters.from_context({"sluice.federation.tag": "HERE", "sluice.federation.peers": [PEER, near]})


@pytest.mark.parametrize(
    ("context", "cause"),
    [
        ({"sluice.rendezvous.events_exchange": "amq.direct"}, "amq.direct is of type direct, not topic"),
        ({"sluice.rendezvous.events_exchange": "a b"}, "an exchange's name is 1 to 127 of"),
        ({"sluice.rendezvous.events_exchange": 5}, "5 is not the name of an exchange, or null"),
        ({"sluice.rendezvous.geoip_file": "../countries.mmdb"}, "not the path of a .mmdb file within the project"),
        ({"sluice.rendezvous.geoip_file": "/etc/passwd"}, "not the path of a .mmdb file within the project"),
    ],
)
def test_where_events_cant_go_is_said(context: dict[str, object], cause: str) -> None:
    with pytest.raises(BadParameter, match=cause):
        Parameters.from_context(context)


def test_without_events_nothing_is_declared_for_them() -> None:
    read = Parameters.from_context({"sluice.rendezvous.events_exchange": None, "sluice.federation.exchanges": []})
    assert read.declared == Declared()


def test_a_standard_exchange_for_events_isnt_declared_again() -> None:
    read = Parameters.from_context(
        {"sluice.rendezvous.events_exchange": "amq.topic", "sluice.federation.exchanges": []}
    )
    assert read.declared.exchanges == ()
    assert read.declared.bindings == ()


@pytest.mark.parametrize("section", ["splitting", "federation"])
def test_a_large_batch_has_a_window(section: str) -> None:
    batches = {f"sluice.{section}.batch_size": 11, f"sluice.{section}.batching_window_s": 0}
    with pytest.raises(BadParameter, match=rf"sluice\.{section}\.batching_window_s: a batch of 11 messages"):
        Parameters.from_context(batches)
    Parameters.from_context({**batches, f"sluice.{section}.batch_size": 10})
