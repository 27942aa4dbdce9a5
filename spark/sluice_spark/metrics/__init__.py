"""A query's metrics, out of its progress: for the program that started it, which nothing else here imports."""
