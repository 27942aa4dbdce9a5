"""What each page shows, from the functions that the commands' `--json` reads."""
