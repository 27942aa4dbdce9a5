"""Services of a volunteer: echo a client's bytes, or pass them to the relay that the broker named."""

import asyncio
from dataclasses import KW_ONLY, dataclass
from typing import Protocol
from urllib.parse import urlsplit

import aiohttp

from sluice.peers.channels import Channel
from sluice.rendezvous.protocol.addresses import parse_address
from sluice.rendezvous.protocol.messages import RelayPattern

RELAY_CONNECT_TIMEOUT_S = 10.0
RELAY_MESSAGE_BYTES = 1024 * 1024


class Service(Protocol):
    """The service that a volunteer offers to a client."""

    @property
    def relay_pattern(self) -> str:
        """The accepted relays in Snowflake's notation: the poll's AcceptedRelayPattern."""

    def refusal(self, relay_url: str) -> str | None:
        """Return the reason to refuse a client with this relay, or None."""

    async def serve(self, channel: Channel, relay_url: str) -> None:
        """Serve until either end closes. Raises ConnectionError or `aiohttp.ClientError` if a connection breaks."""


class Echo:
    """Echoes all bytes to the client. It uses no relay, so it accepts any relay."""

    relay_pattern = "$"

    def refusal(self, relay_url: str) -> str | None:  # noqa: ARG002 - a parameter of `Service`
        """Return None, because the relay isn't used."""
        return None

    async def serve(self, channel: Channel, relay_url: str) -> None:  # noqa: ARG002 - a parameter of `Service`
        """Echo bytes until the client closes. Raises ConnectionError if the channel breaks."""
        while data := await channel.receive():
            await channel.send(data)


@dataclass(frozen=True, slots=True)
class Relay:
    """Passes bytes to the relay over a WebSocket and back, in binary messages whose boundaries have no meaning.

    `allow_plain` permits unencrypted `ws://` relays, `allow_private` relays with private and loopback addresses.
    """

    session: aiohttp.ClientSession
    _: KW_ONLY
    relay_pattern: str = "snowflake.torproject.net$"
    allow_plain: bool = False
    allow_private: bool = False

    def refusal(self, relay_url: str) -> str | None:
        """Return the first condition that the relay doesn't meet; None if it meets all."""
        try:
            parts = urlsplit(relay_url)
            host = parts.hostname or ""
        except ValueError as error:
            return f"relay address: {error}"
        if parts.scheme not in {"ws", "wss"}:
            return "the relay is not a WebSocket"
        if parts.scheme != "wss" and not self.allow_plain:
            return "the relay is not encrypted"
        address = parse_address(host)  # None for a host name, which isn't resolved, as in Snowflake
        if not self.allow_private and address is not None and not address.is_global:
            return "the relay's address is private"
        if not host or not RelayPattern.parse(self.relay_pattern).matches(host):
            return f"the relay's host doesn't match {self.relay_pattern}"
        return None

    async def serve(self, channel: Channel, relay_url: str) -> None:
        """Pass bytes until either end closes. Raises ConnectionError or `aiohttp.ClientError` if one breaks."""
        # Snowflake's proxy also passes the client's address to the relay, in `?client_ip=`, for counts by country.
        async with asyncio.timeout(RELAY_CONNECT_TIMEOUT_S):
            socket = await self.session.ws_connect(relay_url, max_msg_size=RELAY_MESSAGE_BYTES)

        async def to_relay() -> None:
            while data := await channel.receive():
                await socket.send_bytes(data)

        async def to_client() -> None:
            async for message in socket:
                if message.type is aiohttp.WSMsgType.BINARY:
                    await channel.send(message.data)

        async with socket:
            directions = [asyncio.create_task(to_relay()), asyncio.create_task(to_client())]
            try:
                done, _ = await asyncio.wait(directions, return_when=asyncio.FIRST_COMPLETED)
                for direction in done:
                    direction.result()
            finally:
                for direction in directions:
                    direction.cancel()
                await asyncio.gather(*directions, return_exceptions=True)
