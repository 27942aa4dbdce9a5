"""Draws boxes and lines, laid out in layers, as SVG with a light and a dark colour scheme. Pure."""
