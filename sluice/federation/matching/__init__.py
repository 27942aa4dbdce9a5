"""Exchanges, bindings and which messages they match. Pure."""
