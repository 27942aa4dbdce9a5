"""Federation: messages published at one site reach queues bound at others; nothing is lost, and nothing loops.

Pure rooms: `matching` (exchanges, bindings, which messages they match, loops), `messages` (what one carries, what is
sent where of it), `links` (links and bridges, how they live), `dynamic` (routes that follow what is wanted), `map`
(what operators see). Shells: `router` (an exchange's messages), `forwarder` (a bridge's), `registrar` and
`dynamic_shell` (links and routes), `administration` (performs what is asked); `ports` is what they ask of AWS.
"""
