"""One file a question. Each prints what it measured, with ratios, and with `--json` the same as JSON on the last line."""
