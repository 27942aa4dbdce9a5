"""Rendezvous: clients' offers, volunteers' polls, and the matching between them.

Pure: `decoding`, `descriptions`, `bridges`, `offers`, `polls`, `matching`. Shell, which does what they decide:
`broker` (offers), `proxy` (polls and answers), `timeouts`, `sweeper`; `ports` is what the shell asks of AWS.
"""
