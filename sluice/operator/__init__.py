"""What command line, console and demo share of asking a site and acting on it: no function's bundle holds any of it."""
