"""A Snowflake client and a proxy with real WebRTC, for the command line, the demo and tests; no function uses them.

`client` sends an offer by one of the `methods`; `volunteer` answers offers, and echoes the clients' bytes. Only
`channels` uses aiortc.
"""
