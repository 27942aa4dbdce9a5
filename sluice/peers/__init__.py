"""A client and a proxy with real WebRTC. The command line, the demo and tests use this package; functions don't.

`client` sends an offer by one of the `methods`; `volunteer` answers offers, and echoes the clients' bytes. Only
`channels` uses aiortc.
"""
