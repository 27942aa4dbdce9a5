"""Splitting: several sessions share one queue's traffic, each by its own filter, and nothing is lost.

Pure rooms: `filters` (what a message means to a session's filter), `routing` (who gets it, and what the copies keep),
`sessions` (what becomes of sessions and their queues), and `operations`: what the control function may be asked.
Shells: `splitter` (messages, and how their sessions behaved), `control` (sessions, with `performer` for what is asked),
each with the registry as it knows it; `jq_runner` (jq programs, in a process of their own). They are given their
adapters.
"""
