"""Metrics of a streaming query, computed from its progress in the program that started it."""
