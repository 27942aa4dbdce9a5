"""Parses, checks and indexes sessions' filters, and evaluates filters on messages. Pure: jq programs run elsewhere."""
