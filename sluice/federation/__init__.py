"""Federation: messages published at one site reach queues bound at others; nothing is lost, and nothing loops.

All modules here are pure. What matches: `topics`, `headers`, over `typed_values`. What is declared: `exchanges`,
`bindings`, `links`. Where a message goes: `routing` (a compiled snapshot), `tracing` (loops and limits), `metadata`
(what a message carries from site to site), `ulids` (its id), `deliveries` (all of that for one message). How links
live: `link_states`. What the operator sees: `topology`, `drawings`.
"""
