"""Exchanges, bindings, message metadata, and how bindings match messages. Pure."""
