"""Drawings: boxes and lines laid out in layers, written as SVG for light and dark. Pure."""
