"""Splitting: several sessions share one queue's messages, each by its own filter, and no message is lost.

Pure packages: `filters` (parsing and evaluating filters), `routing` (recipients of a message, and their copies),
`sessions` (states of sessions and their queues), and the module `operations` (requests to the control function).
Shells: `splitter` (messages, and misbehaving sessions), `control` (sessions), `operation_handler` (control's
operations), and `jq_runner` (jq programs, in a child process). Splitter and control each cache the registry, and get
their adapters as arguments.
"""
