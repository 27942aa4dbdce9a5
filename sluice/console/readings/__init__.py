"""Builds the documents of the pages, with the functions behind the commands' `--json`."""
