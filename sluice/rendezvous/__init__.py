"""Rendezvous: clients' offers, proxies' polls, and the matching between them.

Pure packages: `protocol` (offers, polls, answers and matching rules) and `counts` (events and statistics). Shells:
`broker` (offers over SQS), `volunteers` (polls and answers), `http` (routes of the HTTP interface), `pacing`,
`sweeper`.
"""
