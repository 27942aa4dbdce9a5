"""Drawings: boxes and lines laid out by Graphviz, written as SVG for light and dark. Pure: what they show comes in."""
