"""WebRTC: session descriptions, and data channels as streams of bytes. Only this module uses aiortc."""

import asyncio
import contextlib
import json
import re
from collections import deque
from dataclasses import dataclass
from typing import Any, Self

from aiortc import (
    RTCConfiguration,
    RTCDataChannel,
    RTCIceServer,
    RTCPeerConnection,
    RTCSessionDescription,
)

from sluice.documents import read_json
from sluice.errors import Malformed
from sluice.rendezvous.protocol.messages import read_sdp

LOOPBACK = "127.0.0.1"
# Matches all lines of an SDP except candidates outside the loopback network, which is 127.0.0.0/8 on Linux. Candidates
# have the form a=candidate:<foundation> <component> <transport> <priority> <address> <port> …
OF_LOOPBACK = re.compile(r"(?!a=candidate:)|\S+ \S+ \S+ \S+ 127\.")
SEND_CHUNK_BYTES = 16 * 1024  # Every WebRTC implementation accepts messages of this size.
SEND_BUFFER_BYTES = 256 * 1024  # `send` waits while more bytes are buffered, as in Snowflake's proxy.
CLOSE_TIMEOUT_S = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Network:
    """The addresses that a peer offers. With `loopback`, the peer offers and uses only `loopback_address`.

    Only STUN servers that are listed here are used, not aiortc's default server, which is Google's.
    """

    loopback: bool = False
    loopback_address: str = LOOPBACK
    stun_urls: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ChannelLimits:
    """Limits on what the other peer sends: a larger message, or more unread bytes, closes the channel."""

    message_bytes: int = 256 * 1024
    unread_bytes: int = 8 * 1024 * 1024


class Channel:
    """A data channel as a stream of bytes: the boundaries between messages are ignored, as in Snowflake.

    `fault` is the limit that the other peer exceeded, if this peer closed the channel for that reason.
    """

    def __init__(self, connection: RTCPeerConnection, channel: RTCDataChannel, limits: ChannelLimits) -> None:
        """Listen to `channel`, which must be new: messages that arrive before this call are lost."""
        self.fault: str | None = None
        self._connection = connection
        self._channel = channel
        self._limits = limits
        self._unread: deque[bytes] = deque()
        self._unread_bytes = 0
        self._closed = False
        self._changed = asyncio.Event()
        channel.bufferedAmountLowThreshold = SEND_BUFFER_BYTES // 2
        channel.on("message", self._on_message)
        channel.on("close", self._on_close)
        for event in ("open", "bufferedamountlow"):
            channel.on(event, self._changed.set)
        # A peer that vanishes doesn't close its channel; its connection fails because of missing consent checks.
        connection.on("connectionstatechange", self._on_connection_state)

    async def wait_until_open(self) -> bool:
        """Wait until the channel is open. Returns False if the channel closes instead. Has no time limit."""
        while not self._closed and self._channel.readyState == "connecting":
            await self._wait_for_change()
        return self._is_open()

    async def send(self, data: bytes) -> None:
        """Send all of `data`, waiting while the other peer is slow. Raises ConnectionResetError on a closed channel."""
        for start in range(0, len(data), SEND_CHUNK_BYTES):
            while self._is_open() and self._channel.bufferedAmount > SEND_BUFFER_BYTES:
                await self._wait_for_change()
            if not self._is_open():
                raise ConnectionResetError(self.fault or "the data channel is closed")
            self._channel.send(data[start : start + SEND_CHUNK_BYTES])

    async def receive(self) -> bytes:
        """Wait for bytes, and return them. Returns b"" only if the channel is closed and all bytes were returned."""
        while not self._unread:
            if self._closed:
                return b""
            await self._wait_for_change()
        data = self._unread.popleft()
        self._unread_bytes -= len(data)
        return data

    async def receive_exactly(self, byte_count: int) -> bytes:
        """Wait for `byte_count` bytes, or for fewer if the channel closes first. Any further bytes stay unread."""
        data = bytearray()
        while len(data) < byte_count and (more := await self.receive()):
            data += more
        if len(data) > byte_count:
            self._unread.appendleft(bytes(data[byte_count:]))
            self._unread_bytes += len(data) - byte_count
        return bytes(data[:byte_count])

    def _is_open(self) -> bool:
        return not self._closed and self._channel.readyState == "open"

    async def _wait_for_change(self) -> None:
        self._changed.clear()
        await self._changed.wait()

    def _on_message(self, message: bytes | str) -> None:
        data = message.encode() if isinstance(message, str) else message
        if self._closed:
            return
        if len(data) > self._limits.message_bytes:
            self.fault = f"a message of more than {self._limits.message_bytes} bytes"
        elif self._unread_bytes + len(data) > self._limits.unread_bytes:
            # The channel is closed because aiortc can't slow the other peer down.
            self.fault = f"more than {self._limits.unread_bytes} unread bytes"
        if self.fault is not None:
            self._channel.close()
            self._on_close()
        elif data:
            self._unread.append(data)
            self._unread_bytes += len(data)
            self._changed.set()

    def _on_close(self) -> None:
        self._closed = True
        self._changed.set()

    def _on_connection_state(self) -> None:
        if self._connection.connectionState in {"failed", "closed"}:
            self._on_close()


class Peer:
    """One peer of a WebRTC connection. As a context manager it closes the connection on exit."""

    def __init__(self, network: Network, limits: ChannelLimits) -> None:
        """Create the connection. Nothing is sent before `create_offer` or `create_answer` is called."""
        servers = [RTCIceServer(urls=list(network.stun_urls))] if network.stun_urls else []
        self._connection = RTCPeerConnection(RTCConfiguration(iceServers=servers))
        self._network = network
        self._limits = limits

    def open_channel(self) -> Channel:
        """Create an ordered channel, which the next offer will include."""
        return Channel(self._connection, self._connection.createDataChannel("snowflake", ordered=True), self._limits)

    def first_channel(self) -> asyncio.Future[Channel]:
        """Return a future of the first channel that the other peer opens. Call this method before `create_answer`."""
        first: asyncio.Future[Channel] = asyncio.get_running_loop().create_future()

        def resolve_channel(channel: RTCDataChannel) -> None:
            if not first.done():
                first.set_result(Channel(self._connection, channel, self._limits))

        self._connection.on("datachannel", resolve_channel)
        return first

    async def create_offer(self) -> str:
        """Create the offer with all its candidates, as the JSON text of `{type, sdp}`. Call `open_channel` first."""
        return await self._set_local_description(await self._connection.createOffer())

    async def create_answer(self, offer: str) -> str:
        """Create the answer to an offer, with all its candidates. Raises `Malformed` for an unusable offer."""
        await self._set_remote_description(offer, kind="offer")
        return await self._set_local_description(await self._connection.createAnswer())

    async def accept_answer(self, answer: str) -> None:
        """Accept the answer to this peer's offer, and connect. Raises `Malformed` if it doesn't fit the offer."""
        await self._set_remote_description(answer, kind="answer")

    async def close(self) -> None:
        """Close the connection, waiting at most `CLOSE_TIMEOUT_S`. May be called again."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(CLOSE_TIMEOUT_S):
                await self._connection.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def _set_local_description(self, description: RTCSessionDescription) -> str:
        if self._network.loopback:
            _gather_on_loopback(self._connection, self._network.loopback_address)
        await self._connection.setLocalDescription(description)
        local = self._connection.localDescription
        return json.dumps({"type": local.type, "sdp": local.sdp})

    async def _set_remote_description(self, text: str, *, kind: str) -> None:
        sdp, description = read_sdp(text), read_json(text)
        if description["type"] != kind:
            raise Malformed(f"SDP {kind}: the type is {description['type']}")
        # A media line of an SDP has the form m=<media> <port> <protocol> …
        media = [line.removeprefix("m=").split(" ")[0] for line in sdp.splitlines() if line.startswith("m=")]
        if media != ["application"]:
            # Audio and video are refused because each would open a transport that this class doesn't close.
            raise Malformed(f"SDP {kind}: not one data channel and nothing else")
        if self._network.loopback:
            # Other candidates are removed because a socket on the loopback address can't reach them.
            sdp = "".join(line for line in sdp.splitlines(keepends=True) if OF_LOOPBACK.match(line))
        try:
            await self._connection.setRemoteDescription(RTCSessionDescription(sdp=sdp, type=kind))
        except Exception as error:  # A hostile SDP can raise any error in the parser.
            raise Malformed(f"SDP {kind}: {type(error).__name__}: {error}") from error


def _gather_on_loopback(connection: RTCPeerConnection, address: str) -> None:
    """Make the ICE agent of the connection gather candidates only on one loopback address.

    aioice excludes 127.0.0.1 from its candidates and has no setting to include it. Replacing this agent's method
    doesn't affect other connections; replacing aioice's function `get_host_addresses` would.
    """
    channels: Any = connection.sctp  # `sctp` is set, because both descriptions have a data channel.
    agent = channels.transport.transport.iceGatherer._connection  # noqa: SLF001 - aiortc doesn't publish its ICE agent
    gather = agent.get_component_candidates

    async def gather_on_loopback(component: int, addresses: list[str]) -> Any:  # noqa: ARG001 - aioice calls it so
        return await gather(component=component, addresses=[address])

    agent.get_component_candidates = gather_on_loopback
