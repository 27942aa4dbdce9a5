"""Settings of the exchange, bridge and links functions, from environment variables and Parameter Store."""

from collections.abc import Collection, Mapping
from fnmatch import fnmatchcase
from typing import ClassVar

import msgspec

from sluice.errors import BadBinding
from sluice.federation.declared import Declared
from sluice.federation.links.links import Address
from sluice.federation.links.peers import Peer
from sluice.federation.router import Ingress
from sluice.settings import Natural, Settings


class ExchangeSettings(Settings, frozen=True, kw_only=True):
    """Settings of the exchange function. `site` is the site's tag; `ingresses` are by queue name.

    `peer_role_id` is the id of the role that peers in other accounts assume, if this site has such a role.
    """

    site: str
    peer_role_id: str | None = None
    table: str
    dead_letters_url: str
    ticks_queue_url: str
    ingresses: Mapping[str, Ingress]


class BridgeSettings(Settings, frozen=True, kw_only=True):
    """Settings of the bridge function. `site` is the site's tag. `account` also names the site's sessions at peers."""

    site: str
    account: str
    table: str
    dead_letters_url: str
    ticks_queue_url: str


class SiteNames(msgspec.Struct, frozen=True, kw_only=True):
    """The queues that the site may use: deployed queues by logical name, and patterns of names.

    The site itself reads the deployed queues in `reserved`, to split or to count messages.
    """

    queues: Mapping[str, str]
    patterns: tuple[str, ...]
    reserved: Collection[str] = ()

    def physical_name(self, name: str) -> str:
        """Return a queue's SQS name. Raises `BadBinding` if the site may not use it."""
        if name in self.queues:
            return self.queues[name]
        if name in self.queues.values() or any(fnmatchcase(name, pattern) for pattern in self.patterns):
            return name
        known = ", ".join([*sorted(self.queues), *self.patterns]) or "none"
        raise BadBinding(f"{name}: not a queue that this site may use; there are {known} (federation.queue_names)")

    def find_readable_queue(self, name: str) -> str:
        """Return the SQS name of a queue that routes may read. Raises `BadBinding` if routes may not read the queue."""
        sqs_name = self.physical_name(name)
        if self.logical_name(sqs_name) in self.reserved:
            raise BadBinding(f"{name}: the site reads it itself, a route would get a part of it")
        return sqs_name

    def logical_name(self, sqs_name: str) -> str:
        """Return a queue's logical name; its SQS name if the queue has no logical name."""
        return next((name for name, made in self.queues.items() if made == sqs_name), sqs_name)


class LinksSettings(Settings, frozen=True, kw_only=True):
    """Settings of the links function. `declaration` is the JSON of `Declared.to_json`.

    `senders` are the ids of the roles of this function and of the bridge function. `peer_role_id` is the id of the role
    that peers in other accounts assume, if this site has such a role. `kms_key_arn` is the key of new queues, if not
    SQS's own. `accounts` are the accounts whose sites may link to this site, including its own account. `stages` are
    permitted stages of peers, besides the site's own stage. An empty stage permits peers without a stage.
    """

    STORED_FIELDS: ClassVar[frozenset[str]] = frozenset({"peers", "accounts", "names", "declaration"})

    here: Address
    senders: tuple[str, ...] = ()
    peers: tuple[Peer, ...] = ()
    peer_role_id: str | None = None
    table: str
    dead_letters_url: str
    ticks_queue_url: str
    bridge_function: str
    bridge_dead_letters_arn: str
    fifo_bridge_dead_letters_arn: str
    accounts: tuple[str, ...]
    stages: tuple[str, ...] | None = None
    counts_settle_s: Natural
    kms_key_arn: str | None = None
    names: SiteNames
    declaration: str

    @property
    def declared(self) -> Declared:
        """The declaration of the deployed stacks. Raises a `BadRoute`, whose text names the invalid place."""
        return Declared.parse(self.declaration)

    @property
    def arn_prefix(self) -> str:
        """The ARN of the site's queues, without the queue's name."""
        return self.bridge_dead_letters_arn.rsplit(":", 1)[0] + ":"
