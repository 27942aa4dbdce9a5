"""The parameters of federation: a site's name, its peers and queues, and what it declares. No construct is here."""

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
from sluice.parameters.values import InconsistentParameter, Model, of

DECLARED_MAX_BYTES = 16_000  # as JSON, of the 40 KB that a function is told of what grows with a site
PEER_PLACES_MOST = 51  # accounts, each with every stage: a role's policies name them all, and hold 10,240 characters


class Access(StrEnum):
    """How peers in other accounts may send here."""

    POLICY = "policy"  # the queues' own policies let the accounts in
    ROLE = "role"  # a role that they assume, with the external id


class BoundQueueParameters(Model):
    """One queue that exchanges are bound to and queue routes read. It is made, or adopted by its ARN."""

    name: v.QueueId = of(..., "by which it is bound")
    fifo: bool = of(False, "the queue is FIFO")
    existing_arn: v.QueueArn | None = of(None, "adopt a queue of yours instead of making one")


class IngressParameters(Model):
    """An ingress queue of one exchange's own, for producers that can't say which exchange they mean."""

    exchange: str = of(..., "whose it is")
    fifo: bool = of(False, "the queue is FIFO")


class FederationParameters(Model):
    """A site's name, peers, queues and ingresses, and what it declares."""

    tag: v.Tag | None = of(
        None,
        "the site's name for life; else `<region>-<account>`, at a stage `<stage>-<account><region>`. Two peers with "
        "one tag are refused",
    )
    # A queue's policy has 50 principals, of which one is everybody, refused without TLS:
    # https://docs.aws.amazon.com/AWSSimpleQueueService/latest/SQSDeveloperGuide/quotas-policies.html
    peer_accounts: tuple[v.Account, ...] = of((), "of peer sites, beside the site's own", max_length=49)
    peer_stages: tuple[v.PeerStage, ...] = of(
        (), "of peer sites, beside the site's own; an empty text is of sites without one", max_length=20
    )
    peers: tuple[dict[str, Any], ...] = of(
        (),
        "`{tag, account, region, stage, senders, pulls, pushes, queues}`: sites that may link to this one, and what "
        "they may, as `peer list --json` shows them",
        max_length=50,
    )
    access: Access = of(Access.POLICY, "how peers in other accounts may send: their queues' policies, or a role")
    external_id: v.ExternalId = of("sluice", "with which that role is assumed")
    sqs_url: v.SqsUrl | None = of(None, "where peers reach the site's SQS, if not at its usual address")
    kms_key_arn: v.KmsKeyArn | None = of(
        None, "your own key for queues made at run time, bridge queues among them; else SQS's own encrypts"
    )
    queues: tuple[BoundQueueParameters, ...] = of(
        (),
        "`{name, fifo, existing_arn}`: queues to bind, made or adopted. A split queue is bound by its `queue_id`; as "
        "the splitter reads it, no route does",
        max_length=15,
    )
    queue_names: tuple[v.QueuePattern, ...] = of(
        ("sluice-queue-*",),
        "of other queues that may be bound or read, with wildcards: the functions' roles have these and no others",
        max_length=20,
    )
    ingresses: tuple[IngressParameters, ...] = of(
        (), "`{exchange, fifo}`: ingress queues of one exchange's own", max_length=8
    )
    exchanges: tuple[dict[str, Any], ...] = of(
        ({"name": "events", "type": "topic"},), "`{name, type, alternate}`", max_length=100
    )
    bindings: tuple[dict[str, Any], ...] = of((), "`{exchange, queue, key, arguments}`", max_length=100)
    links: tuple[dict[str, Any], ...] = of((), "`{name, peer, endpoints}`", max_length=100)
    routes: tuple[dict[str, Any], ...] = of((), "the fields of `route list --json`", max_length=100)
    trust_publishers: bool = of(False, "to say where a message has been")
    counts_settle_s: int = of(
        60,
        "how long a closing route's queue is to be empty before it goes: SQS's counts are right within a minute",
        ge=0,
        le=600,
    )
    batch_size: v.Batch = of(100, "of standard ingress queues; FIFO queues have ten at most")
    batching_window_s: v.Window = of(1, "of standard ingress queues; how long a batch may wait to be filled")
    max_concurrency: v.Concurrency = of(10, "exchange functions of one ingress side by side")
    exchange_memory_mb: v.Memory = of(512, "of the function")
    bridge_memory_mb: v.Memory = of(512, "of the function")
    links_memory_mb: v.Memory = of(256, "of the function")

    @property
    def known_peers(self) -> tuple[Peer, ...]:
        """The peers, as functions know them. Raises `InconsistentParameter`.

        The site's own account isn't known before it is deployed: it may be the one that `peer_accounts` doesn't list.
        """
        try:
            peers = convert(self.peers, tuple[Peer, ...], of="federation.peers")
            for place, peer in enumerate(peers):
                check_peer(peer, here=self.tag or "", accounts=[peer.account], existing=peers[:place])
        except (Malformed, BadRoute) as error:
            raise InconsistentParameter("peers", str(error)) from None
        twice = [tag for tag, number in Counter(peer.tag for peer in peers).items() if number > 1]
        if twice:
            raise InconsistentParameter("peers", f"{', '.join(twice)}: no two sites have one tag")
        unlisted = sorted({peer.account for peer in peers}.difference(self.peer_accounts))
        if len(unlisted) > 1:
            raise InconsistentParameter(
                "peers", f"peer_accounts lists none of {', '.join(unlisted)}; one may be the site's own"
            )
        return tuple(replace(peer, declared=True) for peer in peers)

    @property
    def declared(self) -> Declared:
        """Exchanges, bindings, links and routes, as functions know them. Raises `BadRoute`."""
        return Declared.of({name: list(getattr(self, name)) for name in ("exchanges", "bindings", "links", "routes")})

    @model_validator(mode="after")
    def _fits(self) -> Self:
        v.check_names("queues", [v.of_kind(each.name, fifo=each.fifo) for each in self.queues])
        places = (1 + len(self.peer_accounts)) * (1 + len(self.peer_stages))
        if self.peer_stages and places > PEER_PLACES_MOST:
            cause = f"with peer_accounts there are {places} places of peers; a role's policy names {PEER_PLACES_MOST}"
            raise InconsistentParameter("peer_stages", cause)
        v.check_names("ingresses", [v.of_kind(each.exchange, fifo=each.fifo) for each in self.ingresses])
        try:
            size = len(self.declared.to_json().encode()) + (len(encode(self.known_peers)) if self.peers else 0)
        except BadRoute as error:
            raise ValueError(str(error)) from error
        v.check_names("routes", [each.name for each in self.declared.routes])
        if size > DECLARED_MAX_BYTES:
            raise ValueError(
                f"peers, exchanges, bindings, links and routes have {size} bytes as JSON, of {DECLARED_MAX_BYTES} at "
                "most: make the rest with `sluice`"
            )
        return self
