"""Federation: messages published at one site reach queues bound at others; nothing is lost, and nothing loops.

Pure rooms: `matching` (exchanges, bindings, which messages they match, what one carries), `links` (links and bridges,
how they live), `dynamic` (routes that follow what is wanted), `map` (what operators see). Shells: `router` (an
exchange's messages), `forwarder` (a bridge's), `link_service` (links), `bridge_provisioner` (what bridges need),
`dynamic_service` (dynamic routes), `operation_handler` (applies `operations`).
"""
