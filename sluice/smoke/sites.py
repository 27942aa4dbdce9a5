"""One throw-away stage as its checks see it: as its owner, as a client, and as the command line names it."""

import time
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import cached_property

from sluice.aws.clients import calls
from sluice.aws.operator.client_queues import ClientCredentials, open_client
from sluice.aws.operator.client_user import ClientUser, rotate, sqscreds
from sluice.aws.operator.connections import Connection
from sluice.aws.operator.control_client import FEDERATION, ControlClient
from sluice.aws.operator.deployment import Deployment, read_deployment, stack_outputs
from sluice.aws.operator.stage_contents import StageContents
from sluice.cli.federation.sites import asked_by
from sluice.cli.site_names import SiteName
from sluice.errors import CallFailed
from sluice.smoke.runs import NotSo

KEY_ACTS_WITHIN_S = 60.0
UNKNOWN_KEY = frozenset({"InvalidClientTokenId", "UnrecognizedClientException", "InvalidAccessKeyId"})
LOOK_EVERY_S = 1.0


@dataclass(frozen=True)
class SmokeSite:
    """One of the stages. What doesn't change is asked for once."""

    connection: Connection

    @property
    def stage(self) -> str:
        """Its name."""
        return self.connection.stage or ""

    @property
    def name(self) -> str:
        """As the commands of federation name it."""
        return f"{self.connection.region}:{self.stage}"

    @property
    def contents(self) -> StageContents:
        """What has its name."""
        return StageContents(self.connection)

    @cached_property
    def deployment(self) -> Deployment:
        """The outputs of its rendezvous."""
        return read_deployment(self.connection)

    @cached_property
    def sqscreds(self) -> str:
        """A new access key for clients, once it acts: IAM tells SQS of it some seconds later."""
        clients = ClientUser(self.connection.client("iam"), self.deployment.client_user_name)
        credentials = rotate(clients, keep_previous=False).credentials
        client = open_client(credentials, region=self.connection.region, endpoint_url=self.connection.endpoint_url)
        for _ in looks(KEY_ACTS_WITHIN_S, "the clients' new key acts"):
            try:
                with calls("GetQueueUrl"):
                    client.get_queue_url(QueueName=f"{self.stage}-any")
            except CallFailed as error:
                if error.code not in UNKNOWN_KEY:
                    break  # it is known, and the queue is none of its own
        return sqscreds(credentials)

    @property
    def credentials(self) -> ClientCredentials:
        """What clients have."""
        return ClientCredentials.parse(self.sqscreds)

    def output(self, stack: str, name: str) -> str:
        """Read an output. Raises `NotDeployed`, and KeyError for none of this name."""
        return stack_outputs(self.connection, stack)[name]


def asked(*sites: SmokeSite) -> AbstractContextManager[None]:
    """Let the command line's functions ask these sites, by their stages."""
    connections = {site.stage: site.connection for site in sites}

    def ask(name: SiteName) -> ControlClient:
        return ControlClient.of(connections[name.stage or ""], FEDERATION)

    return asked_by(ask)


def looks(within_s: float, what: str, *, every_s: float = LOOK_EVERY_S) -> Iterator[int]:
    """Count from 0, with pauses. Raises `NotSo` where `what` is still not so after `within_s`."""
    deadline, number = time.monotonic() + within_s, 0
    while True:
        yield number
        if time.monotonic() > deadline:
            raise NotSo(f"not within {within_s:g} s: {what}")
        time.sleep(every_s)
        number += 1


def only(found: Iterable[str], what: str) -> str:
    """Give the one that there is. Raises `NotSo`."""
    listed = list(found)
    if len(listed) != 1:
        raise NotSo(f"{len(listed)} {what}, not one: {', '.join(listed)}")
    return listed[0]
