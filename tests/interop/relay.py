"""What our proxy serves a real client with: the relay that the broker named."""

import asyncio
from dataclasses import dataclass

import aiohttp

from sluice.peers.channels import Channel

CONNECT_TIMEOUT_S = 10.0
MESSAGE_BYTES = 1024 * 1024


@dataclass(frozen=True, slots=True)
class Relay:
    """Passes bytes to the relay over a WebSocket and back, in binary messages whose boundaries have no meaning."""

    session: aiohttp.ClientSession

    async def __call__(self, channel: Channel, relay_url: str) -> None:
        """Pass bytes until either end closes. Raises ConnectionError or `aiohttp.ClientError` if one breaks."""
        async with asyncio.timeout(CONNECT_TIMEOUT_S):
            socket = await self.session.ws_connect(relay_url, max_msg_size=MESSAGE_BYTES)

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
