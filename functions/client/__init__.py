"""The client function, which serves HTTP requests of clients."""
