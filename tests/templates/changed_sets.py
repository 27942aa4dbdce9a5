"""A deployed site's parameters before and after a change: the pairs that are looked at as templates, and deployed."""

from tests.templates.parameter_sets import HERE, ParameterSet

SPLIT = [{"queue_id": "orders"}, {"queue_id": "pipeline"}, {"queue_id": "ledger", "fifo": True}]
BOUND = [{"name": "invoices"}, {"name": "receipts"}, {"name": "audit", "fifo": True}]
INGRESSES = [{"exchange": "amq.topic"}, {"exchange": "amq.direct"}, {"exchange": "amq.fanout", "fifo": True}]


def site(name: str, **changed: object) -> ParameterSet:
    """The site of these tests, with some parameters changed: `splitting__queues` is `sluice.splitting.queues`."""
    parameters = {
        "splitting__queues": SPLIT,
        "federation__queues": BOUND,
        "federation__ingresses": INGRESSES,
        "federation__peer_accounts": ["111111111111"],
        "operations__alarm_email": "somebody@example.com",
        **changed,
    }
    by_key = {f"sluice.{key.replace('__', '.')}": value for key, value in parameters.items()}
    return ParameterSet(name=name, parameters=by_key)


def listed(name: str, *order: int) -> ParameterSet:
    """With those of each list that these places have, in this order."""
    lists = {"splitting__queues": SPLIT, "federation__queues": BOUND, "federation__ingresses": INGRESSES}
    return site(name, **{key: [each[place] for place in order] for key, each in lists.items()})


SITE = site("a site")
SWAPPED = listed("a site, two queues in another order", 1, 0, 2)
FIFO_FIRST = listed("a site, a FIFO queue and another in another order", 2, 1, 0)
WITHOUT_LAST = listed("a site, without the last of each list", 0, 1)
WITHOUT_FIRST = listed("a site, without the first of each list", 1, 2)
RENAMED = site(
    "a site, the first of each list renamed",
    splitting__queues=[{"queue_id": "parcels"}, *SPLIT[1:]],
    federation__queues=[{"name": "bills"}, *BOUND[1:]],
    federation__ingresses=[{"exchange": "amq.match"}, *INGRESSES[1:]],
)
ADOPTED = site(
    "a site, the first of each list adopted",
    splitting__queues=[
        {
            "queue_id": "orders",
            "existing_source_queue_arn": f"{HERE}:their-source",
            "existing_main_queue_arn": f"{HERE}:their-main",
        },
        *SPLIT[1:],
    ],
    federation__queues=[{"name": "invoices", "existing_arn": f"{HERE}:their-invoices"}, *BOUND[1:]],
    rendezvous__existing_offers_queue_arn=f"{HERE}:their-offers",
)
OF_ANOTHER_KIND = site(
    "a site, some queues of another kind or name",
    splitting__queues=[{"queue_id": "orders", "fifo": True}, *SPLIT[1:]],
    federation__queues=[{"name": "invoices", "fifo": True}, *BOUND[1:]],
    rendezvous__offers_queue_name="another",
)
SWITCHED_OFF = site(
    "a site, events, pipeline and mail switched off",
    rendezvous__events_exchange="null",  # CDK drops what is null itself
    pipeline__queue_id="none",
    operations__alarm_email="null",
)
LANDED = site("a site, another queue landed", pipeline__queue_id="orders")
OTHER_PEERS = site(
    "a site, other peers, roles and exchanges",
    federation__peer_accounts=["111111111111", "222222222222"],
    federation__access="role",
    federation__exchanges=[{"name": "goods", "type": "direct"}, {"name": "events", "type": "topic"}],
    federation__bindings=[{"exchange": "goods", "queue": "invoices", "key": "k"}],
)
OWN_SUBNETS = site(
    "a site, jobs in a VPC that there was",
    pipeline__vpc_id="vpc-0123456789abcdef0",
    pipeline__subnet_ids=["subnet-0123456789abcdef0"],
    pipeline__security_group_ids=["sg-0123456789abcdef0"],
    pipeline__vpc_endpoints=["sqs"],
)
OTHER_ZONES = site("a site, jobs in other zones", pipeline__zones=[2, 1], pipeline__endpoint_subnets=2)
CHANGED = (
    SWAPPED,
    FIFO_FIRST,
    WITHOUT_FIRST,
    WITHOUT_LAST,
    RENAMED,
    ADOPTED,
    OF_ANOTHER_KIND,
    SWITCHED_OFF,
    LANDED,
    OTHER_PEERS,
    OWN_SUBNETS,
    OTHER_ZONES,
)
