"""The map: the topology of all sites, its problems and its drawings. Pure."""
