"""Sends to peers' queues. A peer grants access by its resource policies, or by a role.

`PeerUnreachable` is transient, `PeerRefused` needs an operator, and `CallFailed` concerns a single message.
"""

import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import msgspec
from botocore.config import Config
from botocore.credentials import AssumeRoleCredentialFetcher, DeferredRefreshableCredentials
from botocore.exceptions import BotoCoreError, ClientError
from botocore.session import Session, get_session

from sluice.aws.client_types import SQSClient
from sluice.aws.clients import GONE, MAX_CONNECTIONS, USER_AGENT, FastBatchSender, get_error_code
from sluice.batches import QUEUE_REFUSALS
from sluice.errors import CallFailed, PeerRefused, PeerUnreachable
from sluice.federation.links.links import Endpoint, Link

# The timeouts are short, so that an unreachable peer is detected before the function's time ends.
CONFIG = Config(
    max_pool_connections=MAX_CONNECTIONS,
    connect_timeout=2,
    read_timeout=6,
    retries={"mode": "standard", "total_max_attempts": 2},
    user_agent=USER_AGENT,
)
# Error codes of SQS, and https://docs.aws.amazon.com/AWSSimpleQueueService/latest/APIReference/CommonErrors.html
REFUSALS = {
    *(GONE | QUEUE_REFUSALS | {"ExpiredToken", "InvalidAddress", "InvalidClientTokenId", "NotAuthorized"}),
    *("OptInRequired", "SignatureDoesNotMatch", "UnrecognizedClientException"),
}
PASSING = {"RequestThrottled", "ThrottlingException", "Throttling", "OverLimit", "ServiceUnavailable"}
SERVER_ERROR = 500

_Key = tuple[str, str | None, str | None, str | None]


class PeerQueues(msgspec.Struct, frozen=True):
    """Sends to peers' queues, with a cached client for each region, endpoint and role.

    `account` is this site's account. Role sessions at peers are named after it, so that peers can identify this site. A
    client is thread-safe once it is created.
    """

    account: str
    _clients: dict[_Key, SQSClient] = msgspec.field(default_factory=dict)

    def send_control_message(self, link: Link, endpoint: Endpoint, body: str) -> None:
        """Send a control message to the peer. A link's messages are one message group, so they stay in order.

        Raises `PeerUnreachable`, `PeerRefused`, `CallFailed`.
        """
        with _translate_errors("SendMessage"):
            self._get_client(link, endpoint).send_message(
                QueueUrl=endpoint.control_queue_url,
                MessageBody=body,
                MessageGroupId=link.name[:128],
                MessageDeduplicationId=uuid.uuid4().hex,
            )

    def send_batch(
        self, link: Link, endpoint: Endpoint, url: str, entries: Sequence[dict[str, Any]]
    ) -> Mapping[str, str]:
        """Send up to ten entries to the peer's queue. Returns the refused entries' ids, each with SQS's reason.

        Raises `PeerUnreachable`, `PeerRefused`, `CallFailed`.
        """
        with _translate_errors("SendMessageBatch"):
            # boto3's type of an entry lists all its fields, but `sluice.message` builds entries as plain dictionaries.
            done = self._get_client(link, endpoint).send_message_batch(QueueUrl=url, Entries=entries)  # type: ignore[arg-type]
        return {failed["Id"]: f"{failed['Code']}: {failed.get('Message', '')}" for failed in done.get("Failed", [])}

    def _get_client(self, link: Link, endpoint: Endpoint) -> SQSClient:
        key = endpoint.region, endpoint.sqs_url, link.role_arn, link.external_id
        if key not in self._clients:
            session = (
                get_session() if link.role_arn is None else _assume_role(link.role_arn, link.external_id, self.account)
            )
            client: Any = session.create_client(
                "sqs", region_name=endpoint.region, endpoint_url=endpoint.sqs_url, config=CONFIG
            )
            self._clients[key] = FastBatchSender.install(client)
        return self._clients[key]


def _assume_role(role_arn: str, external_id: str | None, session_name: str) -> Session:
    """Return a session with the role's credentials, which are renewed before they expire."""
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
    """Convert boto3's errors to errors that describe the peer's state: `PeerUnreachable` or `PeerRefused`."""
    try:
        yield
    except ClientError as error:
        code, message = get_error_code(error), error.response["Error"].get("Message", "")
        status = error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0)
        if code in REFUSALS:
            raise PeerRefused(f"{operation}: {code}: {message}") from error
        if code.removeprefix("KMS.") in PASSING or code.startswith("KmsThrottled") or status >= SERVER_ERROR:
            raise PeerUnreachable(f"{operation}: {code}: {message}") from error
        raise CallFailed(operation, code, message) from error
    except ValueError as error:  # botocore raises ValueError for an invalid endpoint URL
        raise PeerRefused(f"{operation}: {error}") from error
    except BotoCoreError as error:
        raise PeerUnreachable(f"{operation}: {type(error).__name__}: {error}") from error
