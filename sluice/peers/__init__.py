"""A client and a proxy with real WebRTC. The command line, the demo and tests use this package; functions don't.

`client` sends an offer by one of the `methods`; `volunteer` answers offers and passes the clients' bytes to one of the
`services`. Only `channels` uses aiortc.
"""
