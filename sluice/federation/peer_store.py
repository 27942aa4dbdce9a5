"""A site's peers, changed one at a time by whoever wins. Apart from the links, which change with each heartbeat."""

from collections.abc import Callable, Mapping

import msgspec

from sluice.codec import Format
from sluice.federation.exchange_store import TooBusy
from sluice.federation.links.peers import Peer
from sluice.federation.ports import Document

MAX_RACES = 50

ByTag = Mapping[str, Peer]
PEERS = Format(kind="peers", version=1, type=dict[str, Peer])


def peers_in(content: bytes | None) -> ByTag:
    """Read what the document holds. Raises `BadSnapshot`."""
    return {} if content is None else PEERS.unpack(content)


class PeerStore(msgspec.Struct, frozen=True):
    """The peers in their document."""

    document: Document

    def peers(self) -> ByTag:
        """Read the peers as they stand, by tag. Raises `BadSnapshot`."""
        return peers_in(self.document.load()[0])

    def change(self, change: Callable[[ByTag], ByTag]) -> ByTag:
        """Change the peers, and return them; nothing is written where nothing changes. Raises `TooBusy`."""
        for _ in range(MAX_RACES):
            content, version = self.document.load()
            before = peers_in(content)
            after = change(before)
            if after == before or self.document.save(PEERS.pack(dict(after)), after=version):
                return after
        raise TooBusy(f"lost {MAX_RACES} races to write the peers")
