"""Splitting: several sessions share one queue's traffic, each by its own filter, and nothing is lost.

Pure: what a message means to a filter: `dialect` (the pattern dialect's tokens), `literals` (what a pattern requires of
a text), `patterns`, `jq`, `envelopes`, `texts` (a message as filters see it), `filters`; who gets it: `sessions`,
`routing`, `index`; how it goes out: `copies`, `batches`; where to: `names`, `queues`, `lifecycle`.
"""
