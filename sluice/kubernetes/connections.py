"""Connections to API servers: by address, certificate and token, or as an operator's kubeconfig says.

The first needs nothing but urllib3, which Lambda's runtime has. The official client takes two seconds of a processor to
import, of which a function of 256 MB has a seventh, and 20 MB of its bundle: it is asked for a kubeconfig alone, whose
ways to sign in it knows.
"""

import json
import ssl
from collections.abc import Callable

import urllib3
from urllib3.exceptions import HTTPError

from sluice.errors import BadConfiguration, CallFailed
from sluice.kubernetes.api import CONNECT_S, READ_S, Api, read_answer
from sluice.splitting.consumers.workloads import Json

MEDIA_TYPE = "application/json"


def connected(endpoint: str, authority: str, token: Callable[[], str]) -> Api:
    """Connect to the API server at `endpoint`, a URL, whose certificate `authority`, in PEM, has signed.

    `token` is asked anew for each request.
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
        return response.status, read_answer(response.data)

    return Api(send)


def of_kubeconfig(context: str, *, file: str | None = None) -> Api:
    """Connect as a context of a kubeconfig says: of `file`, else of `KUBECONFIG`, else of `~/.kube/config`.

    Raises `BadConfiguration` where there is no such context, or the official client isn't installed.
    """
    try:
        from kubernetes import client, config  # noqa: PLC0415 - seconds, for those alone who ask for it
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
            if not error.status:  # the client's own, where TLS failed
                raise CallFailed(f"{method} {path}", type(error).__name__, str(error.reason)) from error
            return error.status, read_answer(error.body or "")
        except HTTPError as error:
            raise CallFailed(f"{method} {path}", type(error).__name__, str(error)) from error
        return status, answer if isinstance(answer, dict) else {}

    return Api(send)
