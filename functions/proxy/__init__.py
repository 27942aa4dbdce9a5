"""The proxy function, which serves HTTP requests of proxies."""
