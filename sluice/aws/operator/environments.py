"""What of an environment leads AWS programs: names alone, so that who only starts a program needn't wait for boto3."""

import re
from collections.abc import Mapping

# What says whom a program acts as, or where; how it retries and which certificates it trusts isn't among it.
# https://docs.aws.amazon.com/sdkref/latest/guide/settings-reference.html
KEY = re.compile("AWS_(ACCESS_KEY_ID|SECRET_ACCESS_KEY|(SESSION|SECURITY)_TOKEN)")
SERVICES_ENDPOINT = re.compile("AWS_(ENDPOINT_URL_.*|IGNORE_CONFIGURED_ENDPOINT_URLS)")
LEADING = re.compile(
    rf"{KEY.pattern}|{SERVICES_ENDPOINT.pattern}|AWS_(ENDPOINT_URL|(DEFAULT_)?(PROFILE|REGION)|CONFIG_FILE|SHARED_CREDENTIALS_FILE|CREDENTIAL_EXPIRATION"
    r"|ACCOUNT_ID|ROLE_(ARN|SESSION_NAME)|WEB_IDENTITY_TOKEN_FILE|CONTAINER_.*|EC2_METADATA_.*|SDK_LOAD_CONFIG)"
)


def undirected(environment: Mapping[str, str]) -> dict[str, str]:
    """Give what of an environment says neither whom a program acts as, nor where."""
    return {name: value for name, value in environment.items() if not LEADING.fullmatch(name)}
