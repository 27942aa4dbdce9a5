"""Reads the data of each page of the console, with the same functions as the command line's `--json`."""
