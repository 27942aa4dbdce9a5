"""The links function, which manages exchanges, bindings, links and routes."""
