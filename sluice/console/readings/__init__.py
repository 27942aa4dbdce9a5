"""Builds the documents that the pages show, with the functions behind the commands' `--json`."""
