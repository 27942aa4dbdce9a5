"""The two ends of a rendezvous, in real WebRTC: for the command line, the demo and the tests, never in a function.

`client` offers, over one of the `methods`; `volunteer` answers and gives the bytes to one of the `services`.
`channels` is WebRTC itself, and the only place with aiortc.
"""
