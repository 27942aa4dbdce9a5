"""Benchmarks, one module per question. Each prints figures with ratios; `--json` adds a last line with them as JSON."""
