"""The client and the proxy of a rendezvous, in real WebRTC: for the command line, the demo and tests, not functions.

`client` sends an offer by one of the `methods`; `volunteer` answers it and passes the bytes to one of the `services`.
Only `channels` uses aiortc.
"""
