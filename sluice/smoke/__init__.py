"""`make smoke`: the checks that only AWS can answer, on two throw-away stages; a module a capability.

`runs` says what happens in which order and is told all else; `sites` deploys, and takes everything away again.
"""
