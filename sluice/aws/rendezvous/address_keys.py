"""Keeps the daily key that hashes addresses in DynamoDB: random, shared by a site's functions, deleted after two days.

pk             sk       item
address keys   <day>    key
"""

import secrets
from collections.abc import Callable
from dataclasses import dataclass

from aws_lambda_powertools.logging import Logger

from sluice.aws.client_types import DynamoDBClient
from sluice.aws.items import attributes, write_if
from sluice.errors import CallFailed
from sluice.rendezvous.protocol.addresses import KEY_BYTES, hash_address, parse_address
from sluice.times import DAY_MS, NowMs, format_day, parse_day_ms

PARTITION = "address keys"
KEPT_MS = 2 * DAY_MS  # A key is deleted two days after the beginning of its day.

logger = Logger()


@dataclass(slots=True)
class AddressHasher:
    """Hashes addresses with the day's key. The first environment that needs a key stores it; all others read it."""

    client: DynamoDBClient
    table: str
    now_ms: NowMs
    random_bytes: Callable[[int], bytes] = secrets.token_bytes
    _day: str = ""
    _key: bytes = b""

    def get_key(self, day: str) -> bytes:
        """Return the key of a UTC day, and create it if the table has none. Raises `CallFailed`."""
        if day == self._day:
            return self._key
        key = self.random_bytes(KEY_BYTES)
        expires_at = (parse_day_ms(day) + KEPT_MS) // 1000
        item = attributes({"pk": PARTITION, "sk": day, "expires_at": expires_at})
        earlier = write_if(self.client, self.table, {**item, "key": {"B": key}}, "attribute_not_exists(pk)")
        if earlier is not None:
            key = bytes(earlier["key"]["B"])
        self._day, self._key = day, key
        return key

    def hash_address(self, address: str) -> str | None:
        """Hash an address. Returns None if the address is invalid or the day's key can't be read."""
        if parse_address(address) is None:
            return None
        try:
            return hash_address(address, self.get_key(format_day(self.now_ms())))
        except CallFailed as error:
            logger.warning("AddressKeyNotRead", reason=str(error))
            return None
