"""Patches of access control. Without these patches ministack serves every program and page that reaches its port."""

from collections.abc import Callable, Mapping
from http import HTTPStatus
from typing import Any

import ministack.app
import ministack.core.iam_evaluator
import ministack.core.lambda_runtime
import ministack.core.responses
import ministack.services.lambda_svc
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from sluice.local.origins import check_origin

FUNCTION_URLS = "/_aws/lambda-url/"
# Prefix of the URL for a custom resource's response, which only its function knows, like AWS's presigned URL.
# https://docs.aws.amazon.com/AWSCloudFormation/latest/UserGuide/crpg-ref-requesttypes-create.html
RESPONSES = "/_ministack/cfn-response/"
READY = "/_ministack/ready"
AUTH_TYPE = "lambda:FunctionUrlAuthType"


def patch(secret: str) -> None:
    """Apply all patches of this module, once. `secret` is also the `AWS_SECRET_ACCESS_KEY` of the server."""
    require_signatures()
    derive_function_keys_from_secret(secret)
    ministack.app.app = Guard(ministack.app.app)


def require_signatures() -> None:
    """Serve only requests with a valid signature, even of an account's root user, and requests to open function URLs.

    ministack accepts any signature of an account's root user, and serves its administration, CORS preflights and a few
    services without a signature. This patch applies ministack's check of other users' signatures to all requests.
    https://docs.aws.amazon.com/IAM/latest/UserGuide/reference_sigv.html
    """
    app, evaluator = ministack.app, ministack.core.iam_evaluator
    take_response = app._handle_post_body_shortcuts  # noqa: SLF001 - no public hook

    async def serve_readiness(method: str, path: str, headers: Any, query: Any, request_id: str) -> Any:  # noqa: ARG001 - ministack's own signature
        return app._handle_ready_request(path, request_id)  # noqa: SLF001 - see above

    def is_open_url(host: str, path: str) -> bool:
        url = app._parse_lambda_url(host, path)  # noqa: SLF001 - see above
        return url is not None and app._function_url_auth_target(url[0])[1].get(AUTH_TYPE) == "NONE"  # noqa: SLF001

    async def authenticate(method: str, path: str, headers: dict[str, str], body: bytes, *rest: Any) -> Any:
        query, request_id = rest
        if method == "PUT" and path.startswith(RESPONSES):
            return await take_response(method, path, headers, body, *rest)
        if is_open_url(headers.get("host", ""), path):
            return None
        signed = evaluator._signed_request.get()  # noqa: SLF001 - see above
        if signed is None:
            failure = evaluator.AuthError("MissingAuthenticationToken", "Request is missing Authentication Token")
        elif signed.s3_scoped:
            return app._get_module("s3")._verify_presigned_sigv4(method, path, headers, query)  # noqa: SLF001 - see above
        else:
            failure = evaluator.authenticate(signed.access_key_id, ministack.core.responses.get_account_id())
        if not isinstance(failure, evaluator.AuthError):
            return None
        routing = app._routing_params(method, path, headers, body, query)  # noqa: SLF001 - see above
        service = app.detect_service(method, path, headers, routing)
        return app._credential_failure(service, "", request_id, failure, headers)  # noqa: SLF001 - see above

    # ministack skips the signature check of a key if this function returns True.
    evaluator._is_root_key = lambda _: False  # noqa: SLF001 - see above
    app._handle_pre_body_request, app._handle_post_body_shortcuts = serve_readiness, authenticate  # noqa: SLF001


def derive_function_keys_from_secret(secret: str) -> None:
    """Derive functions' keys from the secret, too.

    ministack hashes the ARNs of function and role, so a program that knows these ARNs could sign as the function. The
    patch puts the secret into the path of the role's ARN, which ministack uses only for this hash.
    """
    runtime, functions = ministack.core.lambda_runtime, ministack.services.lambda_svc
    derive_credentials: Callable[[Mapping[str, Any]], dict[str, str]] = runtime.execution_credentials

    def derive_credentials_with_secret(function_config: Mapping[str, Any]) -> dict[str, str]:
        path, _, name = function_config.get("Role", "").rpartition("/")
        return derive_credentials({**function_config, "Role": f"{path}/{secret}/{name}"})

    runtime.execution_credentials = functions.execution_credentials = derive_credentials_with_secret


class Guard:
    """An ASGI app that refuses browsers' requests and requests to ministack's administration. Sends no CORS headers."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Refuse the request, or pass the request to ministack."""
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        if scope["type"] != "http":
            await send({"type": "websocket.close", "code": HTTPStatus.FORBIDDEN})
            return
        path: str = scope["path"]
        headers = {name.decode("latin-1").lower(): value.decode("latin-1") for name, value in scope["headers"]}
        refusal = check_origin(scope["method"], headers)
        if refusal is None and path.startswith("/_ministack/") and not path.startswith((RESPONSES, READY)):
            refusal = HTTPStatus.FORBIDDEN, "the emulator's administration is closed"
        if refusal is not None:
            await PlainTextResponse(f"{refusal[1]}\n", status_code=refusal[0])(scope, receive, send)
            return

        async def send_without_cors(message: Message) -> None:
            if message["type"] == "http.response.start" and not path.startswith(FUNCTION_URLS):
                kept = [head for head in message["headers"] if not head[0].lower().startswith(b"access-control-")]
                message = {**message, "headers": kept}
            await send(message)

        await self._app(scope, receive, send_without_cors)
