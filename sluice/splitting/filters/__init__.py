"""Filters of sessions: parsed, checked, indexed and evaluated on a message. Pure: jq programs run elsewhere."""
