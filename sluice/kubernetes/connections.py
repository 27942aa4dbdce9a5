"""Connects to Kubernetes API servers: with an address, a certificate and a token, or with an operator's kubeconfig.

`connect` needs only urllib3, which Lambda's runtime includes. The official client takes two CPU seconds to import, too
long for a function of 256 MB, and 20 MB of the bundle. So only `connect_by_kubeconfig` uses it, for kubeconfig's
sign-in methods.
"""

import json
import ssl
from collections.abc import Callable

import urllib3
from urllib3.exceptions import HTTPError

from sluice.errors import BadConfiguration, CallFailed
from sluice.kubernetes.api import CONNECT_S, READ_S, Api, parse_response
from sluice.splitting.consumers.workloads import Json

MEDIA_TYPE = "application/json"


def connect(endpoint: str, authority: str, token: Callable[[], str]) -> Api:
    """Connect to the API server at URL `endpoint`, whose certificate `authority` has signed, given in PEM form.

    `token` returns the token for a request, and is called for each request.
    """
    pool = urllib3.PoolManager(
        ssl_context=ssl.create_default_context(cadata=authority),
        timeout=urllib3.Timeout(connect=CONNECT_S, read=READ_S),
        retries=False,
    )

    def send(method: str, path: str, body: Json | None) -> tuple[int, Json]:
        headers = {"Accept": MEDIA_TYPE, "Content-Type": MEDIA_TYPE, "Authorization": f"Bearer {token()}"}
        text = None if body is None else json.dumps(body)
        try:
            response = pool.request(method, f"{endpoint.rstrip('/')}{path}", body=text, headers=headers)
        except HTTPError as error:
            raise CallFailed(f"{method} {path}", type(error).__name__, str(error)) from error
        return response.status, parse_response(response.data)

    return Api(send)


def connect_by_kubeconfig(context: str, *, file: str | None = None) -> Api:
    """Connect with a context of the kubeconfig `file`, by default `KUBECONFIG` or `~/.kube/config`.

    Raises `BadConfiguration` if the context doesn't exist or the official client isn't installed.
    """
    try:
        from kubernetes import client, config  # noqa: PLC0415 - takes seconds, and most callers don't need it
    except ImportError as error:
        raise BadConfiguration(f"a kubeconfig needs the package kubernetes: {error}") from error
    configuration = client.Configuration()
    configuration.retries = False
    try:
        made = config.new_client_from_config(config_file=file, context=context, client_configuration=configuration)
    except config.ConfigException as error:
        raise BadConfiguration(f"kubeconfig context {context}: {error}") from error

    def send(method: str, path: str, body: Json | None) -> tuple[int, Json]:
        try:
            answer, status, _ = made.call_api(
                path,
                method,
                header_params={"Accept": MEDIA_TYPE, "Content-Type": MEDIA_TYPE},
                body=body,
                response_type="object",
                auth_settings=["BearerToken"],
                _request_timeout=(CONNECT_S, READ_S),
            )
        except client.ApiException as error:
            if not error.status:  # A failed TLS handshake has no HTTP status.
                raise CallFailed(f"{method} {path}", type(error).__name__, str(error.reason)) from error
            return error.status, parse_response(error.body or "")
        except HTTPError as error:
            raise CallFailed(f"{method} {path}", type(error).__name__, str(error)) from error
        return status, answer if isinstance(answer, dict) else {}

    return Api(send)
