"""Dynamic routes: what is bound for whom by which way, and what sites tell each other of it. Pure."""
