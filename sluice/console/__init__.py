"""The console: a live web page about sites, served on loopback with the caller's own credentials.

It uses the command line's functions: pages show the data of the commands' `--json`, and actions do what commands do.
"""
