"""One file a question. Each prints what it measured, with ratios; with `--json` also as JSON on the last line."""
