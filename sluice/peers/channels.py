"""WebRTC: session descriptions out and in, a data channel as a stream of bytes. The only place with aiortc."""

import asyncio
import contextlib
import json
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
from sluice.rendezvous.protocol.messages import description_fault

LOOPBACK = "127.0.0.1"
OF_LOOPBACK = "127."  # all of 127.0.0.0/8 is this machine, on Linux
SEND_CHUNK_BYTES = 16 * 1024  # what every WebRTC implementation takes as one message
SEND_BUFFER_BYTES = 256 * 1024  # beyond it `send` waits; Snowflake's proxy uses the same
CLOSE_TIMEOUT_S = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Network:
    """Which addresses a peer offers. No STUN server is asked unless named here: aiortc's own default is Google's.

    `loopback` offers `loopback_address` and uses nothing else, whatever the machine and the other end have.
    """

    loopback: bool = False
    loopback_address: str = LOOPBACK
    stun_urls: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ChannelLimits:
    """What the other end may send: larger messages and more unread bytes close the channel."""

    message_bytes: int = 256 * 1024
    unread_bytes: int = 8 * 1024 * 1024


class Channel:
    """One data channel as a stream of bytes: message boundaries mean nothing, as in Snowflake.

    `fault` says what the other end did where we closed it for that.
    """

    def __init__(self, connection: RTCPeerConnection, channel: RTCDataChannel, limits: ChannelLimits) -> None:
        """Make it in the same step of the loop as `channel`, or its first message may be missed."""
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
        # A peer that vanishes closes no channel: ICE's consent checks fail, and only the connection says so.
        connection.on("connectionstatechange", self._on_connection_state)

    async def opened(self) -> bool:
        """Wait until the channel is open; False where it closes instead. Has no time limit of its own."""
        while not self._closed and self._channel.readyState == "connecting":
            await self._change()
        return not self._closed and self._channel.readyState == "open"

    async def send(self, data: bytes) -> None:
        """Send it all, waiting while the other end is slow. Raises ConnectionResetError on a closed channel."""
        for start in range(0, len(data), SEND_CHUNK_BYTES):
            while self._is_open() and self._channel.bufferedAmount > SEND_BUFFER_BYTES:
                await self._change()
            if not self._is_open():
                raise ConnectionResetError(self.fault or "the data channel is closed")
            self._channel.send(data[start : start + SEND_CHUNK_BYTES])

    async def receive(self) -> bytes:
        """Wait for the bytes that come next, at least one; none once the channel is closed and everything is read."""
        while not self._unread:
            if self._closed:
                return b""
            await self._change()
        data = self._unread.popleft()
        self._unread_bytes -= len(data)
        return data

    async def receive_exactly(self, number: int) -> bytes:
        """Wait for the next `number` bytes, or fewer where the channel closes before. What is beyond stays unread."""
        data = bytearray()
        while len(data) < number and (more := await self.receive()):
            data += more
        if len(data) > number:
            self._unread.appendleft(bytes(data[number:]))
            self._unread_bytes += len(data) - number
        return bytes(data[:number])

    def _is_open(self) -> bool:
        return not self._closed and self._channel.readyState == "open"

    async def _change(self) -> None:
        self._changed.clear()
        await self._changed.wait()

    def _on_message(self, message: bytes | str) -> None:
        data = message.encode() if isinstance(message, str) else message
        if self._closed:
            return
        if len(data) > self._limits.message_bytes:
            self.fault = f"a message of more than {self._limits.message_bytes} bytes"
        elif self._unread_bytes + len(data) > self._limits.unread_bytes:
            # aiortc has no way to slow the other end down.
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
    """One end of one WebRTC connection. As a context it closes the connection, and so its channel, at the end."""

    def __init__(self, network: Network, limits: ChannelLimits) -> None:
        """Make an end; nothing is sent until a description is made."""
        servers = [RTCIceServer(urls=list(network.stun_urls))] if network.stun_urls else []
        self._connection = RTCPeerConnection(RTCConfiguration(iceServers=servers))
        self._network = network
        self._limits = limits

    def open_channel(self) -> Channel:
        """Make our end of a new ordered channel, which the offer made next will tell of."""
        return Channel(self._connection, self._connection.createDataChannel("snowflake", ordered=True), self._limits)

    def first_channel(self) -> asyncio.Future[Channel]:
        """Await our end of the first channel that the other end opens. To be asked for before the answer is made."""
        first: asyncio.Future[Channel] = asyncio.get_running_loop().create_future()

        def on_channel(channel: RTCDataChannel) -> None:
            if not first.done():
                first.set_result(Channel(self._connection, channel, self._limits))

        self._connection.on("datachannel", on_channel)
        return first

    async def offer(self) -> str:
        """Make the offer with all its candidates, as the JSON text of `{type, sdp}`. A channel must be open."""
        return await self._describe(await self._connection.createOffer())

    async def answer(self, offer: str) -> str:
        """Make the answer to an offer, with all its candidates. Raises `Malformed` for one that can't be answered."""
        await self._set_remote(offer, kind="offer")
        return await self._describe(await self._connection.createAnswer())

    async def accept(self, answer: str) -> None:
        """Take the answer to our offer, and connect. Raises `Malformed` for one that doesn't fit the offer."""
        await self._set_remote(answer, kind="answer")

    async def close(self) -> None:
        """Close the connection, or abandon it after `CLOSE_TIMEOUT_S`; again does nothing."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(CLOSE_TIMEOUT_S):
                await self._connection.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def _describe(self, description: RTCSessionDescription) -> str:
        if self._network.loopback:
            _gather_on_loopback(self._connection, self._network.loopback_address)
        await self._connection.setLocalDescription(description)
        local = self._connection.localDescription
        return json.dumps({"type": local.type, "sdp": local.sdp})

    async def _set_remote(self, text: str, *, kind: str) -> None:
        fault = description_fault(text)
        if fault is not None:
            raise Malformed(fault)
        description = read_json(text)
        if description["type"] != kind:
            raise Malformed(f"an SDP {description['type']} where an {kind} belongs")
        sdp = description["sdp"]
        # m=<media> <port> <protocol> …
        media = [line.removeprefix("m=").split(" ")[0] for line in sdp.splitlines() if line.startswith("m=")]
        if media != ["application"]:
            # Sound and pictures would get transports of their own, which nobody here looks after.
            raise Malformed(f"SDP {kind}: not one data channel and nothing else")
        if self._network.loopback:
            # Without the candidates that are elsewhere: a socket on the loopback can't reach them.
            sdp = "".join(line for line in sdp.splitlines(keepends=True) if not _is_elsewhere(line))
        try:
            await self._connection.setRemoteDescription(RTCSessionDescription(sdp=sdp, type=kind))
        except Exception as error:  # its parser lets out whatever a hostile SDP provokes: IndexError, AttributeError, …
            raise Malformed(f"SDP {kind}: {type(error).__name__}: {error}") from error


def _gather_on_loopback(connection: RTCPeerConnection, address: str) -> None:
    """Has the connection's one ICE agent gather on one address of the loopback alone.

    aioice leaves 127.0.0.1 out of its host candidates and has no setting for it. Replacing the method on this agent
    touches no other connection; replacing aioice's `get_host_addresses` would change every one in the process.
    """
    channels: Any = connection.sctp  # both descriptions are of one data channel, so it is there
    agent = channels.transport.transport.iceGatherer._connection  # noqa: SLF001 - aiortc has no public way to it
    gather = agent.get_component_candidates

    async def gather_on_loopback(component: int, addresses: list[str]) -> Any:  # noqa: ARG001 - aioice calls it so
        return await gather(component=component, addresses=[address])

    agent.get_component_candidates = gather_on_loopback


def _is_elsewhere(line: str) -> bool:
    # a=candidate:<foundation> <component> <transport> <priority> <address> <port> …
    return line.startswith("a=candidate:") and not "".join(line.split()[4:5]).startswith(OF_LOOPBACK)
