"""Reads deployed sites and invokes their functions, for the command line, the console and the demo."""
