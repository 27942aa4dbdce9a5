"""Consumers that are re-pointed: what is configured, and how it is rewritten. What asks AWS isn't here."""
