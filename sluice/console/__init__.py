"""The console: a live web page about sites, served on loopback with the caller's own credentials.

Pages show the same data as the command line with `--json`, and buttons do the same as commands.
"""
