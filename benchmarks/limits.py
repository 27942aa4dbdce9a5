"""Finds the limits that each capability of a growing site reaches first, from quotas, parameters and use.

A message's use was counted by `benchmarks.counts`, quotas are AWS's (`quotas.toml`), and parameters are those of
cdk.json.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from benchmarks.counts import BATCH_S, LANDED_BYTES, PROXY_CALLS, UNANSWERED, Counts
from benchmarks.pool_costs import BROKER_S, QUICK_S
from benchmarks.prices import Used
from benchmarks.quotas import quota
from sluice.aws.rendezvous.offers import SHARDS
from sluice.operator.accounts import RESERVES
from sluice.parameters import Parameters
from sluice.parameters.splitting import PIPELINE_QUEUE

RATES = (1_000, 100_000)  # per second
FIRST = 5
OFFER_WRITES = 3  # of its own partition: recorded, matched, answered
SPLIT_S = 1.0  # assumed time of a splitter's full batch: a hundred messages in ten concurrent sends


@dataclass(frozen=True, slots=True, kw_only=True)
class Limit:
    """A limit of which a message uses `each`, and which is AWS's `quota` or else a parameter of ours."""

    what: str
    there: float
    each: float
    remedy: str
    quota: str = ""

    @property
    def rate(self) -> float:
        """The messages per second at which the limit is reached."""
        return self.there / self.each


def first(limits: Sequence[Limit]) -> Sequence[Limit]:
    """Return the limits that are reached first, in order."""
    return sorted(limits, key=lambda limit: limit.rate)[:FIRST]


def limits(counts: Counts, parameters: Parameters) -> Mapping[str, Sequence[Limit]]:
    """Return all limits, by capability."""
    messages = counts.messages
    return {
        "rendezvous": list(_rendezvous(counts, parameters)),
        "splitting": list(_splitting(messages["split"], parameters)),
        "federation": list(_federation(parameters)),
        "pipeline": list(_pipeline(counts, parameters)),
    }


def tables(counts: Counts, parameters: Parameters) -> Mapping[str, str]:
    """Render each capability's table."""
    return {f"limits of {name}": _table(first(known)) for name, known in limits(counts, parameters).items()}


def _rendezvous(counts: Counts, parameters: Parameters) -> Iterator[Limit]:
    rendezvous, used = parameters.rendezvous, counts.messages["rendezvous"]
    counted = Parameters().rendezvous  # counts are of default parameters
    proxy_s = PROXY_CALLS * QUICK_S
    broker_s = (used["lambda_gb_s"] * 1024 - proxy_s * counted.proxy_memory_mb) / counted.broker_memory_mb
    proxies = rendezvous.proxy_max_concurrency or RESERVES["sluice.rendezvous.proxy_max_concurrency"]
    yield Limit(
        what="brokers at once",
        there=rendezvous.broker_max_concurrency,
        each=broker_s,
        remedy="`rendezvous.broker_max_concurrency`, to 1,000",
    )
    yield Limit(
        what="offers over HTTP at once, without proxies",
        there=rendezvous.client_max_concurrency or quota("account_concurrency"),
        each=counts.messages[UNANSWERED]["lambda_gb_s"] * 1024 / rendezvous.client_memory_mb,
        remedy="`rendezvous.client_max_concurrency`",
    )
    yield Limit(
        what="requests to the broker's URL",
        there=proxies * quota("url_requests_each"),
        each=PROXY_CALLS,
        remedy="`rendezvous.proxy_max_concurrency`",
        quota="url_requests_each",
    )
    yield Limit(
        what="writes to a new table",
        there=quota("new_table_writes"),
        each=used["dynamodb_writes"],
        remedy="grow over hours, or warm the tables up",
        quota="new_table_writes",
    )
    yield Limit(
        what="writes to the tables",
        there=quota("table_writes"),
        each=used["dynamodb_writes"],
        remedy="Service Quotas; more sites",
        quota="table_writes",
    )
    yield Limit(
        what=f"writes to {SHARDS} partitions of offers",
        there=SHARDS * quota("partition_writes"),
        each=OFFER_WRITES,
        remedy="`SHARDS` in `sluice/aws/rendezvous/offers.py`; more sites",
        quota="partition_writes",
    )
    yield Limit(
        what="functions at once in the account",
        there=quota("account_concurrency"),
        each=broker_s + proxy_s,
        remedy="Service Quotas; more sites",
        quota="account_concurrency",
    )
    yield Limit(
        what="batches at once of the offers' trigger",
        there=quota("mapping_concurrency"),
        each=BROKER_S / quota("batch_messages"),
        remedy="more sites, each with its offers queue",
        quota="mapping_concurrency",
    )


def _splitting(used: Used, parameters: Parameters) -> Iterator[Limit]:
    splitting, reading = parameters.splitting, parameters.splitting.reading(PIPELINE_QUEUE)
    split_s = SPLIT_S if reading.window_s else BATCH_S
    yield Limit(
        what="splitters at once of one queue",
        there=splitting.max_concurrency,
        each=split_s / reading.batch_size,
        remedy="`splitting.max_concurrency`, to 1,000",
    )
    yield Limit(
        what="messages in flight of one queue",
        there=quota("in_flight"),
        each=(reading.window_s or 0) + split_s,
        remedy="AWS Support; another split queue",
        quota="in_flight",
    )
    yield Limit(
        what="calls of one FIFO queue, in tens",
        there=quota("fifo_calls") * quota("batch_messages"),
        each=1,
        remedy="high throughput; a standard queue",
        quota="fifo_calls",
    )
    yield Limit(
        what="calls of one message group, in tens",
        there=quota("fifo_group_calls") * quota("batch_messages"),
        each=1,
        remedy="more message groups",
        quota="fifo_group_calls",
    )
    yield Limit(
        what="batches at once of a trigger",
        there=quota("mapping_concurrency"),
        each=split_s / reading.batch_size,
        remedy="another split queue",
        quota="mapping_concurrency",
    )
    yield Limit(
        what="functions at once in the account",
        there=quota("account_concurrency"),
        each=used["lambda_calls"] * split_s,
        remedy="profile `throughput`; Service Quotas",
        quota="account_concurrency",
    )


def _federation(parameters: Parameters) -> Iterator[Limit]:
    federation, tens = parameters.federation, quota("batch_messages")
    yield Limit(
        what="exchange functions at once of one ingress",
        there=federation.max_concurrency,
        each=BATCH_S / tens,
        remedy="`federation.max_concurrency`, to 1,000; `federation.ingresses`",
    )
    yield Limit(
        what="calls of one FIFO ingress, in tens",
        there=quota("fifo_calls") * tens,
        each=1,
        remedy="high throughput; a route that keeps no order",
        quota="fifo_calls",
    )
    yield Limit(
        what="calls of one message group, in tens",
        there=quota("fifo_group_calls") * tens,
        each=1,
        remedy="more message groups",
        quota="fifo_group_calls",
    )
    yield Limit(
        what="messages in flight of one ingress",
        there=quota("in_flight"),
        each=(federation.reading(fifo=False).window_s or 0) + BATCH_S,
        remedy="AWS Support; `federation.ingresses`",
        quota="in_flight",
    )
    yield Limit(
        what="functions at once in the account",
        there=quota("account_concurrency"),
        each=3 * BATCH_S / tens,
        remedy="Service Quotas; another account for a site",
        quota="account_concurrency",
    )
    yield Limit(
        what="batches at once of a trigger",
        there=quota("mapping_concurrency"),
        each=BATCH_S / tens,
        remedy="`federation.ingresses`; more routes, by key",
        quota="mapping_concurrency",
    )


def _pipeline(counts: Counts, parameters: Parameters) -> Iterator[Limit]:
    pipeline = parameters.pipeline
    # While a batch is written, the source receives more messages; it keeps both until the batch is committed.
    yield Limit(
        what="messages in flight of the main queue",
        there=quota("in_flight"),
        each=2 * pipeline.trigger_s,
        remedy="a shorter `pipeline.trigger_s`; AWS Support; another split queue and job",
        quota="in_flight",
    )
    yield Limit(
        what="a job with one executor",
        there=counts.land_msgs_per_s,
        each=1,
        remedy="`pipeline.worker_vcpu`, `pipeline.max_executors`",
    )
    yield Limit(
        what="vCPUs of the application",
        there=pipeline.max_vcpu / (2 * pipeline.worker_vcpu) * counts.land_msgs_per_s,
        each=1,
        remedy="`pipeline.max_vcpu`",
    )
    yield Limit(
        what="vCPUs of EMR Serverless in the account",
        there=quota("account_vcpus") / (2 * pipeline.worker_vcpu) * counts.land_msgs_per_s,
        each=1,
        remedy="Service Quotas",
        quota="account_vcpus",
    )
    yield Limit(
        what="an endpoint in one zone",
        there=quota("endpoint_bits"),
        each=8 * LANDED_BYTES,
        remedy="it grows by itself; a second zone",
        quota="endpoint_bits",
    )


def _table(known: Sequence[Limit]) -> str:
    """Render the limits that are below the highest rate."""
    heads = " | ".join(f"at {rate:,}/s" for rate in RATES)
    rows = [
        f"| limit | available | a message takes | reached at | {heads} | what to do |",
        "|---|---:|---:|---:|---:|---:|---|",
    ]
    for limit in known:
        if limit.rate < max(RATES):
            at = " | ".join("within" if limit.rate >= rate else f"{rate / limit.rate:,.1f}" for rate in RATES)
            rows.append(
                f"| {limit.what} | {limit.there:,.0f} | {limit.each:.3g} | {limit.rate:,.0f} | {at} | {limit.remedy} |"
            )
    return "\n".join([*rows, ""])
