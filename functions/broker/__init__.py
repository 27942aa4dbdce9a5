"""The broker function, which matches clients' offers with proxies."""
