"""Rendezvous: clients' offers, volunteers' polls, and the matching between them.

Pure rooms: `protocol` (offers, polls and answers, and who fits whom), `counts` (events, and what is counted of them).
Shells: `broker` and `http_clients` (offers), `volunteers` (polls and answers), `matchmaker` between them, `pacing`,
`sweeper`, `counting`, `backlog`; `ports` is what they ask of AWS.
"""
