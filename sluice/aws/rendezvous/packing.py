"""Session descriptions, packed: an offer that waits should be one write unit, which is a kilobyte.

They are of much the same words, so these are told to zlib beforehand. An item names no dictionary: whoever changes it
keeps this one for those that wait.
"""

import zlib

# As browsers, pion and aiortc write a description for one data channel; what is nearest to the end costs least.
_DICTIONARY = (
    rb" raddr 0.0.0.0 rport relay prflx tcptype active passive a=max-message-size:1073741823"
    rb" a=max-message-size:65536 2122260223 1686052607 2130706431 1694498815 network-id 1 network-cost 999"
    rb"\r\na=rtcp-mux\r\na=end-of-candidates\r\na=candidate:1 2 udp  typ srflx raddr  typ host generation 0"
    rb"\r\na=candidate:1 1 udp ABCDEF0123456789:"
    rb'{"type":"offer","sdp":"v=0\r\no=- IN IP4 127.0.0.1\r\ns=-\r\nt=0 0\r\na=group:BUNDLE 0'
    rb"\r\na=extmap-allow-mixed\r\na=msid-semantic:WMS *\r\nm=application 9 UDP/DTLS/SCTP webrtc-datachannel"
    rb"\r\nc=IN IP4 0.0.0.0\r\na=ice-ufrag:\r\na=ice-pwd:\r\na=ice-options:trickle\r\na=fingerprint:sha-256 "
    rb'\r\na=setup:actpass\r\na=mid:0\r\na=sendrecv\r\na=sctp-port:5000\r\na=max-message-size:262144\r\n"}'
)


def packed(description: str) -> bytes:
    """Pack a description."""
    packing = zlib.compressobj(zdict=_DICTIONARY)
    return packing.compress(description.encode()) + packing.flush()


def unpacked(data: bytes) -> str:
    """Unpack it. Raises ValueError for what was packed otherwise."""
    try:
        return zlib.decompressobj(zdict=_DICTIONARY).decompress(data).decode()
    except zlib.error as fault:
        raise ValueError(str(fault)) from None
