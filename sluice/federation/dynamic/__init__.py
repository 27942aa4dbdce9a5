"""Dynamic routes: sites advertise their bindings to each other, and choose a path to each site. Pure."""
