"""Snowflake's protocol: offers, polls, answers and matching rules. Pure."""
