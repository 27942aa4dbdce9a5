"""The Lambda functions: a folder each, with its handler and what puts it together."""
