"""Drawings: boxes and lines laid out in layers, and written as SVG with a light and a dark scheme. Pure."""
