"""The command line: commands of a few lines over functions."""
