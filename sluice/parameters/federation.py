"""The parameters of federation: a site's name, its peers and queues, and its declarations. No constructs here."""

from collections import Counter
from enum import StrEnum
from typing import Any, Self

from msgspec.structs import replace
from pydantic import model_validator

from sluice.codec import convert, encode
from sluice.errors import BadRoute, Malformed
from sluice.federation.declared import Declared
from sluice.federation.links.peers import Peer, check_peer
from sluice.parameters import values as v
from sluice.parameters.event_sources import Profile, Reading
from sluice.parameters.values import InconsistentParameter, Model, param

DECLARED_MAX_BYTES = 16_000  # Size limit as JSON, a share of the 40 KB for a function's settings.
MAX_PEER_PLACES = 51  # Limit of pairs of account and stage, for which the 10,240 characters of inline policies suffice.


class Access(StrEnum):
    """How peers in other accounts get permission to send to this site."""

    POLICY = "policy"  # Queue policies allow the peers' accounts.
    ROLE = "role"  # Peers assume a role, with the external id.


class BoundQueueParameters(Model):
    """A queue for bindings and queue routes. The queue is created, or adopted by its ARN."""

    name: v.QueueId = param(..., "Name that bindings use")
    fifo: bool = param(False, "Whether the queue is FIFO")
    existing_arn: v.QueueArn | None = param(None, "ARN of an existing queue to adopt. Null: create one")


class IngressParameters(Model):
    """An ingress queue dedicated to one exchange, for publishers that cannot name an exchange."""

    exchange: str = param(..., "Name of the exchange that the ingress queue publishes to")
    fifo: bool = param(False, "Whether the ingress queue is FIFO")


class FederationParameters(Model):
    """A site's name, peers, queues, ingress queues, and declared exchanges, bindings, links and routes."""

    tag: v.Tag | None = param(
        None,
        "The site's name among its peers, different from each peer's name. Do not change it later. Null: "
        "`<region>-<account>`, with a stage `<stage>-<account><region>`",
    )
    # A queue's policy has at most 50 principals. One of them is `*`, for the statement that denies access without TLS:
    # https://docs.aws.amazon.com/AWSSimpleQueueService/latest/SQSDeveloperGuide/quotas-policies.html
    peer_accounts: tuple[v.Account, ...] = param(
        (), "AWS account ids of peer sites, in addition to the site's own account", max_length=49
    )
    peer_stages: tuple[v.PeerStage, ...] = param(
        (),
        "Stages of peer sites, in addition to the site's own stage. An empty string: sites without a stage",
        max_length=20,
    )
    peers: tuple[dict[str, Any], ...] = param(
        (),
        "Sites that may link to this site, with their permissions: `{tag, account, region, stage, senders, pulls, "
        "pushes, queues, leads}`, as `peer list --json` prints them",
        max_length=50,
    )
    access: Access = param(
        Access.POLICY,
        "How peers in other accounts get permission to send. `policy`: queue policies; `role`: a role that they assume",
    )
    external_id: v.ExternalId = param("sluice", "External id that peers must pass to assume the role of `access`")
    sqs_url: v.SqsUrl | None = param(
        None, "URL at which peers reach the site's SQS. Null: the region's public endpoint"
    )
    kms_key_arn: v.KmsKeyArn | None = param(
        None,
        "ARN of the KMS key that encrypts queues created at run time, including bridge queues. Null: "
        "`kms_key_arn` of the site, or SQS-managed encryption",
    )
    queues: tuple[BoundQueueParameters, ...] = param(
        (),
        "Queues to create or adopt for bindings: `{name, fifo, existing_arn}`. A split queue is bound by its "
        "`queue_id` and cannot be the source of a route, because the splitter consumes it",
        max_length=15,
    )
    queue_names: tuple[v.QueuePattern, ...] = param(
        ("sluice-queue-*",),
        "Names, with wildcards, of other queues that may be bound or be the source of a route. The functions' roles "
        "grant access only to these queues",
        max_length=20,
    )
    ingresses: tuple[IngressParameters, ...] = param(
        (),
        "Exchanges that get an ingress queue of their own, for publishers that cannot name an exchange: `{exchange, "
        "fifo}`",
        max_length=8,
    )
    exchanges: tuple[dict[str, Any], ...] = param(
        ({"name": "events", "type": "topic"},), "Exchanges to declare: `{name, type, alternate}`", max_length=100
    )
    bindings: tuple[dict[str, Any], ...] = param(
        (), "Bindings to declare: `{exchange, queue, key, arguments}`", max_length=100
    )
    links: tuple[dict[str, Any], ...] = param((), "Links to declare: `{name, peer, endpoints}`", max_length=100)
    routes: tuple[dict[str, Any], ...] = param(
        (), "Routes to declare, with the fields that `route list --json` prints", max_length=100
    )
    trust_publishers: bool = param(
        False,
        "Whether publishers may set a message's trace, which lists the sites that it has passed. False: only peers may",
    )
    counts_settle_s: int = param(
        60,
        "Seconds that a closing route's queue must stay empty before it is deleted. SQS's message counts lag by up "
        "to a minute",
        ge=0,
        le=600,
    )
    profile: Profile = param(
        Profile.LATENCY,
        "How the exchange function reads standard ingress queues. `latency`: at once, at most 10 messages per "
        "invocation; `throughput`: in batches of `batch_size`, which cost less and wait for `batching_window_s`; "
        "`provisioned`: at once, by [dedicated pollers](limits.md#latency)",
    )
    batch_size: v.Batch = param(
        100,
        "Most messages of a standard ingress queue per invocation, with profile `throughput`. Other profiles: up to 10",
    )
    batching_window_s: v.Window = param(
        1,
        "Seconds that Lambda waits to fill a batch, with profile `throughput`. AWS requires 1 or more if "
        "`batch_size` is over 10",
    )
    max_concurrency: v.Concurrency = param(
        50, "Most concurrent executions of the exchange function for one ingress queue"
    )
    exchange_memory_mb: v.Memory = param(512, "Memory of the exchange function, in MB")
    bridge_memory_mb: v.Memory = param(512, "Memory of the bridge function, in MB")
    links_memory_mb: v.Memory = param(256, "Memory of the links function, in MB")

    def reading(self, *, fifo: bool) -> Reading:
        """Return how the exchange function's event source mapping reads its ingress queue."""
        return Reading.from_profile(
            self.profile,
            fifo=fifo,
            batch_size=self.batch_size,
            window_s=self.batching_window_s,
            max_concurrency=self.max_concurrency,
        )

    @property
    def known_peers(self) -> tuple[Peer, ...]:
        """The peers in the form that functions' settings have. Raises `InconsistentParameter`.

        The site's own account is unknown before deployment, so `peer_accounts` may lack one of the peers' accounts.
        """
        try:
            peers = convert(self.peers, tuple[Peer, ...], of="federation.peers")
            for index, peer in enumerate(peers):
                check_peer(peer, here=self.tag or "", accounts=[peer.account], existing=peers[:index])
        except (Malformed, BadRoute) as error:
            raise InconsistentParameter("peers", str(error)) from None
        duplicates = [tag for tag, number in Counter(peer.tag for peer in peers).items() if number > 1]
        if duplicates:
            raise InconsistentParameter("peers", f"two peers have the same tag: {', '.join(duplicates)}")
        unlisted = sorted({peer.account for peer in peers}.difference(self.peer_accounts))
        if len(unlisted) > 1:
            raise InconsistentParameter(
                "peers", f"peer_accounts must list all but the site's own of {', '.join(unlisted)}"
            )
        return tuple(replace(peer, declared=True) for peer in peers)

    @property
    def declared(self) -> Declared:
        """The declarations of federation in the form that functions' settings have. Raises `BadRoute`."""
        names = ("exchanges", "bindings", "links", "routes")
        return Declared.parse({name: list(getattr(self, name)) for name in names})

    @model_validator(mode="after")
    def _check_consistency(self) -> Self:
        Reading(batch_size=self.batch_size, window_s=self.batching_window_s)
        v.check_construct_ids("queues", [v.add_queue_type(queue.name, fifo=queue.fifo) for queue in self.queues])
        pairs = (1 + len(self.peer_accounts)) * (1 + len(self.peer_stages))
        if self.peer_stages and pairs > MAX_PEER_PLACES:
            cause = f"with peer_accounts there are {pairs} pairs of account and stage, more than {MAX_PEER_PLACES}"
            raise InconsistentParameter("peer_stages", cause)
        v.check_construct_ids(
            "ingresses", [v.add_queue_type(ingress.exchange, fifo=ingress.fifo) for ingress in self.ingresses]
        )
        try:
            size = len(self.declared.to_json().encode()) + (len(encode(self.known_peers)) if self.peers else 0)
        except BadRoute as error:
            raise ValueError(str(error)) from error
        v.check_construct_ids("routes", [route.name for route in self.declared.routes])
        if size > DECLARED_MAX_BYTES:
            raise ValueError(
                f"peers, exchanges, bindings, links and routes have {size} bytes as JSON, more than "
                f"{DECLARED_MAX_BYTES}: create the others with `sluice`"
            )
        return self
