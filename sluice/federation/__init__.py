"""Federation: messages published at one site reach queues bound at others; nothing is lost, and nothing loops.

Pure rooms: `matching` (exchanges, bindings, which messages they match, what a message carries), `links` (links and
bridges, and their states), `dynamic` (routes that follow bindings), `map` (what operators see). Shells: `router` (an
exchange's messages), `forwarder` (a bridge's messages), `registrar` (links), `bridge_works` (resources of bridges),
`dynamic_service` (dynamic routes), `administration` (applies `operations`).
"""
