"""Dynamic routes: how sites advertise bindings to each other, and choose a path to each site. Pure."""
