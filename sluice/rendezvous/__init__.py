"""Rendezvous: clients' offers, volunteers' polls, and the matching between them.

Pure rooms: `protocol` (offers, polls and answers, and who fits whom), `counts` (events, and what is counted of them).
Shells: `broker` (offers), `volunteers` (polls and answers), `http` before both, `pacing`, `sweeper`, `counting`.
"""
