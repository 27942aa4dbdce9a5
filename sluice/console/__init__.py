"""The console: one live page about sites, served on loopback with the caller's own credentials.

It stands on the command line's readings and actions: what a page shows is what a command's `--json` says, and what it
does is what a command does.
"""
