"""Rendezvous events and their statistics. Pure."""
