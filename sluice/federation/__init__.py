"""Federation: messages published at one site reach queues bound at others; nothing is lost, and nothing loops.

Pure rooms: `matching` (exchanges, bindings, which messages they match, what one carries), `links` (links and bridges,
how they live), `dynamic` (routes that follow what is wanted), `map` (what operators see). Shells: `router` (an
exchange's messages), `forwarder` (a bridge's), `registrar` (links), `bridge_works` (what bridges need), `dynamic_shell`
(dynamic routes), `administration` (applies what is asked, which is `operations`).
"""
