"""Federation: messages published at one site reach queues that are bound at other sites, without loss or loops.

Pure packages: `matching` (exchanges, bindings, message metadata), `links` (links, bridges and their states), `dynamic`
(routes that follow bindings), `map` (views of all sites), `topology` (files). Shells: `router` (sends to bound queues),
`forwarder` (sends to peers), `link_service` (links), `bridge_provisioner` (resources of bridges), `dynamic_service`
(dynamic routes), `operation_handler` (applies `operations`).
"""
