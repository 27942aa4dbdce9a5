"""Snowflake's protocol: offers, polls, answers and who fits whom. Pure."""
