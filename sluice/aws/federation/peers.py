"""Peer sites' queues. By the peer's resource policies, or by a role of the peer's.

What goes wrong is told apart: what may pass, what somebody has to put right, and what is one message's fault.
"""

import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import msgspec
from botocore.config import Config
from botocore.credentials import AssumeRoleCredentialFetcher, DeferredRefreshableCredentials
from botocore.exceptions import BotoCoreError, ClientError
from botocore.session import Session, get_session

from sluice.aws.clients import GONE, MAX_CONNECTIONS, USER_AGENT, FastBatches, error_code
from sluice.errors import CallFailed, PeerRefused, PeerUnreachable
from sluice.federation.links.links import Endpoint, Link

if TYPE_CHECKING:  # boto3-stubs are for the type checker: bundles don't hold them
    from mypy_boto3_sqs import SQSClient

# A peer that doesn't answer is to be known before a function's time is up.
CONFIG = Config(
    max_pool_connections=MAX_CONNECTIONS,
    connect_timeout=2,
    read_timeout=6,
    retries={"mode": "standard", "total_max_attempts": 2},
    user_agent=USER_AGENT,
)
# https://docs.aws.amazon.com/AWSSimpleQueueService/latest/APIReference/CommonErrors.html, and the service's own.
REFUSALS = GONE | {
    "AccessDenied",
    "AccessDeniedException",
    "ExpiredToken",
    "InvalidAddress",
    "InvalidClientTokenId",
    "InvalidSecurity",
    "NotAuthorized",
    "OptInRequired",
    "SignatureDoesNotMatch",
    "UnrecognizedClientException",
    "UnsupportedOperation",
}
KMS_REFUSALS = ("KMS.", "KmsAccessDenied", "KmsDisabled", "KmsNotFound", "KmsInvalidState", "KmsOptInRequired")
PASSING = frozenset({"RequestThrottled", "ThrottlingException", "Throttling", "OverLimit", "ServiceUnavailable"})
SERVER_ERROR = 500

_Key = tuple[str, str | None, str | None, str | None]


class PeerQueues(msgspec.Struct, frozen=True):
    """Clients are kept: one for each region, endpoint and role. Safe for threads once a client is there.

    `account` is the site's own, and the name of its sessions where it assumes a peer's role: peers know it by that.
    """

    account: str
    _clients: dict[_Key, "SQSClient"] = msgspec.field(default_factory=dict)

    def tell(self, link: Link, endpoint: Endpoint, body: str) -> None:
        """Send to the peer's control queue, in order for each link: it is the group.

        Raises `PeerUnreachable`, `PeerRefused`, `CallFailed`.
        """
        with _translate_errors("SendMessage"):
            self._client(link, endpoint).send_message(
                QueueUrl=endpoint.control_queue_url,
                MessageBody=body,
                MessageGroupId=link.name[:128],
                MessageDeduplicationId=uuid.uuid4().hex,
            )

    def send_batch(
        self, link: Link, endpoint: Endpoint, url: str, entries: Sequence[dict[str, Any]]
    ) -> Mapping[str, str]:
        """Send up to ten entries to the peer's queue; the ids of those that SQS refused, with its reason.

        Raises `PeerUnreachable`, `PeerRefused`, `CallFailed`.
        """
        with _translate_errors("SendMessageBatch"):
            # boto3's type names every field of an entry; `sluice.message` makes them.
            done = self._client(link, endpoint).send_message_batch(QueueUrl=url, Entries=entries)  # type: ignore[arg-type]
        return {failed["Id"]: f"{failed['Code']}: {failed.get('Message', '')}" for failed in done.get("Failed", [])}

    def _client(self, link: Link, endpoint: Endpoint) -> "SQSClient":
        key = endpoint.region, endpoint.sqs_url, link.role_arn, link.external_id
        if key not in self._clients:
            session = (
                get_session() if link.role_arn is None else _as_role(link.role_arn, link.external_id, self.account)
            )
            made: Any = session.create_client(
                "sqs", region_name=endpoint.region, endpoint_url=endpoint.sqs_url, config=CONFIG
            )
            self._clients[key] = FastBatches.install(made)
        return self._clients[key]


def _as_role(role_arn: str, external_id: str | None, session_name: str) -> Session:
    """Return a session whose credentials are the role's, and are renewed before they end."""
    own, session = get_session(), get_session()
    arguments = {"RoleSessionName": session_name} | ({"ExternalId": external_id} if external_id else {})
    fetcher = AssumeRoleCredentialFetcher(
        client_creator=own.create_client,
        source_credentials=own.get_credentials(),
        role_arn=role_arn,
        extra_args=arguments,
    )
    # botocore has no public way to give a session credentials that renew themselves.
    session._credentials = DeferredRefreshableCredentials(fetcher.fetch_credentials, "assume-role")  # type: ignore[attr-defined]  # noqa: SLF001
    return session


@contextmanager
def _translate_errors(operation: str) -> Iterator[None]:
    """Turn what a call raises into what it says of the peer."""
    try:
        yield
    except ClientError as error:
        code, message = error_code(error), error.response["Error"].get("Message", "")
        status = error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0)
        if code in REFUSALS or code.startswith(KMS_REFUSALS):
            raise PeerRefused(f"{operation}: {code}: {message}") from error
        if code in PASSING or code.startswith("KmsThrottled") or status >= SERVER_ERROR:
            raise PeerUnreachable(f"{operation}: {code}: {message}") from error
        raise CallFailed(operation, code, message) from error
    except ValueError as error:  # botocore's, of an endpoint that is no URL
        raise PeerRefused(f"{operation}: {error}") from error
    except BotoCoreError as error:
        raise PeerUnreachable(f"{operation}: {type(error).__name__}: {error}") from error
